"""The recorded history of a run, and the values in its rows. Checks of clients' observations judge it at the end."""

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, wraps
from typing import Any, NamedTuple, Protocol, TypeVar

from reports.columns import ROW_TABLES
from reports.rows import (
    AssignmentRow,
    ChangeRow,
    CommitRow,
    CopyRow,
    DescribedTransactionRow,
    EndRow,
    HistoryRow,
    KeyedWriteRow,
    MembershipRow,
    MetadataEpochRow,
    MetadataReadRow,
    OperationRow,
    PositionRow,
    ResetRow,
    SpanRow,
    TargetSpanRow,
    TransactionRow,
    TransformRow,
    ViewRow,
)

TopicPartition = tuple[str, int]
"""Name of the topic, and index of the partition."""


class OfPartition(Protocol):
    """A row about one partition."""

    topic: str
    partition: int


def partition_of(row: OfPartition) -> TopicPartition:
    return row.topic, row.partition


class WrittenValue(NamedTuple):
    """One value at one offset."""

    offset: int
    writer: str
    sequence: int
    producer_id: int


def expanded(span: SpanRow) -> Iterator[WrittenValue]:
    """Yield the values of a span. A value that no writer of this run made has an empty writer and sequence -1."""
    for step in range(span.count):
        sequence = span.first_sequence + step if span.writer else -1
        yield WrittenValue(span.first_offset + step, span.writer, sequence, span.producer_id)


