"""Which follower a consumer is to read from: the selection of Kafka's RackAwareReplicaSelector (KIP-392).

The rules are those of Kafka's ReplicaManager.findPreferredReadReplica. A follower is chosen among those that are in
sync, stand in the consumer's rack and, as far as the leader knows, hold the offset that the consumer asks for. Nobody
is chosen if the leader stands in that rack itself.
"""

from reference_broker.apis.parts import HasController
from reference_broker.replication.leader.replicas import Followers, FollowerState
from reference_broker.replication.partitions import Partition

NO_REPLICA = -1


def preferred_replica(
    broker: HasController, partition: Partition, followers: Followers, fetch_offset: int, rack: str
) -> int:
    """Returns the ID of the follower, or NO_REPLICA if the consumer is to read from this leader.

    Of several the one with the longest log is chosen, then the one that caught up last, then the highest ID.
    """
    if _stands_in(broker, followers.leader_id, rack):
        return NO_REPLICA
    found: list[tuple[int, int, int]] = []
    for state in followers.states.values():
        replica_id = state.replica_id
        if replica_id in followers.isr and _holds(state, fetch_offset) and _stands_in(broker, replica_id, rack):
            state.settle(partition.log.log_end_offset)
            found.append((state.log_end_offset, state.last_caught_up_us // 1000, replica_id))
    return max(found)[2] if found else NO_REPLICA


def _holds(state: FollowerState, offset: int) -> bool:
    """Whether the follower has told that it has all up to the offset, and that its log does not begin behind it."""
    return state.log_start_offset <= offset <= state.log_end_offset


def _stands_in(broker: HasController, replica_id: int, rack: str) -> bool:
    """Whether the broker is registered in that rack, and not fenced."""
    found = broker.controller.image.brokers.get(replica_id)
    return found is not None and not found.fenced and found.rack == rack
