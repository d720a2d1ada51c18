"""A consumer's state of each assigned partition: its position, and buffered records.

There is no I/O here. A partition goes through these steps (``Phase``) before it is read:

1. The consumer fetches its committed offset.
2. If the metadata is older than the epoch committed with any partition, all partitions wait (KIP-232, spec M-10).
3. If there is no committed offset, or it is out of range, an offset is requested according to the reset policy.

A seek skips all of them.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final, NamedTuple

from reference_broker.client.consumer import ConsumerState, TakenBatch, is_damaged, remembered_after
from reference_broker.client.consumer_observer import ConsumerObserver, PositionReset
from reference_broker.client.metadata_cache import NO_METADATA_EPOCH
from reference_broker.client.offset_commits import NO_OFFSET, CommittedOffset, OffsetToCommit, may_consume
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import InvalidRecords
from reference_broker.records.record import HeaderPair, read_records
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import PartitionData

RESET_POLICIES: Final = ("earliest", "latest", "none")


class Phase(Enum):
    """The step that one partition is in."""

    UNPLACED = "unplaced"
    WAITING = "waiting"
    RESETTING = "resetting"
    READING = "reading"


class ConsumerRecord(NamedTuple):
    """One record, with its partition and offset. ``timestamp_ms`` is Unix time."""

    topic: str
    partition: int
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None
    headers: tuple[HeaderPair, ...] = ()


@dataclass(slots=True)
class AssignedPartition:
    """The state of one assigned partition."""

    phase: Phase = Phase.UNPLACED
    given: int = NO_OFFSET
    """The offset after the last record that the application got."""
    given_epoch: int = -1
    """The leader epoch of that record, -1 if unknown."""
    reason: str = "no_offset"
    """The reason why the position is being reset (``PositionReset``)."""
    buffer: deque[tuple[int, ConsumerRecord]] = field(default_factory=deque)
    """Records that were fetched and that the application has not got yet, each with its leader epoch."""
    passed: int = NO_OFFSET
    """The value that ``given`` gets once the buffer is empty. It may be higher than the offset after the last record,
    because batches without records for the application move it too."""
    committed: int = NO_OFFSET
    """The offset that is known to be committed, or -1."""
    remembered_horizon: int = 0
    """The tombstone horizon below which it reads from the start again, or 0 (H-5)."""
    bootstrap_start: int = NO_OFFSET
    """The start of the log at which it began again."""
    missed_tombstones: bool = False
    """The partition is read from the start again, and the application does not know yet (H-3)."""
    is_paused: bool = False
    is_revoked: bool = False
    """The group has revoked the partition, and the application has not released it yet. The application may commit
    its offset, but reads nothing more of it."""

    @property
    def is_fetchable(self) -> bool:
        """Whether the consumer sends requests for it to its leader."""
        if self.is_revoked:
            return False
        return self.phase is Phase.RESETTING or (self.phase is Phase.READING and not self.is_paused)

    @property
    def is_given_out(self) -> bool:
        """Whether the application may get its records now."""
        return self.phase is Phase.READING and not self.is_paused and not self.is_revoked


@dataclass(slots=True)
class HeldPartitions:
    """All partitions assigned to one consumer."""

    held: dict[TopicPartition, AssignedPartition] = field(default_factory=dict)
    state: ConsumerState = field(default_factory=ConsumerState)
    """The positions that fetches request."""
    resets: list[PositionReset] = field(default_factory=list)
    """Positions that moved without reading or seeking."""
    observer: ConsumerObserver = field(default_factory=ConsumerObserver)
    _requested: dict[TopicPartition, AssignedPartition] = field(default_factory=dict)
    """The partitions for which the current fetch of committed offsets was sent. Its response must not place a partition
    that was released and assigned again since, so the ``AssignedPartition`` objects are kept for comparison."""
    _waiting: dict[TopicPartition, CommittedOffset] = field(default_factory=dict)

    def add(self, partitions: Iterable[TopicPartition]) -> None:
        """Add newly assigned partitions."""
        for partition in partitions:
            self.held.setdefault(partition, AssignedPartition())

    def drop(self, partitions: Iterable[TopicPartition]) -> None:
        """Remove partitions that are no longer assigned, with the records that were fetched of them."""
        for partition in partitions:
            self.held.pop(partition, None)
            self.state.positions.pop(partition, None)
            self._waiting.pop(partition, None)

    def in_phase(self, phase: Phase) -> list[TopicPartition]:
        """The partitions in that phase, in the order of assignment."""
        return [partition for partition, each in self.held.items() if each.phase is phase]

    @property
    def is_waiting(self) -> bool:
        """Whether some partition waits for metadata that has reached its committed epoch."""
        return bool(self._waiting)

    def set_paused(self, partitions: Iterable[TopicPartition], paused: bool) -> None:
        """While a partition is paused, it is not fetched and its records are not given out. Others are ignored."""
        for partition in partitions:
            if partition in self.held:
                self.held[partition].is_paused = paused

    def note_committed(self, partition: TopicPartition, offset: int) -> None:
        """Record that a commit of the partition has succeeded."""
        if partition in self.held:
            self.held[partition].committed = offset

    def revoke(self, partitions: Iterable[TopicPartition]) -> None:
        """Stop reading these partitions. ``drop_revoked`` follows once they are released."""
        for partition in partitions:
            if partition in self.held:
                self.held[partition].is_revoked = True

    @property
    def has_revoked(self) -> bool:
        """Whether the application still has to release some partition."""
        return any(each.is_revoked for each in self.held.values())

    def drop_revoked(self, partitions: Iterable[TopicPartition]) -> None:
        """Drop those of the partitions that are revoked, because they are released or assigned again."""
        self.drop([partition for partition in partitions if partition in self.held and self.held[partition].is_revoked])

    # -- placing ------------------------------------------------------------------------------------------------

    def take_unplaced(self) -> tuple[TopicPartition, ...]:
        """The partitions whose committed offsets must be fetched now. ``learn_committed`` follows."""
        self._requested = {partition: each for partition, each in self.held.items() if each.phase is Phase.UNPLACED}
        return tuple(self._requested)

    def learn_committed(self, committed: Mapping[TopicPartition, CommittedOffset], metadata_epoch: int) -> None:
        """Apply the responses for partitions that have not changed since the request. ``metadata_epoch`` is that of
        the last accepted metadata."""
        requested, self._requested = self._requested, {}
        for partition, offset in committed.items():
            held = self.held.get(partition)
            if held is not None and held is requested.get(partition) and held.phase is Phase.UNPLACED:
                held.phase, held.committed = Phase.WAITING, offset.offset
                self._waiting[partition] = offset
        self.learn_epoch(metadata_epoch)

    def learn_epoch(self, metadata_epoch: int) -> None:
        """Places all waiting partitions once the metadata has reached the epoch of every one of them (M-10)."""
        if not self._waiting or not may_consume(metadata_epoch, self._waiting.values()):
            return
        waiting, self._waiting = self._waiting, {}
        for partition, offset in waiting.items():
            if offset.offset == NO_OFFSET:
                self.begin_reset(partition, "no_offset")
            else:
                self.place(partition, offset.offset, offset.leader_epoch)

    def begin_reset(self, partition: TopicPartition, reason: str) -> None:
        """Drop the records that were not given out, and leave it to the reset policy where reading continues."""
        held = self.held[partition]
        held.phase, held.reason = Phase.RESETTING, reason
        held.buffer.clear()

    def reset(self, partition: TopicPartition, offset: int, leader_epoch: int, metadata_epoch: int) -> None:
        """Apply the reset policy's offset. It is ignored if the partition is in another phase by now."""
        held = self.held.get(partition)
        if held is not None and held.phase is Phase.RESETTING:
            self._note(partition, held.given, offset, held.reason, metadata_epoch)
            self.place(partition, offset, leader_epoch)

    def seek(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Read from where the application wants. What it has made of earlier records may be as old as the position, so
        the tombstone horizon that was seen before no longer counts (H-3). A seek to the start of a bootstrap that may
        miss tombstones keeps the horizon. Otherwise an application that seeks there after a missed tombstone would get
        the error again and again (H-5)."""
        held = self.held[partition]
        if offset > held.bootstrap_start:
            held.remembered_horizon = 0
        self.place(partition, offset, leader_epoch)

    def place(self, partition: TopicPartition, offset: int, leader_epoch: int = -1) -> None:
        """Read from that offset on. ``leader_epoch`` is that of the record before it, or -1 if unknown."""
        held = self.held[partition]
        self._waiting.pop(partition, None)
        held.phase, held.given, held.passed, held.given_epoch = Phase.READING, offset, offset, leader_epoch
        held.buffer.clear()
        self.state.seek(partition, offset)
        self.state.positions[partition].leader_epoch = leader_epoch

    def truncated(self, partition: TopicPartition, leader_epoch: int, end_offset: int, metadata_epoch: int) -> None:
        """Go back to the last offset on which the leader's log and the records read agree (KIP-320)."""
        held = self.held[partition]
        if end_offset < held.given:
            self._note(partition, held.given, end_offset, "truncated", metadata_epoch)
        self.place(partition, min(end_offset, held.given), leader_epoch)

    def starts_over(self, partition: TopicPartition, horizon: int, log_start_offset: int, metadata_epoch: int) -> bool:
        """Return whether tombstones may be missing in what was read (H-3, H-6). Then the partition is read from the
        start of the log again, and the application must forget what it has made of its records."""
        held, position = self.held[partition], self.state.positions[partition].offset
        before = held.remembered_horizon
        held.remembered_horizon = remembered_after(position, horizon)
        if held.remembered_horizon <= before:
            return False
        self._note(partition, held.given, log_start_offset, "tombstones_missed", metadata_epoch)
        self.place(partition, log_start_offset)
        held.bootstrap_start, held.missed_tombstones = log_start_offset, True
        return True

    def take_missed_tombstones(self) -> list[TopicPartition]:
        """Return the partitions that are read from the start again, once."""
        missed = [partition for partition, held in self.held.items() if held.missed_tombstones]
        for partition in missed:
            self.held[partition].missed_tombstones = False
        return missed

    def _note(
        self, partition: TopicPartition, from_offset: int, to_offset: int, reason: str, metadata_epoch: int
    ) -> None:
        reset = PositionReset(partition, from_offset, to_offset, reason, metadata_epoch)
        self.resets.append(reset)
        self.observer.position_reset(reset)

    # -- reading ------------------------------------------------------------------------------------------------

    def take(self, partition: TopicPartition, data: PartitionData) -> tuple[TakenBatch, ...]:
        """Apply one partition of a Fetch response without error, and return the batches that are new.

        :raises InvalidRecords: a batch is damaged; the position stays where it was.
        """
        if data.records and is_damaged(data.records):
            raise InvalidRecords(
                ErrorCode.corrupt_message, f"a batch of {partition.topic}-{partition.partition} fails its CRC"
            )
        held, position = self.held[partition], self.state.positions[partition]
        before = position.offset, position.leader_epoch
        batches = tuple(self.state.take(partition, data))
        try:
            records = [
                (batch.header.leader_epoch, record) for batch in batches for record in _records_of(partition, batch)
            ]
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
        """Whether ``give`` would return any records."""
        return any(each.buffer and each.is_given_out for each in self.held.values())

    def give(self, max_records: int) -> list[ConsumerRecord]:
        """Return fetched records, in order within each partition. They count as read from now on."""
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
        """Return the offsets to commit for those of the partitions that are being read. ``metadata_epoch`` is that of
        the last accepted metadata (M-6)."""
        found: dict[TopicPartition, OffsetToCommit] = {}
        for partition in partitions:
            held = self.held.get(partition)
            if held is not None and held.phase is Phase.READING:
                found[partition] = OffsetToCommit(held.given, held.given_epoch, metadata_epoch)
        return found


def _records_of(partition: TopicPartition, batch: TakenBatch) -> Iterator[ConsumerRecord]:
    """:raises InvalidRecords: the batch is damaged."""
    for record in read_records(batch.data):
        if record.offset >= batch.from_offset:
            yield ConsumerRecord(
                partition.topic,
                partition.partition,
                record.offset,
                record.timestamp_ms,
                record.key,
                record.value,
                record.headers,
            )
