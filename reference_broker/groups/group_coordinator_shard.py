"""One partition of ``__consumer_offsets`` that this node leads: its groups, their offsets, and the records of both.

A commit becomes visible as the high watermark passes it, of which the led partition notifies (``Partition.watch``).
``OffsetsPlayback`` replays the records when the partition is loaded.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from reference_broker.coordination.coordinator_shards import CoordinatorShard, Skipped
from reference_broker.coordination.log import (
    NO_PRODUCER,
    AppendedRecords,
    CoordinatorLog,
    KeyAndValue,
    TransactionProducer,
    client_error,
    first_error,
)
from reference_broker.coordination.record_fields import DamagedRecord, TextTooLong
from reference_broker.coordination.scheduling import DueTimes
from reference_broker.groups.committed_offsets import Change, CommitOffset, CommittedOffsets, OffsetKey
from reference_broker.groups.group import Group
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.groups.records import (
    GroupKey,
    group_key,
    group_value,
    offset_key,
    read_group,
    read_key,
    read_offset_value,
)
from reference_broker.ports.coroutines import Future, Wait, completed, pause, start
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.slicing import (
    COORDINATOR_RECORDS_PER_SLICE,
    DELETED_OFFSETS_PER_SLICE,
    Sliced,
    SliceQueue,
    in_batches,
)
from reference_broker.records.batch import NO_PRODUCER_ID, BatchHeader, InvalidRecords
from reference_broker.records.control import ControlType, read_control
from reference_broker.records.record import Record
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode

MS_PER_MINUTE = 60_000


class OffsetsRetention(DueTimes):
    """When to check which group for offsets that are too old (KIP-211), without a walk over the other groups.

    Each group is scheduled at the earliest time at which it could lose an offset. ``offset_cleanup`` checks it then and
    schedules the next check."""

    def __init__(self, retention_minutes: int) -> None:
        super().__init__()
        self.retention_ms = retention_minutes * MS_PER_MINUTE
        """offsets.retention.minutes"""


class OffsetsWrite(NamedTuple):
    """Records that were to be written."""

    is_in_log: bool
    error: Future[Error]
    """The error for clients, or NONE when the records are replicated. It comes even if another node leads the partition
    by then (NOT_COORDINATOR)."""


class GroupCoordinatorShard(CoordinatorShard):
    """The groups and offsets of one led partition of ``__consumer_offsets``."""

    def __init__(self, ports: Ports, log: CoordinatorLog, retention: OffsetsRetention, metrics: GroupMetrics) -> None:
        super().__init__(log.led)
        self.groups: dict[str, Group] = {}
        """All its groups by ID. ``add_group`` adds to them, and ``GroupMetadataManager`` deletes from them."""
        self.offsets = CommittedOffsets()
        self.retention = retention
        self._is_watching = False
        self._is_catching_up = False
        self._decision_waiters: list[Callable[[Error], None]] = []
        """Called when a long transaction is decided as a whole."""
        self._ports = ports
        self._log = log
        self._work = SliceQueue(ports)
        self._metrics = metrics

    # --- groups -------------------------------------------------------------------------------------------------------

    def add_group(self, group: Group) -> Group:
        """Add the group and return it. If it stays unused, the next check for old offsets deletes it."""
        self.groups[group.group_id] = group
        if self.is_loaded:
            self.retention.schedule(group.group_id, self._ports.now().wall_ms)
        return group

    def write_group(self, group: Group) -> Future[Error]:
        """Append the group as it is at this moment: its generation, leader, and members with their selected metadata
        and assignment. The result comes when that is replicated, or refused."""
        if not group.members:
            self.retention.schedule(group.group_id, self._ports.now().wall_ms)
        try:
            value = group_value(group)
        except TextTooLong:
            return completed(ErrorCode.unknown_server_error)
        return self._append([(group_key(group.group_id), value)], ()).error

    def remove_group(self, group_id: str) -> OffsetsWrite:
        """Append tombstones of the group and of all its committed offsets. Once they are in the log the caller drops
        the group from ``groups``.

        Of many offsets, those after the first batch are removed in later events. Commits of a new group with that ID
        stay."""
        keys, boundary = self.offsets.keys_of(group_id), self.led.log.log_end_offset
        first_keys, *later_keys = list(in_batches(keys, DELETED_OFFSETS_PER_SLICE)) or [[]]
        records: list[KeyAndValue] = [(offset_key(*key), None) for key in first_keys]
        records.append((group_key(group_id), None))
        first = self._append(records, [(key, None) for key in first_keys])
        if not first.is_in_log:  # Decision group-tombstone
            return first
        return OffsetsWrite(True, start(self._remove_later(group_id, later_keys, boundary, first.error)))

    async def _remove_later(
        self, group_id: str, batches: Sequence[list[OffsetKey]], boundary: int, first: Future[Error]
    ) -> Error:
        """Remove the other offsets of the group, one batch in each event. Return the error of the whole removal."""
        errors = [first]
        for keys in batches:
            await pause(self._ports, 0)
            if not self.is_led:  # Decision group-removal-lost
                errors.append(completed(ErrorCode.not_coordinator))
                break
            old_keys = [key for key in keys if self.offsets.is_older(key, boundary, counts_waiting=True)]
            removal = self.remove_offsets(old_keys)
            if not removal.is_in_log and group_id not in self.groups:
                self.add_group(Group(group_id, self._ports.now().wall_ms))  # So that it can be deleted again.
            errors.append(removal.error)
        return await first_error(errors)

    # --- offsets ------------------------------------------------------------------------------------------------------

    def commit(
        self,
        commits: Mapping[OffsetKey, tuple[CommitOffset, KeyAndValue]],
        producer: TransactionProducer = NO_PRODUCER,
    ) -> OffsetsWrite:
        """Append commits of one group, each with its record. A missing group, of consumers that assign
        themselves, is created once something is written. With a ``producer`` they are pending until its transaction
        ends."""
        changes: list[Change] = [(key, commit) for key, (commit, _) in commits.items()]
        return self._append([record for _, record in commits.values()], changes, producer)

    def transaction_ended(self, producer_id: int, offset: int, *, is_commit: bool) -> None:
        """Record that the log has a marker of this producer, at ``offset``. It takes effect when it is replicated."""
        self.offsets.add_end_transaction_marker(offset + 1, producer_id, is_commit=is_commit)
        self.make_visible()

    def remove_offsets(self, keys: Sequence[OffsetKey]) -> OffsetsWrite:
        """Append tombstones. If there is nothing to remove, they count as written."""
        if not keys:
            return OffsetsWrite(True, completed(ErrorCode.none))
        records: list[KeyAndValue] = [(offset_key(*key), None) for key in keys]
        return self._append(records, [(key, None) for key in keys])

    async def settled(self, requires_stable: bool) -> Error:
        """Wait until offsets may be read, which is mostly at once. The loaded records must be replicated, and with
        ``requires_stable`` also all records of now."""
        error = await Wait[Error](partial(self._log.when_replicated, self._settled_end(requires_stable)))
        self.make_visible()
        if self._is_catching_up:  # Decision offset-fetch-undecided
            lost = await Wait[Error](self._decision_waiters.append)
            return lost or client_error(error)
        return client_error(error)

    def _settled_end(self, requires_stable: bool) -> int:
        """Return the offset below which all records must be replicated before offsets are read."""
        return self.led.log.log_end_offset if requires_stable and self.offsets.is_waiting else self.loaded_end

    # --- the log ------------------------------------------------------------------------------------------------------

    def _append(
        self, records: Sequence[KeyAndValue], changes: Sequence[Change], producer: TransactionProducer = NO_PRODUCER
    ) -> OffsetsWrite:
        appended = self._log.append(records, producer)
        if isinstance(appended, Error):
            self.make_visible()
            return OffsetsWrite(False, completed(client_error(appended)))
        if changes:
            self.offsets.add_unreplicated(appended.end_offset, changes, producer.producer_id)
            group_id = changes[0][0].group
            if group_id not in self.groups and changes[0][1] is not None:
                self.add_group(Group(group_id, self._ports.now().wall_ms))
            if producer is not NO_PRODUCER:
                self.retention.schedule(group_id, self._ports.now().wall_ms)
        error = start(self._acknowledged(appended))
        self.make_visible()
        return OffsetsWrite(True, error)

    async def _acknowledged(self, appended: AppendedRecords) -> Error:
        error = await appended.announce_and_wait()
        self.make_visible()  # This comes first: the code that awaits the result may read the offsets at once.
        return client_error(error)

    def partition_changed(self, partition: Partition) -> None:  # noqa: ARG002 - the watcher's form
        """Called when the log of the led partition, or its high watermark, has moved."""
        self._is_watching = False
        self.make_visible()

    def make_visible(self) -> None:
        """Make visible what the high watermark has passed, and watch for the rest. The commits of a long transaction
        are decided in several events."""
        if not self.is_led:
            return
        if not self._is_catching_up and self._decide():  # Decision long-transaction-of-offsets
            self._is_catching_up = True
            self._work.add(self._catch_up())
        if self.offsets.is_waiting and not self._is_watching:  # Decision offsets-replicated
            self._is_watching = True
            self.led.watch(self)

    def _decide(self) -> bool:
        """Return whether there is more to decide."""
        offsets = self.offsets
        if not offsets.is_waiting:
            return False
        before = offsets.count
        for key, commit in offsets.advance_high_watermark(self.led.log.high_watermark):
            if self.is_loaded:
                self._note(key, commit)
        self._metrics.offsets.value += offsets.count - before
        return offsets.is_behind(self.led.log.high_watermark)

    def _catch_up(self) -> Sliced[None]:
        while self.is_led and self._decide():
            yield
        self._is_catching_up = False
        self._notify_decided(ErrorCode.none if self.is_led else ErrorCode.not_coordinator)

    def _notify_decided(self, lost: Error) -> None:
        waiters, self._decision_waiters = self._decision_waiters, []
        for each in waiters:
            each(lost)

    def _note(self, key: OffsetKey, commit: CommitOffset | None) -> None:
        if commit is None:
            return
        group = self.groups.get(key.group)
        self.retention.schedule(key.group, commit.due_ms(self.retention.retention_ms))
        self._ports.note(
            "offset_committed",
            ("group", key.group),
            ("partition", f"{key.topic}-{key.partition}"),
            ("offset", commit.offset),
            ("metadata_epoch", commit.metadata_epoch),
            ("generation", -1 if group is None else group.generation),
        )

    def close(self) -> None:
        super().close()
        self.led.unwatch(self)
        self._notify_decided(ErrorCode.not_coordinator)
        self._metrics.offsets.value -= self.offsets.count

    def validate(self) -> None:
        self.offsets.validate()
        for group_id, group in self.groups.items():
            assert group.group_id == group_id, f"group {group.group_id} is listed under {group_id}"
            group.validate()


@dataclass(slots=True)
class OffsetsPlayback:
    """Implements ``coordination.coordinator_shards.Playback``."""

    ports: Ports
    shard: GroupCoordinatorShard
    _groups: dict[str, bytes] = field(default_factory=dict)
    """The last value of each group."""

    def replay(self, header: BatchHeader, record: Record, end_offset: int) -> None:
        if header.is_control:
            self._replay_marker(header, record, end_offset)
            return
        key = read_key(record.key or b"")
        if isinstance(key, OffsetKey):
            commit = None if record.value is None else read_offset_value(key, record.value)
            is_pending = header.is_transactional and commit is not None
            producer_id = header.producer_id if is_pending else NO_PRODUCER_ID
            self.shard.offsets.add_unreplicated(end_offset, ((key, commit),), producer_id)
        elif isinstance(key, GroupKey):
            self._groups.pop(key.group, None)
            if record.value is not None:
                self._groups[key.group] = record.value

    def _replay_marker(self, header: BatchHeader, record: Record, end_offset: int) -> None:
        try:
            type_ = read_control(record).type
        except InvalidRecords as invalid:
            raise DamagedRecord(invalid.message) from None
        if type_ in (ControlType.ABORT, ControlType.COMMIT):
            self.shard.offsets.add_end_transaction_marker(
                end_offset, header.producer_id, is_commit=type_ == ControlType.COMMIT
            )

    def batch_replayed(self) -> None:
        self.shard.make_visible()

    def restore(self, skipped: Skipped) -> Sliced[None]:
        """Create the groups from their last records, and then the groups that only have offsets: their consumers assign
        themselves. A group with pending offsets is checked like one without offsets: its transaction may be aborted."""
        shard, now_ms = self.shard, self.ports.now().wall_ms
        # Decision restore-waits-for-decision
        while shard.is_led and shard.offsets.is_behind(shard.led.log.high_watermark):
            yield  # A long transaction is being decided.
        for number, (group_id, value) in enumerate(self._groups.items(), 1):
            try:
                shard.add_group(read_group(group_id, value))
            except DamagedRecord as damaged:
                skipped(-1, f"group {group_id}: {damaged}")
            if number % COORDINATOR_RECORDS_PER_SLICE == 0:
                yield
        for number, group_id in enumerate(shard.offsets.all_groups(), 1):
            if group_id not in shard.groups:
                shard.add_group(Group(group_id, now_ms))
            if number % COORDINATOR_RECORDS_PER_SLICE == 0:
                yield
        for number, group_id in enumerate(shard.groups, 1):
            shard.retention.schedule(group_id, self._earliest_ms(group_id, now_ms))
            if number % COORDINATOR_RECORDS_PER_SLICE == 0:
                yield

    def _earliest_ms(self, group_id: str, now_ms: int) -> int:
        """Return the earliest Unix time at which the group could lose an offset, which is now if it has none."""
        if self.shard.offsets.pending_of(group_id):
            return now_ms
        times = [
            stored.commit.due_ms(self.shard.retention.retention_ms)
            for partitions in self.shard.offsets.of(group_id).values()
            for stored in partitions.values()
        ]
        return min(times, default=now_ms)
