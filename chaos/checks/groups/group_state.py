"""View of groups and offsets, replayed from ``__consumer_offsets``.

Sources: Kafka's OffsetCommitKey, OffsetCommitValue, GroupMetadataKey and GroupMetadataValue schemas, KIP-98 (offsets of
a transaction count from its commit marker on), KAFKA-5247 (of two commits of one partition the later record wins) and
KIP-232's metadata epoch (M-8), which is a tagged field of ours.
"""

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from chaos.checks.history import OFFSETS_TOPIC
from chaos.checks.log.batches import producing_of, read_batches, records_in
from chaos.checks.replication.replica_view import ReplicaView
from chaos.sim.disk import damaged_paths
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.replication.partitions import Partition

if TYPE_CHECKING:
    from reference_broker.core.node import Node


Key: TypeAlias = tuple[str, str, int]
"""Group, topic and partition."""
_OFFSET_KEYS, _GROUP_KEY = (0, 1), 2
_EPOCH_TAG, _EXPIRY_TAG = 10_000, 10_001
_FLEXIBLE = 4
_ABORT, _COMMIT = 0, 1
NEVER_US = 2**62
_KEPT = 64
"""Number of values kept of each key: more than are committed while one request is parked."""


class Committed(NamedTuple):
    """The committed offset of a partition."""

    offset: int
    leader_epoch: int
    metadata: str
    committed_ms: int
    metadata_epoch: int = -1
    expires_ms: int = -1
    end_offset: int = 0
    """one past its record"""


class LoggedMember(NamedTuple):
    """A member in a group's record."""

    instance: str | None
    rebalance_ms: int
    session_ms: int
    subscription: bytes
    assignment: bytes

    @property
    def topics(self) -> list[str] | None:
        """Return the topics in the subscription of a consumer, or None if it is of another kind."""
        try:
            fields = _Fields(self.subscription)
            return [fields.text() for _ in range(fields.number(4))] if fields.version >= 0 else None
        except (IndexError, UnicodeDecodeError):
            return None


class LoggedGroup(NamedTuple):
    """The record of a group."""

    generation: int
    protocol_type: str
    protocol: str | None
    leader: str | None
    since_ms: int
    members: dict[str, LoggedMember]

    def subscribes(self, topic: str) -> bool:
        """Return whether a member subscribes to the topic, or may."""
        topics = [member.topics for member in self.members.values()]
        return any(each is None or topic in each for each in topics)


class LoggedBatch(NamedTuple):
    """One batch of the log."""

    end_offset: int
    producer_id: int
    """of its transaction, or -1"""
    marker: int
    """type of a control batch, or -1"""
    records: tuple[tuple[int, Key | str, Committed | LoggedGroup | None], ...]
    """offset, key and value; a text is the key of a group, and None is a tombstone"""


class _Fields:
    """The fields of a message. Reading beyond its end raises IndexError."""

    def __init__(self, data: bytes) -> None:
        self.data, self.at = data, 0
        self.version = self.number(2)

    def number(self, size: int) -> int:
        if self.at + size > len(self.data):
            raise IndexError(f"no {size} bytes at {self.at} of {len(self.data)}")
        self.at += size
        return int.from_bytes(self.data[self.at - size : self.at], signed=True)

    def taken(self, size: int) -> bytes:
        if size < 0 or self.at + size > len(self.data):
            raise IndexError(f"no {size} bytes at {self.at} of {len(self.data)}")
        self.at += size
        return self.data[self.at - size : self.at]

    def optional(self) -> str | None:
        size = self.number(2)
        return None if size < 0 else self.taken(size).decode()

    def text(self) -> str:
        return self.optional() or ""

    def blob(self) -> bytes:
        return self.taken(self.number(4))

    def compact_text(self) -> str:
        return self.taken(self.unsigned() - 1).decode()

    def unsigned(self) -> int:
        number, shift = 0, 0
        while True:
            byte = self.number(1) & 0xFF
            number |= (byte & 0x7F) << shift
            if byte < 0x80:
                return number
            shift += 7

    def tags(self) -> dict[int, int]:
        tags = {}
        for _ in range(self.unsigned()):
            tag = self.unsigned()
            tags[tag] = int.from_bytes(self.taken(self.unsigned()), signed=True)
        return tags


