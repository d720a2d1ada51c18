"""UnregisterBroker: takes a broker that will not come back out of the cluster.

* Others lead what the broker led, or nobody does.
* A broker that lives registers again at its next heartbeat.
* Another node passes the request on to the active controller.

KIPs: 631.
"""

from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse

from reference_broker.apis.api import Api
from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.passing_on import passed_on
from reference_broker.apis.proposing import NO_THROTTLE, NOT_CONTROLLER, Refusal
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode


def handle(broker: Broker, call: Call, body: UnregisterBrokerRequest) -> None:
    """Answers once the removal is committed and published here."""

    def answer(refusal: Refusal | None) -> None:
        call.respond(
            UnregisterBrokerResponse(
                throttle_time=NO_THROTTLE,
                error_code=refusal.error if refusal else ErrorCode.none,
                error_message=refusal.message if refusal else None,
            )
        )

    if not passed_on(broker, call, ApiKey.UNREGISTER_BROKER, body, lambda: answer(NOT_CONTROLLER)):
        broker.controller.unregister_broker(int(body.broker_id), answer)


API = Api.of(UnregisterBrokerRequest, handle)
