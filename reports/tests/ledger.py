"""A legal history with transactions: a writer, a worker that consumes, transforms and produces, and readers of both
isolation levels. A test plants what is not legal.

The topic ``ledger`` has two partitions, which the writer writes. The worker reads ``in`` and writes ``out``, one value
for each input. Markers take an offset each.
"""

from dataclasses import asdict, dataclass, field

from reports.manifest import Expectations
from reports.rows import (
    END_OF_RUN_US,
    AssignmentRow,
    CommitRow,
    DescribedTransactionRow,
    EndRow,
    OperationRow,
    PositionRow,
    SpanRow,
    TransactionRow,
    TransformRow,
)
from reports.tests.history import History, Row, Shape

OF_TRANSACTIONS = (
    "aborted-read",
    "precommitted-read",
    "dependency-cycle",
    "torn-transaction",
    "lost-transaction",
    "hanging-transaction",
    "hanging-found",
    "lso-regression",
    "exactly-once",
)
"""The guarantees that only histories with transactions can show."""
JANITOR = "janitor-0"
HANGING_AT = 12
"""The offset in partition 0 of the transaction that hangs, until the janitor aborts it."""
LEDGER, SOURCE, TARGET, GROUP = "ledger", "in", "out", "workers"
WRITER, WORKER = "writer-0", "worker-0"
COMMITTED, UNCOMMITTED = "reader-c", "reader-u"
TIMEOUT_US = 2_000_000
END_US = 60_000_000
SHAPE = Shape(faults=())
EXPECTATIONS = Expectations(faults=(), min_fetches=1, min_acked=1)


@dataclass(frozen=True)
class Sent:
    """Values ``first`` to ``first + count - 1`` of the writer at consecutive offsets of a partition."""

    topic: str
    partition: int
    offset: int
    first: int
    count: int