def _read_offset(end_offset: int, value: bytes) -> Committed:
    fields = _Fields(value)
    offset = fields.number(8)
    leader_epoch = fields.number(4) if fields.version >= 3 else -1
    metadata = fields.compact_text() if fields.version >= _FLEXIBLE else fields.text()
    committed_ms = fields.number(8)
    expires_ms = fields.number(8) if fields.version == 1 else -1
    tags = fields.tags() if fields.version >= _FLEXIBLE else {}
    expires_ms = tags.get(_EXPIRY_TAG, expires_ms)
    return Committed(offset, leader_epoch, metadata, committed_ms, tags.get(_EPOCH_TAG, -1), expires_ms, end_offset)


def _read_group(value: bytes) -> LoggedGroup:
    """Read version 3, the one that is written."""
    fields = _Fields(value)
    protocol_type, generation = fields.text(), fields.number(4)
    protocol, leader, since_ms = fields.optional(), fields.optional(), fields.number(8)
    members = {}
    for _ in range(fields.number(4)):
        member_id, instance = fields.text(), fields.optional()
        fields.text(), fields.text()
        rebalance_ms, session_ms = fields.number(4), fields.number(4)
        members[member_id] = LoggedMember(instance, rebalance_ms, session_ms, fields.blob(), fields.blob())
    return LoggedGroup(generation, protocol_type, protocol, leader, since_ms, members)


def logged_batches(log: UnifiedLog, offset: int, end_offset: int) -> Iterator[LoggedBatch]:
    """Yield the batches of [offset, end_offset) with what they say of groups and offsets."""
    for batch, data in read_batches(log, offset, end_offset):
        header, end = producing_of(data), batch.last_offset + 1
        plain = [each for each in records_in(data) if each.offset >= offset]
        if batch.control:
            marker = int.from_bytes((plain[0].key or b"")[2:4]) if plain else -1
            yield LoggedBatch(end, header.producer_id, marker, ())
            continue
        records: list[tuple[int, Key | str, Committed | LoggedGroup | None]] = []
        for record in plain:
            key, value = _Fields(record.key or b"\xff\xff"), record.value
            if key.version in _OFFSET_KEYS:
                where = key.text(), key.text(), key.number(4)
                records.append((record.offset, where, None if value is None else _read_offset(end, value)))
            elif key.version == _GROUP_KEY:
                records.append((record.offset, key.text(), None if value is None else _read_group(value)))
        yield LoggedBatch(end, header.producer_id if header.is_transactional else -1, -1, tuple(records))


class Change(NamedTuple):
    """A change of a committed offset."""

    key: Key
    before: Committed | None
    now: Committed | None


@dataclass(slots=True)
class Replay:
    """The groups and offsets that the log has up to some offset."""

    offsets: dict[Key, Committed] = field(default_factory=dict)
    open: dict[Key, dict[int, Committed]] = field(default_factory=dict)
    """commits of transactions without a marker, by producer ID"""
    groups: dict[str, LoggedGroup] = field(default_factory=dict)

    def apply(self, batch: LoggedBatch) -> Iterator[Change]:
        """Apply the next batch, and yield the changes of offsets."""
        if batch.marker >= 0:
            yield from self._ended(batch)
            return
        for _, key, value in batch.records:
            if isinstance(key, str):
                self.groups.pop(key, None)
                if isinstance(value, LoggedGroup):
                    self.groups[key] = value
            elif isinstance(value, Committed) and batch.producer_id >= 0:
                self.open.setdefault(key, {})[batch.producer_id] = value
            elif value is None or isinstance(value, Committed):
                if value is None:
                    self.open.pop(key, None)
                yield self._set(key, value)

    def _ended(self, batch: LoggedBatch) -> Iterator[Change]:
        for key in [each for each, of in self.open.items() if batch.producer_id in of]:
            commits = self.open[key]
            value = commits.pop(batch.producer_id)
            if not commits:
                del self.open[key]
            last = self.offsets.get(key)
            if batch.marker == _COMMIT and (last is None or last.end_offset < value.end_offset):
                yield self._set(key, value)

    def _set(self, key: Key, value: Committed | None) -> Change:
        before = self.offsets.pop(key, None)
        if value is not None:
            self.offsets[key] = value
        return Change(key, before, value)


