"""Finding the partition that a request names, or the error code that says why it is not led here."""

from reference_broker.apis.records.fetch_reading import LooksUpPartitions, leader_epoch_error, led_elsewhere
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode


def led_partition(broker: LooksUpPartitions, topic: str, index: int, current_leader_epoch: int) -> Partition | Error:
    """By topic name, for a requester that takes ``current_leader_epoch`` for the leader's (-1: it does not say)."""
    partition = broker.partitions.by_name.get((topic, index))
    if partition is None:
        known = broker.controller.image.topics.get(topic)
        if known is None or not 0 <= index < len(known.partitions):
            return ErrorCode.unknown_topic_or_partition
        return led_elsewhere(broker, known.partitions[index], current_leader_epoch)
    return leader_epoch_error(partition.leader_epoch, current_leader_epoch) or partition
