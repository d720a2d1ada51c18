"""What a consumer knows of each partition it is assigned: where it is placed, and what it has fetched and not given
out yet; without I/O.

A partition is placed in steps (``Phase``): its committed offset is fetched; if the metadata is older than the epoch
committed with any of them, all wait (KIP-232, spec M-10); without a committed offset, or where that is out of range,
the reset policy asks for an offset; then it is read. A seek skips to the last step.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from reference_broker.client.consumer import ConsumerState, TakenBatch
from reference_broker.client.consumer_observer import ConsumerObserver
from reference_broker.client.metadata_cache import NO_METADATA_EPOCH
from reference_broker.client.offset_commits import NO_OFFSET, may_consume
from reference_broker.client.offset_requests import CommittedOffset, OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import CRC_FROM, InvalidRecords, checksum
from reference_broker.records.reader import read_records
from reference_broker.records.record import HeaderPair
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import PartitionData

RESET_POLICIES: Final = ("earliest", "latest", "none")


class Phase(Enum):
    """Of one partition."""

    UNPLACED = "unplaced"
    WAITING = "waiting"
    RESETTING = "resetting"
    READING = "reading"


class ConsumerRecord(NamedTuple):
    """One record, with its place. ``timestamp_ms``: Unix time."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[HeaderPair, ...] = ()


@dataclass(frozen=True, slots=True)
class PositionReset:
    """A position that moved other than by reading. ``from_offset`` -1: there was none. ``reason``: no_offset,
    out_of_range or truncated."""

    partition: TopicPartition
    from_offset: int
    to_offset: int
    reason: str
    metadata_epoch: int


@dataclass(slots=True)
class Held:
    """One assigned partition. ``given``: the offset after the last record given out; ``given_epoch``: that record's
    leader epoch, -1 unknown. ``buffer``: fetched, not given out, each with its leader epoch. ``committed``: the offset
    that is known to be committed, -1 none."""

    phase: Phase = Phase.UNPLACED
    given: int = NO_OFFSET
    given_epoch: int = -1
    reason: str = "no_offset"
    buffer: deque[tuple[int, ConsumerRecord]] = field(default_factory=deque)
    passed: int = NO_OFFSET
    """Where ``given`` goes once the buffer is empty: batches without records for the reader move it too."""
    committed: int = NO_OFFSET
    is_paused: bool = False
    is_revoked: bool = False
    """The application has not released it yet: it may commit, but reads nothing more."""

    @property
    def is_fetchable(self) -> bool:
        """Whether anything is asked of its leader."""
        if self.is_revoked:
            return False
        return self.phase is Phase.RESETTING or (self.phase is Phase.READING and not self.is_paused)

    @property
    def is_given_out(self) -> bool:
        """Whether the application gets its records now."""
        return self.phase is Phase.READING and not self.is_paused and not self.is_revoked