@dataclass(slots=True)
class OffsetsPartition:
    """One partition of the topic, as its committed records say."""

    index: int
    leader: tuple[int, int] = (-1, -1)
    """leader epoch and node"""
    log: UnifiedLog | None = None
    """the leader's"""
    read_end: int = 0
    committed_end: int = 0
    waiting: deque[LoggedBatch] = field(default_factory=deque)
    """batches in the leader's log that are not committed"""
    state: Replay = field(default_factory=Replay)
    values: dict[Key, deque[tuple[int, Committed | None]]] = field(default_factory=dict)
    """the last values of each key, with the times at which they were seen to be committed, oldest first"""
    opened: dict[Key, deque[tuple[int, bool, Committed | None]]] = field(default_factory=dict)
    """the last changes of what transactions have committed for each key: time, whether any is open since, and commit"""
    losses: int = 0
    """number of times that no replica had kept its committed records (E-7)"""
    has_lost: bool = False
    """whether that has happened, or the loss of its only replica's unsynced bytes, or damage on the leader's disk
    (physical)"""

    def since(self, key: Key, at_us: int) -> list[Committed | None]:
        """Return the values that were the last one at some time since ``at_us``."""
        values = [(-1, None), *self.values.get(key, ())]
        first = len(values) - 1
        while first > 0 and values[first][0] >= at_us:
            first -= 1
        return [each for _, each in values[first:]]

    def open_since(self, key: Key, at_us: int) -> set[bool]:
        """Return whether a transaction had committed the key, at each time since ``at_us``."""
        changes = [(-1, False, None), *self.opened.get(key, ())]
        first = len(changes) - 1
        while first > 0 and changes[first][0] >= at_us:
            first -= 1
        return {is_open for _, is_open, _ in changes[first:]}


@dataclass(slots=True)
class Removal:
    """The time in which a key's last committed record was a tombstone, as the view saw it."""

    at_us: int
    until_us: int = NEVER_US
    """when an offset was committed again"""


