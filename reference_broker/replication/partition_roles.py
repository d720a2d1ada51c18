"""What the metadata makes of this node's replicas: who is told, partition by partition."""

from typing import Protocol

from reference_broker.log.partition_log import PartitionLog
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.replication.partitions import Partition


class PartitionRoles(Protocol):
    """Told by the publisher (``replication.partition_publisher``); replication carries it out.

    A replica is led here, follows another node or rests (no leader is known). Each call says what is so from now on;
    it is repeated with a newer ``state`` (epochs, in-sync replicas) for as long as the role lasts.
    """

    def leads(self, partition: Partition, state: PartitionImage) -> None:
        """``partition`` is in ``Partitions`` and has ``state``'s leader epoch already."""
        ...

    def resigns(self, partition: Partition) -> None:
        """It is no longer led here: already out of ``Partitions``; its log lives on unless ``partition.deleted_topic``
        says otherwise."""
        ...

    def follows(self, topic: TopicImage, index: int, state: PartitionImage, log: PartitionLog) -> None:
        """``state.leader`` is another node."""
        ...

    def rests(self, topic_id: bytes, index: int) -> None:
        """It follows nobody: no leader, led here from now on, deleted or no longer a replica. Unknown ones are no
        error."""
        ...

    def reconfigured(self, partition: Partition) -> None:
        """Led here; its log has other settings now."""
        ...

    def forgets(self, log: PartitionLog) -> None:
        """What was known of this log's high watermark does not hold: its replica, not led here, is gone, files and all
        (``rests`` was called before), or it was opened shorter than that."""
        ...
