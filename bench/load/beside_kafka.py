"""Measures the load generator beside Kafka's perf tests: the processor time of each, with one Kafka broker.

Each client is a separate process, which sends or reads a number of records as fast as it can and ends. It runs once
with a million records and once with several million. The difference is the cost of the further records, without the
start of the process (imports, a virtual machine, its compiler). All consumers read the topic that our producer wrote.
"""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.children import ends_with_me
from bench.load.calibration import ROOT, CalibrationError
from bench.load.topics import TopicError, topics_for
from bench.peers.kafka import kafka_cluster
from bench.peers.node import PeerError
from bench.peers.perf_tests import consumer_command, consumer_figures, producer_command, producer_figures

PARTITIONS: Final = 16
VALUE_BYTES: Final = 100
MILLION: Final = 1_000_000
OURS, JAVAS = "crucible-beside-ours", "crucible-beside-javas"
NATIVE_SENDS, JAVA_SENDS, NATIVE_READS, JAVA_READS = WORK = (
    "native client sends",
    "kafka-producer-perf-test",
    "native client reads and verifies",
    "kafka-consumer-perf-test",
)
PAIRS: Final = ((NATIVE_SENDS, JAVA_SENDS), (NATIVE_READS, JAVA_READS))


@dataclass(frozen=True, slots=True)
class Ran:
    """A process from its start to its end."""

    records: int
    cpu_s: float
    elapsed_s: float


@dataclass(frozen=True, slots=True)
class Cost:
    """Cost of one client."""

    work: str
    few: Ran  # its run with few records
    many: Ran  # its run with many records

    @property
    def first_million_s(self) -> float:
        """Processor time for the first million records, the start of the process included."""
        return self.few.cpu_s * MILLION / self.few.records

    @property
    def further_million_s(self) -> float:
        """Processor time for a million records more."""
        return (self.many.cpu_s - self.few.cpu_s) / (self.many.records - self.few.records) * MILLION


def measure(millions: int, progress: Callable[[str], None]) -> list[Cost]:
    """Measure all four clients with one million records and with ``millions`` of them.

    :raises CalibrationError: a client failed. :raises PeerError: Java or Kafka cannot be had.
    """
    assert millions > 1, "the difference of two runs needs two numbers"
    ran: dict[str, list[Ran]] = {work: [] for work in WORK}
    with _broker() as address, _topics(address):
        bootstrap = f"{address[0]}:{address[1]}"
        for records in (MILLION, millions * MILLION):
            commands = {
                NATIVE_SENDS: (_native("send", bootstrap, records), _native_records),
                JAVA_SENDS: (
                    producer_command(bootstrap, JAVAS, records, VALUE_BYTES, settings={"acks": "all"}),
                    lambda printed: producer_figures(printed).records,
                ),
                NATIVE_READS: (_native("read", bootstrap, records), _native_records),
                JAVA_READS: (
                    consumer_command(bootstrap, OURS, records, f"crucible-beside-{records}"),
                    lambda printed: consumer_figures(printed).records,
                ),
            }
            for work, (command, records_of) in commands.items():
                progress(f"{work}: {records / MILLION:g} million records")
                each = _run(command, work, records_of)
                if each.records < records:
                    raise CalibrationError(f"{work}: did only {each.records:,} of {records:,} records.")
                ran[work].append(each)
    return [Cost(work, *both) for work, both in ran.items()]


@contextmanager
def _broker() -> Iterator[tuple[str, int]]:
    with (
        TemporaryDirectory(prefix="crucible-bench-", ignore_cleanup_errors=True) as folder,
        kafka_cluster(Path(folder), 1, {}) as cluster,
    ):
        cluster.launch()
        cluster.await_ready()
        yield "127.0.0.1", cluster.ports[0]


@contextmanager
def _topics(address: tuple[str, int]) -> Iterator[None]:
    try:
        with topics_for([address], [OURS, JAVAS], PARTITIONS, 1):
            yield
    except TopicError as error:
        raise CalibrationError(f"Apache Kafka: {error}.") from error


def _native(work: str, bootstrap: str, records: int) -> list[str]:
    numbers = ["--partitions", str(PARTITIONS), "--records", str(records), "--value-bytes", str(VALUE_BYTES)]
    return [sys.executable, "-m", "bench.load.alone", work, bootstrap, OURS, *numbers]


def _native_records(printed: str) -> int:
    return int(printed)


def _run(command: Sequence[str], work: str, records_of: Callable[[str], int]) -> Ran:
    """Run a process to its end, with the processor time of all its threads."""
    began_s = time.monotonic()
    with subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, preexec_fn=ends_with_me()
    ) as process:
        assert process.stdout is not None, "its output has a pipe"
        printed = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise CalibrationError(f"{work} failed: {' / '.join(printed.strip().splitlines()[-3:])}")
    try:
        records = records_of(printed)
    except (PeerError, ValueError) as error:
        raise CalibrationError(f"{work}: {error}") from error
    return Ran(records, usage.ru_utime + usage.ru_stime, time.monotonic() - began_s)
