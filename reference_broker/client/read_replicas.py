"""The followers from which a consumer reads, because their leaders said so (KIP-392). There is no I/O here.

The rules are those of Apache Kafka's consumer. A leader names a follower in the consumer's rack (``client.rack``) and
sends no records. The consumer reads from that follower until one of these things happens, and then asks the leader
again:

- The partition has another leader, or its leader another epoch.
- The follower answers an error for the partition, does not answer, or is not in the metadata any more.
- The time is over. It is that after which metadata is refreshed (``metadata.max.age.ms``).

If the metadata does not have the follower that a leader names, newer metadata is asked for, and then the leader again.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field

from reference_broker.client.metadata_cache import MetadataCache, NodeAddress, PartitionInfo
from reference_broker.client.partitions import TopicPartition

NO_REPLICA = -1


@dataclass(frozen=True, slots=True)
class _Preferred:
    """``leader`` is the leader that named the follower ``node_id``."""

    node_id: int
    leader: PartitionInfo
    until_us: int


@dataclass(slots=True)
class ReadReplicas:
    """A follower is read from for at most ``max_age_us``."""

    max_age_us: int
    _preferred: dict[TopicPartition, _Preferred] = field(default_factory=dict)

    def prefer(self, where: TopicPartition, node_id: int, cache: MetadataCache, now_us: int) -> None:
        """The leader has named this follower. Naming it again does not prolong its time."""
        leader, known = cache.partition(where), self._preferred.get(where)
        if leader is not None and (known is None or known.node_id != node_id):
            self._preferred[where] = _Preferred(node_id, leader, now_us + self.max_age_us)

    def node_of(self, where: TopicPartition, cache: MetadataCache, now_us: int) -> NodeAddress | None:
        """The node to read the partition from. It is the leader if no follower is preferred, and None if nobody is
        known."""
        preferred = self._preferred.get(where)
        if preferred is None:
            return cache.leader_of(where)
        node = cache.nodes.get(preferred.node_id)
        if node is not None and now_us < preferred.until_us and cache.partition(where) == preferred.leader:
            return node
        del self._preferred[where]
        return cache.leader_of(where)

    def forget(self, partitions: Iterable[TopicPartition], node_id: int) -> bool:
        """Asks the leaders again for those partitions that were read from this follower. Returns whether there are
        any."""
        gone = [each for each in partitions if each in self._preferred and self._preferred[each].node_id == node_id]
        for each in gone:
            del self._preferred[each]
        return bool(gone)
