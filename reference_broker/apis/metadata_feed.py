"""Keeps ``broker.metadata`` and the controller's gauges equal to the published metadata image."""

from dataclasses import replace

from reference_broker.apis.broker import Broker
from reference_broker.apis.partition_health import PartitionHealth
from reference_broker.model.metadata_cache import cache_of, update_of
from reference_broker.model.metadata_delta import MetadataDelta
from reference_broker.model.metadata_image import MetadataImage


def feed_metadata(broker: Broker) -> None:
    """Call once the metadata is loaded: takes the image, then follows its deltas and who leads the quorum."""
    controller, loader = broker.controller, broker.loader
    broker.metadata = cache_of(loader.image, controller.cluster_id, broker.quorum.shown_leader_id)
    metrics = broker.metrics
    topics = metrics.gauge("kafka.controller", "KafkaController", "GlobalTopicCount")
    partitions = metrics.gauge("kafka.controller", "KafkaController", "GlobalPartitionCount")
    applied = metrics.gauge("kafka.controller", "KafkaController", "LastAppliedRecordOffset")
    active = metrics.gauge("kafka.controller", "KafkaController", "ActiveControllerCount")
    epoch = metrics.gauge("kafka.server", "raft-metrics", "current-epoch")
    leader = metrics.gauge("kafka.server", "raft-metrics", "current-leader")
    health = PartitionHealth(metrics, loader.image)
    topics.value = len(loader.image.topics)
    partitions.value = sum(len(topic.partitions) for topic in loader.image.topics.values())
    applied.value = loader.image.provenance.offset

    def published(delta: MetadataDelta, image: MetadataImage) -> None:
        broker.metadata = broker.metadata.apply(update_of(delta, image, broker.quorum.shown_leader_id))
        topics.value = len(image.topics)
        for change in delta.topics:
            changed = change.after or change.before
            assert changed is not None, "a topic change has a topic before it or after it"
            broker.topic_answers.pop(changed.name, None)
            health.changed(change)
            before = len(change.before.partitions) if change.before else 0
            partitions.value += (len(change.after.partitions) if change.after else 0) - before
        applied.value = image.provenance.offset

    def leader_changed() -> None:
        broker.metadata = replace(broker.metadata, controller_id=broker.quorum.shown_leader_id)
        active.value = int(controller.is_active)
        epoch.value = broker.quorum.epoch
        leader.value = broker.quorum.shown_leader_id

    loader.subscribe(published)
    broker.replica.on_leader_changed(leader_changed)
