"""Measures what the load generator reaches on this machine, against a sink that keeps nothing.

A run of a benchmark that comes near these figures has measured the generator and not the broker.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from bench.children import ends_with_me
from bench.load.producer import LoadPlan, LoadProducer, Settled
from bench.load.reader import LoadReader, ReadPlan, Taken
from bench.load.sink import SinkPlan
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.compression import Compression

TOPIC: Final = "crucible-calibration"
WARM_UP_S: Final = 0.5
BATCH_BYTES: Final = 16_384
"""About this much is in a batch: Kafka's own ``batch.size``."""
ROOT: Final = Path(__file__).parents[2]


class CalibrationError(Exception):
    """The generator reached nothing. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Reached:
    """What one worker reached. Processor time is the generator's only."""

    work: str  # sending or reading
    records: int
    size_bytes: int
    elapsed_s: float
    cpu_s: float

    @property
    def records_per_s(self) -> float:
        return self.records / self.elapsed_s

    @property
    def megabytes_per_s(self) -> float:
        return self.size_bytes / self.elapsed_s / 1e6

    @property
    def cpu_us_per_record(self) -> float:
        return self.cpu_s / self.records * 1e6


def calibrate(
    value_bytes: int, seconds: float, progress: Callable[[str], None], compression: Compression = Compression.NONE
) -> list[Reached]:
    """Measure one worker that sends, and then one that reads, each for ``seconds``.

    :raises CalibrationError: nothing was sent or read.
    """
    plan = SinkPlan(value_bytes=value_bytes, batch_records=max(1, BATCH_BYTES // value_bytes))
    with sink_process(plan) as port:
        progress(f"{value_bytes}-byte values: sending for {seconds:g} s")
        sent = _sending(plan, port, seconds, compression)
        progress(f"{value_bytes}-byte values: reading for {seconds:g} s")
        read = _reading(plan, port, seconds)
    return [sent, read]


@contextmanager
def sink_process(plan: SinkPlan) -> Iterator[int]:
    """Start a sink, and yield its port."""
    fields = (plan.partitions, plan.value_bytes, plan.batch_records, plan.read_batches)
    command = [sys.executable, "-m", "bench.load.sink", *map(str, fields)]
    sink = subprocess.Popen(
        command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, preexec_fn=ends_with_me(), text=True
    )
    try:
        assert sink.stdout is not None
        line = sink.stdout.readline()
        if not line:
            raise CalibrationError(f"The sink ended with exit code {sink.wait()}: see its message above.")
        yield int(line)
    finally:
        sink.kill()
        sink.communicate()


def partitions(plan: SinkPlan) -> tuple[TopicPartition, ...]:
    return tuple(TopicPartition(TOPIC, index) for index in range(plan.partitions))


def _sending(plan: SinkPlan, port: int, seconds: float, compression: Compression) -> Reached:
    counts = [0, 0]  # records, bytes of their values

    def settled(each: Settled) -> None:
        if each.kind != "ok":
            raise CalibrationError(f"A batch of the sink ended as {each.kind} ({each.error}).")
        counts[0] += each.count
        counts[1] += each.count * plan.value_bytes

    load = LoadPlan("calibration", partitions(plan), plan.value_bytes, plan.batch_records, compression=compression)
    producer = LoadProducer(load, [("127.0.0.1", port)], settled)
    return _measured("sending", producer, counts, seconds)


def _reading(plan: SinkPlan, port: int, seconds: float) -> Reached:
    counts = [0, 0]

    def taken(each: Taken) -> None:
        if each.error or not all(span.valid for span in each.spans):
            raise CalibrationError(f"The sink's values could not be read ({each.error or 'damaged'}).")
        counts[0] += sum(span.count for span in each.spans)
        counts[1] += sum(span.count for span in each.spans) * plan.value_bytes

    reader = LoadReader(ReadPlan("calibration", partitions(plan)), [("127.0.0.1", port)], taken)
    return _measured("reading", reader, counts, seconds)


def _measured(work: str, client: LoadProducer | LoadReader, counts: list[int], seconds: float) -> Reached:
    """Run a client in this thread. Another one stops it."""
    marks: list[tuple[float, float, int, int]] = []

    def mark() -> None:
        marks.append((time.monotonic(), time.process_time(), counts[0], counts[1]))

    def end() -> None:
        mark()
        client.stop()

    timers = [threading.Timer(WARM_UP_S, mark), threading.Timer(WARM_UP_S + seconds, end)]
    for each in timers:
        each.start()
    try:
        client.run()
    finally:
        for each in timers:
            each.cancel()
    (began_s, cpu_began_s, *first), (ended_s, cpu_ended_s, *last) = marks
    records, size_bytes = (int(after - before) for before, after in zip(first, last, strict=True))
    if not records:
        raise CalibrationError(f"Nothing was done by {work} in {seconds:g} s: give it more time.")
    return Reached(work, records, size_bytes, ended_s - began_s, cpu_ended_s - cpu_began_s)
