"""BrokerRegistration: a broker joins, fenced, and gets its epoch (KIP-631, KIP-858)."""

from uuid import UUID

from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest
from kio.schema.broker_registration.v4.response import BrokerRegistrationResponse
from kio.schema.errors import ErrorCode
from kio.static.primitive import i64

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE, Refusal
from reference_broker.controller.planning.registration import NO_BROKER_EPOCH, Registration
from reference_broker.metadata.records import NO_UUID
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.BROKER_REGISTRATION,
    min_version=0,
    max_version=4,
    behaviour="The broker epoch is the offset of the registration in the metadata log. A request repeated by the same "
    "incarnation gets the epoch that it has. A new incarnation leads nothing until it is unfenced and is in sync with "
    "nobody until it has caught up, whether its last stop was clean or not.",
    simplifications="A new incarnation on the same data directory takes the ID over at once, where Kafka waits for the "
    "end of the old one's session (DUPLICATE_BROKER_REGISTRATION): a restarted broker is back sooner. On another "
    "directory it waits as in Kafka: two nodes may have been given one ID. A partition without other replicas keeps "
    "its leader until that is unfenced.",
    kips=(631, 858),
)


def handle(broker: Broker, call: Call, body: object) -> None:
    """Answers once the registration is committed."""
    assert isinstance(body, BrokerRegistrationRequest)

    def answer(outcome: int | Refusal) -> None:
        refused = outcome if isinstance(outcome, Refusal) else None
        call.respond(
            BrokerRegistrationResponse(
                throttle_time=NO_THROTTLE,
                error_code=refused.error if refused else ErrorCode.none,
                broker_epoch=i64(NO_BROKER_EPOCH if isinstance(outcome, Refusal) else outcome),
            )
        )

    broker.controller.register_broker(_registration(body), answer)


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
