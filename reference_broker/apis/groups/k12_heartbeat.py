"""Heartbeat: extends the session of a member, and returns whether it has to join again.

* REBALANCE_IN_PROGRESS requests it to rejoin.
* UNKNOWN_MEMBER_ID, ILLEGAL_GENERATION and, for static members, FENCED_INSTANCE_ID mean that the member was removed or
  replaced.
* The error is NONE while the group is loaded, as in Kafka.

KIPs: 62, 345.
"""

from collections.abc import Mapping

from kio.schema.heartbeat.v4.request import HeartbeatRequest
from kio.schema.heartbeat.v4.response import HeartbeatResponse

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.wire.errors import Error, ErrorCode


def handle(broker: Broker, call: Call, body: HeartbeatRequest) -> HeartbeatResponse:  # noqa: ARG001
    error = broker.groups.group_manager.heartbeat(
        body.group_id, body.member_id, body.group_instance_id, body.generation_id
    )
    return _FREQUENT_RESPONSES.get(error) or _response(error)


API = Api.of(HeartbeatRequest, handle)


def _response(error: Error) -> HeartbeatResponse:
    return HeartbeatResponse(throttle_time=NO_THROTTLE, error_code=ErrorCode(error))


_FREQUENT_RESPONSES: Mapping[Error, HeartbeatResponse] = {
    ErrorCode.none: _response(ErrorCode.none),
    ErrorCode.rebalance_in_progress: _response(ErrorCode.rebalance_in_progress),
    ErrorCode.coordinator_load_in_progress: _response(ErrorCode.none),
}
"""Almost every heartbeat of a large group gets one of the first two. While the group is loaded Kafka says that all is
well, since older clients do not expect the true error here."""
