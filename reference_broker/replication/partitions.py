"""The partitions of a node: those that it leads or follows, the watchers of their changes, and the interfaces for role
changes.

The publisher (``broker_metadata_publisher``) calls ``PartitionRoles`` for each replica whose role changes.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.replication.leader.replicas import Followers


class PartitionWatcher(Protocol):
    """Is called once, at a partition's next change. It registers again for the change after that."""

    def partition_changed(self, partition: "Partition") -> None: ...


@dataclass(slots=True, eq=False)
class Partition:
    """One partition that this node leads, or one that it follows and from which consumers may read (KIP-392).

    ``changed()`` is called after every append, every truncation, every change of log start, high watermark or leader
    epoch, and when the partition is removed. Where a selector prefers followers, it is called after a change of the
    in-sync replicas, too. An append to a followed partition notifies nobody before the high watermark moves.
    """

    topic: str
    topic_id: bytes
    index: int
    leader_epoch: int
    log: UnifiedLog
    is_removed: bool = False
    """True once this node no longer leads it, or no longer follows it."""
    is_topic_deleted: bool = False
    """True once its topic is deleted, and its log with it."""
    followed_leader: int | None = None
    """None if this node leads. Otherwise the ID of the leader that it follows, or -1 if there is none."""
    partition_epoch: int = 0
    """The epoch of the newest state that this leader knows from the metadata."""
    followers: Followers | None = None
    """The other replicas. None if there is only one replica: then the partition pays nothing for replication."""
    standing: int = 0
    """The state in which the replication metrics count it (``replication.leader.replica_metrics``)."""
    flush_planned: bool = False
    """True while a timer is set that will sync the appended records (flush.ms)."""
    synced: Callable[[], None] = lambda: None
    """Is called when more of the log is synced, if there are other replicas."""
    watchers: dict[PartitionWatcher, None] = field(default_factory=dict)

    def is_followed_by(self, node_id: int) -> bool:
        """Whether another node has a replica, as far as this leader knows."""
        return self.followers is not None and node_id in self.followers.states

    def watch(self, watcher: PartitionWatcher) -> None:
        self.watchers[watcher] = None

    def unwatch(self, watcher: PartitionWatcher) -> None:
        self.watchers.pop(watcher, None)

    def changed(self) -> None:
        """Call and drop all watchers, in the order in which they registered."""
        if not self.watchers:
            return
        watchers, self.watchers = self.watchers, {}
        for watcher in watchers:
            watcher.partition_changed(self)


