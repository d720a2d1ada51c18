"""The partitions that this node leads, and who wants to know when one changes."""

from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.log.partition_log import PartitionLog
from reference_broker.replication.leader.replicas import Followers


class Watcher(Protocol):
    """Told once at a partition's next change; it registers again when it wants to be told again."""

    def partition_changed(self, partition: "Partition") -> None: ...


@dataclass(slots=True, eq=False)
class Partition:
    """One led partition. ``changed()`` is called after every append, truncation, change of log start, high
    watermark or leader epoch, and when it is deleted."""

    topic: str
    topic_id: bytes
    index: int
    leader_epoch: int
    log: PartitionLog
    deleted: bool = False
    """No longer led here."""
    deleted_topic: bool = False
    """Its topic is gone, and its log with it."""
    partition_epoch: int = 0
    """Of the newest state that this leader knows: as published, or as the controller answered."""
    followers: Followers | None = None
    """The other replicas; None with one replica, and then nothing of replication is done for it."""
    standing: int = 0
    """As what the metrics of replication count it (``replication.leader.replica_metrics``)."""
    flush_planned: bool = False
    """A timer will sync what is appended (flush.ms)."""
    watchers: dict[Watcher, None] = field(default_factory=dict)

    def watch(self, watcher: Watcher) -> None:
        self.watchers[watcher] = None

    def unwatch(self, watcher: Watcher) -> None:
        self.watchers.pop(watcher, None)

    def changed(self) -> None:
        """Tells and forgets all watchers, in the order in which they came."""
        if not self.watchers:
            return
        watchers, self.watchers = self.watchers, {}
        for watcher in watchers:
            watcher.partition_changed(self)


@dataclass(slots=True)
class Partitions:
    """All led partitions, by topic name and index and by topic ID and index."""

    by_name: dict[tuple[str, int], Partition] = field(default_factory=dict)
    by_id: dict[tuple[bytes, int], Partition] = field(default_factory=dict)
    topic_names: dict[bytes, str] = field(default_factory=dict)
    topic_ids: dict[str, bytes] = field(default_factory=dict)
    counts: dict[bytes, int] = field(default_factory=dict)
    """How many partitions of each topic are here, by topic ID: a name goes with the last of them."""
    arrivals: dict[Watcher, None] = field(default_factory=dict)
    """Told (once) when a partition is added: those who named one that is not there."""

    def add(self, partition: Partition) -> None:
        self.by_name[partition.topic, partition.index] = partition
        self.by_id[partition.topic_id, partition.index] = partition
        self.topic_names[partition.topic_id] = partition.topic
        self.topic_ids[partition.topic] = partition.topic_id
        self.counts[partition.topic_id] = self.counts.get(partition.topic_id, 0) + 1
        waiting, self.arrivals = self.arrivals, {}
        for watcher in waiting:
            watcher.partition_changed(partition)

    def remove(self, partition: Partition) -> None:
        """Takes it out, then tells its watchers (who find it ``deleted``). Costs O(1) and its watchers."""
        del self.by_id[partition.topic_id, partition.index]
        if self.by_name.get((partition.topic, partition.index)) is partition:
            del self.by_name[partition.topic, partition.index]
        self.counts[partition.topic_id] -= 1
        if self.counts[partition.topic_id] == 0:
            del self.counts[partition.topic_id], self.topic_names[partition.topic_id]
            if self.topic_ids.get(partition.topic) == partition.topic_id:
                del self.topic_ids[partition.topic]
        partition.deleted = True
        partition.changed()
