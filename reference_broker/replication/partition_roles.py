"""The interface through which the publisher tells, partition by partition, which role a replica has now."""

from typing import Protocol

from reference_broker.log.partition_log import PartitionLog
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.replication.partitions import Partition


class LeadershipListener(Protocol):
    """It is told of partitions that this node leads, after replication.

    What a group coordinator writes needs a leader's state. Whoever waits for a record of a lost partition is told so
    before the groups of that partition are dropped.
    """

    def leads(self, partition: Partition) -> None:
        """Repeated with each newer state of the partition."""
        ...

    def resigns(self, partition: Partition) -> None: ...


class ReplicaListener(LeadershipListener, Protocol):
    """It is told of all replicas of this node, those that it does not lead too, after replication."""

    def follows(self, topic: TopicImage, index: int, log: PartitionLog) -> None:
        """The replica follows another node. Repeated with each newer state of the partition."""
        ...

    def rests(self, topic_id: bytes, index: int) -> None:
        """The replica follows nobody from now on. An unknown replica is no error."""
        ...

    def reconfigured(self, partition: Partition) -> None:
        """The settings of a log changed that this node leads."""
        ...


class PartitionRoles(Protocol):
    """The publisher (``replication.partition_publisher``) makes these calls; replication carries them out.

    A replica is led here, follows another node, or rests because no leader is known. Each call says what holds from
    now on. It is repeated with each newer ``state`` (epochs, in-sync replicas) for as long as the role lasts.
    """

    def leads(self, partition: Partition, state: PartitionImage) -> None:
        """This node leads ``partition``, which is already in ``Partitions`` and has ``state``'s leader epoch."""
        ...

    def resigns(self, partition: Partition) -> None:
        """This node no longer leads ``partition``, which is already out of ``Partitions``.

        The log stays unless ``partition.deleted_topic`` is set.
        """
        ...

    def follows(self, topic: TopicImage, index: int, state: PartitionImage, log: PartitionLog) -> None:
        """The replica follows ``state.leader``, which is another node."""
        ...

    def rests(self, topic_id: bytes, index: int) -> None:
        """The replica follows nobody from now on. An unknown replica is no error.

        There is no leader, this node leads it now, it was deleted, or this node no longer has a replica.
        """
        ...

    def reconfigured(self, partition: Partition) -> None:
        """This node leads ``partition``, and the settings of its log changed."""
        ...

    def forgets(self, log: PartitionLog) -> None:
        """The high watermark that was known for this log does not hold any more.

        Either the replica, which is not led here, is gone with its files (``rests`` was called before), or the log was
        found shorter than that high watermark when it was opened.
        """
        ...
