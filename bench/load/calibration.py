"""Measures the load generator's own limit: what it reaches on this machine against a sink that keeps nothing.

A run of a benchmark that comes near these figures has measured the generator and not the broker (``NEAR_SHARE`` in
``results.py``). Figures are kept in a file (``Calibrations``), by the processor, the commit, and the size of values and
batches. The first that are not known are measured, which takes a few seconds.
"""

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from bench.children import ends_with_me
from bench.load.producer import LoadPlan, LoadProducer, Settled
from bench.load.reader import LoadReader, ReadPlan, Taken
from bench.load.record_batches import MessageSizes, RecordHeaders
from bench.load.sink import SinkPlan
from bench.machine import commit, machine
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.compression import Compression
from reference_broker.records.record import HeaderPair

TOPIC: Final = "crucible-calibration"
WARM_UP_S: Final = 0.5
BATCH_BYTES: Final = 16_384
"""About this much is in a batch: Kafka's own ``batch.size``."""
ROOT: Final = Path(__file__).parents[2]


class CalibrationError(Exception):
    """The generator reached nothing. The message is one sentence."""


@dataclass(frozen=True, slots=True)
class Reached:
    """Figures that one worker reached. Processor time is the generator's only."""

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


class Batches(msgspec.Struct, frozen=True):
    """The batches that are sent and read: values of one size or of several."""

    value_bytes: int  # the mean
    records: int
    compression: str = "none"
    sizes: MessageSizes | None = None
    headers: RecordHeaders | None = None

    @property
    def drawn(self) -> tuple[int, ...]:
        return () if self.sizes is None else tuple(self.sizes.drawn())

    @property
    def pairs(self) -> tuple[HeaderPair, ...]:
        return () if self.headers is None else self.headers.pairs

    @property
    def name(self) -> str:
        headers = "" if self.headers is None else f" and {self.headers.count} headers"
        mean = "" if self.sizes is None else "about "
        return f"{mean}{self.value_bytes}-byte values{headers}"


