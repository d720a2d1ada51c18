"""Cached partitions of fetch sessions that this node does not lead, by the name or ID that they wait for."""

from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.replication.partitions import Partition, Partitions, Watcher


class Expecting(Watcher, Protocol):
    """It is told when a partition with its topic name or ID and with its index arrives."""

    topic: str
    topic_id: bytes
    index: int


@dataclass(slots=True, eq=False)
class Arrivals:
    """One watcher for all of them, so that an arrival costs only what waits for it, not all that waits."""

    expected: dict[tuple[str | bytes, int], dict[Expecting, None]] = field(default_factory=dict)
    keys: dict[Expecting, tuple[tuple[str | bytes, int], ...]] = field(default_factory=dict)
    partitions: Partitions | None = None

    def expect(self, partitions: Partitions, cached: Expecting) -> None:
        """Tells ``cached`` once, when its partition is added. Expecting it twice is no error."""
        if cached not in self.keys:
            self.keys[cached] = ((cached.topic_id, cached.index), (cached.topic, cached.index))
            for key in self.keys[cached]:
                self.expected.setdefault(key, {})[cached] = None
        self.partitions = partitions
        partitions.arrivals[self] = None

    def forget(self, cached: Expecting) -> None:
        for key in self.keys.pop(cached, ()):
            waiting = self.expected[key]
            del waiting[cached]
            if not waiting:
                del self.expected[key]

    def partition_changed(self, partition: Partition) -> None:
        arrived: dict[Expecting, None] = {}
        for name in (partition.topic_id, partition.topic):
            arrived.update(self.expected.get((name, partition.index), {}))
        for cached in arrived:
            self.forget(cached)
        if self.keys and self.partitions is not None:
            self.partitions.arrivals[self] = None
        for cached in arrived:
            cached.partition_changed(partition)
