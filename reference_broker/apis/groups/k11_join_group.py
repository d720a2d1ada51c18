"""JoinGroup: a member joins, or rejoins for the next generation.

* The response follows when the generation begins. That is once all members have joined, or when the longest rebalance
  timeout of a member is over.
* A group that was empty waits ``group.initial.rebalance.delay.ms``, and longer while members come.
* A static member that restarts keeps its place. It causes no rebalance where the group is Stable and its protocol
  stays. A client with its old ID is fenced.
* The reason that a member gives is noted in the trace.

Version notes:
* v0: one timeout is used for session and rebalance.
* v4: a member gets its ID first (MEMBER_ID_REQUIRED). A static member never does.
* v7: a null protocol name is returned as null.
* v9: the response says whether a leader must skip the assignment.

KIPs: 62, 345, 394, 559, 800, 814.
"""

from datetime import timedelta

from kio.schema.join_group.v9.request import JoinGroupRequest
from kio.schema.join_group.v9.response import JoinGroupResponse, JoinGroupResponseMember
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.groups.classic_requests import MAX_REASON_CHARACTERS, JoinRequest, JoinResponse, MemberProtocol
from reference_broker.wire.errors import ErrorCode

NEEDS_MEMBER_ID_FROM = 4
NULL_PROTOCOL_FROM = 7
SKIPS_ASSIGNMENT_FROM = 9
_MS = timedelta(milliseconds=1)


def handle(broker: Broker, call: Call, body: JoinGroupRequest) -> None:
    """Respond through ``call``, at once or later."""
    version = call.api_version

    def respond(result: JoinResponse) -> None:
        call.respond(_response(result, version))

    broker.groups.group_manager.join_group(_request(call, body), callback(call, respond))


API = Api.of(JoinGroupRequest, handle)


def _request(call: Call, body: JoinGroupRequest) -> JoinRequest:
    """Version 0 has one timeout for both."""
    session_timeout_ms, rebalance_timeout_ms = body.session_timeout // _MS, body.rebalance_timeout // _MS
    return JoinRequest(
        body.group_id,
        body.member_id,
        body.group_instance_id,
        call.client_id,
        call.client_host,
        session_timeout_ms,
        session_timeout_ms if call.api_version == 0 else rebalance_timeout_ms,
        body.protocol_type,
        tuple(MemberProtocol(protocol.name, protocol.metadata) for protocol in body.protocols),
        (body.reason or "")[:MAX_REASON_CHARACTERS],
        needs_member_id=call.api_version >= NEEDS_MEMBER_ID_FROM,
        skips_assignment=call.api_version >= SKIPS_ASSIGNMENT_FROM,
    )


def _response(result: JoinResponse, version: int) -> JoinGroupResponse:
    protocol = result.protocol
    return JoinGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(result.error),
        generation_id=i32(result.generation),
        protocol_type=result.protocol_type,
        protocol_name="" if protocol is None and version < NULL_PROTOCOL_FROM else protocol,
        leader=result.leader,
        skip_assignment=result.skip_assignment,
        member_id=result.member_id,
        members=tuple(
            JoinGroupResponseMember(
                member_id=member.member_id, group_instance_id=member.group_instance_id, metadata=member.metadata
            )
            for member in result.members
        ),
    )
