"""Results of a load: what workers write, and what a run found, also in OpenMessaging Benchmark's JSON."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.load.ledger import Findings, Range, Read, Sent, judge
from bench.load.measures import MEASURES, Measures, max_us, mean_us, merged, quantile_us
from bench.load.workload import Workload

QUANTILES: Final = {"50pct": 0.5, "75pct": 0.75, "95pct": 0.95, "99pct": 0.99, "999pct": 0.999, "9999pct": 0.9999}
OMB_NAMES: Final = {"publish": "publishLatency", "delay": "publishDelayLatency", "end_to_end": "endToEndLatency"}

BUSY_PERMILLE: Final = 900
LATE_US: Final = 100_000
LIMITED_SHARE: Final = 0.1
"""A worker is the limit in a second in which it wanted nearly all processor time and its own timer was late as well
(the limits of ``reports.read_tables``). A worker that is only busy still sends in time."""
REACHED_SHARE: Final = 0.98


class WorkerResult(msgspec.Struct):
    """What one worker writes at its end. Ranges are those of ``ledger``."""

    measures: Measures
    sent: dict[str, tuple[list[Range], list[Range], list[Range], dict[str, int]]]  # ok, info, fail, errors by producer
    reads: list[tuple[int, dict[str, list[Range]], int, int, int]]
    """of each reader: its subscription, what it read by writer, repeated, reordered and damaged records"""
    read_errors: dict[str, int]


def result_path(folder: Path, index: int) -> Path:
    return folder / f"load-worker-{index}.json"


class LoadResult(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a workload on one target. Seconds from ``first`` to before ``end`` are those that count."""

    workload: Workload
    target: str
    client: str = "native"  # the library of producers and readers
    first: int
    end: int
    measures: Measures
    findings: Findings
    errors: dict[str, int]  # batches and fetches by error
    unfinished: str  # why not all was read; empty if it was
    wanted_records_per_s: float  # by the schedule; 0: as much as responses allow
    brokers_cpu_s: float  # in the seconds that count; -1: not known
    brokers_rss_bytes: int  # at their end; -1: not known
    generator_cpu_permille: int  # of the busiest worker, in its busiest second

    def rate(self, name: str) -> float:
        """Return records a second: offered, sent, acknowledged, failed or read."""
        seconds = [self.measures.seconds.get(at) for at in range(self.first, self.end)]
        records: int = sum(getattr(each, name) for each in seconds if each is not None)
        return records / len(seconds)

    @property
    def offered_rate(self) -> float:
        """Records a second that the schedule wanted; what was sent, where there is none."""
        return self.wanted_records_per_s or self.rate("sent")

    @property
    def generator_was_the_limit(self) -> bool:
        """Whether a worker was busy and late in more than a tenth of the seconds, so its delays are no broker's."""
        seconds = [self.measures.seconds.get(at) for at in range(self.first, self.end)]
        limited = sum(
            each is not None and each.wanted_permille >= BUSY_PERMILLE and each.lag_us >= LATE_US for each in seconds
        )
        return limited > LIMITED_SHARE * len(seconds)

    @property
    def outcome(self) -> str:
        """FAILED: a record was lost, repeated, reordered or damaged. INVALID: the run proves nothing of the broker."""
        if not self.findings.is_clean:
            return "FAILED"
        if self.generator_was_the_limit or self.unfinished or not self.rate("acknowledged"):
            return "INVALID"
        return "PASSED"

    @property
    def reason(self) -> str:
        """Return one sentence on the outcome; empty if there is nothing to say."""
        found = self.findings
        if not found.is_clean:
            counts = {
                "lost": found.lost,
                "repeated": found.repeated,
                "reordered": found.reordered,
                "damaged": found.damaged,
                "refused but read": found.refused_but_read,
            }
            listed = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
            return f"Of {found.acknowledged:,} acknowledged records: {listed}. {found.first_lost}".strip()
        if self.generator_was_the_limit:
            return "The load generator was the limit: it was busy and late. Give it more workers or a lower rate."
        if self.unfinished:
            return f"Not all was read: {self.unfinished}."
        if not self.rate("acknowledged"):
            worst = max(self.errors, key=self.errors.__getitem__, default="no response")
            return f"No record was acknowledged in the seconds that count ({worst})."
        if self.rate("acknowledged") < REACHED_SHARE * self.offered_rate:
            return "The rate was not reached: the brokers acknowledge less than is offered."
        return ""

    def quantile_ms(self, measure: str, share: float) -> float:
        return quantile_us(self.measures.histogram(measure, self.first, self.end), share) / 1000

    def samples(self, measure: str) -> int:
        return sum(self.measures.histogram(measure, self.first, self.end).values())


