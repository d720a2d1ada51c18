"""Runs Kafka's own producer performance test against any broker."""

import re

from bench.peers.java import run_java
from bench.peers.node import PeerError

PERF_LIMIT_S = 600.0
_SUMMARY = re.compile(r"^(\d+) records sent, ([\d.]+) records/sec \(.* 99th", re.M)


def producer_perf(
    bootstrap: str, topic: str, records: int, record_bytes: int, transaction_ms: int | None = None
) -> float:
    """Returns the records per second of ``kafka-producer-perf-test``, by the last line that it prints.

    The rate is unlimited, acks is all, and batching is the producer's default. ``transaction_ms`` is the length of its
    transactions, or None for none. Raises PeerError.
    """
    words = ["--topic", topic, "--num-records", str(records), "--record-size", str(record_bytes)]
    words += ["--throughput", "-1", "--producer-props", f"bootstrap.servers={bootstrap}", "acks=all"]
    if transaction_ms is not None:
        words[:0] = ["--transactional-id", f"id-of-{topic}", "--transaction-duration-ms", str(transaction_ms)]
    printed, _ = run_java("org.apache.kafka.tools.ProducerPerformance", words, PERF_LIMIT_S, ["-Xmx512m"])
    found = _SUMMARY.findall(printed)
    if not found:
        raise PeerError(f"Kafka's producer perf test printed no summary: {printed.strip().splitlines()[-1:]}")
    count, records_per_s = found[-1]
    if int(count) != records:
        raise PeerError(f"Kafka's producer perf test sent {count} of {records} records")
    return float(records_per_s)