@dataclass(slots=True)
class HeldPartitions:
    """All of them. Positions that fetches ask for are in ``state``."""

    held: dict[TopicPartition, Held] = field(default_factory=dict)
    state: ConsumerState = field(default_factory=ConsumerState)
    resets: list[PositionReset] = field(default_factory=list)
    observer: ConsumerObserver = field(default_factory=ConsumerObserver)
    _asked: dict[TopicPartition, Held] = field(default_factory=dict)
    """What the fetch of committed offsets under way was begun for: a partition that has gone and come back since is
    not placed by it."""
    _waiting: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Newly assigned."""
        for each in partitions:
            self.held.setdefault(each, Held())

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """No longer assigned; what was fetched of them is gone."""
        for each in partitions:
            self.held.pop(each, None)
            self.state.positions.pop(each, None)
            self._waiting.pop(each, None)

    def in_phase(self, phase: Phase) -> list[TopicPartition]:
        """In the order of assignment."""
        return [where for where, each in self.held.items() if each.phase is phase]

    @property
    def is_waiting(self) -> bool:
        """Whether a committed epoch is not known to have been reached yet."""
        return bool(self._waiting)

    def set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        """Those that are held neither are fetched nor give records while they are paused."""
        for each in partitions:
            if each in self.held:
                self.held[each].is_paused = paused

    def note_committed(self, where: TopicPartition, offset: int) -> None:
        """A commit of it has succeeded."""
        if where in self.held:
            self.held[where].committed = offset

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Nothing more is read of them; ``drop`` follows once they are released."""
        for each in partitions:
            if each in self.held:
                self.held[each].is_revoked = True

    # -- placing ------------------------------------------------------------------------------------------------

    def ask_committed(self) -> tuple[TopicPartition, ...]:
        """Those whose committed offsets are to be fetched now; ``learn_committed`` follows."""
        self._asked = {where: each for where, each in self.held.items() if each.phase is Phase.UNPLACED}
        return tuple(self._asked)

    def learn_committed(self, committed: Mapping[TopicPartition, CommittedOffset], metadata_epoch: int) -> None:
        """Answers for partitions that are still as they were asked for. ``metadata_epoch``: of the last accepted
        metadata."""
        asked, self._asked = self._asked, {}
        for where, offset in committed.items():
            held = self.held.get(where)
            if held is not None and held is asked.get(where) and held.phase is Phase.UNPLACED:
                held.phase, held.committed = Phase.WAITING, offset.offset
                self._waiting[where] = offset
        self.learn_epoch(metadata_epoch)

    def learn_epoch(self, metadata_epoch: int) -> None:
        """Places all that wait, once the metadata has reached the epoch of every one of them (M-10)."""
        if not self._waiting or not may_consume(metadata_epoch, self._waiting.values()):
            return
        waiting, self._waiting = self._waiting, {}
        for where, offset in waiting.items():
            if offset.offset == NO_OFFSET:
                self.begin_reset(where, "no_offset")
            else:
                self.place(where, offset.offset, offset.leader_epoch)

    def begin_reset(self, where: TopicPartition, reason: str) -> None:
        """The reset policy decides where it goes on."""
        held = self.held[where]
        held.phase, held.reason = Phase.RESETTING, reason
        held.buffer.clear()

    def reset(self, where: TopicPartition, offset: int, leader_epoch: int, metadata_epoch: int) -> None:
        """It has decided; ignored if the partition is elsewhere by now."""
        held = self.held.get(where)
        if held is not None and held.phase is Phase.RESETTING:
            self._note(where, held.given, offset, held.reason, metadata_epoch)
            self.place(where, offset, leader_epoch)

    def place(self, where: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Read from there on. ``leader_epoch``: of the record before it, -1 unknown."""
        held = self.held[where]
        self._waiting.pop(where, None)
        held.phase, held.given, held.passed, held.given_epoch = Phase.READING, offset, offset, leader_epoch
        held.buffer.clear()
        self.state.seek(where, offset)
        self.state.positions[where].leader_epoch = leader_epoch

    def truncated(self, where: TopicPartition, leader_epoch: int, end_offset: int, metadata_epoch: int) -> None:
        """The leader's log has diverged from what was read (KIP-320): go back to where they still agree."""
        held = self.held[where]
        if end_offset < held.given:
            self._note(where, held.given, end_offset, "truncated", metadata_epoch)
        self.place(where, min(end_offset, held.given), leader_epoch)

    def _note(self, where: TopicPartition, from_offset: int, to_offset: int, reason: str, metadata_epoch: int) -> None:
        reset = PositionReset(where, from_offset, to_offset, reason, metadata_epoch)
        self.resets.append(reset)
        self.observer.position_reset(reset)

    # -- reading ------------------------------------------------------------------------------------------------

    def take(self, where: TopicPartition, data: PartitionData) -> tuple[TakenBatch, ...]:
        """One partition of a Fetch answer without error; the batches that hold news.

        :raises InvalidRecords: a batch is damaged; the position stays where it was.
        """
        held, position = self.held[where], self.state.positions[where]
        before = position.offset, position.leader_epoch
        batches = tuple(self.state.take(where, data))
        try:
            records = [(batch.header.leader_epoch, each) for batch in batches for each in _records_of(where, batch)]
        except InvalidRecords:
            position.offset, position.leader_epoch = before
            raise
        held.buffer.extend(records)
        held.passed = position.offset
        if not held.buffer:
            held.given = held.passed
        return batches

    @property
    def has_records(self) -> bool:
        """Whether ``give`` would give any."""
        return any(each.buffer and each.is_given_out for each in self.held.values())

    def give(self, max_records: int) -> list[ConsumerRecord]:
        """Fetched records in order within each partition; these count as read from now on."""
        given: list[ConsumerRecord] = []
        for held in self.held.values():
            if not held.is_given_out:
                continue
            while held.buffer and len(given) < max_records:
                held.given_epoch, record = held.buffer.popleft()
                held.given = record.offset + 1
                given.append(record)
            if not held.buffer:
                held.given = held.passed
        return given

    def read_so_far(
        self, partitions: Iterable[TopicPartition], metadata_epoch: int = NO_METADATA_EPOCH
    ) -> dict[TopicPartition, OffsetToCommit]:
        """What to commit of those that are being read (M-6: with the epoch of the last accepted metadata)."""
        found: dict[TopicPartition, OffsetToCommit] = {}
        for where in partitions:
            held = self.held.get(where)
            if held is not None and held.phase is Phase.READING:
                found[where] = OffsetToCommit(held.given, held.given_epoch, metadata_epoch)
        return found


def _records_of(where: TopicPartition, batch: TakenBatch) -> Iterator[ConsumerRecord]:
    """:raises InvalidRecords: the batch is damaged."""
    if checksum(batch.data[CRC_FROM:]) != batch.header.crc:
        raise InvalidRecords(ErrorCode.corrupt_message, f"a batch of {where.topic}-{where.partition} fails its CRC")
    for record in read_records(batch.data):
        if record.offset >= batch.from_offset:
            yield ConsumerRecord(
                where.topic,
                where.partition,
                record.offset,
                record.timestamp_ms,
                record.key,
                record.value,
                record.headers,
            )
