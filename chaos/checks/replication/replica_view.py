"""View of all replicas of the load's partitions.

It survives a node's death. After each event it compares a few numbers of each log that the event changed, or whose role
it may have changed. Batches are read once for each replica, when its high watermark passes them. Partitions with one
replica are omitted. ``eligible_replicas.py`` says which losses are excused.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from chaos.checks.history import OFFSETS_TOPIC, STATE_TOPIC, TopicPartition
from chaos.checks.log.batches import BatchIdentity, read_batches
from chaos.checks.log.compacted_log import Compacted
from chaos.checks.replication.eligible_replicas import Eligible, UncleanEnds, min_isr_of
from reference_broker.core.events import Note
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.delta import MetadataDelta
from reference_broker.metadata.identifiers import REMOTE_LOG_METADATA_TOPIC
from reference_broker.metadata.image import BROKER_RESOURCE, TOPIC_RESOURCE, MetadataImage, PartitionImage, TopicImage

if TYPE_CHECKING:
    from chaos.checks.fault_times import FaultTimes
    from reference_broker.core.node import Node


NUMBERS = ("log_start_offset", "high_watermark", "log_end_offset", "cleaned_offset", "local_log_start_offset")


class TouchedLogs:
    """Collect the logs of which one of NUMBERS was set while inside ``noted``."""

    def __init__(self) -> None:
        self._touched: dict[UnifiedLog, None] = {}

    def taken(self) -> tuple[UnifiedLog, ...]:
        """Return the logs that changed since the last call, in the order of their first change."""
        if not self._touched:
            return ()
        taken = tuple(self._touched)
        self._touched.clear()
        return taken

    @contextmanager
    def noted(self) -> Iterator[None]:
        """Inside the block the logs of this process record their changes here. At its end the class gets its slots
        back."""
        slots = {name: UnifiedLog.__dict__[name] for name in NUMBERS}
        for name, slot in slots.items():
            setattr(UnifiedLog, name, property(slot.__get__, _noting(slot.__set__, self._touched)))
        try:
            yield
        finally:
            for name, slot in slots.items():
                setattr(UnifiedLog, name, slot)


def _noting(set_slot: Callable[[Any, int], None], touched: dict[UnifiedLog, None]) -> Callable[[Any, int], None]:
    def note(log: Any, value: int) -> None:
        set_slot(log, value)
        touched[log] = None

    return note


LOG_SUFFIX = ".log"
"""Files with this in their names have records."""
PartitionKey: TypeAlias = tuple[bytes, int]
"""Topic ID and index."""


class Held(NamedTuple):
    """A node's replica at one time."""

    incarnation: int
    leader_epoch: int
    """-1 if it does not lead"""
    start_offset: int
    """where its local records begin; earlier ones are in the remote tier"""
    high_watermark: int
    end_offset: int
    cleaned_offset: int = 0
    """where the cleaner's last pass ended"""


@dataclass(slots=True)
class Copy:
    """One node's replica of a partition, as last seen."""

    node_id: int
    held: Held
    log: UnifiedLog | None
    """None while no process of the node runs"""
    equal_to: int = 0
    """its batches below this offset equal the committed ones"""

    @property
    def leads(self) -> bool:
        return self.log is not None and self.held.leader_epoch >= 0


