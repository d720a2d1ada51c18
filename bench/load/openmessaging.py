"""Results in OpenMessaging Benchmark's JSON: ours are written so that its tools read them, and published ones are read.

A file has the fields of ``TestResult.java`` and no others, since its own reader refuses unknown ones. There is a value
for each ten seconds. Publish and end-to-end latencies are milliseconds; publish delays are whole microseconds.
"""

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.load.measures import LoadSecond, max_us, mean_us, quantile_us
from bench.load.results import LoadResult, Stated, backlog_of, has_percentile

PERIOD_S: Final = 10
"""OpenMessaging writes a value after this time (``WorkloadGenerator.printAndCollectStats``)."""
PERCENTILES: Final = {
    "50pct": 0.5,
    "75pct": 0.75,
    "95pct": 0.95,
    "99pct": 0.99,
    "999pct": 0.999,
    "9999pct": 0.9999,
    "99999pct": 0.99999,
}
NAMES: Final = {"publish": "publishLatency", "delay": "publishDelayLatency", "end_to_end": "endToEndLatency"}
SHARES: Final = (*(step / 20 for step in range(20)), *(1 - 10 ** (-step / 10) for step in range(14, 52)))
"""Shares of the quantiles in a file."""


def document_of(result: LoadResult) -> dict[str, Any]:
    """Return a run as a table of OpenMessaging's fields. A last period may be shorter than ten seconds."""
    workload = result.workload
    periods = [range(at, min(at + PERIOD_S, result.end)) for at in range(result.first, max(result.end, 1), PERIOD_S)]

    def rates(of: Callable[[LoadSecond], int]) -> list[float]:
        seconds = result.measures.seconds
        return [sum(of(seconds[at]) for at in period if at in seconds) / len(period) for period in periods]

    backlog = backlog_of(result)
    document: dict[str, Any] = {
        "workload": workload.name,
        "driver": result.target,
        "messageSize": workload.value_bytes,
        "topics": workload.topics,
        "partitions": workload.partitions_per_topic,
        "producersPerTopic": workload.producers_per_topic,
        "consumersPerTopic": workload.consumer_per_subscription,
        "publishRate": rates(lambda each: int(getattr(each, result.written))),
        "publishErrorRate": rates(lambda each: each.failed),
        "consumeRate": rates(lambda each: each.read),
        "backlog": [backlog[period[-1] - result.first] for period in periods],
    }
    for measure, name in NAMES.items():
        unit = _whole_us if measure == "delay" else _ms
        whole = result.measures.histogram(measure, result.first, result.end)
        parts = [result.measures.histogram(measure, period[0], period[-1] + 1) for period in periods]
        capital = f"aggregated{name[0].upper()}{name[1:]}"
        average = float if measure == "delay" else _ms
        document[f"{name}Avg"] = [average(mean_us(part)) for part in parts]
        document[f"{capital}Avg"] = average(mean_us(whole))
        for label, share in PERCENTILES.items():
            document[f"{name}{label}"] = [unit(quantile_us(part, share)) for part in parts]
            document[f"{capital}{label}"] = unit(quantile_us(whole, share))
        document[f"{name}Max"] = [unit(max_us(part)) for part in parts]
        document[f"{capital}Max"] = unit(max_us(whole))
        document[f"{capital}Quantiles"] = {str(percent): unit(each) for percent, each in _quantiles(whole)}
    if result.stated is not None:
        document |= _stated(result.stated)
    return document


def _stated(stated: Stated) -> dict[str, Any]:
    """Return the fields for which other tools state figures. The file has no field that could say so."""
    labels = {label: share for label, share in PERCENTILES.items() if share in stated.quantiles_ms}
    quantiles = {str(round(share * 100, 6)): value for share, value in stated.quantiles_ms.items()}
    return {
        "publishRate": [stated.sent_per_s],
        "consumeRate": [stated.read_per_s],
        "aggregatedPublishLatencyAvg": stated.mean_ms,
        "aggregatedPublishLatencyMax": stated.max_ms,
        **{f"aggregatedPublishLatency{label}": stated.quantiles_ms[share] for label, share in labels.items()},
        "aggregatedPublishLatencyQuantiles": {**quantiles, "100.0": stated.max_ms},
    }


