"""What readers of a compacted topic must see: the writes of each key, and those that a reader must have.

X-11: a cleaner may remove a record once it is superseded, so a reader that comes later may miss it.

``OperationRow.type`` is the known outcome of a write: ok (it took effect), fail (it never did, or was aborted), info.
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from dataclasses import dataclass
from itertools import zip_longest
from typing import TypeAlias

from chaos.checks.check import Check
from chaos.checks.history import History, TopicPartition, computed_once, expanded, grouped, partition_of
from reports.rows import KeyedWriteRow, SpanRow, ViewRow

NEVER_US = 2**62
UNKNOWN_OFFSET = 2**62
"""Offset of a record whose send got no offset in its response."""
Value: TypeAlias = tuple[TopicPartition, str, int]
"""The partition of a value, its writer, and the writer's number of it."""


@dataclass(frozen=True, slots=True)
class KeyedWrite:
    """One record of a compacted topic."""

    row: KeyedWriteRow
    offset: int
    fate: str
    """ok, fail or info, as the head of this file explains"""
    from_us: int
    """when its writer began to send it"""
    effective_us: int
    """when it may have taken effect at the earliest: at the end of its transaction, if it has one"""

    @property
    def removable_us(self) -> int:
        """Kafka: a tombstone stays for delete.retention.ms. Other records are never too old."""
        return self.from_us + self.row.delete_retention_us if self.row.is_tombstone else NEVER_US


@computed_once
def keyed_writes(history: History) -> dict[Value, KeyedWrite]:
    """Return all records that were sent to compacted topics."""
    if not history.keyed_writes:
        return {}
    read = _read(history)
    ended_us = {(row.process, row.index): row.at_us for row in history.transactions}
    keyed = grouped(history.keyed_writes, lambda row: (row.process, row.index, partition_of(row)))
    writes: dict[Value, KeyedWrite] = {}
    for span in history.runs:
        of_span = keyed.get((span.process, span.index, partition_of(span)), ()) if span.kind == "send" else ()
        if of_span:
            operation = history.operation_of.get((span.process, span.index))
            from_us = 0 if operation is None else operation.invoke_us
            effective_us = ended_us.get((span.process, span.index))
            outcome = "info" if operation is None or (operation.type == "ok" and span.acks == 1) else operation.type
            first, fate = _found(span, outcome, effective_us is not None, read)
            for row in of_span:
                step = row.sequence - span.first_sequence
                if 0 <= step < span.count:
                    offset = UNKNOWN_OFFSET if first < 0 else first + step
                    effects_us = from_us if effective_us is None else effective_us
                    writes[partition_of(row), row.process, row.sequence] = KeyedWrite(
                        row, offset, fate, from_us, effects_us
                    )
    return writes


def _read(history: History) -> dict[Value, tuple[int, int]]:
    """Return the offset at which each value was read, and the greatest isolation level of its readers."""
    reads: dict[Value, tuple[int, int]] = {}
    for span in history.runs:
        operation = history.operation_of.get((span.process, span.index))
        if span.kind == "read" and span.writer and operation is not None and operation.type == "ok":
            for value in expanded(span):
                key = (partition_of(span), value.writer, value.sequence)
                reads[key] = value.offset, max(span.isolation, reads.get(key, (0, 0))[1])
    return reads


def _found(span: SpanRow, outcome: str, in_transaction: bool, read: dict[Value, tuple[int, int]]) -> tuple[int, str]:
    """Return the first offset of a span that was sent (-1 if unknown), and its outcome. A batch is written whole, so
    what was read of it holds for all of it."""
    first = span.first_offset
    seen = [
        (read[key][0] - step, read[key][1])
        for step, value in enumerate(expanded(span))
        if (key := (partition_of(span), value.writer, value.sequence)) in read
    ]
    if first < 0 and seen:
        first = min(offset for offset, _ in seen)
    if outcome == "info" and any(isolation or not in_transaction for _, isolation in seen):
        outcome = "ok"
    return first, outcome


@computed_once
def by_key(history: History) -> dict[tuple[TopicPartition, str], list[KeyedWrite]]:
    """Return the writes of each key, in the order of their offsets."""
    by_key_of_partition = grouped(
        keyed_writes(history).values(), lambda write: (partition_of(write.row), write.row.key)
    )
    for writes in by_key_of_partition.values():
        writes.sort(key=lambda each: each.offset)
    return by_key_of_partition


