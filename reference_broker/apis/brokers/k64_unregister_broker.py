"""UnregisterBroker: takes a broker that will not come back out of the cluster.

* Others lead what the broker led, or nobody does.
* A broker that lives registers again at its next heartbeat.
* Another node forwards the request to the active controller.

KIPs: 631.
"""

from kio.schema.unregister_broker.v0.request import UnregisterBrokerRequest
from kio.schema.unregister_broker.v0.response import UnregisterBrokerResponse

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.forwarding import forward_or_append
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError, error_fields
from reference_broker.controller.planning.brokers import Unregistration
from reference_broker.wire.apis import ApiKey


def handle(broker: Broker, call: Call, body: UnregisterBrokerRequest) -> None:
    """Respond once the removal is committed and published here."""
    operation = Unregistration(body.broker_id, broker.controller.heartbeats)

    def response_of(refusal: ApiError | None) -> UnregisterBrokerResponse:
        return UnregisterBrokerResponse(throttle_time=NO_THROTTLE, **error_fields(refusal))

    forward_or_append(broker, call, ApiKey.UNREGISTER_BROKER, body, operation, response_of)


API = Api.of(UnregisterBrokerRequest, handle)
