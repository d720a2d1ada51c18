"""The life of a broker in the cluster (Kafka's ClusterControlManager): registration, fencing, unfencing, controlled
shutdown, removal, and its blocks of producer IDs (BrokerRegistration, UnregisterBroker, AllocateProducerIds; KIP-631,
KIP-730, KIP-858).

A broker that goes leaves every ISR, and leads nothing. Another live member of the ISR leads instead, or an eligible
leader replica, or no replica. A broker that registers again is treated as gone first. If its last shutdown was unclean,
the broker may have lost records that it had acknowledged, so that it is no eligible leader either (KIP-966).

Without eligible leader replicas the last member stays in the ISR. A partition without other replicas then names a
broker that restarts as its leader until it is unfenced. Clients are not sent to a fenced broker.

A registration takes two changes. The first takes an earlier incarnation out of the ISRs and of the leadership of its
partitions, which may be many records. The second is a single record, because its offset is the broker epoch.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeAlias

from reference_broker.controller.planning.partition_changes import Election, PartitionChangeBuilder, election_of
from reference_broker.controller.write_operations import ApiError, ControllerWriteOperation, PlanContext, Records
from reference_broker.metadata.features import keeps_eligible_leaders
from reference_broker.metadata.image import BrokerImage, MetadataImage, TopicImage, includes
from reference_broker.metadata.records import (
    BrokerEndpoint,
    BrokerFeature,
    BrokerRegistrationChangeRecord,
    MetadataRecord,
    ProducerIdsRecord,
    RegisterBrokerRecord,
    UnregisterBrokerRecord,
)
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.errors import ErrorCode

FENCED, UNFENCED, NO_CHANGE = 1, -1, 0
"""BrokerRegistrationChangeRecord.Fenced."""

PARTITIONS_PER_UNIT = 50
CHANGES_PER_UNIT = 2
"""Number of partitions that a plan can check, and number that it can change, in about 10 us."""

PARTITIONS_PER_RANGE = 250
"""Number of partitions of one topic after which a plan spends its budget. Changing all of them takes 1.3 ms."""


BrokerPlan: TypeAlias = Callable[[PlanContext, BrokerImage], Sliced[list[MetadataRecord]]]
"""Plans the change of one broker's state, such as ``fencing``."""


def handle_broker_restarted(context: PlanContext, broker_id: int, uncleanly: bool) -> Sliced[list[MetadataRecord]]:
    """Return the records that remove a broker from the ISRs and the leadership before its new incarnation is
    registered, and after an unclean shutdown from the eligible leader replicas, too (E-4)."""
    broker = context.latest.brokers.get(broker_id)
    if not keeps_eligible_leaders(context.latest):
        if broker is None or broker.fenced:
            return []
        return (yield from _records_without_broker(context, broker_id, single_stay=True))
    if broker is not None and broker.fenced and not uncleanly:  # Decision broker-restart-clean
        return []
    return (yield from _records_without_broker(context, broker_id, uncleanly=uncleanly))


def handle_broker_fenced(context: PlanContext, broker: BrokerImage) -> Sliced[list[MetadataRecord]]:
    """Return the records that fence the broker: its replicas leave the ISRs and the leadership. There are none for a
    fenced broker."""
    if broker.fenced:
        return []
    records = yield from _records_without_broker(context, broker.broker_id)
    records.append(_registration_change(broker, FENCED, 0))
    return records


def handle_broker_in_controlled_shutdown(context: PlanContext, broker: BrokerImage) -> Sliced[list[MetadataRecord]]:
    """Return the records that begin a controlled shutdown: the broker leaves the ISRs and the leadership. It is not
    fenced yet, so that it can serve clients with older metadata. There are none for a
    broker that is fenced or in controlled shutdown."""
    if broker.fenced or broker.in_controlled_shutdown:
        return []
    return [
        _registration_change(broker, NO_CHANGE, 1),
        *(yield from _records_without_broker(context, broker.broker_id)),
    ]


def handle_broker_shutdown_now(context: PlanContext, broker: BrokerImage) -> Sliced[list[MetadataRecord]]:
    """Return the records that end a controlled shutdown: the broker is fenced, and stays in controlled shutdown."""
    if is_shut_down(broker, broker.broker_epoch):
        return []
    records = [] if broker.fenced else (yield from _records_without_broker(context, broker.broker_id))
    records.append(_registration_change(broker, NO_CHANGE if broker.fenced else FENCED, 1))
    return records


