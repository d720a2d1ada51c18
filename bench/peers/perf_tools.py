"""Kafka's own performance tools, run against any broker."""

import re
import subprocess
from dataclasses import dataclass

from bench.peers.errors import PeerError
from bench.peers.jars import kafka_classpath


@dataclass(frozen=True, slots=True)
class ProducerPerf:
    """The last line of Kafka's producer perf test."""

    records_per_s: float
    mb_per_s: float
    p50_ms: int
    p99_ms: int


_SUMMARY = re.compile(
    r"^(\d+) records sent, ([\d.]+) records/sec \(([\d.]+) MB/sec\).* (\d+) ms 50th, \d+ ms 95th, (\d+) ms 99th", re.M
)


def producer_perf(bootstrap: str, topic: str, records: int, record_bytes: int) -> ProducerPerf:
    """``kafka-producer-perf-test``: unlimited rate, acks=all, the producer's default batching; raises PeerError."""
    command = [
        "java",
        "-Xmx512m",
        "-cp",
        kafka_classpath(),
        "org.apache.kafka.tools.ProducerPerformance",
        "--topic",
        topic,
        "--num-records",
        str(records),
        "--record-size",
        str(record_bytes),
        "--throughput",
        "-1",
        "--producer-props",
        f"bootstrap.servers={bootstrap}",
        "acks=all",
    ]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    found = _SUMMARY.findall(done.stdout)
    if done.returncode != 0 or not found:
        last = (done.stdout + done.stderr).strip().splitlines()[-1:]
        raise PeerError(f"Kafka's producer perf test failed: {' '.join(last)}")
    count, rate, mb, p50, p99 = found[-1]
    if int(count) != records:
        raise PeerError(f"Kafka's producer perf test sent {count} of {records} records")
    return ProducerPerf(float(rate), float(mb), int(p50), int(p99))