class OffsetsView:
    """The committed values of all groups and offsets, read from the bytes of the leaders' logs."""

    def __init__(self) -> None:
        self.partitions: dict[tuple[bytes, int], OffsetsPartition] = {}
        self.removals: dict[Key, list[Removal]] = {}
        self.deletions_us: dict[str, list[int]] = {}
        """by group: when its tombstones were committed"""
        self.on_offset_changed: list[Callable[[int, Node, OffsetsPartition, Change], None]] = []
        """called with the time, the leader, the partition, and a committed change of an offset, when the state has the
        whole batch"""
        self.on_offsets_touched: list[Callable[[Node, OffsetsPartition, Sequence[Key]], None]] = []
        """called with the leader, the partition, and the keys that a committed batch names, or that its marker decides,
        changed or not"""
        self.on_group_appended: list[Callable[[int, Node, str, LoggedGroup], None]] = []
        """called with the time, the leader, the group, and a record of it that the leader has appended in this event"""
        self._replicas: ReplicaView | None = None

    def follow(self, replicas: ReplicaView) -> None:
        """Follow the logs of the topic from now on."""
        if self._replicas is None:
            self._replicas = replicas
            replicas.on_logs_touched.append(self.logs_touched)

    def led_by(self, node: "Node", index: int) -> OffsetsPartition | None:
        """Return the partition if this node is its newest leader, and no committed record was lost."""
        led = node.broker.partitions.by_name.get((OFFSETS_TOPIC, index))
        partition = None if led is None else self.partitions.get((led.topic_id, index))
        if (
            led is None
            or partition is None
            or partition.has_lost
            or partition.leader != (led.leader_epoch, node.broker.node_id)
        ):
            return None
        return partition

    def was_removed(self, key: Key, since_us: int, until_us: int) -> bool:
        """Return whether at some time from ``since_us`` to ``until_us`` the last committed record of the key was a
        tombstone."""
        return any(each.at_us <= until_us and since_us <= each.until_us for each in self.removals.get(key, ()))

    def has_removed(self, key: Key) -> bool:
        """Return whether the last committed record of the key removes it, in a partition that has lost no records."""
        return any(
            key in partition.values and partition.values[key][-1][1] is None and not partition.has_lost
            for partition in self.partitions.values()
        )

    def logs_touched(self, at_us: int, node: "Node", touched: Sequence[UnifiedLog], thorough: bool) -> None:  # noqa: ARG002
        """Follow the logs of the topic that the node leads and that changed."""
        for log in touched:
            if log.directory.startswith(OFFSETS_TOPIC):
                name, _, index = log.directory.rpartition("-")
                led = node.broker.partitions.by_name.get((name, int(index)))
                if led is not None and led.log is log:
                    self._follow(at_us, node, led)

    def _follow(self, at_us: int, node: "Node", led: Partition) -> None:
        key, log = (led.topic_id, led.index), led.log
        partition = self.partitions.get(key)
        if partition is None:
            partition = self.partitions[key] = OffsetsPartition(led.index)
        leader, own = (led.leader_epoch, node.broker.node_id), True
        if leader < partition.leader or log.is_offline:
            return
        if leader != partition.leader or log is not partition.log or log.log_end_offset < partition.read_end:
            partition.leader, partition.log = leader, log
            partition.waiting.clear()
            self._check_losses(partition, key, log)
            partition.read_end = max(partition.committed_end, log.local_log_start_offset)
            own = False
        try:
            appended = list(logged_batches(log, partition.read_end, log.log_end_offset))
        except (ValueError, IndexError):
            # Physical: a fault has damaged the log. Without one nothing is excused.
            if not any(path.startswith(f"{log.directory}/") for path in damaged_paths(node.broker.disk)):
                raise
            partition.has_lost, appended = True, []
        partition.waiting.extend(appended)
        partition.read_end = log.log_end_offset
        for _, of, value in [record for batch in appended if own for record in batch.records]:
            if isinstance(of, str) and isinstance(value, LoggedGroup):
                for group_appended in self.on_group_appended:
                    group_appended(at_us, node, of, value)
        while partition.waiting and partition.waiting[0].end_offset <= log.high_watermark:
            self._commit(at_us, node, partition, partition.waiting.popleft())
        partition.committed_end = max(partition.committed_end, log.high_watermark)

    def _check_losses(self, partition: OffsetsPartition, key: tuple[bytes, int], log: UnifiedLog) -> None:
        replicated = None if self._replicas is None else self._replicas.partitions.get(key)
        losses = 0 if replicated is None else replicated.losses
        if losses > partition.losses or (replicated is None and log.log_end_offset < partition.committed_end):
            # E-7: no replica has kept all committed records. What follows is not compared with them.
            partition.state, partition.committed_end = Replay(), 0
            partition.losses, partition.has_lost = losses, True

    def _commit(self, at_us: int, node: "Node", partition: OffsetsPartition, batch: LoggedBatch) -> None:
        before = {key: dict(of) for key, of in partition.state.open.items()} if batch.marker >= 0 else {}
        changes = list(partition.state.apply(batch))
        for change in changes:
            partition.values.setdefault(change.key, deque(maxlen=_KEPT)).append((at_us, change.now))
            self._note_removal(at_us, change)
        opened = [(key, value) for _, key, value in batch.records] if batch.producer_id >= 0 else []
        ended = [key for key in before if key not in partition.state.open]
        removed = [change.key for change in changes if change.now is None]
        for key, value in (*opened, *((each, None) for each in (*ended, *removed))):
            if not isinstance(key, str) and not isinstance(value, LoggedGroup):
                of_key = partition.opened.setdefault(key, deque(maxlen=_KEPT))
                of_key.append((at_us, key in partition.state.open, value))
        for change in changes:
            for offset_changed in self.on_offset_changed:
                offset_changed(at_us, node, partition, change)
        for group_id in [key for _, key, value in batch.records if isinstance(key, str) and value is None]:
            self.deletions_us.setdefault(group_id, []).append(at_us)
        named = [key for _, key, _ in batch.records if not isinstance(key, str)]
        decided = [key for key, of in before.items() if batch.producer_id in of]
        if named or decided:
            for offsets_touched in self.on_offsets_touched:
                offsets_touched(node, partition, [*named, *decided])

    def _note_removal(self, at_us: int, change: Change) -> None:
        known = self.removals.get(change.key)
        is_removed = known is not None and known[-1].until_us == NEVER_US
        if change.now is None and not is_removed:
            self.removals.setdefault(change.key, []).append(Removal(at_us))
        elif change.now is not None and known is not None and is_removed:
            known[-1].until_us = at_us
