"""Lookup of the partitions that this node leads, and the error of a partition that it does not lead.

The checks and their errors are those of Kafka's ReplicaManager.getPartitionOrError and Partition (KIP-320).
"""

from collections.abc import Iterable

from reference_broker.apis.broker import Broker
from reference_broker.metadata.image import TopicImage
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import NodeEndpoint


def led_partition(broker: Broker, topic: str, index: int, current_leader_epoch: int) -> Partition | Error:
    """Return a led partition by the name of its topic, or the error if it is not led here.

    ``current_leader_epoch`` is the leader epoch that the client knows, or -1 if the request has none.
    """
    partition = broker.partitions.by_name.get((topic, index))
    if partition is None:
        image = broker.controller.image.topics.get(topic)
        if image is None or not 0 <= index < len(image.partitions):
            return ErrorCode.unknown_topic_or_partition
        return led_elsewhere(broker, image, index, current_leader_epoch)
    return leader_epoch_error(partition.leader_epoch, current_leader_epoch) or partition


def led_elsewhere(broker: Broker, topic: TopicImage, index: int, request_epoch: int) -> Error:
    """Return the error of an existing partition that this node does not lead.

    A follower compares the leader epoch first (KIP-320). If its own is the older one, it does not know the leader.
    """
    state = topic.partitions[index]
    if (topic.topic_id, index) in broker.partitions.offline:  # Decision replica-offline
        return ErrorCode.kafka_storage_error
    if broker.node_id in state.replicas:
        return leader_epoch_error(state.leader_epoch, request_epoch) or ErrorCode.not_leader_or_follower
    return ErrorCode.not_leader_or_follower


def leader_epoch_error(leader_epoch: int, request_epoch: int) -> Error:
    """Compare leader epochs. ``request_epoch`` is the one that the client knows, or -1 if the request has none."""
    if request_epoch in (-1, leader_epoch):
        return ErrorCode.none
    # Decision wrong-leader-epoch
    return ErrorCode.fenced_leader_epoch if request_epoch < leader_epoch else ErrorCode.unknown_leader_epoch


def endpoints_of(broker: Broker, leaders: Iterable[int], listener: str) -> list[NodeEndpoint]:
    """Return the addresses of those leaders that are registered, on the listener that the client uses (KIP-951)."""
    brokers = broker.controller.image.brokers
    registrations = [brokers[leader] for leader in leaders if leader in brokers]
    return [
        NodeEndpoint(registration.broker_id, *registration.address(listener), registration.rack)
        for registration in registrations
    ]
