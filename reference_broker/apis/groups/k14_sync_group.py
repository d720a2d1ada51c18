"""SyncGroup: a member requests its assignment in this generation. The leader of the group sends all of them.

* The response follows when the assignment of the leader is replicated.
* Members that the leader omitted get an empty assignment.
* A member that does not send SyncGroup within the longest rebalance timeout is removed.

Version notes:
* v5: protocol type and name must be there and be the group's, else INCONSISTENT_GROUP_PROTOCOL.

KIPs: 345, 559.
"""

from kio.schema.sync_group.v5.request import SyncGroupRequest
from kio.schema.sync_group.v5.response import SyncGroupResponse

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.groups.classic_requests import SyncRequest, SyncResponse
from reference_broker.wire.errors import ErrorCode

NAMES_PROTOCOL_FROM = 5


def handle(broker: Broker, call: Call, body: SyncGroupRequest) -> SyncGroupResponse | None:
    """Respond through ``call``, at once or later."""
    if call.api_version >= NAMES_PROTOCOL_FROM and (body.protocol_type is None or body.protocol_name is None):
        return _response(SyncResponse(ErrorCode.inconsistent_group_protocol))
    request = SyncRequest(
        body.group_id,
        body.generation_id,
        body.member_id,
        body.group_instance_id,
        body.protocol_type,
        body.protocol_name,
        {assignment.member_id: assignment.assignment for assignment in body.assignments},
    )

    def respond(result: SyncResponse) -> None:
        call.respond(_response(result))

    broker.groups.group_manager.sync_group(request, callback(call, respond))
    return None


API = Api.of(SyncGroupRequest, handle)


def _response(result: SyncResponse) -> SyncGroupResponse:
    return SyncGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(result.error),
        protocol_type=result.protocol_type,
        protocol_name=result.protocol,
        assignment=result.assignment,
    )