def collect(folder: Path, workers: int, exactly_once: bool) -> tuple[Measures, Findings, dict[str, int]]:
    """Read what all workers wrote: their measures, the verdict, and errors by name."""
    results = [
        msgspec.json.decode(result_path(folder, each).read_bytes(), type=WorkerResult) for each in range(workers)
    ]
    sent: dict[str, Sent] = {}
    subscriptions: dict[int, list[Read]] = {}
    errors: dict[str, int] = {}
    for result in results:
        for writer, (ok, info, fail, own) in result.sent.items():
            sent[writer] = Sent(ok, info, fail)
            for name, count in own.items():
                errors[name] = errors.get(name, 0) + count
        for number, writers, repeated, reordered, damaged in result.reads:
            subscriptions.setdefault(number, []).append(Read(writers, repeated, reordered, damaged))
        for name, count in result.read_errors.items():
            errors[name] = errors.get(name, 0) + count
    readers: Sequence[Sequence[Read]] = [subscriptions[each] for each in sorted(subscriptions)]
    return merged(each.measures for each in results), judge(sent, readers, exactly_once), errors


def omb_document(result: LoadResult) -> dict[str, Any]:
    """Return the run as OpenMessaging Benchmark writes it (``TestResult.java``), so that its tools can read it.

    Latencies are milliseconds, as there. What OpenMessaging measures and this suite does not is left out.
    """
    seconds = range(result.first, result.end)
    own = [result.measures.seconds.get(at) for at in seconds]
    document: dict[str, Any] = {
        "workload": result.workload.name,
        "driver": result.target,
        "messageSize": result.workload.message_size,
        "topics": result.workload.topics,
        "partitions": result.workload.partitions_per_topic,
        "producersPerTopic": result.workload.producers_per_topic,
        "consumersPerTopic": result.workload.consumer_per_subscription * result.workload.subscriptions_per_topic,
        "publishRate": [float(each.acknowledged) if each else 0.0 for each in own],
        "publishErrorRate": [float(each.failed) if each else 0.0 for each in own],
        "consumeRate": [float(each.read) if each else 0.0 for each in own],
        "backlog": backlog_of(result),
    }
    for measure, name in OMB_NAMES.items():
        whole = result.measures.histogram(measure, result.first, result.end)
        each_second = [result.measures.histogram(measure, at, at + 1) for at in seconds]
        document[f"{name}Avg"] = [mean_us(each) / 1000 for each in each_second]
        document[f"{name}Max"] = [max_us(each) / 1000 for each in each_second]
        capital = name[0].upper() + name[1:]
        document[f"aggregated{capital}Avg"] = mean_us(whole) / 1000
        document[f"aggregated{capital}Max"] = max_us(whole) / 1000
        for label, share in QUANTILES.items():
            document[f"{name}{label}"] = [quantile_us(each, share) / 1000 for each in each_second]
            document[f"aggregated{capital}{label}"] = quantile_us(whole, share) / 1000
        document[f"aggregated{capital}Quantiles"] = {
            str(percent): quantile_us(whole, percent / 100) / 1000 for percent in (50, 75, 90, 95, 99, 99.9, 99.99, 100)
        }
    return document


def backlog_of(result: LoadResult) -> list[int]:
    """Return at each second's end how many acknowledged records some subscription has not read."""
    backlog, found = 0, []
    for at in range(result.end):
        second = result.measures.seconds.get(at)
        if second is not None:
            backlog += second.acknowledged * result.workload.subscriptions_per_topic - second.read
        if at >= result.first:
            found.append(max(0, backlog))
    return found


assert set(OMB_NAMES) < set(MEASURES)