@computed_once
def missable(history: History) -> dict[Value, int]:
    """Return since when a reader may miss each record: since a newer one of its key may have taken effect, since it is
    a tombstone past its time, or always if it was not committed. One that must be there to the end is not in the
    result."""
    missable_us: dict[Value, int] = {}
    last_us = max((operation.complete_us for operation in history.operations), default=0)
    for (partition, _), writes in by_key(history).items():
        newer_us = NEVER_US
        for write in reversed(writes):
            since_us = min(newer_us, write.removable_us) if write.fate == "ok" else 0
            if since_us <= last_us:
                missable_us[partition, write.row.process, write.row.sequence] = since_us
            if write.fate != "fail":
                newer_us = min(newer_us, write.effective_us)
    return missable_us


@computed_once
def excused(history: History) -> dict[int, dict[Value, None]]:
    """Return by isolation level the records that no reader of their partition must have read.

    A cleaner may have removed them before the first reader got past them. At level 1 only readers with read_committed
    count. A reader gets all records that are there between its positions before and after a response (F-16, X-4), so
    one that passed while the record had to be there should have read it.
    """
    missing = missable(history)
    writes = keyed_writes(history)
    offsets: dict[TopicPartition, dict[int, None]] = {}
    for key, since_us in missing.items():
        if since_us > 0 and writes[key].offset != UNKNOWN_OFFSET:
            offsets.setdefault(key[0], {})[writes[key].offset] = None
    by_level: dict[int, dict[Value, None]] = {}
    for level in (0, 1):
        passed_us = _passed_us(history, offsets, level)
        by_level[level] = {
            key: None
            for key, since_us in missing.items()
            if passed_us[key[0]].get(writes[key].offset, NEVER_US) >= since_us
        }
    return by_level


def _passed_us(
    history: History, offsets: dict[TopicPartition, dict[int, None]], level: int
) -> dict[TopicPartition, dict[int, int]]:
    """Return when the first reader of at least this isolation level had got past each of these offsets."""
    levels: dict[str, int] = {}
    for span in history.runs:
        if span.kind == "read":
            levels[span.process] = max(levels.get(span.process, 0), span.isolation)
    unpolled = _unpolled(history)
    moves = [
        (operation.complete_us, partition_of(row), row.fetch_offset, row.next_offset)
        for row in history.positions
        if row.error is None
        and levels.get(row.process, 0) >= level
        and (row.process, row.index, partition_of(row)) not in unpolled
        and (operation := history.operation_of.get((row.process, row.index))) is not None
        and operation.type == "ok"
    ]
    left = {partition: sorted(each) for partition, each in offsets.items()}
    passed_us: dict[TopicPartition, dict[int, int]] = defaultdict(dict)
    for at_us, partition, first, end in sorted(moves):
        ahead = left.get(partition, [])
        passed = slice(bisect_left(ahead, first), bisect_left(ahead, end))
        passed_us[partition].update(dict.fromkeys(ahead[passed], at_us))
        del ahead[passed]
    return passed_us


@computed_once
def _unpolled(history: History) -> dict[tuple[str, int, TopicPartition], None]:
    """Return the responses to members of groups of which nothing was read, and after which they did not go on.

    Kafka: records that a consumer has fetched and not returned by poll are dropped when it leaves.
    """
    read = {(span.process, span.index, partition_of(span)): None for span in history.runs if span.kind == "read"}
    members = dict.fromkeys(row.process for row in history.memberships)
    unpolled: dict[tuple[str, int, TopicPartition], None] = {}
    rows = [row for row in history.positions if row.process in members and row.error is None]
    for (process, partition), own in grouped(rows, lambda row: (row.process, partition_of(row))).items():
        own.sort(key=lambda row: row.index)
        for row, following in zip_longest(own, own[1:]):
            goes_on = following is not None and following.fetch_offset == row.next_offset
            if not goes_on and (process, row.index, partition) not in read:
                unpolled[process, row.index, partition] = None
    return unpolled


@computed_once
def missable_offsets(history: History) -> dict[TopicPartition, dict[int, int]]:
    """Return the same by partition and offset. Partitions of other topics are not in the result."""
    by_partition: dict[TopicPartition, dict[int, int]] = {}
    missing = missable(history)
    for key, each in keyed_writes(history).items():
        since_us = by_partition.setdefault(key[0], {})
        if key in missing:
            since_us[each.offset] = missing[key]
    return by_partition


def newest_below(writes: list[KeyedWrite], position: int) -> KeyedWrite | None:
    """Return the last of a key's writes that took effect below this position."""
    below = writes[: bisect_right(writes, position - 1, key=lambda write: write.offset)]
    return next((write for write in reversed(below) if write.fate == "ok"), None)


