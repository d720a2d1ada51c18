"""What transactional producers sent, what became of it, and what readers of committed records saw of it."""

from bisect import bisect_left
from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

from chaos.checks.compacted_topics import excused
from chaos.checks.history import History, Place, Sent, expanded, grouped, once, place
from chaos.checks.reads import reads
from reports.rows import CommitRow, EndRow, PositionRow, RunRow, TransactionRow

COMMITTED_READS = 1
"""``RunRow.isolation`` of readers with read_committed."""

Value: TypeAlias = tuple[Place, str, int]
"""Where it was written, its writer, and the writer's number of it. No value is sent twice."""


class Fate(Enum):
    """What can be known of a transaction from outside."""

    COMMITTED = "committed"
    NEVER = "never committed"
    """An abort was asked for, nothing was, or the request to commit was refused for good."""
    UNKNOWN = "unknown"
    """A commit was asked for, and its outcome was never told."""


@dataclass(frozen=True, slots=True)
class Transaction:
    """``sent`` are the runs of values, ``offsets`` the group offsets that were sent with them."""

    row: TransactionRow
    fate: Fate
    sent: tuple[RunRow, ...]
    offsets: tuple[CommitRow, ...]

    @property
    def named(self) -> str:
        row = self.row
        return f"transaction {row.index} of {row.process} ({row.transactional_id}, epoch {row.producer_epoch})"

    def values(self) -> list[tuple[Value, Sent]]:
        return [((place(run), each.writer, each.sequence), each) for run in self.sent for each in expanded(run)]


@dataclass(frozen=True, slots=True)
class Sighting:
    """A reader with read_committed had the value at this offset when the answer of its operation ``index`` came."""

    offset: int
    at_us: int
    process: str
    index: int


@once
def transactions(history: History) -> list[Transaction]:
    """Returns all transactions, in the order of recording."""
    sent = grouped((run for run in history.runs if run.kind == "send"), lambda run: (run.process, run.index))
    offsets = grouped(
        (row for row in history.commits if row.kind == "transaction"), lambda row: (row.process, row.index)
    )
    return [
        Transaction(
            row,
            _fate(row),
            tuple(sent.get((row.process, row.index), ())),
            tuple(offsets.get((row.process, row.index), ())),
        )
        for row in history.transactions
    ]


def _fate(row: TransactionRow) -> Fate:
    if row.asked != "commit" or row.outcome == "failed":
        return Fate.NEVER
    return Fate.COMMITTED if row.outcome == "ok" else Fate.UNKNOWN


@once
def sightings(history: History) -> dict[Value, list[Sighting]]:
    """Returns where and when readers with read_committed saw each value, in the order of the answers."""
    found: dict[Value, list[Sighting]] = {}
    for run, operation in sorted(reads(history), key=lambda each: each[1].complete_us):
        if run.isolation == COMMITTED_READS and run.writer:
            for each in expanded(run):
                key = (place(run), each.writer, each.sequence)
                found.setdefault(key, []).append(Sighting(each.offset, operation.complete_us, run.process, run.index))
    return found


@once
def known_until(history: History) -> dict[Place, int]:
    """Returns the offset below which readers with read_committed know all of a partition: one past the last offset that
    they read, or the last stable offset of a partition that was read to its end."""
    found: dict[Place, int] = {}
    for run, _ in reads(history):
        if run.isolation == COMMITTED_READS:
            found[place(run)] = max(found.get(place(run), 0), run.first_offset + run.count)
    for end in history.ends:
        if end.last_stable_offset >= 0:
            found[place(end)] = max(found.get(place(end), 0), min(end.last_stable_offset, end.high_watermark))
    return found


@once
def log_starts(history: History) -> dict[Place, int]:
    """Returns the largest log start offset that anybody was told of each partition."""
    found: dict[Place, int] = {}
    told: list[PositionRow | EndRow] = [*history.positions, *history.ends]
    for row in told:
        found[place(row)] = max(found.get(place(row), 0), row.log_start_offset)
    return found


def missing(history: History, transaction: Transaction) -> list[tuple[Value, Sent]]:
    """Returns the values of a transaction that no reader with read_committed saw, although such readers know what lies
    at their offsets."""
    seen, until, starts = sightings(history), known_until(history), log_starts(history)
    # Physical: an answer that never came told no offset. Kafka: what lies below the log start is deleted.
    return [
        (key, value)
        for key, value in transaction.values()
        if key not in seen
        and key not in excused(history)[COMMITTED_READS]  # a cleaner may have taken it.
        and starts.get(key[0], 0) <= value.offset < until.get(key[0], 0)
        and value.offset >= 0
    ]


@once
def committed_offsets(history: History) -> dict[Place, list[int]]:
    """Returns the sorted offsets at which readers with read_committed saw a record of ours."""
    found: dict[Place, dict[int, None]] = {}
    for key, where in sightings(history).items():
        found.setdefault(key[0], {}).update((each.offset, None) for each in where)
    return {where: sorted(offsets) for where, offsets in found.items()}


def between(offsets: list[int], first: int, end: int) -> list[int]:
    """Returns those of the sorted offsets that lie in [first, end)."""
    return offsets[bisect_left(offsets, first) : bisect_left(offsets, end)]