def named(span: SpanRow, value: WrittenValue) -> str:
    """Describe the value and its position, for explanations of violations."""
    return f"{span.topic}-{span.partition} offset {value.offset}: {value.writer}/{value.sequence}"


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
NodeKey = TypeVar("NodeKey", bound=tuple[int, *tuple[Any, ...]])


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Return the items by key, in their order."""
    by_key: dict[Key, list[Item]] = {}
    for item in items:
        by_key.setdefault(key(item), []).append(item)
    return by_key


def without_node(table: dict[NodeKey, Item], node_id: int) -> dict[NodeKey, Item]:
    """Return a table without the entries whose key begins with this node."""
    return {key: item for key, item in table.items() if key[0] != node_id}


OFFSETS_TOPIC = "__consumer_offsets"
STATE_TOPIC = "__transaction_state"


class OfOperation(Protocol):
    """A row that belongs to an operation."""

    process: str
    index: int


Row = TypeVar("Row", bound=OfOperation)
Found = TypeVar("Found")


@dataclass
class History:
    """A run's history rows by table, in the order of recording."""

    operations: list[OperationRow] = field(default_factory=list)
    runs: list[SpanRow] = field(default_factory=list)
    keyed_writes: list[KeyedWriteRow] = field(default_factory=list)
    views: list[ViewRow] = field(default_factory=list)
    positions: list[PositionRow] = field(default_factory=list)
    assignments: list[AssignmentRow] = field(default_factory=list)
    ends: list[EndRow] = field(default_factory=list)
    changes: list[ChangeRow] = field(default_factory=list)
    metadata_reads: list[MetadataReadRow] = field(default_factory=list)
    commits: list[CommitRow] = field(default_factory=list)
    transactions: list[TransactionRow] = field(default_factory=list)
    described_transactions: list[DescribedTransactionRow] = field(default_factory=list)
    transforms: list[TransformRow] = field(default_factory=list)
    memberships: list[MembershipRow] = field(default_factory=list)
    metadata_epochs: list[MetadataEpochRow] = field(default_factory=list)
    resets: list[ResetRow] = field(default_factory=list)
    copies: list[CopyRow] = field(default_factory=list)
    target_runs: list[TargetSpanRow] = field(default_factory=list)
    writes_guaranteed: bool = True
    """whether acknowledged writes must survive; after a power loss or a failed sync they need not, unless each was
    flushed before it was acknowledged"""
    unguaranteed: tuple[str, ...] = ()
    """processes whose acknowledged writes may be lost: they request one acknowledgement of several replicas"""
    end_us: int = 0
    """when the run was over"""
    clock_steps_us: int = 0
    """sum of the sizes of all steps that faults made with clocks of nodes"""
    clock_tick_us: int = 1000
    """by how much a wall clock, and so the timestamp of a record, may be behind the time"""
    producer_expiration_us: int = 86_400_000_000
    """``producer.id.expiration.ms`` of the brokers"""
    computed: dict[Any, Any] = field(default_factory=dict, init=False)
    """results of the functions that are ``computed_once``"""

    def without(self, places: Iterable[TopicPartition], is_lost: Callable[[str], bool]) -> "History":
        """Return the history without these partitions and without the groups of which ``is_lost`` is true.

        Of a partition, its reads and writes are removed, and what workers made of its records. Of a group, its commits
        and transforms are removed. X-14 promises exactly-once only under faults that E-7 survives: after a loss of
        committed offsets workers repeat earlier input, and new records get the offsets of lost ones.
        """
        gone = frozenset(places)
        if not gone:
            return self
        kept: dict[str, Any] = {
            name: [row for row in getattr(self, name) if partition_of(row) not in gone]
            for name in (
                *("runs", "keyed_writes", "views", "positions", "assignments", "ends", "resets"),
                "described_transactions",
            )
        }
        kept["commits"] = [row for row in self.commits if not is_lost(row.group)]
        kept["transforms"] = [
            row for row in self.transforms if not is_lost(row.group) and partition_of(row) not in gone
        ]
        return replace(self, **kept)

    def written_by_reissued_epochs(self, is_forgotten: Callable[[str], bool]) -> set[TopicPartition]:
        """Return the partitions that a transactional ID of which ``is_forgotten`` is true wrote with a producer epoch
        that it was given twice.

        A coordinator that has lost its records (E-7) hands out the same epochs again. Leaders of partitions still know
        them: they take a new batch for the older one with the same producer ID, epoch and sequence (KIP-98), and a
        marker ends the transactions of both. A coordinator that knows its ID never gives an epoch again to a client
        that initialises, as clients do after each transaction that they could not end.
        """
        reissued = set[tuple[str, int]]()
        used: dict[tuple[str, int, int], list[TransactionRow]] = {}
        initialised: dict[str, int] = {}  # how often the client of a transactional ID must have initialised so far
        first_used: dict[tuple[str, int, int], int] = {}
        for row in sorted(self.transactions, key=lambda transaction: transaction.from_us):
            if row.producer_id < 0 or not is_forgotten(row.transactional_id):
                continue
            name = row.transactional_id
            key = name, row.producer_id, row.producer_epoch
            session = initialised.setdefault(name, 0)
            if first_used.setdefault(key, session) != session:
                reissued.update((each.process, each.index) for each in (*used[key], row))
            used.setdefault(key, []).append(row)
            if row.outcome != "ok":
                initialised[name] += 1
        return {partition_of(span) for span in self.runs if (span.process, span.index) in reissued}

    @property
    def tables(self) -> list[list[HistoryRow]]:
        """Return all tables, in the order of the fields."""
        return [getattr(self, table.name) for table in ROW_TABLES.values() if hasattr(self, table.name)]

    def add(self, rows: Sequence[HistoryRow]) -> None:
        for row in rows:
            getattr(self, ROW_TABLES[type(row)].name).append(row)

    @cached_property
    def operation_of(self) -> dict[tuple[str, int], OperationRow]:
        """Return the operations by process and index. All rows must be there before the first call."""
        return {(row.process, row.index): row for row in self.operations}

    def ended_us(self, row: OfOperation) -> int:
        """Return when the row's operation ended, or 0 if that is not known."""
        operation = self.operation_of.get((row.process, row.index))
        return 0 if operation is None else operation.complete_us

    def with_operations(self, rows: Iterable[Row], f: str) -> Iterator[tuple[Row, OperationRow]]:
        """Yield the rows of operations of the kind ``f``, each with its operation."""
        for row in rows:
            operation = self.operation_of.get((row.process, row.index))
            if operation is not None and operation.f == f:
                yield row, operation


def computed_once(compute: Callable[[History], Found]) -> Callable[[History], Found]:
    """Let several checks share the result of ``compute`` for a history.

    All rows must be there before the first call."""

    @wraps(compute)
    def found(history: History) -> Found:
        if compute not in history.computed:
            history.computed[compute] = compute(history)
        shared: Found = history.computed[compute]
        return shared

    return found
