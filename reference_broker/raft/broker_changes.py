"""The records of a broker's life: registration, fencing, unfencing, controlled shutdown, removal.

A fenced broker leads nothing: its partitions have no leader until it is unfenced; with one replica there is nobody
else. A partition gets a new leader epoch with each of these changes. A broker that registers anew (after a crash that
nobody noticed) is still named as the leader until it is unfenced, but clients are not sent to a fenced broker.
"""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from reference_broker.model.metadata_image import NO_LEADER, BrokerImage, MetadataImage
from reference_broker.raft.features import METADATA_VERSION_FEATURE, metadata_version
from reference_broker.raft.metadata_records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    PartitionChangeRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from reference_broker.raft.refusal import Refusal

LISTENER_NAME = "PLAINTEXT"
SECURITY_PROTOCOL_PLAINTEXT = 0

FENCED, UNFENCED, NO_CHANGE = 1, -1, 0
"""BrokerRegistrationChangeRecord.Fenced."""

PARTITIONS_PER_UNIT = 50
"""Looked at in about 10 us."""

Spend: TypeAlias = Callable[[int], bool]
RecordSlices: TypeAlias = Generator[None, None, list[MetadataRecord]]
Change: TypeAlias = Callable[[MetadataImage, BrokerImage, Spend], RecordSlices]


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself. ``features``: (name, lowest, highest level that it knows)."""

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    listeners: tuple[tuple[str, str, int, int], ...]
    """(name, host, port, security protocol)."""
    features: tuple[tuple[str, int, int], ...]
    rack: str | None
    log_dirs: tuple[bytes, ...]


def registration_problem(registration: Registration, cluster_id: str, image: MetadataImage) -> Refusal | None:
    """Why a broker may not register."""
    if registration.cluster_id != cluster_id:
        return Refusal(
            ErrorCode.inconsistent_cluster_id, f"Expected cluster ID {cluster_id}, but got {registration.cluster_id}"
        )
    if not registration.listeners:
        return Refusal(ErrorCode.invalid_registration, "No listeners were given.")
    level = metadata_version(image)
    supported = {name: (low, high) for name, low, high in registration.features}
    low, high = supported.get(METADATA_VERSION_FEATURE, (0, 0))
    if level and not low <= level <= high:
        return Refusal(
            ErrorCode.unsupported_version,
            f"Unable to register because the broker does not support version {level} of {METADATA_VERSION_FEATURE}.",
        )
    return None


def duplicate_problem(registration: Registration, known: BrokerImage) -> Refusal | None:
    """Of a registration while ``known``, of the same ID, has a session: two nodes would take the ID from each other
    without end. The same data directory is no problem: one process holds it, so the other is gone."""
    if known.fenced or known.incarnation_id == registration.incarnation_id or known.log_dirs == registration.log_dirs:
        return None
    return Refusal(
        ErrorCode.duplicate_broker_registration,
        f"Another broker is registered with ID {known.broker_id} and alive, on another data directory.",
    )


def registering(registration: Registration, broker_epoch: int) -> RegisterBrokerRecord:
    """Registers it, fenced. ``broker_epoch``: the offset at which this record will stand."""
    return RegisterBrokerRecord(
        broker_id=registration.broker_id,
        incarnation_id=registration.incarnation_id,
        broker_epoch=broker_epoch,
        end_points=tuple(
            BrokerEndpoint(name=name, host=host, port=port, security_protocol=protocol)
            for name, host, port, protocol in registration.listeners
        ),
        features=tuple(
            BrokerFeature(name=name, min_supported_version=low, max_supported_version=high)
            for name, low, high in registration.features
        ),
        rack=registration.rack,
        log_dirs=registration.log_dirs,
    )


def fencing(image: MetadataImage, broker: BrokerImage, spend: Spend) -> RecordSlices:
    """Nothing for a broker that is fenced."""
    if broker.fenced:
        return []
    return (yield from _stepping_down(image, broker, 0, spend))


def shutting_down(image: MetadataImage, broker: BrokerImage, spend: Spend) -> RecordSlices:
    """As fencing, and says that the broker wanted it."""
    if is_shut_down(broker, broker.broker_epoch):
        return []
    return (yield from _stepping_down(image, broker, 1, spend))


def unfencing(image: MetadataImage, broker: BrokerImage, spend: Spend) -> RecordSlices:
    """It leads its partitions again. Nothing for a broker that is not fenced or has shut down."""
    if not broker.fenced or broker.in_controlled_shutdown:
        return []
    records: list[MetadataRecord] = [_change(broker, UNFENCED, 0)]
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if broker.broker_id in partition.isr and partition.leader in (NO_LEADER, broker.broker_id):
                records.append(
                    PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=broker.broker_id)
                )
        if spend(1 + len(topic.partitions) // PARTITIONS_PER_UNIT):
            yield
    return records


def unregistering(image: MetadataImage, broker: BrokerImage, spend: Spend) -> RecordSlices:
    """Takes it out; what it led has no leader."""
    records = [] if broker.fenced else (yield from _stepping_down(image, broker, 0, spend))
    records.append(UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch))
    return records


def is_shut_down(broker: BrokerImage | None, broker_epoch: int) -> bool:
    """This registration was ended by a controlled shutdown (or by a later registration)."""
    return broker is not None and (
        broker.broker_epoch > broker_epoch
        or (broker.broker_epoch == broker_epoch and broker.fenced and broker.in_controlled_shutdown)
    )


def _stepping_down(
    image: MetadataImage, broker: BrokerImage, in_controlled_shutdown: int, spend: Spend
) -> RecordSlices:
    records: list[MetadataRecord] = [_change(broker, NO_CHANGE if broker.fenced else FENCED, in_controlled_shutdown)]
    for topic in image.topics.values():
        for index, partition in enumerate(topic.partitions):
            if partition.leader == broker.broker_id:
                records.append(PartitionChangeRecord(partition_id=index, topic_id=topic.topic_id, leader=NO_LEADER))
        if spend(1 + len(topic.partitions) // PARTITIONS_PER_UNIT):
            yield
    return records


def _change(broker: BrokerImage, fenced: int, in_controlled_shutdown: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )
