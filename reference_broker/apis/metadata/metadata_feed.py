"""Keeps the controller's gauges equal to the published metadata image. It does the same for ``broker.metadata`` if the
metadata epoch is off, or until the active controller's first UpdateMetadata.
"""

from dataclasses import replace
from functools import partial

from reference_broker.apis.broker import Broker
from reference_broker.metadata.cache import NO_EPOCH, cache_of, update_of
from reference_broker.metadata.delta import MetadataDelta, TopicChange
from reference_broker.metadata.features import METADATA_EPOCH_FEATURE, sends_metadata_epoch
from reference_broker.metadata.image import NO_LEADER, MetadataImage, PartitionImage
from reference_broker.metrics.metrics import Metrics


def feed_metadata(broker: Broker) -> None:
    """Follow the published image and the leader of the quorum, from the loaded image on."""
    controller, loader = broker.controller, broker.loader
    _rebuild_from(broker, loader.image, controller.cluster_id)
    metrics = broker.metrics
    gauge = partial(metrics.gauge, "kafka.controller", "KafkaController")
    topics = gauge("GlobalTopicCount")
    partitions = gauge("GlobalPartitionCount")
    applied = gauge("LastAppliedRecordOffset")
    active = gauge("ActiveControllerCount")
    epoch = metrics.gauge("kafka.server", "raft-metrics", "current-epoch")
    leader = metrics.gauge("kafka.server", "raft-metrics", "current-leader")
    health = PartitionHealth(metrics, loader.image)
    topics.value = len(loader.image.topics)
    partitions.value = sum(len(topic.partitions) for topic in loader.image.topics.values())
    applied.value = loader.image.provenance.offset

    def published(delta: MetadataDelta, image: MetadataImage) -> None:
        _apply(broker, delta, image)
        topics.value = len(image.topics)
        for change in delta.topics:
            changed = change.after or change.before
            assert changed is not None, "a topic change has a topic before it or after it"
            health.changed(change)
            before = len(change.before.partitions) if change.before else 0
            partitions.value += (len(change.after.partitions) if change.after else 0) - before
        applied.value = image.provenance.offset

    def leader_changed() -> None:
        if broker.metadata.metadata_epoch == NO_EPOCH:
            broker.metadata = replace(broker.metadata, controller_id=broker.quorum.reported_leader_id)
        active.value = int(controller.is_active)
        epoch.value = broker.quorum.epoch
        leader.value = broker.quorum.reported_leader_id

    loader.subscribe(published)
    broker.quorum_node.on_leader_changed = leader_changed


def _apply(broker: Broker, delta: MetadataDelta, image: MetadataImage) -> None:
    """After the controller's first update, only updates change ``broker.metadata``. This ends when the metadata epoch
    is switched off, unless an update has come that was sent after it was switched on again."""
    cache, leader_id = broker.metadata, broker.quorum.reported_leader_id
    if cache.metadata_epoch == NO_EPOCH:  # Decision served-metadata
        broker.metadata = cache.apply(update_of(delta, image, leader_id))
        _note_overtaken_epochs(broker, image)
    # Decision metadata-epoch-switched-off
    elif delta.features.get(METADATA_EPOCH_FEATURE, 1) is None and cache.metadata_epoch <= image.metadata_epoch:
        _rebuild_from(broker, image, cache.cluster_id)


def _rebuild_from(broker: Broker, image: MetadataImage, cluster_id: str) -> None:
    broker.metadata = cache_of(image, cluster_id, broker.quorum.reported_leader_id)
    _note_overtaken_epochs(broker, image)


def _note_overtaken_epochs(broker: Broker, image: MetadataImage) -> None:
    """If the metadata epoch is off, updates up to the image's epoch no longer count, however late they come."""
    # Decision metadata-epoch-overtaken
    if not sends_metadata_epoch(image) and broker.metadata.overtaken_epoch < image.metadata_epoch:
        broker.metadata = replace(broker.metadata, overtaken_epoch=image.metadata_epoch)


DOMAIN, KIND = "kafka.controller", "KafkaController"


class PartitionHealth:
    """Kafka's OfflinePartitionsCount and PreferredReplicaImbalanceCount. A partition without a leader counts in both.

    Every node keeps them, since every node knows the metadata.
    """

    def __init__(self, metrics: Metrics, image: MetadataImage) -> None:
        """Walk over ``image`` once."""
        self._offline = metrics.gauge(DOMAIN, KIND, "OfflinePartitionsCount")
        self._imbalanced = metrics.gauge(DOMAIN, KIND, "PreferredReplicaImbalanceCount")
        self._offline.value = self._imbalanced.value = 0
        for topic in image.topics.values():
            for partition in topic.partitions:
                self._count(partition, 1)

    def changed(self, change: TopicChange) -> None:
        """Look only at the partitions that are new, changed or deleted."""
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
