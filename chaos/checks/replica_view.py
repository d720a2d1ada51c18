"""What the checks know about all replicas of the load's partitions: looked at after every event, kept beyond a node's
death.

After an event a few numbers of each log are compared; batches are read once a replica, when its high watermark passes
them. Partitions with one replica are left out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple, TypeAlias

from chaos.checks.batches import Batch, batches_of
from reference_broker.log.partition_log import PartitionLog
from reference_broker.model.metadata_delta import MetadataDelta
from reference_broker.model.metadata_image import MetadataImage, PartitionImage

if TYPE_CHECKING:
    from chaos.checks.replica_check import ReplicaCheck
    from chaos.checks.trouble import Trouble
    from reference_broker.core.node import Node

READ_BYTES = 1 << 20
PartitionKey: TypeAlias = tuple[bytes, int]
"""Topic ID and index."""


class Held(NamedTuple):
    """A node's replica at one moment. ``leader_epoch`` -1: it does not lead."""

    incarnation: int
    leader_epoch: int
    start_offset: int
    high_watermark: int
    end_offset: int


@dataclass(slots=True)
class Copy:
    """``held``: as last seen; ``equal_to``: its batches below equal the committed ones."""

    node_id: int
    held: Held
    log: PartitionLog | None
    equal_to: int = 0

    @property
    def leads(self) -> bool:
        return self.log is not None and self.held.leader_epoch >= 0


@dataclass(slots=True)
class Replicated:
    """One partition. ``committed``: batches known to be committed, by base offset, ascending; ``state``: the newest
    that any node published; ``tainted``: members that lost power since they joined the in-sync replicas; ``excused``:
    all of them had, so that what was committed may be lost, until a leader has written anew."""

    name: str
    key: PartitionKey
    state: PartitionImage
    committed: dict[int, Batch] = field(default_factory=dict)
    committed_end: int = 0
    copies: dict[int, Copy] = field(default_factory=dict)
    tainted: dict[int, None] = field(default_factory=dict)
    excused: bool = False
    ever_excused: bool = False
    leader_epoch: int = -1
    leaders: dict[int, int] = field(default_factory=dict)
    """node by leader epoch"""


