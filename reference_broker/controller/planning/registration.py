"""A broker joins and gets its epoch, or is removed for good (BrokerRegistration, UnregisterBroker; KIP-631, KIP-858).

A registration takes two changes. The first passes on what an earlier incarnation holds, which may be much. The second
is a single record, because its offset is the broker epoch.
"""

from dataclasses import dataclass
from typing import NamedTuple, Protocol

from reference_broker.controller.operations import Planning, Records
from reference_broker.controller.planning.broker_changes import restarting, unregistering
from reference_broker.controller.planning.change import Change, Situation
from reference_broker.controller.refusal import Refusal
from reference_broker.metadata.image import BrokerImage, MetadataImage, includes
from reference_broker.metadata.records import BrokerEndpoint, BrokerFeature, RegisterBrokerRecord
from reference_broker.wire.errors import ErrorCode


class Sessions(Protocol):
    """The part of ``controller.broker_heartbeats.BrokerHeartbeats`` that is needed here."""

    def heard(self, broker_id: int) -> None: ...
    def has_session(self, broker_id: int) -> bool: ...
    def forget(self, broker_id: int) -> None: ...


NO_BROKER_EPOCH = -1


class Incarnation(NamedTuple):
    """One start of a broker. ``incarnation_id`` has 16 bytes."""

    broker_id: int
    incarnation_id: bytes


@dataclass(frozen=True, slots=True)
class Registration:
    """What a broker says of itself. ``features`` holds (name, lowest level, highest level)."""

    broker_id: int
    cluster_id: str
    incarnation_id: bytes
    listeners: tuple[tuple[str, str, int, int], ...]
    """(name, host, port, security protocol)."""
    features: tuple[tuple[str, int, int], ...]
    rack: str | None
    log_dirs: tuple[bytes, ...]
    previous_broker_epoch: int = NO_BROKER_EPOCH
    """The broker epoch at its last clean shutdown, or -1 if it ended otherwise (KIP-966)."""

    def is_after_clean_shutdown(self, known: BrokerImage | None) -> bool:
        """Whether nothing can be lost of what the registration ``known`` held. A broker that was unregistered, or that
        has other directories now, may have lost everything."""
        return (
            known is not None and self.previous_broker_epoch == known.broker_epoch and known.log_dirs == self.log_dirs
        )


def registration_problem(registration: Registration, cluster_id: str, image: MetadataImage) -> Refusal | None:
    """Why a broker may not register, or None."""
    if registration.cluster_id != cluster_id:
        return Refusal(
            ErrorCode.inconsistent_cluster_id, f"Expected cluster ID {cluster_id}, but got {registration.cluster_id}"
        )
    if not registration.listeners:
        return Refusal(ErrorCode.invalid_registration, "No listeners were given.")
    for feature, level in image.features.items():
        if not includes(registration.features, feature, level):
            return Refusal(
                ErrorCode.unsupported_version,
                f"Unable to register because the broker does not support version {level} of {feature}.",
            )
    return None


def stale_epoch(image: MetadataImage, broker_id: int, broker_epoch: int) -> Refusal | None:
    """The refusal of a request from a broker that is not registered with that epoch, or None."""
    known = image.brokers.get(broker_id)
    if known is not None and known.broker_epoch == broker_epoch:
        return None
    return Refusal(ErrorCode.stale_broker_epoch, "Not the epoch of a registered broker.")


def registering(registration: Registration, broker_epoch: int) -> RegisterBrokerRecord:
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
class Restart(Change[None]):
    """The first change of a registration. Without it a new incarnation would lead, and be in sync, with what the old
    one may have lost. ``problem`` says why the broker may not register."""

    name = "a broker has restarted"
    atomic = False

    wanted: Registration
    cluster_id: str
    sessions: Sessions
    own: Incarnation | None
    """The broker in this process, if there is one."""
    problem: Refusal | None = None

    def plan(self, situation: Situation) -> Planning:
        self.judge(situation.latest)
        known = situation.latest.brokers.get(self.wanted.broker_id)
        if self.problem is not None or (known is not None and known.incarnation_id == self.wanted.incarnation_id):
            return ()
        uncleanly = not self.wanted.is_after_clean_shutdown(known)
        return (yield from restarting(situation, self.wanted.broker_id, uncleanly))

    def outcome(self, refused: Refusal | None) -> None:
        self.problem = self.problem or refused

    def judge(self, latest: MetadataImage) -> None:
        """Sets ``problem``, which does not change once it is set."""
        if self.problem is not None:
            return
        self.problem = registration_problem(self.wanted, self.cluster_id, latest)
        if self.problem is None and self._is_duplicate(latest.brokers.get(self.wanted.broker_id)):
            self.problem = Refusal(
                ErrorCode.duplicate_broker_registration,
                f"Another broker is registered with ID {self.wanted.broker_id}. If that is an earlier start of this "
                "one, its session will end.",
            )

    def _is_duplicate(self, known: BrokerImage | None) -> bool:
        """Whether another incarnation lives, as far as anybody can tell: it has sent a heartbeat within its session,
        and has not left. It may be fenced, as a broker is that starts. A replayed registration must not take its ID.
        The active controller itself knows which incarnation of its own broker lives."""
        wanted = self.wanted
        if self.own is not None and wanted.broker_id == self.own.broker_id:
            return wanted.incarnation_id != self.own.incarnation_id
        return (
            known is not None
            and not has_left(known)
            and known.incarnation_id != wanted.incarnation_id
            and self.sessions.has_session(wanted.broker_id)
        )


def has_left(broker: BrokerImage) -> bool:
    """Whether the broker has ended its controlled shutdown."""
    return broker.fenced and broker.in_controlled_shutdown


@dataclass(slots=True)
class BrokerRegistration(Change[int | Refusal]):
    """The second change of a registration. Its outcome is the broker epoch. An incarnation that repeats its request
    gets the epoch that it has, unless that registration has left."""

    name = "register a broker"

    restart: Restart
    epoch: int = NO_BROKER_EPOCH

    def plan(self, situation: Situation) -> Records:
        restart, wanted = self.restart, self.restart.wanted
        restart.judge(situation.latest)
        if restart.problem is not None:
            return ()
        known = situation.latest.brokers.get(wanted.broker_id)
        if known is not None and known.incarnation_id == wanted.incarnation_id and not has_left(known):
            self.epoch = known.broker_epoch
            return ()
        restart.sessions.forget(wanted.broker_id)  # A session is that of one broker epoch.
        self.epoch = situation.next_offset
        return (registering(wanted, self.epoch),)

    def outcome(self, refused: Refusal | None) -> int | Refusal:
        return refused or self.restart.problem or self.epoch


@dataclass(slots=True)
class Unregistration(Change[Refusal | None]):
    """Takes a broker out. The outcome says why that was not done, and is None if it was."""

    name = "unregister a broker"

    broker_id: int
    sessions: Sessions
    problem: Refusal | None = None

    def plan(self, situation: Situation) -> Planning:
        known = situation.latest.brokers.get(self.broker_id)
        if known is None:
            message = f"Broker ID {self.broker_id} is not currently registered"
            self.problem = Refusal(ErrorCode.broker_id_not_registered, message)
            return ()
        self.sessions.forget(self.broker_id)
        return (yield from unregistering(situation, known))

    def outcome(self, refused: Refusal | None) -> Refusal | None:
        return refused or self.problem
