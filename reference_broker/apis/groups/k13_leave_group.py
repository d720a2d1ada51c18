"""LeaveGroup: removes members, on their own request or on that of an administrator.

* Each member has its own result. One rebalance follows for all of them.
* A static member may be named by its instance alone.
* Their parked JoinGroups and SyncGroups get UNKNOWN_MEMBER_ID.
* The first reason is noted in the trace.

KIPs: 345, 800.
"""

from kio.schema.leave_group.v5.request import LeaveGroupRequest, MemberIdentity
from kio.schema.leave_group.v5.response import LeaveGroupResponse, MemberResponse

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.groups.classic_requests import MAX_REASON_CHARACTERS, Leaving
from reference_broker.wire.errors import Error, ErrorCode


def handle(broker: Broker, call: Call, body: LeaveGroupRequest) -> LeaveGroupResponse:  # noqa: ARG001
    leaving = tuple(
        Leaving(member.member_id, member.group_instance_id, (member.reason or "")[:MAX_REASON_CHARACTERS])
        for member in body.members
    )
    error, errors = broker.groups.group_manager.leave_group(body.group_id, leaving)
    return LeaveGroupResponse(
        throttle_time=NO_THROTTLE,
        error_code=ErrorCode(error),
        members=tuple(_member(member, of) for member, of in zip(body.members, errors, strict=False)),
    )


API = Api.of(LeaveGroupRequest, handle)


def _member(identity: MemberIdentity, error: Error) -> MemberResponse:
    return MemberResponse(
        member_id=identity.member_id, group_instance_id=identity.group_instance_id, error_code=ErrorCode(error)
    )