class ReplicaView:
    """``partitions``: all that have several replicas, by topic ID and index. ``min_insync``: of the load's topics;
    ``flushed``: each append is synced before it is answered, so that a power loss loses nothing that counts;
    ``expected``: whether there will be such partitions at all."""

    def __init__(
        self, trouble: "Trouble", min_insync: int = 1, flushed: bool = False, expected: bool = True
    ) -> None:
        self.expected = expected
        self.trouble = trouble
        self.min_insync = min_insync
        self._flushed = flushed
        self.partitions: dict[PartitionKey, Replicated] = {}
        self._checks: list[ReplicaCheck] = []
        self._excused: dict[tuple[str, int], None] = {}

    def join(self, check: "ReplicaCheck") -> None:
        self._checks.append(check)

    # What the metadata says

    def image(self, at_us: int, delta: MetadataDelta | None, image: MetadataImage) -> None:
        """A node published; None: its first image."""
        if delta is None:
            for topic in image.topics.values():
                for index, state in enumerate(topic.partitions):
                    self._state(at_us, topic.name, (topic.topic_id, index), state)
            return
        for change in delta.topics:
            after = change.after
            if after is None:
                if change.before is not None:
                    for index in range(len(change.before.partitions)):
                        self.partitions.pop((change.before.topic_id, index), None)
                continue
            for index in change.partitions:
                self._state(at_us, after.name, (after.topic_id, index), after.partitions[index])

    def _state(self, at_us: int, topic: str, key: PartitionKey, state: PartitionImage) -> None:
        if len(state.replicas) < 2:
            return
        known = self.partitions.get(key)
        if known is None:
            self.partitions[key] = Replicated(f"{topic}-{key[1]}", key, state)
            return
        before = known.state
        if state.partition_epoch <= before.partition_epoch:
            return
        known.state = state
        for member in [each for each in known.tainted if each not in state.isr]:
            del known.tainted[member]
        self._excuse(known)
        for check in self._checks:
            check.metadata_changed(at_us, known, before, state)

    def power_lost(self, node_id: int) -> None:
        """Its unsynced bytes are gone."""
        if self._flushed:
            return
        for partition in self.partitions.values():
            if node_id in partition.state.isr:
                partition.tainted[node_id] = None
                self._excuse(partition)

    @property
    def excused(self) -> tuple[tuple[str, int], ...]:
        """Topic and index of those of which committed records may have been lost: all in-sync replicas lost power."""
        return tuple(self._excused)

    def _excuse(self, partition: Replicated) -> None:
        if all(member in partition.tainted for member in partition.state.isr):
            partition.excused = partition.ever_excused = True
            self._excused[partition.name.rpartition("-")[0], partition.key[1]] = None

    # What the nodes hold

    def gone(self, node_id: int) -> None:
        """The process ended; what is known of its disk stays."""
        for partition in self.partitions.values():
            copy = partition.copies.get(node_id)
            if copy is not None:
                copy.log = None

    def look(self, at_us: int, incarnation: int, node: "Node") -> None:
        """After one event of this node."""
        if not self.partitions:
            return
        node_id = node.broker.node_id
        for epoch, log, key in _logs_of(node):
            partition = self.partitions.get(key)
            if partition is None:
                continue
            copy = partition.copies.get(node_id)
            if copy is not None:
                held = copy.held
                if (
                    held.end_offset == log.log_end_offset
                    and held.high_watermark == log.high_watermark
                    and held.leader_epoch == epoch
                    and copy.log is log
                    and held.start_offset == log.log_start_offset
                ):
                    continue
            now = Held(incarnation, epoch, log.log_start_offset, log.high_watermark, log.log_end_offset)
            self._changed(at_us, partition, node_id, log, now)

    def _changed(self, at_us: int, partition: Replicated, node_id: int, log: PartitionLog, now: Held) -> None:
        copy = partition.copies.get(node_id)
        if copy is None:
            copy = partition.copies[node_id] = Copy(node_id, Held(-1, -1, 0, 0, 0), log)
        before, copy.held = copy.held, now
        if copy.log is not log:
            copy.log = log
            if before.incarnation != now.incarnation:
                copy.equal_to = 0
        copy.equal_to = min(copy.equal_to, now.end_offset)
        if partition.excused and now.leader_epoch >= max(partition.leader_epoch, 0):
            self._begin_anew(partition)
        if now.leader_epoch > partition.leader_epoch:
            partition.leader_epoch = now.leader_epoch
        trusted = not partition.ever_excused or now.leader_epoch == partition.leader_epoch
        if now.high_watermark > partition.committed_end and trusted and not partition.excused:
            self._commit(partition, log, now)
        for check in self._checks:
            check.copy_changed(at_us, partition, copy, before, now)

    @staticmethod
    def _begin_anew(partition: Replicated) -> None:
        """All in-sync replicas had lost power: what this leader holds is all that there is."""
        partition.committed.clear()
        partition.committed_end = 0
        partition.tainted.clear()
        partition.excused = False
        for copy in partition.copies.values():
            copy.equal_to = 0

    @staticmethod
    def _commit(partition: Replicated, log: PartitionLog, now: Held) -> None:
        for batch in read_batches(log, max(partition.committed_end, now.start_offset), now.high_watermark):
            partition.committed[batch.base_offset] = batch
        partition.committed_end = now.high_watermark

    def end(self, at_us: int) -> None:
        for check in self._checks:
            check.quiet(at_us)


def read_batches(log: PartitionLog, offset: int, end: int) -> Iterator[Batch]:
    """Of [offset, end), from the bytes."""
    while offset < end:
        read = [batch for batch, _, _ in batches_of(bytes(log.read(offset, READ_BYTES, end)))]
        if not read:
            return
        yield from read
        offset = read[-1].last_offset + 1


def _logs_of(node: "Node") -> Iterator[tuple[int, PartitionLog, PartitionKey]]:
    """(leader epoch or -1, log, partition) of each replica of the node."""
    for key, partition in node.broker.partitions.by_id.items():
        yield partition.leader_epoch, partition.log, key
    for log in node._publisher.resting_logs():
        yield -1, log, (log.topic_id, int(log.directory.rpartition("-")[2]))
