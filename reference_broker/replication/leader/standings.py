"""What the metadata says of the brokers that have a replica of a partition led here. Nothing is cached."""

from dataclasses import dataclass

from reference_broker.controller.metadata_replica import MetadataReplica
from reference_broker.replication.leader.replicas import UNKNOWN_EPOCH, FollowerState


@dataclass(slots=True)
class Standings:
    """Answers questions about other brokers, and about this node's own replicas."""

    _node_id: int
    _replica: MetadataReplica

    def is_eligible(self, state: FollowerState) -> bool:
        """Whether it may join: it is not fenced, not leaving, and of the incarnation in the metadata (KIP-903)."""
        broker = self._replica.controller.image.brokers.get(state.replica_id)
        if broker is None or broker.fenced or broker.in_controlled_shutdown:
            return False
        return state.broker_epoch == broker.broker_epoch

    def is_stale(self, replica_id: int, replica_epoch: int) -> bool:
        """Whether a later incarnation is known. False for an epoch below 0, which does not tell the incarnation."""
        return 0 <= replica_epoch < self.epoch_of(replica_id)

    def epoch_of(self, replica_id: int) -> int:
        """The epoch of the incarnation in the metadata, or UNKNOWN_EPOCH if none is registered.

        This node knows its own epoch before the metadata tells it.
        """
        if replica_id == self._node_id:
            return self._replica.lifecycle.registered_epoch
        broker = self._replica.controller.image.brokers.get(replica_id)
        return UNKNOWN_EPOCH if broker is None else broker.broker_epoch

    def is_alive(self, replica_id: int) -> bool:
        broker = self._replica.controller.image.brokers.get(replica_id)
        return broker is not None and not broker.fenced

    def has_replica_here(self, topic: str, index: int) -> bool:
        known = self._replica.controller.image.topics.get(topic)
        if known is None or index >= len(known.partitions):
            return False
        return self._node_id in known.partitions[index].replicas
