"""Keeps ``broker.metadata`` and the controller's gauges equal to the published metadata image."""

from reference_broker.apis.broker import Broker
from reference_broker.model.metadata_cache import cache_of, update_of
from reference_broker.model.metadata_delta import MetadataDelta
from reference_broker.model.metadata_image import MetadataImage


def feed_metadata(broker: Broker) -> None:
    """Call once the controller is ready: takes its image, then follows its deltas."""
    controller = broker.controller
    broker.metadata = cache_of(controller.image, controller.cluster_id, controller.node_id)
    metrics = broker.metrics
    topics = metrics.gauge("kafka.controller", "KafkaController", "GlobalTopicCount")
    partitions = metrics.gauge("kafka.controller", "KafkaController", "GlobalPartitionCount")
    applied = metrics.gauge("kafka.controller", "KafkaController", "LastAppliedRecordOffset")
    metrics.gauge("kafka.controller", "KafkaController", "ActiveControllerCount").value = 1
    metrics.gauge("kafka.server", "raft-metrics", "current-epoch").value = controller.epoch
    topics.value = len(controller.image.topics)
    partitions.value = sum(len(topic.partitions) for topic in controller.image.topics.values())
    applied.value = controller.image.provenance.offset

    def published(delta: MetadataDelta, image: MetadataImage) -> None:
        broker.metadata = broker.metadata.apply(update_of(delta, image, controller.node_id))
        topics.value = len(image.topics)
        for change in delta.topics:
            changed = change.after or change.before
            assert changed is not None, "a topic change has a topic before it or after it"
            broker.topic_answers.pop(changed.name, None)
            before = len(change.before.partitions) if change.before else 0
            partitions.value += (len(change.after.partitions) if change.after else 0) - before
        applied.value = image.provenance.offset

    controller.subscribe(published)