def _quantiles(histogram: Counter[int]) -> Iterator[tuple[float, float]]:
    """Yield percentiles with a value, in microseconds, up to the last that a record lies beyond."""
    records = sum(histogram.values())
    for share in SHARES:
        if records * (1 - share) >= 1:
            yield round(share * 100, 6), quantile_us(histogram, share)
    yield 100.0, max_us(histogram)


def _ms(latency_us: float) -> float:
    return latency_us / 1000


def _whole_us(latency_us: float) -> int:
    return round(latency_us)


class PublishedError(Exception):
    """The file is no result of OpenMessaging Benchmark. The message is one sentence."""


class _File(msgspec.Struct, rename="camel", kw_only=True):
    """The fields that are read. Older files lack delays, and have fields that are not read."""

    workload: str
    driver: str
    publish_rate: list[float]
    consume_rate: list[float]
    backlog: list[float]
    aggregated_publish_latency_quantiles: dict[str, float]
    aggregated_publish_delay_latency_quantiles: dict[str, float] = msgspec.field(default_factory=dict)
    aggregated_end_to_end_latency_quantiles: dict[str, float] = msgspec.field(default_factory=dict)
    publish_error_rate: list[float] = msgspec.field(default_factory=list)
    message_size: int = 0
    topics: int = 0
    partitions: int = 0


@dataclass(frozen=True, slots=True)
class Published:
    """A result that was published. Rates are records a second, one for each ten seconds."""

    file: str
    workload: str
    driver: str
    message_size: int  # 0: not known
    topics: int  # 0: not known
    partitions: int  # of each topic
    publish_rates: tuple[float, ...]
    consume_rates: tuple[float, ...]
    backlog: tuple[float, ...]
    failed: float
    quantiles_ms: dict[str, tuple[tuple[float, float], ...]] = field(default_factory=dict)
    """shares with their latency, ascending, by measure: publish, delay, end_to_end"""

    @property
    def name(self) -> str:
        return f"{self.driver} (published)"

    @property
    def publish_rate(self) -> float:
        return sum(self.publish_rates) / len(self.publish_rates)

    @property
    def consume_rate(self) -> float:
        return sum(self.consume_rates) / max(1, len(self.consume_rates))

    @property
    def records(self) -> int:
        """About the number that was published. How many batches they made is not in the file."""
        return int(sum(self.publish_rates) * PERIOD_S)

    def percentile_ms(self, measure: str, share: float) -> float | None:
        """Return a percentile; None if the file lacks it, or if too few records lie beyond it."""
        if not has_percentile(self.records, share):
            return None
        return next((each for at, each in self.quantiles_ms.get(measure, ()) if at >= share - 1e-9), None)


def read_published(path: Path) -> Published:
    """Read a result file. :raises PublishedError: it is another file, or damaged."""
    try:
        found = msgspec.json.decode(path.read_bytes(), type=_File)
    except OSError as error:
        raise PublishedError(f"{path}: cannot be read: {error.strerror}.") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        why = str(error).replace(" - at `$", " at `").replace("Object missing", "it lacks").replace("``", "`")
        raise PublishedError(f"{path.name}: is no result file of OpenMessaging Benchmark: {why}.") from error
    numbers = [*found.publish_rate, *found.consume_rate, *found.backlog]
    if not found.publish_rate or not all(isfinite(number) and number >= 0 for number in numbers):
        raise PublishedError(
            f"{path.name}: is no result file of OpenMessaging Benchmark: its rates are missing or negative."
        )
    tables = {
        "publish": (found.aggregated_publish_latency_quantiles, 1.0),
        "delay": (found.aggregated_publish_delay_latency_quantiles, 1000.0),
        "end_to_end": (found.aggregated_end_to_end_latency_quantiles, 1.0),
    }
    try:
        quantiles = {
            measure: tuple(sorted((float(percent) / 100, each / unit) for percent, each in table.items()))
            for measure, (table, unit) in tables.items()
        }
    except ValueError as error:
        raise PublishedError(
            f"{path.name}: is no result file of OpenMessaging Benchmark: a percentile is no number."
        ) from error
    return Published(
        file=path.name,
        workload=found.workload,
        driver=found.driver,
        message_size=found.message_size,
        topics=found.topics,
        partitions=found.partitions,
        publish_rates=tuple(found.publish_rate),
        consume_rates=tuple(found.consume_rate),
        backlog=tuple(found.backlog),
        failed=sum(found.publish_error_rate) * PERIOD_S,
        quantiles_ms=quantiles,
    )
