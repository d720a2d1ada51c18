"""Which followers a leader may send a consumer to, by KIP-392 and Kafka's RackAwareReplicaSelector.

A follower may be read from if it is in sync, is registered in the consumer's rack and not fenced, and has told that its
log holds the consumer's offset. If the leader stands in that rack itself, nobody else is preferred.
"""

from chaos.checks.fetch_model import Answer
from reference_broker.replication.partitions import Partition

NO_REPLICA = -1


def selects(answer: Answer) -> bool:
    """Whether the node sends consumers to followers, and the client names a rack."""
    return bool(answer.asked.rack and answer.node.broker.config.replica_selector_class)


def in_rack(answer: Answer, node_id: int) -> bool:
    found = answer.node.broker.controller.image.brokers.get(node_id)
    return found is not None and not found.fenced and found.rack == answer.asked.rack


def may_be_read(answer: Answer, partition: Partition, offset: int) -> list[int]:
    """Returns the followers to which the leader may send the client that asks for this offset."""
    if not selects(answer) or in_rack(answer, answer.node.broker.node_id):
        return []
    followers = partition.followers
    if followers is None:
        return []
    return [
        node_id
        for node_id, state in followers.states.items()
        if node_id in followers.isr
        and in_rack(answer, node_id)
        and state.log_start_offset <= offset <= state.log_end_offset
    ]
