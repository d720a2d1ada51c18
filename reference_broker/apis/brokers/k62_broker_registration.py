"""BrokerRegistration: a broker joins, fenced, and gets its epoch.

* The broker epoch is the offset of the registration in the metadata log.
* A request that the same incarnation repeats gets the epoch that it has.
* A new incarnation leads nothing until it is unfenced. It is in sync with nobody until it has caught up, whether its
  last stop was clean or not.
* Unlike Kafka: a new incarnation on the same data directory takes the ID over at once, so that a restarted broker is
  back sooner. Kafka waits for the end of the old one's session (DUPLICATE_BROKER_REGISTRATION). On another directory
  this broker waits, too: two nodes may have been given one ID.
* Unlike Kafka: a partition without other replicas keeps its leader until that is unfenced.

KIPs: 631, 858.
"""

from uuid import UUID

from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest
from kio.schema.broker_registration.v4.response import BrokerRegistrationResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i64

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.proposing import NO_THROTTLE, Refusal
from reference_broker.controller.broker_changes import (
    Registration,
    Setting,
    duplicate_problem,
    registering,
    registration_problem,
    restarting,
)
from reference_broker.controller.controller import Controller
from reference_broker.controller.operations import Planning, Records
from reference_broker.metadata.records import NO_UUID

NO_BROKER_EPOCH = -1


def handle(broker: Broker, call: Call, body: BrokerRegistrationRequest) -> None:
    """Answers once the registration is committed."""
    controller, wanted = broker.controller, _registration(body)
    epoch, problem = NO_BROKER_EPOCH, None

    def plan_restart() -> Planning:
        nonlocal problem
        problem = _problem(controller, wanted)
        known = controller.latest.brokers.get(wanted.broker_id)
        if known is None or known.incarnation_id == wanted.incarnation_id or problem is not None:
            return ()
        return (yield from restarting(Setting(controller.latest, broker.config, controller.spend), known))

    def restart_planned(refused: Refusal | None) -> None:
        """Without it the new incarnation would lead, and be in sync, with what the old one may have lost."""
        nonlocal problem
        problem = problem or refused

    def plan() -> Records:
        nonlocal epoch, problem
        problem = problem or _problem(controller, wanted)
        if problem is not None:
            return ()
        known = controller.latest.brokers.get(wanted.broker_id)
        controller.heartbeats.heard(wanted.broker_id)
        if known is not None and known.incarnation_id == wanted.incarnation_id:
            epoch = known.broker_epoch
            return ()
        epoch = controller.next_offset
        return (registering(wanted, epoch),)

    def answer(refused: Refusal | None) -> None:
        refusal = refused or problem
        call.respond(
            BrokerRegistrationResponse(
                throttle_time=NO_THROTTLE,
                error_code=refusal.error if refusal else ErrorCode.none,
                broker_epoch=i64(NO_BROKER_EPOCH if refusal else epoch),
            )
        )

    # A change of its own, which may be large: the broker epoch is where the registration stands.
    controller.submit(plan_restart(), restart_planned, name="a broker has restarted", atomic=False)
    controller.submit(plan, answer, name="register a broker")


API = Api.of(BrokerRegistrationRequest, handle)


def _problem(controller: Controller, wanted: Registration) -> Refusal | None:
    problem = registration_problem(wanted, controller.cluster_id, controller.latest)
    known = controller.latest.brokers.get(wanted.broker_id)
    if problem is None and known is not None and controller.heartbeats.has_session(wanted.broker_id):
        return duplicate_problem(wanted, known)
    return problem


def _registration(body: BrokerRegistrationRequest) -> Registration:
    return Registration(
        broker_id=int(body.broker_id),
        cluster_id=body.cluster_id,
        incarnation_id=_bytes(body.incarnation_id),
        listeners=tuple((one.name, one.host, int(one.port), int(one.security_protocol)) for one in body.listeners),
        features=tuple(
            (one.name, int(one.min_supported_version), int(one.max_supported_version)) for one in body.features
        ),
        rack=body.rack,
        log_dirs=tuple(_bytes(one) for one in body.log_dirs),
    )


def _bytes(value: UUID | None) -> bytes:
    return NO_UUID if value is None else value.bytes