class MaterializedView(Check):
    """materialized-view: a reader of a whole compacted topic has for each key the result of the committed writes.

    The view of a reader at a position has the newest value of each key below the position, and no value for a key whose
    newest write is a tombstone. A key is not judged while a newer write may be beyond the position, because then a
    cleaner may have removed the older one.

    A reader that received the tombstone horizon has restarted if it may have missed tombstones (H-3 to H-7). So its
    view has no deleted key, however late it read.
    """

    guarantee = "materialized-view"

    def end(self, history: History) -> None:
        if not history.writes_guaranteed:
            return  # Physical: the only replica lost its power, and nothing had been synced.
        ends = {partition_of(row): row.high_watermark for row in history.ends}
        keys = grouped(by_key(history), lambda each: each[0])
        for rows in grouped(history.views, lambda row: (row.process, row.from_us, partition_of(row))).values():
            head, held = rows[0], {row.key: row for row in rows if row.key}
            self.evidence += 1
            at_end = head.position >= ends.get(partition_of(head), NEVER_US)
            for partition, key in keys.get(partition_of(head), ()):
                writes = by_key(history)[partition, key]
                if not _may_be_superseded(writes, head, at_end):
                    self._judge(history, head, held.get(key), writes)

    def _judge(self, history: History, head: ViewRow, held: ViewRow | None, writes: list[KeyedWrite]) -> None:
        newest = newest_below(writes, head.position)
        if held is None:
            wrong = newest is not None and not newest.row.is_tombstone and not _is_hidden(writes, newest, head)
            finding = "lacks"
        else:
            write = keyed_writes(history).get((partition_of(held), held.writer, held.sequence))
            aborted = head.isolation == 1 and write is not None and write.fate == "fail"
            older = newest is not None and held.offset < newest.offset and not _passed_late(history, head, newest)
            wrong, finding = aborted or older, f"holds {held.writer}/{held.sequence} at offset {held.offset} for"
        if wrong:
            shown = "nothing" if newest is None else f"{_named(newest)} at offset {newest.offset}"
            self.violated(
                head.at_us,
                f"{head.process} read {head.topic}-{head.partition} up to {head.position} and {finding} key "
                f"{writes[0].row.key}; the newest committed is {shown}",
            )


def _named(write: KeyedWrite) -> str:
    kind = "tombstone " if write.row.is_tombstone else ""
    return f"{kind}{write.row.process}/{write.row.sequence}"


def _may_be_superseded(writes: list[KeyedWrite], head: ViewRow, at_end: bool) -> bool:
    """X-11: a cleaner removes a superseded record, also if this reader has not reached the newer one."""
    return any(
        write.fate != "fail"
        and write.from_us <= head.at_us
        and write.offset >= head.position
        and not (at_end and write.offset == UNKNOWN_OFFSET)
        for write in writes
    )


def _is_hidden(writes: list[KeyedWrite], newest: KeyedWrite, head: ViewRow) -> bool:
    """A tombstone may have taken effect for this reader. Physical: no response said whether it was committed. Kafka:
    read_uncommitted shows tombstones of transactions that are aborted, too."""
    return any(
        write.row.is_tombstone
        and write.offset > newest.offset
        and (write.fate == "info" or (write.fate == "fail" and head.isolation == 0))
        for write in writes
    )


def _passed_late(history: History, head: ViewRow, newest: KeyedWrite) -> bool:
    """Kafka, ``delete.retention.ms``: a reader that takes longer to get past a tombstone may never see it."""
    if (head.process, partition_of(head)) in _readers_with_horizon(history):
        return False
    responses = _responses(history).get((head.process, partition_of(head)), [])
    passed = (at_us for at_us, offset in responses if at_us >= head.from_us and offset > newest.offset)
    return next(passed, head.at_us) >= newest.removable_us


@computed_once
def _readers_with_horizon(history: History) -> set[tuple[str, TopicPartition]]:
    return {(row.process, partition_of(row)) for row in history.positions if row.tombstone_horizon >= 0}


@computed_once
def _responses(history: History) -> dict[tuple[str, TopicPartition], list[tuple[int, int]]]:
    """Return when each response came that moved a reader, and its position then, in the order of time."""
    positions: dict[tuple[str, TopicPartition], list[tuple[int, int]]] = {}
    for row in history.positions:
        operation = history.operation_of.get((row.process, row.index))
        if operation is not None and operation.type == "ok":
            positions.setdefault((row.process, partition_of(row)), []).append((operation.complete_us, row.next_offset))
    return {key: sorted(responses) for key, responses in positions.items()}
