"""Turns an image into the records of its snapshot: one for each thing that exists (S-16). Their order depends on the
content alone."""

from collections.abc import Iterator

from reference_broker.metadata.features import METADATA_VERSION_FEATURE
from reference_broker.metadata.image import BrokerImage, MetadataImage, TopicImage
from reference_broker.metadata.records import (
    SECURITY_PROTOCOL_PLAINTEXT,
    BrokerEndpoint,
    BrokerFeature,
    ConfigRecord,
    FeatureLevelRecord,
    MetadataEpoch,
    MetadataRecord,
    NoOpRecord,
    PartitionRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    TopicRecord,
)

NO_BROKER = -1


def records_of(image: MetadataImage) -> Iterator[MetadataRecord]:
    """Yields the records lazily, so that the caller may take them in slices; the image never changes. Replaying them on
    an empty image gives the same content. The metadata version comes first, because it says how to read the rest."""
    for name in sorted(image.features, key=lambda name: (name != METADATA_VERSION_FEATURE, name)):
        yield FeatureLevelRecord(name=name, feature_level=image.features[name])
    yield from _metadata_epoch(image)
    for broker_id in sorted(image.brokers):
        yield _registration(image.brokers[broker_id])
    for topic in sorted(image.topics):
        yield from _topic(image.topics[topic])
    for resource in sorted(image.configs):
        settings = image.configs[resource]
        for name in sorted(settings):
            yield ConfigRecord(resource_type=resource[0], resource_name=resource[1], name=name, value=settings[name])
    if image.next_producer_id > 0:
        # The metadata does not tell which broker got the last block.
        yield ProducerIdsRecord(broker_id=NO_BROKER, next_producer_id=image.next_producer_id)


def _metadata_epoch(image: MetadataImage) -> Iterator[MetadataRecord]:
    if image.metadata_epoch > 0:
        yield NoOpRecord(metadata_epoch=MetadataEpoch(metadata_epoch=image.metadata_epoch))


def _registration(broker: BrokerImage) -> MetadataRecord:
    return RegisterBrokerRecord(
        broker_id=broker.broker_id,
        incarnation_id=broker.incarnation_id,
        broker_epoch=broker.broker_epoch,
        end_points=tuple(
            BrokerEndpoint(name=name, host=host, port=port, security_protocol=SECURITY_PROTOCOL_PLAINTEXT)
            for name, host, port in broker.endpoints
        ),
        features=tuple(
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in broker.features
        ),
        rack=broker.rack,
        fenced=broker.fenced,
        in_controlled_shutdown=broker.in_controlled_shutdown,
        log_dirs=broker.log_dirs,
    )


def _topic(topic: TopicImage) -> Iterator[MetadataRecord]:
    yield TopicRecord(name=topic.name, topic_id=topic.topic_id)
    for index, partition in enumerate(topic.partitions):
        yield PartitionRecord(
            partition_id=index,
            topic_id=topic.topic_id,
            replicas=partition.replicas,
            isr=partition.isr,
            removing_replicas=partition.removing_replicas,
            adding_replicas=partition.adding_replicas,
            leader=partition.leader,
            leader_recovery_state=partition.leader_recovery_state,
            leader_epoch=partition.leader_epoch,
            partition_epoch=partition.partition_epoch,
            directories=partition.directories,
            eligible_leader_replicas=partition.elr or None,
            last_known_elr=partition.last_known_elr or None,
        )