@dataclass
class Ledger:
    """Writes the rows. ``now_us`` moves on with each operation. ``logs`` holds what each partition holds: runs of
    values, each with its writer and whether it was committed."""

    history: History = field(default_factory=lambda: History(SHAPE, 1))
    now_us: int = 1_000_000
    index: dict[str, int] = field(default_factory=dict)
    logs: dict[tuple[str, int], list[tuple[Sent, str, bool]]] = field(default_factory=dict)

    def add(self, table: str, row: object) -> None:
        self.history.tables[table].append(asdict(row))  # type: ignore[call-overload]

    def operation(self, process: str, f: str, kind: str = "ok", node: int = 0, duration_us: int = 10_000) -> int:
        index = self.index[process] = self.index.get(process, -1) + 1
        started_us, self.now_us = self.now_us, self.now_us + duration_us
        self.add("operations", OperationRow(process, index, f, kind, started_us, started_us, self.now_us, node))
        self.now_us += 1_000
        return index

    def transaction(
        self,
        process: str,
        requested_end: str,
        outcome: str,
        *sent: Sent,
        is_there: bool = True,
        offset: int = -1,
        error: str | None = None,
    ) -> int:
        """``is_there`` says whether it is committed. ``offset`` is what it sends for the group."""
        kind = {"ok": "ok", "unknown": "info"}.get(outcome, "fail") if requested_end == "commit" else "fail"
        started_us = self.now_us
        index = self.operation(process, "transaction", kind, duration_us=100_000)
        until = self.now_us - 1_000
        self.add(
            "transactions",
            TransactionRow(
                process,
                index,
                f"{process}-id",
                7,
                index,
                requested_end,
                outcome,
                error,
                TIMEOUT_US,
                started_us,
                until - 40_000,
                until,
            ),
        )
        for position, each in enumerate(sent):
            self.run(process, index, position, "send", each, process)
            self.logs.setdefault((each.topic, each.partition), []).append((each, process, is_there))
        if offset >= 0:
            self.commit(process, index, "transaction", offset, until - 50_000)
        return index

    def run(
        self, process: str, index: int, position: int, kind: str, sent: Sent, writer: str, isolation: int = 0
    ) -> None:
        self.add(
            "runs",
            SpanRow(
                process,
                index,
                position,
                kind,
                sent.topic,
                sent.partition,
                sent.offset,
                sent.count,
                7,
                writer,
                sent.first,
                True,
                -1 if kind == "send" else 0,
                isolation,
            ),
        )

    def commit(self, process: str, index: int, kind: str, offset: int, at_us: int) -> None:
        self.add(
            "commits",
            CommitRow(process, index, kind, GROUP, 1, "m", SOURCE, 0, offset, 0, -1, False, None, at_us),
        )

    def fetched(self, process: str, offset: int) -> None:
        index = self.operation(process, "offset_fetch")
        self.commit(process, index, "fetched", offset, self.now_us - 1_000)

    def read(self, process: str, f: str, topic: str, partition: int, end: int, is_committed: bool) -> None:
        """Read the partition from its beginning to its end in one operation."""
        started_us = self.now_us
        index = self.operation(process, f)
        for position, (sent, writer, is_there) in enumerate(self.logs[topic, partition]):
            if is_there or not is_committed:
                self.run(process, index, position, "read", sent, writer, int(is_committed))
        self.add("positions", PositionRow(process, index, topic, partition, 0, end, end, 0, None, end, 3))
        self.add("assignments", AssignmentRow(process, topic, partition, started_us, END_OF_RUN_US, 0))

    def play(self) -> History:
        index = self.operation("producer-0", "produce")
        given = Sent(SOURCE, 0, 0, 0, 10)
        self.run("producer-0", index, 0, "send", given, "producer-0")
        self.logs[SOURCE, 0] = [(given, "producer-0", True)]
        self._writer()
        self._worker()
        self._janitor()
        ends = {(LEDGER, 0): 14, (LEDGER, 1): 9, (TARGET, 0): 18, (SOURCE, 0): 10}
        for (topic, partition), end in ends.items():
            self.read(COMMITTED, "fetch", topic, partition, end, True)
            self.read(UNCOMMITTED, "fetch", topic, partition, end, False)
        self.now_us = END_US
        for (topic, partition), end in ends.items():
            self.read("final", "final_read", topic, partition, end, False)
            self.read("final-c", "final_read", topic, partition, end, True)
            self.add("ends", EndRow(topic, partition, 0, end, self.now_us, end))
        return self.history

    def _writer(self) -> None:
        self.transaction(WRITER, "commit", "ok", Sent(LEDGER, 0, 0, 0, 2), Sent(LEDGER, 1, 0, 2, 2))
        self.transaction(WRITER, "abort", "ok", Sent(LEDGER, 0, 3, 4, 2), is_there=False)
        self.transaction(WRITER, "commit", "ok", Sent(LEDGER, 0, 6, 6, 2), Sent(LEDGER, 1, 3, 8, 2))
        self.transaction(WRITER, "commit", "unknown", Sent(LEDGER, 0, 9, 10, 2), Sent(LEDGER, 1, 6, 12, 2))
        stray = Sent(LEDGER, 0, HANGING_AT, 14, 1)
        self.transaction(WRITER, "nothing", "failed", stray, is_there=False, error="not_added")

    def _janitor(self) -> None:
        """Find the transaction that no coordinator knows, in two lookups, and abort it. A third look finds
        nothing."""
        for abort in ("", "ok", None):
            index = self.operation(JANITOR, "find_hanging")
            if abort is None:
                self.described(index, 0, -1, -1, -1)
            else:
                self.described(index, 0, 7, 4, HANGING_AT, abort)
            self.described(index, 1, -1, -1, -1)

    def described(self, index: int, partition: int, producer_id: int, epoch: int, start: int, abort: str = "") -> None:
        received_us = self.now_us - 5_000
        ended_us = received_us + 2_000 if abort else received_us
        found = "nothing" if producer_id < 0 else "hanging"
        times = received_us - 2_000, received_us, abort, received_us, ended_us
        self.add(
            "described_transactions",
            DescribedTransactionRow(JANITOR, index, LEDGER, partition, producer_id, epoch, start, "", found, *times),
        )

    def _worker(self) -> None:
        first = self.transaction(WORKER, "commit", "ok", Sent(TARGET, 0, 0, 0, 5), offset=5)
        self.made(WORKER, first, 0, 5, 0)
        aborted = self.transaction(WORKER, "abort", "ok", Sent(TARGET, 0, 6, 5, 3), is_there=False, offset=8)
        self.made(WORKER, aborted, 5, 3, 5)
        self.fetched(WORKER, 5)
        second = self.transaction(WORKER, "commit", "ok", Sent(TARGET, 0, 10, 8, 5), offset=10)
        self.made(WORKER, second, 5, 5, 8)
        self.fetched(WORKER, 10)

    def made(self, process: str, index: int, source_offset: int, count: int, first: int) -> None:
        self.add(
            "transforms",
            TransformRow(process, index, GROUP, SOURCE, 0, source_offset, count, TARGET, 0, process, first),
        )


def rows_of(history: History, writer: str, first: int, *readers: str) -> list[Row]:
    """The reads of the run that begins with this value, by these readers, or by those with read_committed."""
    of = readers or (COMMITTED, "final-c")
    return [
        row for row in history.rows("runs", kind="read", writer=writer, first_sequence=first) if row["process"] in of
    ]
