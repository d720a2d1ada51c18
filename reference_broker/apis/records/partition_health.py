"""Counts the partitions of the cluster that have no leader, or not the preferred one, at each publication."""

from reference_broker.metadata.delta import TopicChange
from reference_broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from reference_broker.metrics.metrics import Metrics

DOMAIN, KIND = "kafka.controller", "KafkaController"


class PartitionHealth:
    """Kafka's OfflinePartitionsCount and PreferredReplicaImbalanceCount. A partition without a leader counts in both.

    Every node keeps them, since every node knows the metadata.
    """

    def __init__(self, metrics: Metrics, image: MetadataImage) -> None:
        """Walks over ``image`` once."""
        self._offline = metrics.gauge(DOMAIN, KIND, "OfflinePartitionsCount")
        self._imbalanced = metrics.gauge(DOMAIN, KIND, "PreferredReplicaImbalanceCount")
        self._offline.value = self._imbalanced.value = 0
        for topic in image.topics.values():
            for partition in topic.partitions:
                self._count(partition, 1)

    def changed(self, change: TopicChange) -> None:
        """Looks only at the partitions that are new, changed or deleted."""
        old = () if change.before is None else change.before.partitions
        if change.after is None:
            for partition in old:
                self._count(partition, -1)
            return
        for index in change.partitions:
            if index < len(old):
                self._count(old[index], -1)
            self._count(change.after.partitions[index], 1)

    def _count(self, partition: PartitionImage, by: int) -> None:
        if partition.leader == NO_LEADER:
            self._offline.value += by
        if partition.leader != partition.replicas[0]:
            self._imbalanced.value += by
