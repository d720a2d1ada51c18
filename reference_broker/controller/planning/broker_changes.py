"""The records of a broker's life: registration, fencing, unfencing, controlled shutdown, removal.

Who goes leaves every set of in-sync replicas that has another member, and leads nothing: another live member leads, or
nobody. A broker that registers anew (after a crash that nobody noticed) goes first, since it may have lost what it had
acknowledged; only partitions without other replicas name it as their leader until it is unfenced, but clients are not
sent to a fenced broker.
"""

from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from kio.schema.errors import ErrorCode

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.planning.leader_election import Election
from reference_broker.controller.planning.partition_changes import PartitionChanges, election_of
from reference_broker.controller.refusal import Refusal
from reference_broker.metadata.image import BrokerImage, MetadataImage, TopicImage
from reference_broker.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)

FENCED, UNFENCED, NO_CHANGE = 1, -1, 0
"""BrokerRegistrationChangeRecord.Fenced."""

PARTITIONS_PER_UNIT = 50
CHANGES_PER_UNIT = 2
"""Looked at, or changed, in about 10 us."""

PARTITIONS_PER_LOOK = 250
"""Of one topic, before the event's time is looked at again: 1.3 ms where all of them change."""

Spend: TypeAlias = Callable[[int], bool]
RecordSlices: TypeAlias = Generator[None, None, list[MetadataRecord]]


@dataclass(frozen=True, slots=True)
class Setting:
    """What a change is planned in: the controller's ``latest``, its configuration, the event's time."""

    image: MetadataImage
    config: BrokerConfig
    spend: Spend


Change: TypeAlias = Callable[[Setting, BrokerImage], RecordSlices]


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
    supported = {name: (low, high) for name, low, high in registration.features}
    for feature, level in image.features.items():
        low, high = supported.get(feature, (0, 0))
        if not low <= level <= high:
            return Refusal(
                ErrorCode.unsupported_version,
                f"Unable to register because the broker does not support version {level} of {feature}.",
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


def restarting(setting: Setting, broker: BrokerImage) -> RecordSlices:
    """Before ``broker`` is registered by a new incarnation: what the old one held of others' partitions is passed on. A
    fenced broker has nothing of the kind."""
    if broker.fenced:
        return []
    return (yield from _passing_on(setting, broker, single_stay=True))


def fencing(setting: Setting, broker: BrokerImage) -> RecordSlices:
    """Nothing for a broker that is fenced."""
    if broker.fenced:
        return []
    records = yield from _passing_on(setting, broker)
    records.append(_change(broker, FENCED, 0))
    return records


def leaving(setting: Setting, broker: BrokerImage) -> RecordSlices:
    """A controlled shutdown begins: it leads nothing and is in sync with nobody, but is not fenced yet, so that
    whoever has not heard of it is told by itself. Nothing for a broker that is fenced or leaves already."""
    if broker.fenced or broker.in_controlled_shutdown:
        return []
    records: list[MetadataRecord] = [_change(broker, NO_CHANGE, 1)]
    records += yield from _passing_on(setting, broker)
    return records


def shutting_down(setting: Setting, broker: BrokerImage) -> RecordSlices:
    """As fencing, and says that the broker wanted it."""
    if is_shut_down(broker, broker.broker_epoch):
        return []
    records: list[MetadataRecord] = [] if broker.fenced else (yield from _passing_on(setting, broker))
    records.append(_change(broker, NO_CHANGE if broker.fenced else FENCED, 1))
    return records


def unfencing(setting: Setting, broker: BrokerImage) -> RecordSlices:
    """It may lead again: what had no leader gets one. Nothing for a broker that is not fenced or has shut down."""
    if not broker.fenced or broker.in_controlled_shutdown:
        return []
    records: list[MetadataRecord] = [_change(broker, UNFENCED, 0)]
    changes = PartitionChanges.of(setting.image, and_with=broker.broker_id)
    for topic, election in _topics(setting):
        for indexes in looks(topic):
            changed = list(changes.coming(topic, indexes, broker.broker_id, election))
            records += changed
            if setting.spend(cost_of(indexes, changed)):
                yield
    return records


def unregistering(setting: Setting, broker: BrokerImage) -> RecordSlices:
    """Takes it out; what it led passes to others."""
    records: list[MetadataRecord] = [] if broker.fenced else (yield from _passing_on(setting, broker))
    records.append(UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch))
    return records


def is_shut_down(broker: BrokerImage | None, broker_epoch: int) -> bool:
    """This registration was ended by a controlled shutdown (or by a later registration)."""
    return broker is not None and (
        broker.broker_epoch > broker_epoch
        or (broker.broker_epoch == broker_epoch and broker.fenced and broker.in_controlled_shutdown)
    )


def _passing_on(setting: Setting, broker: BrokerImage, *, single_stay: bool = False) -> RecordSlices:
    """Goes on without the broker."""
    records: list[MetadataRecord] = []
    changes = PartitionChanges.of(setting.image, without=broker.broker_id)
    for topic, election in _topics(setting):
        for indexes in looks(topic):
            changed = list(changes.leaving(topic, indexes, broker.broker_id, election, single_stay=single_stay))
            records += changed
            if setting.spend(cost_of(indexes, changed)):
                yield
    return records


def _topics(setting: Setting) -> Iterator[tuple[TopicImage, Election]]:
    for topic in setting.image.topics.values():
        yield topic, election_of(setting.image, setting.config, topic.name)


def looks(topic: TopicImage) -> Iterator[range]:
    """The partitions of a topic in parts."""
    count = len(topic.partitions)
    for first in range(0, count, PARTITIONS_PER_LOOK):
        yield range(first, min(first + PARTITIONS_PER_LOOK, count))


def cost_of(indexes: range, changed: Sequence[object]) -> int:
    """In units of an event's time."""
    return 1 + len(indexes) // PARTITIONS_PER_UNIT + len(changed) // CHANGES_PER_UNIT


def _change(broker: BrokerImage, fenced: int, in_controlled_shutdown: int) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )
