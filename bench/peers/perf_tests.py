"""Kafka's kafka-producer-perf-test and kafka-consumer-perf-test: their commands, and the figures that they print."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from bench.peers.kafka import java_command
from bench.peers.node import PeerError

PRODUCER_PERF: Final = "org.apache.kafka.tools.ProducerPerformance"
CONSUMER_PERF: Final = "org.apache.kafka.tools.ConsumerPerformance"
UNLIMITED: Final = -1
_HEAP: Final = ("-Xmx512m",)
"""kafka-run-class.sh has -Xmx256m; its own script for the producer has 512."""
_SUMMARY: Final = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec \([\d.]+ MB/sec\), ([\d.]+) ms avg latency, ([\d.]+) ms max latency, "
    r"(\d+) ms 50th, (\d+) ms 95th, (\d+) ms 99th, (\d+) ms 99.9th",
    re.M,
)


@dataclass(frozen=True, slots=True)
class ProducerFigures:
    """The summary of the producer's tool. Latencies count from the call of ``send`` to the acknowledgement; all records
    are in it, the first ones included."""

    records: int
    records_per_s: float
    mean_ms: float
    max_ms: float
    p50_ms: float
    p95_ms: float
    p99_ms: float
    p999_ms: float


@dataclass(frozen=True, slots=True)
class ConsumerFigures:
    """The output line of Kafka's consumer perf test."""

    records: int
    records_per_s: float
    fetch_records_per_s: float  # without the time of the group's first rebalance


def producer_command(
    bootstrap: str,
    topic: str,
    records: int,
    record_bytes: int,
    records_per_s: float = UNLIMITED,
    settings: Mapping[str, str] | None = None,
) -> list[str]:
    """Raise PeerError when Java or the jars cannot be had."""
    words = ["--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)]
    words += ["--throughput", f"{records_per_s:.3f}" if records_per_s > 0 else str(UNLIMITED), "--producer-props"]
    words += [f"bootstrap.servers={bootstrap}", *(f"{name}={value}" for name, value in (settings or {}).items())]
    return java_command(PRODUCER_PERF, words, _HEAP)


def consumer_command(bootstrap: str, topic: str, records: int, group: str, timeout_s: float = 10.0) -> list[str]:
    """The tool ends after ``records``, or ``timeout_s`` after the last record that came. Raise PeerError when Java or
    the jars cannot be had."""
    words = ["--bootstrap-server", bootstrap, "--topic", topic, "--messages", str(records), "--group", group]
    return java_command(CONSUMER_PERF, [*words, "--timeout", str(int(timeout_s * 1000)), "--hide-header"], _HEAP)


def producer_figures(printed: str) -> ProducerFigures:
    """Return what the tool's summary states. Raise PeerError if there is none."""
    found = _SUMMARY.findall(printed)
    if not found:
        raise PeerError(f"kafka-producer-perf-test printed no summary: {_end_of(printed)}")
    records, *figures = found[-1]
    return ProducerFigures(int(records), *map(float, figures))


def consumer_figures(printed: str) -> ConsumerFigures:
    """Return what the tool's line states. Raise PeerError if there is none."""
    for line in reversed(printed.splitlines()):
        fields = [each.strip() for each in line.split(",")]
        if len(fields) == 10 and fields[4].isdecimal():
            return ConsumerFigures(int(fields[4]), float(fields[5]), float(fields[9]))
    raise PeerError(f"kafka-consumer-perf-test printed no figures: {_end_of(printed)}")


def _end_of(printed: str) -> str:
    return " / ".join(printed.strip().splitlines()[-3:]) or "it printed nothing"
