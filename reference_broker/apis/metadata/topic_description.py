"""What clients are told about one partition; the same for Metadata and DescribeTopicPartitions."""

from dataclasses import dataclass

from reference_broker.metadata.cache import MetadataCache
from reference_broker.metadata.image import NO_LEADER, PartitionImage
from reference_broker.wire.errors import ErrorCode


@dataclass(frozen=True, slots=True)
class DescribedPartition:
    """``leader``: -1 where there is none that clients can reach, which is also the error."""

    error: ErrorCode
    leader: int
    leader_epoch: int
    offline: tuple[int, ...]


def described(cache: MetadataCache, partition: PartitionImage) -> DescribedPartition:
    """LEADER_NOT_AVAILABLE where no live broker leads; offline: the replicas that are not live."""
    offline = tuple(broker for broker in partition.replicas if not cache.is_live(broker))
    if partition.leader == NO_LEADER or not cache.is_live(partition.leader):
        return DescribedPartition(ErrorCode.leader_not_available, NO_LEADER, partition.leader_epoch, offline)
    return DescribedPartition(ErrorCode.none, partition.leader, partition.leader_epoch, offline)
