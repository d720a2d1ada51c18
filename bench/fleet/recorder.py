"""Takes history rows from behaviours: it derives latency and load from them, and passes all to a sink in batches.

There are two sinks: memory (simulator, tests) and Parquet (``parquet_sink.py``, fleet workers). A row costs the load
generator one list append and, for operations, two counts of a histogram. The sink does the expensive work.

Latency histograms have log-linear buckets, none wider than 1 % of its lower bound. Each power of two has 128 buckets.
Below 256 us each microsecond has a bucket of its own. A histogram is a Counter of bucket numbers, so the histograms of
seconds, workers and runs add up without loss.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, field
from typing import Any, Final, Protocol, TypeAlias

from bench.fleet.behaviours.protocol import Behaviour, Now
from bench.locust.generator import Sample
from reports.columns import ROW_TABLES, Row
from reports.parts import ROLL_S
from reports.rows import END_OF_RUN_US, HistoryRow, LatencyRow, LoadRow, OperationRow, SpanRow

_STEPS_LOG2: Final = 7
_STEPS: Final = 1 << _STEPS_LOG2


def bucket_of(value_us: int) -> int:
    """Return the number of a latency's bucket. Negative latencies, after a step of a clock, count as 0."""
    if value_us < 2 * _STEPS:
        return max(value_us, 0)
    shift = value_us.bit_length() - 1 - _STEPS_LOG2
    return (shift << _STEPS_LOG2) + (value_us >> shift)


def bounds_us(bucket: int) -> tuple[int, int]:
    """Return the lower bound of a bucket, which belongs to it, and the upper bound, which does not."""
    if bucket < 2 * _STEPS:
        return bucket, bucket + 1
    shift = (bucket >> _STEPS_LOG2) - 1
    step = bucket - (shift << _STEPS_LOG2)
    return step << shift, (step + 1) << shift


AnyRow: TypeAlias = HistoryRow | LatencyRow | LoadRow
Columns: TypeAlias = dict[str, list[Any]]

TABLE_OF: Final[Mapping[type[Row], str]] = {row: table.name for row, table in ROW_TABLES.items()}
_MOMENTS: Final = {
    row: [column.name for column in table.columns if column.is_moment] for row, table in ROW_TABLES.items()
}
_SECOND_US: Final = 1_000_000


class HistorySink(Protocol):
    """The destination of rows, one batch of a table at a time."""

    def write(self, table: str, rows: Sequence[AnyRow], origin_us: int) -> None: ...

    def roll(self, until_us: int) -> None:
        """End a part: what was written up to now may be read, while more is written. ``until_us`` is the time of that,
        since the run's start."""
        ...

    def close(self) -> None:
        """All rows written are safe when this returns."""
        ...


def columns_of(rows: Sequence[AnyRow], origin_us: int) -> Columns:
    """Turn rows into columns. Clock times become microseconds since the run's start."""
    if not rows:
        return {}
    kind = type(rows[0])
    names = [column.name for column in ROW_TABLES[kind].columns]
    columns: Columns = dict(zip(names, map(list, zip(*map(kind.values, rows), strict=True)), strict=True))
    for name in _MOMENTS[kind] if origin_us else ():
        columns[name] = [each if each == END_OF_RUN_US else each - origin_us for each in columns[name]]
    return columns


@dataclass(slots=True)
class MemorySink:
    """Keeps tables as lists of rows. Times stay as the behaviours' clock showed them."""

    tables: dict[str, list[AnyRow]] = field(default_factory=dict)

    def write(self, table: str, rows: Sequence[AnyRow], origin_us: int) -> None:  # noqa: ARG002
        self.tables.setdefault(table, []).extend(rows)

    def roll(self, until_us: int) -> None:
        """All can be read at any time."""

    def close(self) -> None:
        """Do nothing, because no records are buffered elsewhere."""


@dataclass(slots=True)
class Second:
    """The counters of one second, in the order of LoadRow, which says what they mean."""

    offered: int = 0
    sent: int = 0
    completed: int = 0
    failed: int = 0
    max_slip_us: int = 0
    cpu_permille: int = 0
    wanted_permille: int = 0
    lag_us: int = 0


@dataclass(slots=True)
class Totals:
    """Counts since the start, for progress lines."""

    ok: int = 0
    failed: int = 0
    acked_records: int = 0
    read_records: int = 0
    fetches: int = 0


@dataclass(frozen=True, slots=True)
class Live:
    """Figures of the last seconds, for those who watch the load.

    A 99th percentile is that of response times, which count from the time when an operation was due. It is 0 if there
    was none.
    """

    offered: int  # operations that were due in these seconds
    completed: int  # operations that ended in these seconds
    produce_p99_us: int
    fetch_p99_us: int


class Recorder:
    """The recorder of one worker or simulated world. It is not thread-safe; only the worker's own thread calls it.

    ``origin_us`` is the run's start on the behaviours' clock. A batch has ``batch_rows`` rows of one table. A part of
    the history holds ``roll_s`` seconds.
    """

    def __init__(
        self, sink: HistorySink, worker: str, origin_us: int = 0, batch_rows: int = 5_000, roll_s: float = ROLL_S
    ) -> None:
        self.worker = worker
        self.totals = Totals()
        self._sink = sink
        self._origin_us = origin_us
        self._batch_rows = batch_rows
        self._roll_us = int(roll_s * _SECOND_US)
        self._rolled_us = origin_us
        self._pending: dict[str, list[AnyRow]] = {name: [] for name in TABLE_OF.values()}
        self._latency: defaultdict[tuple[str, str, int], Counter[int]] = defaultdict(Counter)
        self._seconds: defaultdict[int, Second] = defaultdict(Second)
        self._closed = False

    def record(self, rows: Iterable[HistoryRow]) -> None:
        pending = self._pending
        for row in rows:
            table = TABLE_OF[type(row)]
            waiting = pending[table]
            waiting.append(row)
            if isinstance(row, OperationRow):
                self._count(row)
            elif isinstance(row, SpanRow):
                self._count_run(row)
            if len(waiting) >= self._batch_rows:
                self._flush(table)

    def _count(self, row: OperationRow) -> None:
        origin, done_us = self._origin_us, row.complete_us
        completed = (done_us - origin) // _SECOND_US
        for measure, from_us in (("service", row.invoke_us), ("response", row.intended_us)):
            self._latency[row.f, measure, completed][bucket_of(done_us - from_us)] += 1
        self._seconds[(row.intended_us - origin) // _SECOND_US].offered += 1
        if row.error != "not_sent":
            sent = self._seconds[(row.invoke_us - origin) // _SECOND_US]
            sent.sent += 1
            sent.max_slip_us = max(sent.max_slip_us, row.invoke_us - row.intended_us)
        if row.type == "ok":
            self._seconds[completed].completed += 1
            self.totals.ok += 1
        else:
            self._seconds[completed].failed += 1
            self.totals.failed += 1
        if row.f == "fetch":
            self.totals.fetches += 1

    def _count_run(self, row: SpanRow) -> None:
        if row.kind == "read":
            self.totals.read_records += row.count
        elif row.first_offset >= 0:
            self.totals.acked_records += row.count

    def note_generator(self, now_us: int, sample: Sample) -> None:
        """Note how hard the worker worked in the second that ``now_us`` lies in."""
        second = self._seconds[(now_us - self._origin_us) // _SECOND_US]
        second.cpu_permille, second.wanted_permille = sample.cpu_permille, sample.wanted_permille
        second.lag_us = sample.lag_us

    def live(self, now_us: int, seconds: int) -> Live:
        """Return the figures of the last ``seconds`` whole seconds."""
        now = (now_us - self._origin_us) // _SECOND_US
        past = range(now - seconds, now)
        counts = [self._seconds[each] for each in past if each in self._seconds]
        return Live(
            offered=sum(count.offered for count in counts),
            completed=sum(count.completed for count in counts),
            produce_p99_us=self._p99_us("produce", past),
            fetch_p99_us=self._p99_us("fetch", past),
        )

    def _p99_us(self, operation: str, seconds: Iterable[int]) -> int:
        found: Counter[int] = sum(
            (self._latency.get((operation, "response", second), Counter()) for second in seconds), Counter()
        )
        below = found.total() * 0.99
        for bucket in sorted(found):
            below -= found[bucket]
            if below <= 0:
                return bounds_us(bucket)[0]
        return 0

    def write_out(self) -> None:
        """Hand over the rows that wait, so that little is lost if the worker dies."""
        for table in list(self._pending):
            self._flush(table)

    def write_part(self, now_us: int) -> None:
        """Hand over the rows that wait, and end a part of the history if one is due."""
        self.write_out()
        if now_us - self._rolled_us >= self._roll_us:
            self._rolled_us = now_us
            self._sink.roll(now_us - self._origin_us)

    def close(self, now: Now, behaviours: Iterable[Behaviour] = ()) -> None:
        """End the history. What the behaviours have open becomes ``info``, and then everything is written."""
        if self._closed:
            return
        for behaviour in behaviours:
            self.record(behaviour.close(now))
        self._closed = True
        self._pending["latency"].extend(self.latency_rows())
        self._pending["load"].extend(self.load_rows())
        self.write_out()
        self._sink.close()

    def _flush(self, table: str) -> None:
        rows = self._pending[table]
        if rows:
            self._pending[table] = []
            self._sink.write(table, rows, self._origin_us)

    def latency_rows(self) -> list[LatencyRow]:
        return [
            LatencyRow(operation, measure, self.worker, second, bucket, *bounds_us(bucket), count)
            for (operation, measure, second), histogram in sorted(self._latency.items(), key=lambda one: one[0])
            for bucket, count in sorted(histogram.items())
        ]

    def load_rows(self) -> list[LoadRow]:
        return [LoadRow(self.worker, number, *astuple(self._seconds[number])) for number in sorted(self._seconds)]