def handle_broker_unfenced(context: PlanContext, broker: BrokerImage) -> Sliced[list[MetadataRecord]]:
    """Return the records that unfence the broker, and elect leaders for partitions without one. There are none for a
    broker that is not fenced or has shut down."""
    if not broker.fenced or broker.in_controlled_shutdown:
        return []
    changes = PartitionChangeBuilder.of(context.latest, and_with=broker.broker_id)
    records = yield from _changes_of_all_topics(context, partial(changes.with_broker, broker_id=broker.broker_id))
    return [_registration_change(broker, UNFENCED, 0), *records]


def handle_broker_unregistered(context: PlanContext, broker: BrokerImage) -> Sliced[list[MetadataRecord]]:
    """Return the records that remove the broker's registration, and its replicas from the ISRs and the leadership."""
    records = [] if broker.fenced else (yield from _records_without_broker(context, broker.broker_id))
    records.append(UnregisterBrokerRecord(broker_id=broker.broker_id, broker_epoch=broker.broker_epoch))
    return records


def is_shut_down(broker: BrokerImage | None, broker_epoch: int) -> bool:
    """Whether this registration was ended by a controlled shutdown or by a later registration."""
    return broker is not None and (
        broker.broker_epoch > broker_epoch
        or (broker.broker_epoch == broker_epoch and broker.fenced and broker.in_controlled_shutdown)
    )


def _records_without_broker(
    context: PlanContext, broker_id: int, *, uncleanly: bool = False, single_stay: bool = False
) -> Sliced[list[MetadataRecord]]:
    """Return the records that take the broker out of all ISRs with another member, and elect other leaders for its
    partitions."""
    changes = PartitionChangeBuilder.of(context.latest, without=broker_id)
    without = partial(changes.without_broker, broker_id=broker_id, uncleanly=uncleanly, single_stay=single_stay)
    return (yield from _changes_of_all_topics(context, without))


def _changes_of_all_topics(
    context: PlanContext, changed: Callable[[TopicImage, range, Election], Iterable[MetadataRecord]]
) -> Sliced[list[MetadataRecord]]:
    """Return the records that ``changed`` makes for all topics. It gets a range of one topic's partitions at a time."""
    records: list[MetadataRecord] = []
    for topic in context.latest.topics.values():
        election = election_of(context.latest, context.config, topic.name)
        for indexes in partition_ranges(topic):
            records_of_range = list(changed(topic, indexes, election))
            records += records_of_range
            if context.spend(cost_of(indexes, records_of_range)):
                yield
    return records


def partition_ranges(topic: TopicImage) -> Iterator[range]:
    """Yield the partition indexes of a topic in ranges of at most PARTITIONS_PER_RANGE."""
    count = len(topic.partitions)
    for first in range(0, count, PARTITIONS_PER_RANGE):
        yield range(first, min(first + PARTITIONS_PER_RANGE, count))


def cost_of(indexes: range, changed: Sequence[object]) -> int:
    """Return the cost of a range of a topic's partitions (``partition_ranges``), in units of about 10 us."""
    return 1 + len(indexes) // PARTITIONS_PER_UNIT + len(changed) // CHANGES_PER_UNIT


def _registration_change(
    broker: BrokerImage, fenced: int, in_controlled_shutdown: int
) -> BrokerRegistrationChangeRecord:
    return BrokerRegistrationChangeRecord(
        broker_id=broker.broker_id,
        broker_epoch=broker.broker_epoch,
        fenced=fenced,
        in_controlled_shutdown=in_controlled_shutdown,
    )


class Sessions(Protocol):
    """The sessions of brokers (``controller.broker_heartbeats.BrokerHeartbeatManager``)."""

    def touch(self, broker_id: int) -> None: ...
    def has_session(self, broker_id: int) -> bool: ...
    def forget(self, broker_id: int) -> None: ...


@dataclass(slots=True)
class BrokerStateChange(ControllerWriteOperation[ApiError | None]):
    """A change of one broker's state, which the active controller makes on its own. Nothing is changed if the broker
    has registered again in the meantime."""

    atomic = False

    name: str
    broker_id: int
    broker_epoch: int
    plan_for: BrokerPlan
    unless_in_session: Sessions | None = None
    """Set for the fencing of a silent broker. Nothing is changed if the broker has a session again."""
    has_records: bool = False
    """Whether the plan has changed anything."""

    def plan(self, context: PlanContext) -> Sliced[Records]:
        broker = context.latest.brokers.get(self.broker_id)
        if broker is None or broker.broker_epoch != self.broker_epoch:  # Decision broker-change-outdated
            return ()
        # Decision silent-broker-returned
        if self.unless_in_session is not None and self.unless_in_session.has_session(self.broker_id):
            return ()
        records = yield from self.plan_for(context, broker)
        self.has_records = bool(records)
        return records

    def outcome(self, refused: ApiError | None) -> ApiError | None:
        return refused


NO_BROKER_EPOCH = -1


class Incarnation(NamedTuple):
    """One start of a broker."""

    broker_id: int
    incarnation_id: bytes
    """16 bytes."""


@dataclass(frozen=True, slots=True)
class Registration:
    """The content of a BrokerRegistration."""

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    listeners: tuple[tuple[str, str, int, int], ...]
    """(name, host, port, security protocol)."""
    features: tuple[tuple[str, int, int], ...]
    """(name, lowest level, highest level)."""
    rack: str | None
    log_dirs: tuple[bytes, ...]
    previous_broker_epoch: int = NO_BROKER_EPOCH
    """The broker epoch at its last clean shutdown, or -1 if it ended otherwise (KIP-966)."""

    def is_after_clean_shutdown(self, broker: BrokerImage | None) -> bool:
        """Return whether the replicas have everything that they had under the earlier registration ``broker``. A broker
        that was unregistered, or that has other directories now, may have lost everything."""
        # Decision clean-shutdown-proved
        return (
            broker is not None
            and self.previous_broker_epoch == broker.broker_epoch
            and broker.log_dirs == self.log_dirs
        )


def registration_problem(registration: Registration, cluster_id: str, image: MetadataImage) -> ApiError | None:
    """Return the reason why a broker may not register, or None."""
    if registration.cluster_id != cluster_id:
        return ApiError(
            ErrorCode.inconsistent_cluster_id, f"Expected cluster ID {cluster_id}, but got {registration.cluster_id}"
        )
    if not registration.listeners:
        return ApiError(ErrorCode.invalid_registration, "No listeners were given.")
    for feature, level in image.features.items():
        if not includes(registration.features, feature, level):
            return ApiError(
                ErrorCode.unsupported_version,
                f"Unable to register because the broker does not support version {level} of {feature}.",
            )
    return None


def stale_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> ApiError | None:
    """The refusal of a request from a broker that is not registered with that epoch, or None."""
    broker = image.brokers.get(broker_id)
    if broker is not None and broker.broker_epoch == broker_epoch:
        return None
    return ApiError(ErrorCode.stale_broker_epoch, "Not the epoch of a registered broker.")


def register_broker_record(registration: Registration, broker_epoch: int) -> RegisterBrokerRecord:
    """The record that registers the broker, fenced. ``broker_epoch`` is the offset of this record."""
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


@dataclass(slots=True)
class IncarnationReplacement(ControllerWriteOperation[None]):
    """The first of the two changes of a registration: the old incarnation leaves the ISRs and the leadership, because
    the new one may have lost its records."""

    name = "a broker has restarted"
    atomic = False

    requested: Registration
    cluster_id: str
    sessions: Sessions
    own: Incarnation | None
    """The broker in this process, if there is one."""
    problem: ApiError | None = None
    """The reason why the broker may not register, or None."""

    def plan(self, context: PlanContext) -> Sliced[Records]:
        self.judge(context.latest)
        broker = context.latest.brokers.get(self.requested.broker_id)
        if self.problem is not None or (broker is not None and broker.incarnation_id == self.requested.incarnation_id):
            return ()
        uncleanly = not self.requested.is_after_clean_shutdown(broker)
        return (yield from handle_broker_restarted(context, self.requested.broker_id, uncleanly))

    def outcome(self, refused: ApiError | None) -> None:
        self.problem = self.problem or refused

    def judge(self, latest: MetadataImage) -> None:
        """Set ``problem``, which does not change once it is set."""
        if self.problem is not None:
            return
        self.problem = registration_problem(self.requested, self.cluster_id, latest)
        # Decision duplicate-broker
        if self.problem is None and self._is_duplicate(latest.brokers.get(self.requested.broker_id)):
            self.problem = ApiError(
                ErrorCode.duplicate_broker_registration,
                f"Another broker is registered with ID {self.requested.broker_id}. If that is an earlier start of this "
                "one, its session will end.",
            )

    def _is_duplicate(self, broker: BrokerImage | None) -> bool:
        """Return whether another incarnation of the broker lives, as far as this node knows: its heartbeat came within
        the session, and it has not left. An incarnation that starts is alive and fenced. A replayed registration must
        not take the ID of a live incarnation. The active controller knows which incarnation of its own broker lives."""
        requested = self.requested
        if self.own is not None and requested.broker_id == self.own.broker_id:
            return requested.incarnation_id != self.own.incarnation_id
        return (
            broker is not None
            and not has_left(broker)
            and broker.incarnation_id != requested.incarnation_id
            and self.sessions.has_session(requested.broker_id)
        )


def has_left(broker: BrokerImage) -> bool:
    """Whether the broker has ended its controlled shutdown."""
    return broker.fenced and broker.in_controlled_shutdown


@dataclass(slots=True)
class BrokerRegistration(ControllerWriteOperation[int | ApiError]):
    """The second change of a registration. The outcome is the broker epoch. An incarnation that repeats its request
    gets the broker epoch that it has, unless it has left."""

    name = "register a broker"

    restart: IncarnationReplacement
    epoch: int = NO_BROKER_EPOCH

    def plan(self, context: PlanContext) -> Records:
        restart, requested = self.restart, self.restart.requested
        restart.judge(context.latest)
        if restart.problem is not None:
            return ()
        broker = context.latest.brokers.get(requested.broker_id)
        # Decision broker-registration-repeated
        if broker is not None and broker.incarnation_id == requested.incarnation_id and not has_left(broker):
            self.epoch = broker.broker_epoch
            return ()
        restart.sessions.forget(requested.broker_id)  # A session is that of one broker epoch.
        self.epoch = context.next_offset
        return (register_broker_record(requested, self.epoch),)

    def outcome(self, refused: ApiError | None) -> int | ApiError:
        return refused or self.restart.problem or self.epoch


@dataclass(slots=True)
class Unregistration(ControllerWriteOperation[ApiError | None]):
    """Unregister a broker. The outcome is None, or why the broker was not unregistered."""

    name = "unregister a broker"

    broker_id: int
    sessions: Sessions
    problem: ApiError | None = None

    def plan(self, context: PlanContext) -> Sliced[Records]:
        broker = context.latest.brokers.get(self.broker_id)
        if broker is None:
            message = f"Broker ID {self.broker_id} is not currently registered"
            self.problem = ApiError(ErrorCode.broker_id_not_registered, message)
            return ()
        self.sessions.forget(self.broker_id)
        return (yield from handle_broker_unregistered(context, broker))

    def outcome(self, refused: ApiError | None) -> ApiError | None:
        return refused or self.problem


BLOCK_SIZE = 1000
"""The number of IDs in one block (Kafka's ProducerIdsBlock.PRODUCER_ID_BLOCK_SIZE)."""

GREATEST_PRODUCER_ID = 2**63 - 1


@dataclass(slots=True)
class ProducerIdBlock(ControllerWriteOperation[int | ApiError]):
    """Gives the next block to one broker. The outcome is the block's first ID."""

    name = "allocate producer IDs"

    broker_id: int
    broker_epoch: int
    result: int | ApiError | None = None

    def plan(self, context: PlanContext) -> Records:
        latest = context.latest
        stale = stale_epoch(latest, self.broker_id, self.broker_epoch)
        if stale is not None:
            self.result = stale
            return ()
        if latest.next_producer_id > GREATEST_PRODUCER_ID - BLOCK_SIZE:
            self.result = ApiError(ErrorCode.unknown_server_error, "There is no block of producer IDs left.")
            return ()
        self.result = latest.next_producer_id
        return (
            ProducerIdsRecord(
                broker_id=self.broker_id,
                broker_epoch=self.broker_epoch,
                next_producer_id=self.result + BLOCK_SIZE,
            ),
        )

    def outcome(self, refused: ApiError | None) -> int | ApiError:
        if refused is not None:
            return refused
        assert self.result is not None, "a block of producer IDs is completed before it is planned"
        return self.result