@dataclass(slots=True)
class Partitions:
    """All led partitions, by topic name and index and by topic ID and index. ``followed`` has the other replicas."""

    by_name: dict[tuple[str, int], Partition] = field(default_factory=dict)
    by_id: dict[tuple[bytes, int], Partition] = field(default_factory=dict)
    topic_names: dict[bytes, str] = field(default_factory=dict)
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    counts: dict[bytes, int] = field(default_factory=dict)
    """The number of each topic's partitions here, by topic ID. A topic's name is dropped with its last partition."""
    offline: dict[tuple[bytes, int], None] = field(default_factory=dict)
    """Partitions by topic ID and index that this node should lead, but whose log is in quarantine."""
    followed: dict[tuple[bytes, int], Partition] = field(default_factory=dict)
    """Partitions by topic ID and index that this node follows, or would follow if they had a leader."""
    arrivals: dict[PartitionWatcher, None] = field(default_factory=dict)
    """Watchers of partitions that are not here. They are called once, when a partition is added."""

    def add(self, partition: Partition) -> None:
        self.by_name[partition.topic, partition.index] = partition
        self.by_id[partition.topic_id, partition.index] = partition
        self.topic_names[partition.topic_id] = partition.topic
        self.topic_ids[partition.topic] = partition.topic_id
        self.counts[partition.topic_id] = self.counts.get(partition.topic_id, 0) + 1
        self._arrived(partition)

    def _arrived(self, partition: Partition) -> None:
        waiting, self.arrivals = self.arrivals, {}
        for watcher in waiting:
            watcher.partition_changed(partition)

    def follow(self, topic: str, topic_id: bytes, index: int, log: UnifiedLog, leader: int, leader_epoch: int) -> None:
        """Register that this node follows ``leader`` in this epoch from now on. ``leader`` is -1 if there is none."""
        followed = self.followed.get((topic_id, index))
        if followed is None:
            followed = Partition(topic, topic_id, index, leader_epoch, log, followed_leader=leader)
            self.followed[topic_id, index] = followed
            self._arrived(followed)
        elif followed.leader_epoch != leader_epoch:
            followed.leader_epoch, followed.followed_leader = leader_epoch, leader
            followed.changed()

    def unfollow(self, topic_id: bytes, index: int) -> None:
        """Unregister a partition that this node leads from now on, or whose replica it cannot use. A partition that is
        not followed is ignored."""
        followed = self.followed.pop((topic_id, index), None)
        if followed is not None:
            followed.is_removed = True
            followed.changed()

    def changed(self, topic_id: bytes, index: int) -> None:
        """Call the watchers of a followed partition. A partition that is not followed is ignored."""
        followed = self.followed.get((topic_id, index))
        if followed is not None:
            followed.changed()

    def remove(self, partition: Partition) -> None:
        """Remove the partition, then call its watchers, which find it ``is_removed``. Costs O(1) plus its watchers."""
        del self.by_id[partition.topic_id, partition.index]
        if self.by_name.get((partition.topic, partition.index)) is partition:
            del self.by_name[partition.topic, partition.index]
        self.counts[partition.topic_id] -= 1
        if self.counts[partition.topic_id] == 0:
            del self.counts[partition.topic_id], self.topic_names[partition.topic_id]
            if self.topic_ids.get(partition.topic) == partition.topic_id:
                del self.topic_ids[partition.topic]
        partition.is_removed = True
        partition.changed()


class LeadershipListener(Protocol):
    """Is called for partitions that this node leads, after replication.

    A group coordinator's writes need a leader's state. Requests that wait for a record of a lost partition fail before
    the groups of that partition are dropped.
    """

    def leads(self, partition: Partition) -> None:
        """Repeated with each newer state of the partition."""
        ...

    def stops_leading(self, partition: Partition) -> None: ...


class ReplicaListener(LeadershipListener, Protocol):
    """Is called for all replicas of this node, including those that it does not lead, after replication."""

    def follows(self, topic: TopicImage, index: int, log: UnifiedLog) -> None:
        """The replica follows another node. Repeated with each newer state of the partition."""
        ...

    def stops_following(self, topic_id: bytes, index: int) -> None:
        """The replica follows nobody from now on. An unknown replica is ignored."""
        ...

    def reconfigured(self, partition: Partition) -> None:
        """The settings of a log changed that this node leads."""
        ...


class PartitionRoles(Protocol):
    """The publisher (``replication.broker_metadata_publisher``) makes these calls; replication carries them out.

    A replica is led here, follows another node, or does neither while no leader is known. Each call says what holds
    from now on. It is repeated with each newer ``state`` (epochs, in-sync replicas) for as long as the role lasts.
    """

    def leads(self, partition: Partition, state: PartitionImage) -> None:
        """Called when this node leads ``partition``, which is already in ``Partitions`` and has ``state``'s leader
        epoch."""
        ...

    def stops_leading(self, partition: Partition) -> None:
        """Called when this node no longer leads ``partition``, which is already out of ``Partitions``.

        The log stays unless ``partition.is_topic_deleted`` is set.
        """
        ...

    def follows(self, topic: TopicImage, index: int, state: PartitionImage, log: UnifiedLog) -> None:
        """The replica follows ``state.leader``, which is another node."""
        ...

    def stops_following(self, topic_id: bytes, index: int) -> None:
        """The replica follows nobody from now on. An unknown replica is ignored.

        There is no leader, this node leads it now, it was deleted, or this node no longer has a replica.
        """
        ...

    def reconfigured(self, partition: Partition) -> None:
        """Called when this node leads ``partition`` and the settings of its log changed."""
        ...

    def forgets(self, log: UnifiedLog) -> None:
        """The high watermark that was known for this log does not hold any more.

        Either the replica is gone with its files, after ``stops_following``, or the log was found shorter than that
        high watermark when it was opened.
        """
        ...