@dataclass(slots=True)
class Replicated:
    """One partition that has several replicas.

    Records committed after a loss are judged like all others.
    """

    name: str
    key: PartitionKey
    state: PartitionImage
    """the newest that any node published"""
    eligible: Eligible
    """the replicas that keep the committed records"""
    committed: dict[int, BatchIdentity] = field(default_factory=dict)
    """batches known to be committed, by base offset, ascending"""
    committed_from: int = 0
    """where the log began of the leader that took over after a loss"""
    committed_end: int = 0
    copies: dict[int, Copy] = field(default_factory=dict)
    excused: bool = False
    """whether no replica kept the committed records when the leader of ``state`` was elected, so that they may be lost
    until that leader has taken over"""
    losses: int = 0
    """number of times that this happened"""
    compacted: Compacted | None = None
    """what is known of its records, if its topic is compacted"""
    leader_epoch: int = -1
    leaders: dict[int, int] = field(default_factory=dict)
    """node by leader epoch"""

    def note_cleanable(self) -> None:
        """Record how far the cleaners of the replicas may have worked until now."""
        if self.compacted is not None:
            stable_end = self.compacted.stable_end(self.committed_end)
            ends = [
                min(copy.log.bases[-1], copy.log.high_watermark, stable_end)
                for copy in self.copies.values()
                if copy.log is not None and copy.log.bases
            ]
            self.compacted.cleanable_end = max(self.compacted.cleanable_end, *ends, 0)

    def restart(self) -> None:
        """Forget the committed records, because no replica had kept them. Only those of the new leader remain."""
        self.committed.clear()
        self.committed_from = self.committed_end = 0
        if self.compacted is not None:
            self.compacted.restart()
        self.excused = False
        for copy in self.copies.values():
            copy.equal_to = 0


class ReplicaView:
    """All partitions that have several replicas.

    ``min_insync`` is the nodes' own min.insync.replicas. With ``flushed`` each append is synced before it is
    acknowledged, so that a power loss loses nothing that was acknowledged. ``touched`` collects the logs that change.
    """

    def __init__(
        self,
        fault_times: "FaultTimes",
        min_insync: int = 1,
        flushed: bool = False,
        expected: bool = True,
        touched: TouchedLogs | None = None,
    ) -> None:
        self.fault_times = fault_times
        self.expected = expected
        """whether there will be such partitions at all"""
        self.partitions: dict[PartitionKey, Replicated] = {}
        self.excused: dict[TopicPartition, None] = {}
        """partitions whose committed records may be lost, because no replica kept them (E-7)"""
        self._taken_over_us: dict[TopicPartition, int] = {}
        """by such a partition: when the leader took over that was elected after the last loss"""
        self.leaders: defaultdict[tuple[str, int], set[int]] = defaultdict(set)
        """IDs of the nodes that led, by partition (topic-index) and leader epoch; a recreated topic has the same epochs
        again"""
        self.on_logs_touched: list[Callable[[int, Node, Sequence[UnifiedLog], bool], None]] = []
        """called first after each event of a node that changed logs, with the time, the node, these logs, and whether
        the comparison is thorough"""
        self.on_copy_changed: list[Callable[[int, Replicated, Copy, Held, Held], None]] = []
        """called with the time, the partition, the replica that has changed, and its state before and now. The
        partition knows of the change already"""
        self.on_metadata_changed: list[Callable[[int, Replicated, PartitionImage, PartitionImage], None]] = []
        """called with the time, the partition, and its state before and now, when a node has published a state that is
        newer than all seen before"""
        self.on_viewed: list[Callable[[int, Node], None]] = []
        """called last after each event of a node, when the view has its new state"""
        self._due: list[tuple[Node, Callable[[int, Node], None]]] = []
        self._min_insync = min_insync
        self._flushed = flushed
        self._unclean_ends = UncleanEnds()
        self._touched = touched or TouchedLogs()
        self._checked: dict[UnifiedLog, tuple[tuple[Any, ...], tuple[int, ...]]] = {}
        """by log: its last truncation and its segments when all of them were checked, and all NUMBERS but the high
        watermark when its parts were compared last"""
        self._published: dict[int, dict[PartitionKey, None]] = {}
        """by node: partitions whose role there may have changed since the view last compared it"""
        self._offset = -1
        """of the newest image that any node published"""
        self._minimums: dict[bytes, int] = {}
        """by topic ID: its min.insync.replicas in that image"""
        self._settled: dict[int, bool] = {}
        """by node: whether it was settled (``is_settled``) when the view last compared it"""
        self._deleted: dict[bytes, None] = {}
        """IDs of deleted topics. A node that starts reads of them in the log, and they must not come back here."""

    def may_have_lost(self, partition: TopicPartition, at_us: int) -> bool:
        """Return whether records that were committed to the partition at ``at_us`` may be lost since then (E-7)."""
        return partition in self.excused and at_us <= self._taken_over_us.get(partition, at_us)

    def offsets_excused(self, group: str) -> bool:
        """Return whether the group's state and its committed offsets may be lost (E-7)."""
        return self._is_excused(OFFSETS_TOPIC, group)

    def transactions_excused(self, transactional_id: str) -> bool:
        """Return whether the state of the transactional ID, with its decisions, may be lost (E-7)."""
        return self._is_excused(STATE_TOPIC, transactional_id)

    def tier_excused(self, partition: Replicated) -> bool:
        """Return whether the metadata of the partition's remote segments may be lost (E-7). Without it no node can find
        the objects of such a segment (KIP-405)."""
        lost = [index for topic, index in self.excused if topic == REMOTE_LOG_METADATA_TOPIC]
        if not lost:
            return False
        count = sum(
            replicated.name.rpartition("-")[0] == REMOTE_LOG_METADATA_TOPIC for replicated in self.partitions.values()
        )
        return remote_metadata_partition(*partition.key, count) in lost

    def unreadable(self) -> Iterator[tuple[TopicPartition, int]]:
        """Yield the partitions whose oldest records may be out of reach now (E-7), each with the start of its local
        log."""
        for partition in self.partitions.values():
            leader = partition.copies.get(partition.state.leader) if self.tier_excused(partition) else None
            if leader is None or leader.log is None:
                continue
            if leader.log.log_start_offset < leader.held.start_offset:
                topic, _, index = partition.name.rpartition("-")
                yield (topic, int(index)), leader.held.start_offset

    def _is_excused(self, topic: str, name: str) -> bool:
        """Return whether the coordinator's partition of a group or transactional ID may have lost records."""
        lost = [index for of_topic, index in self.excused if of_topic == topic]
        if not lost:
            return False
        count = sum(partition.name.rpartition("-")[0] == topic for partition in self.partitions.values())
        return offsets_partition(name, count) in lost

    def isr_known_to(self, node: "Node", partition: Replicated) -> tuple[tuple[int, ...], int]:
        """Return the ISR and the min.insync.replicas in the metadata that the node has published, or an empty ISR while
        it applies a large publication. During that time no check can know which of both states the node uses."""
        image = node.broker.quorum_node.loader.image
        topic = image.topic_by_id(partition.key[0])
        if topic is None or node._publisher.is_behind:
            return (), 0
        state = topic.partitions[partition.key[1]]
        return state.isr, min(min_isr_of(image, topic.name, self._min_insync), len(state.replicas))

    def note(self, node_id: int, note: Note) -> None:
        """Follow a note about a replica: the node that wrote it leads."""
        if note.what == "leads":
            fields = dict(note.fields)
            self.leaders[str(fields["partition"]), int(fields["leader_epoch"])].add(node_id)

    # The metadata

    def image(self, at_us: int, node_id: int, delta: MetadataDelta | None, image: MetadataImage) -> None:
        """Follow a publication of a node, which the node is about to apply, or has applied in this event.

        A ``delta`` of None means its first image.
        """
        for broker_id in self._unclean_ends.registered(image if delta is None else delta):
            for partition in self.partitions.values():
                partition.eligible.registered_uncleanly(broker_id)
        changed = self._minimums_changed(delta, image)
        if delta is None:
            for topic in image.topics.values():
                self._topic(at_us, topic, range(len(topic.partitions)), image, changed)
            return
        pending = self._published.setdefault(node_id, {})
        for change in delta.topics:
            if change.after is not None:
                pending.update(dict.fromkeys((change.after.topic_id, index) for index in change.partitions))
                self._topic(at_us, change.after, change.partitions, image, changed)
            elif change.before is not None:
                self._deleted[change.before.topic_id] = None
                for index in range(len(change.before.partitions)):
                    self.partitions.pop((change.before.topic_id, index), None)

    def _minimums_changed(self, delta: MetadataDelta | None, image: MetadataImage) -> dict[bytes, None]:
        """Return the IDs of topics whose min.insync.replicas the image changes, if it is the newest one. The states
        known until then are those with which the change came, or they precede the states that came with it."""
        if image.provenance.offset <= self._offset:
            return {}
        self._offset = image.provenance.offset
        all_topics = delta is None or (BROKER_RESOURCE, "") in delta.configs
        named = (
            () if delta is None else (image.topics.get(name) for kind, name in delta.configs if kind == TOPIC_RESOURCE)
        )
        changed = dict[bytes, None]()
        for topic in image.topics.values() if all_topics else named:
            if topic is not None and topic.topic_id in self._minimums:
                min_isr = min_isr_of(image, topic.name, self._min_insync)
                if self._minimums[topic.topic_id] != min_isr:
                    self._minimums[topic.topic_id] = min_isr
                    changed[topic.topic_id] = None
                    for index in range(len(topic.partitions)):
                        known = self.partitions.get((topic.topic_id, index))
                        if known is not None:
                            known.eligible.minimum_changed(known.state, min_isr)
        return changed

    def _topic(
        self,
        at_us: int,
        topic: TopicImage,
        indexes: Iterable[int],
        image: MetadataImage,
        changed: Mapping[bytes, None],
    ) -> None:
        if topic.topic_id in self._deleted:
            return
        min_isr = min_isr_of(image, topic.name, self._min_insync)
        self._minimums.setdefault(topic.topic_id, min_isr)
        for index in indexes:
            is_newest = image.provenance.offset == self._offset
            key = (topic.topic_id, index)
            self._state(at_us, topic.name, key, topic.partitions[index], min_isr, topic.topic_id in changed, is_newest)

    def _state(
        self,
        at_us: int,
        topic: str,
        key: PartitionKey,
        state: PartitionImage,
        min_isr: int,
        minimum_changed: bool,
        is_newest: bool,
    ) -> None:
        if len(state.replicas) < 2:
            return
        known = self.partitions.get(key)
        if known is None:
            self.partitions[key] = Replicated(f"{topic}-{key[1]}", key, state, Eligible.of(state, min_isr))
            return
        before = known.state
        if state.partition_epoch <= before.partition_epoch:
            if is_newest and state.partition_epoch == before.partition_epoch:
                known.state = state  # E-8 clears the ELR within a partition epoch.
            return
        known.state = state
        if known.eligible.follow(before, state, min_isr, minimum_changed):
            known.excused = True
            known.losses += 1
            self.excused[topic, key[1]] = None
            self._taken_over_us.pop((topic, key[1]), None)
        for metadata_changed in self.on_metadata_changed:
            metadata_changed(at_us, known, before, state)

    def power_lost(self, node_id: int) -> None:
        """Record that the node's unsynced bytes are gone."""
        if not self._flushed:
            for partition in self.partitions.values():
                _lose(partition, node_id)

    def bytes_lost(self, node_id: int, paths: Sequence[str]) -> None:
        """Record that unsynced bytes of these files are gone. Records of other partitions were not in them."""
        folders = {folder for folder, _, name in (path.rpartition("/") for path in paths) if LOG_SUFFIX in name}
        if folders and not self._flushed:
            for partition in self.partitions.values():
                if partition.name in folders:
                    _lose(partition, node_id)

    # The nodes' logs

    def started(self, node_id: int, damaged: Sequence[str] = ()) -> None:
        """Record that a new process of the node begins. Meanwhile bits of the files ``damaged`` were flipped."""
        folders = {path.rpartition("/")[0] for path in damaged}
        for partition in self.partitions.values():
            if partition.name in folders:
                partition.eligible.came_back_damaged(node_id)
        if self._unclean_ends.started(node_id):
            for partition in self.partitions.values():
                partition.eligible.came_back_uncleanly(node_id)

    def gone(self, node_id: int, clean: bool = False) -> None:
        """Record that the process ended. The state of its disk stays known. ``clean`` says that it left the mark of a
        clean shutdown there."""
        self._unclean_ends.ended(node_id, clean)
        for partition in self.partitions.values():
            copy = partition.copies.get(node_id)
            if copy is not None:
                copy.log = None

    def observe(self, at_us: int, incarnation: int, node: "Node", thorough: bool = True) -> None:
        """Follow the state of a node after one of its events: the logs that the event touched; with ``thorough`` all.

        Raise AssertionError if a log contradicts itself, or if a change went unnoticed until then.
        """
        self._follow_logs(at_us, incarnation, node, thorough)
        for viewed in self.on_viewed:
            viewed(at_us, node)
        if self._due:
            due, self._due = self._due, []
            for owner, judge in due:
                if owner is node:  # A node that died in its event is not observed.
                    judge(at_us, node)

    def after_event(self, node: "Node", judge: Callable[[int, "Node"], None]) -> None:
        """Call ``judge`` with the time and the node once the views have followed the node's current event."""
        self._due.append((node, judge))

    def _follow_logs(self, at_us: int, incarnation: int, node: "Node", thorough: bool) -> None:
        touched = self._touched.taken()
        for log in touched:
            segments = log.durability.last_cut, *log.segments.items
            known, before = self._checked.get(log, ((), ()))
            numbers = log.log_end_offset, log.log_start_offset, log.local_log_start_offset, log.cleaned_offset
            if thorough or known != segments:
                log.check_invariants(closed_too=True)
            elif before != numbers:
                log.check_invariants(closed_too=False)
            else:  # Only the high watermark has moved, which is half of all changes.
                log.check_offsets()
                continue
            self._checked[log] = segments, numbers
        if self.on_logs_touched and (touched or thorough):
            # A node that died in its event was not observed: the logs that it changed are not this one's.
            disk = node.broker.disk
            own = [log for log in touched if log.disk is disk]
            for logs_touched in self.on_logs_touched:
                logs_touched(at_us, node, own, thorough)
        if not self.partitions:
            return
        node_id = node.broker.node_id
        was_settled, settled = self._settled.get(node_id, True), is_settled(node)
        self._settled[node_id] = settled
        keys = self._published.pop(node_id, None)
        if not (was_settled and settled):
            self._look_at_all(at_us, incarnation, node)
            return
        for key in (*(keys or ()), *map(_key_of, touched)):
            self._look_at(at_us, incarnation, node, key)
        assert not (thorough and self._look_at_all(at_us, incarnation, node)), "a log changed and nobody noticed"

    def _look_at_all(self, at_us: int, incarnation: int, node: "Node") -> bool:
        """Return whether any log had changed."""
        changed = False
        for key in (*node.broker.partitions.by_id, *map(_key_of, node._publisher.logs_not_led())):
            changed |= self._look_at(at_us, incarnation, node, key)
        return changed

    def _look_at(self, at_us: int, incarnation: int, node: "Node", key: PartitionKey) -> bool:
        """Compare a node's log of the partition with what is known of it. Returns whether it had changed."""
        partition, log, node_id = self.partitions.get(key), node._publisher.log_of(key), node.broker.node_id
        if partition is None or log is None:
            return False
        led = node.broker.partitions.by_id.get(key)
        epoch = -1 if led is None else led.leader_epoch
        start = log.local_log_start_offset
        now = Held(incarnation, epoch, start, log.high_watermark, log.log_end_offset, log.cleaned_offset)
        copy = partition.copies.get(node_id)
        if copy is None:
            copy = partition.copies[node_id] = Copy(node_id, Held(-1, -1, 0, 0, 0), log)
        elif copy.held == now and copy.log is log:
            return False
        self._changed(at_us, partition, copy, log, now)
        return True

    def _changed(self, at_us: int, partition: Replicated, copy: Copy, log: UnifiedLog, now: Held) -> None:
        before, copy.held = copy.held, now
        if copy.log is not log:
            copy.log = log
            if before.incarnation != now.incarnation:
                copy.equal_to = 0
        copy.equal_to = min(copy.equal_to, now.end_offset)
        if partition.excused and now.leader_epoch >= partition.state.leader_epoch:
            partition.restart()
            self._taken_over_us[partition.name.rpartition("-")[0], partition.key[1]] = at_us
        partition.leader_epoch = max(partition.leader_epoch, now.leader_epoch)
        # E-7: after a loss only the newest leader's log counts, because others may not have truncated theirs yet.
        trusted = not partition.losses or now.leader_epoch == partition.leader_epoch
        if now.high_watermark > partition.committed_end and trusted and not partition.excused:
            begin = self._commit(at_us, partition, log, now)
            if copy.equal_to >= begin >= now.cleaned_offset:  # What this log has there is what is committed.
                copy.equal_to = now.high_watermark
        if partition.compacted is not None:
            partition.note_cleanable()
            partition.compacted.cleanings += now.cleaned_offset > before.cleaned_offset and before.incarnation >= 0
        for copy_changed in self.on_copy_changed:
            copy_changed(at_us, partition, copy, before, now)

    @staticmethod
    def _commit(at_us: int, partition: Replicated, log: UnifiedLog, now: Held) -> int:
        """Read what is committed from now on, and return its first offset."""
        if partition.committed_end == 0 and log.config.is_compacted and partition.compacted is None:
            partition.compacted = Compacted(log.config.delete_retention_ms * 1000)
        begin = max(partition.committed_end, now.start_offset)
        if partition.losses and partition.committed_end == 0:
            partition.committed_from = begin
        for batch, data in read_batches(log, begin, now.high_watermark):
            partition.committed[batch.base_offset] = batch
            if partition.compacted is not None:
                partition.compacted.commit(data, at_us)
        partition.committed_end = now.high_watermark
        return begin


def _lose(partition: Replicated, node_id: int) -> None:
    copy = partition.copies.get(node_id)
    partition.eligible.lost_bytes(node_id, 0 if copy is None else copy.held.end_offset)


@lru_cache(1024)
def offsets_partition(group: str, count: int) -> int:
    """Return the partition of the offsets topic that keeps a group, as Kafka chooses it (Java's hash of its name)."""
    units = group.encode("utf-16-be")
    number = 0
    for at in range(0, len(units), 2):
        number = (31 * number + int.from_bytes(units[at : at + 2], "big")) & 0xFFFFFFFF
    return min(number, 2**32 - number) % 2**31 % max(count, 1)


def remote_metadata_partition(topic_id: bytes, index: int, count: int) -> int:
    """Return the partition of ``__remote_log_metadata`` that has the segments of a partition, as Kafka's
    RemoteLogMetadataTopicPartitioner chooses it: murmur2 of Java's hash of the topic ID and the index."""
    hashed = 1
    for number in (int.from_bytes(topic_id[8:], "big"), int.from_bytes(topic_id[:8], "big")):
        hashed = 31 * hashed + (number ^ number >> 32)
    hashed = (31 * hashed + index) & 0xFFFFFFFF
    multiplier, word = 0x5BD1E995, int.from_bytes(hashed.to_bytes(4, "big"), "little")
    word = word * multiplier & 0xFFFFFFFF
    word = (word ^ word >> 24) * multiplier & 0xFFFFFFFF
    murmur2 = (0x9747B28C ^ 4) * multiplier & 0xFFFFFFFF ^ word
    murmur2 = (murmur2 ^ murmur2 >> 13) * multiplier & 0xFFFFFFFF
    return ((murmur2 ^ murmur2 >> 15) & 0x7FFFFFFF) % max(count, 1)


def is_settled(node: "Node") -> bool:
    """Return whether an event alone shows which logs the node changes. That is not so while the node starts or still
    applies a large publication."""
    return node.ready and not node._publisher.is_behind


def _key_of(log: UnifiedLog) -> PartitionKey:
    return log.topic_id, int(log.directory.rpartition("-")[2])
