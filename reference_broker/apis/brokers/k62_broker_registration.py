"""BrokerRegistration: a broker joins, fenced, and gets its epoch.

* The broker epoch is the offset of the registration in the metadata log.
* A negative ID is INVALID_REQUEST, because -1 means no broker.
* A request that the same incarnation repeats gets the epoch that it has.
* A new incarnation leads nothing until it is unfenced. It is in sync in no partition until it has caught up, whether
  its last stop was clean or not.
* DUPLICATE_BROKER_REGISTRATION while another incarnation is not fenced and its session goes on. So a broker that was
  killed waits for the end of that session. One that shut down is fenced, and need not wait.
* Unlike Kafka: the active controller knows which incarnation of its own broker lives. That one never waits, and no
  other one is registered.
* Unlike Kafka: a partition without other replicas keeps its leader until that is unfenced.

KIPs: 631, 858.
"""

from uuid import UUID

from kio.schema.broker_registration.v4.request import BrokerRegistrationRequest
from kio.schema.broker_registration.v4.response import BrokerRegistrationResponse
from kio.static.primitive import i64

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError, error_fields
from reference_broker.controller.planning.brokers import NO_BROKER_EPOCH, Registration
from reference_broker.metadata.records import NO_UUID
from reference_broker.wire.errors import ErrorCode


def handle(broker: Broker, call: Call, body: BrokerRegistrationRequest) -> None:
    """Respond once the registration is committed and published."""

    def respond(outcome: int | ApiError) -> None:
        call.respond(
            BrokerRegistrationResponse(
                throttle_time=NO_THROTTLE,
                error_code=error_fields(outcome)["error_code"],
                broker_epoch=i64(NO_BROKER_EPOCH if isinstance(outcome, ApiError) else outcome),
            )
        )

    if body.broker_id < 0:
        respond(ApiError(ErrorCode.invalid_request, "A broker's ID is not negative."))
    else:
        broker.controller.register_broker(_registration(body), callback(call, respond))


API = Api.of(BrokerRegistrationRequest, handle)


def _registration(body: BrokerRegistrationRequest) -> Registration:
    return Registration(
        broker_id=body.broker_id,
        cluster_id=body.cluster_id,
        incarnation_id=_bytes(body.incarnation_id),
        listeners=tuple(
            (listener.name, listener.host, listener.port, listener.security_protocol) for listener in body.listeners
        ),
        features=tuple(
            (feature.name, feature.min_supported_version, feature.max_supported_version) for feature in body.features
        ),
        rack=body.rack,
        log_dirs=tuple(_bytes(one) for one in body.log_dirs),
        previous_broker_epoch=body.previous_broker_epoch,
    )


def _bytes(value: UUID | None) -> bytes:
    return NO_UUID if value is None else value.bytes