def full(value_bytes: int, compression: str = "none") -> Batches:
    """Return batches that are as large as Kafka's producers make them."""
    return Batches(value_bytes, max(1, BATCH_BYTES // value_bytes), compression)


def calibrate(batches: Batches, seconds: float, progress: Callable[[str], None]) -> list[Reached]:
    """Measure one worker that sends, and then one that reads, each for ``seconds``.

    :raises CalibrationError: nothing was sent or read.
    """
    plan = SinkPlan(
        value_bytes=batches.value_bytes, batch_records=batches.records, sizes=batches.sizes, headers=batches.headers
    )
    with sink_process(plan) as port:
        progress(f"generator alone, {batches.name}: sending for {seconds:g} s")
        sent = _sending(plan, port, seconds, batches)
        progress(f"generator alone, {batches.name}: reading for {seconds:g} s")
        read = _reading(plan, port, seconds, batches)
    return [sent, read]


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """Rates that one worker reached, in records per second."""

    cpu: str
    cores: int
    commit: str
    batches: Batches
    sent_per_s: float
    read_per_s: float

    def capacity(self, workers: int, subscriptions: int, sends: int = 1) -> float:
        """Return the records a second that workers can send and read, each record once for each subscription.

        A worker does both in one thread, so their times add up. Workers beyond the number of cores add nothing.
        ``sends`` is how often each record is sent.
        """
        return min(workers, self.cores) / (sends / self.sent_per_s + subscriptions / self.read_per_s)


SECONDS: Final = 2.0
"""Duration of the measurement of sending and reading if a figure is missing."""
SIMILAR: Final = 1.25
"""Batches whose sizes differ by less than this ratio cost about the same for each record."""
MAX_KEPT_CALIBRATIONS: Final = 200
"""The newest figures that stay in the file."""
FILE_NAME: Final = "calibration.json"


class Calibrations:
    """Figures of this machine and commit, in a file that runs share. Figures of others stay in the file."""

    def __init__(
        self,
        folder: Path,
        progress: Callable[[str], None],
        measure: Callable[[Batches, float, Callable[[str], None]], list[Reached]] = calibrate,
    ) -> None:
        about = machine()
        self.path = folder / FILE_NAME
        self._progress = progress
        self._measure = measure
        self._here = (str(about["cpu"]), int(about["cores"]), commit())
        self._all = self._read()

    def _read(self) -> list[Calibration]:
        """Return what the file has. A file that is missing or damaged has nothing, so figures are measured again."""
        try:
            return msgspec.json.decode(self.path.read_bytes(), type=list[Calibration])
        except (OSError, msgspec.DecodeError):
            return []

    def find(self, batches: Batches) -> Calibration | None:
        """Return the figures of batches that are about as large; None if they are not known."""
        for each in self._all:
            known = each.batches
            is_same = msgspec.structs.replace(known, records=batches.records) == batches
            small, large = sorted((known.records, batches.records))
            if is_same and (each.cpu, each.cores, each.commit) == self._here and large < small * SIMILAR:
                return each
        return None

    def known(self, batches: Batches) -> Calibration:
        """Return the figures, measured now if they are missing. :raises CalibrationError: nothing was reached."""
        return self.find(batches) or self.add(batches, self._measure(batches, SECONDS, self._progress))

    def add(self, batches: Batches, reached: Sequence[Reached]) -> Calibration:
        """Store the measured figures in place of earlier ones."""
        sent, read = reached
        cpu, cores, at = self._here
        found = Calibration(
            cpu=cpu,
            cores=cores,
            commit=at,
            batches=batches,
            sent_per_s=sent.records_per_s,
            read_per_s=read.records_per_s,
        )
        others = (
            calibration
            for calibration in self._read()
            if (calibration.batches, calibration.cpu, calibration.cores, calibration.commit)
            != (batches, cpu, cores, at)
        )
        self._all = [found, *others][:MAX_KEPT_CALIBRATIONS]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.path.write_bytes(msgspec.json.format(msgspec.json.encode(self._all)))
        return found


@contextmanager
def sink_process(plan: SinkPlan) -> Iterator[int]:
    """Start a sink, and yield its port."""
    command = [sys.executable, "-m", "bench.load.sink", msgspec.json.encode(plan).decode()]
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


def _sending(plan: SinkPlan, port: int, seconds: float, batches: Batches) -> Reached:
    counts = [0, 0]  # records, bytes of their values

    def settled(each: Settled) -> None:
        if each.kind != "ok":
            raise CalibrationError(f"A batch of the sink ended as {each.kind} ({each.error}).")
        counts[0] += each.count
        counts[1] += each.count * plan.value_bytes

    load = LoadPlan(
        "calibration",
        partitions(plan),
        plan.value_bytes,
        plan.batch_records,
        compression=Compression[batches.compression.upper()],
        sizes=batches.drawn,
        headers=batches.pairs,
    )
    producer = LoadProducer(load, [("127.0.0.1", port)], settled)
    return _measured("sending", producer, counts, seconds)


def _reading(plan: SinkPlan, port: int, seconds: float, batches: Batches) -> Reached:
    counts = [0, 0]

    def taken(each: Taken) -> None:
        if each.error or not all(span.valid for span in each.spans):
            raise CalibrationError(f"The sink's values could not be read ({each.error or 'damaged'}).")
        counts[0] += sum(span.count for span in each.spans)
        counts[1] += sum(span.count for span in each.spans) * plan.value_bytes

    read = ReadPlan("calibration", partitions(plan), by_record=batches.sizes is not None, headers=batches.pairs or None)
    reader = LoadReader(read, [("127.0.0.1", port)], taken)
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
    for timer in timers:
        timer.start()
    try:
        client.run()
    finally:
        for timer in timers:
            timer.cancel()
    (began_s, cpu_began_s, *first), (ended_s, cpu_ended_s, *last) = marks
    records, size_bytes = (int(after - before) for before, after in zip(first, last, strict=True))
    if not records:
        raise CalibrationError(f"Nothing was done by {work} in {seconds:g} s: give it more time.")
    return Reached(work, records, size_bytes, ended_s - began_s, cpu_ended_s - cpu_began_s)
