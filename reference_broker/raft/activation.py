"""What a new leader of a quorum of one writes before it serves."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from reference_broker.model.metadata_image import MetadataImage
from reference_broker.raft.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    FeatureLevelRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
)
from reference_broker.raft.uuids import random_uuid

METADATA_VERSION_FEATURE = "metadata.version"
METADATA_VERSION = 25
"""Kafka's level 4.0-IV3."""

LISTENER_NAME = "PLAINTEXT"
_SECURITY_PROTOCOL_PLAINTEXT = 0
_RECORDS_PER_BATCH = 1000


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where clients reach this node."""

    host: str
    port: int


def activation_records(
    image: MetadataImage, node_id: int, endpoint: Endpoint, broker_epoch: int, random: Random
) -> Iterator[list[MetadataRecord]]:
    """Batches: of an empty log the feature levels; the broker's registration; its leaderships under a new epoch.

    ``broker_epoch``: the log end offset before the first batch; Kafka takes such an offset for the same purpose.
    """
    first: list[MetadataRecord] = []
    if METADATA_VERSION_FEATURE not in image.features:
        first.append(FeatureLevelRecord(name=METADATA_VERSION_FEATURE, feature_level=METADATA_VERSION))
    first.append(_registration(node_id, endpoint, broker_epoch, random))
    yield first
    batch: list[MetadataRecord] = [
        BrokerRegistrationChangeRecord(broker_id=node_id, broker_epoch=broker_epoch, fenced=-1)
    ]
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if node_id not in partition.isr:
                continue
            batch.append(PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=node_id))
            if len(batch) == _RECORDS_PER_BATCH:
                yield batch
                batch = []
    if batch:
        yield batch


def _registration(node_id: int, endpoint: Endpoint, broker_epoch: int, random: Random) -> RegisterBrokerRecord:
    return RegisterBrokerRecord(
        broker_id=node_id,
        incarnation_id=random_uuid(random),
        broker_epoch=broker_epoch,
        end_points=(
            BrokerEndpoint(
                name=LISTENER_NAME,
                host=endpoint.host,
                port=endpoint.port,
                security_protocol=_SECURITY_PROTOCOL_PLAINTEXT,
            ),
        ),
        features=(
            BrokerFeature(
                name=METADATA_VERSION_FEATURE,
                min_supported_version=METADATA_VERSION,
                max_supported_version=METADATA_VERSION,
            ),
        ),
    )
