"""BrokerHeartbeat: a broker is alive, and reports what it wants.

* The active controller responds at once, with the published state. Fencing and unfencing are later changes.
* Heartbeats do not wait for a long change of the metadata.
* Unlike Kafka: offline and cordoned log directories are not looked at. A node whose directory fails ends.

KIPs: 631.
"""

from kio.schema.broker_heartbeat.v2.request import BrokerHeartbeatRequest
from kio.schema.broker_heartbeat.v2.response import BrokerHeartbeatResponse

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, ApiError
from reference_broker.controller.broker_heartbeats import Heartbeat
from reference_broker.wire.errors import ErrorCode


def handle(broker: Broker, call: Call, body: BrokerHeartbeatRequest) -> BrokerHeartbeatResponse:  # noqa: ARG001
    """Respond at once, even while the controller works on a long change."""
    state = broker.controller.heartbeats.heartbeat(
        Heartbeat(
            broker_id=body.broker_id,
            broker_epoch=body.broker_epoch,
            metadata_offset=body.current_metadata_offset,
            want_fence=body.want_fence,
            want_shut_down=body.want_shut_down,
        )
    )
    if isinstance(state, ApiError):
        return BrokerHeartbeatResponse(
            throttle_time=NO_THROTTLE, error_code=state.error, is_fenced=True, should_shut_down=False
        )
    return BrokerHeartbeatResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode.none,
        is_caught_up=state.is_caught_up,
        is_fenced=state.is_fenced,
        should_shut_down=state.should_shut_down,
    )


API = Api.of(BrokerHeartbeatRequest, handle)
