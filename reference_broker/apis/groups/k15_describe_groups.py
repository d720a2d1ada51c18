"""DescribeGroups: state and members of groups (KIP-345, 430, 1043)."""

from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_groups.v6.response import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from kio.schema.errors import ErrorCode
from kio.schema.types import GroupId
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.proposing import NO_THROTTLE, OPERATIONS_NOT_ASKED
from reference_broker.groups.state.group import Group
from reference_broker.groups.state.member import Member
from reference_broker.groups.state.states import GroupState
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error

CARD = Card(
    api_key=ApiKey.DESCRIBE_GROUPS,
    min_version=0,
    max_version=6,
    behaviour="A group that does not exist is Dead, from version 6 on with GROUP_ID_NOT_FOUND. The protocol and what "
    "members said for it are told of Stable groups only.",
    simplifications="The operations on a group are all allowed: there are no ACLs.",
    kips=(345, 430, 1043),
)

GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""
NOT_FOUND_FROM = 6


def handle(broker: Broker, call: Call, body: object) -> DescribeGroupsResponse:
    """In the request's order."""
    assert isinstance(body, DescribeGroupsRequest)
    operations = GROUP_OPERATIONS if body.include_authorized_operations else OPERATIONS_NOT_ASKED
    return DescribeGroupsResponse(
        throttle_time=NO_THROTTLE,
        groups=tuple(_described(broker, group_id, operations, call.api_version) for group_id in body.groups),
    )


def _described(broker: Broker, group_id: GroupId, operations: int, version: int) -> DescribedGroup:
    found = broker.groups.find(group_id)
    if isinstance(found, Error):
        return _group(group_id, "", error=found)
    group = found.groups.get(group_id)
    if group is not None:
        return _existing(group, operations)
    if version < NOT_FOUND_FROM:
        return _group(group_id, GroupState.DEAD.value, operations=operations)
    message = f"Group {group_id} not found."
    return _group(group_id, GroupState.DEAD.value, error=Error.GROUP_ID_NOT_FOUND, message=message)


def _existing(group: Group, operations: int) -> DescribedGroup:
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return _group(
        GroupId(group.group_id),
        group.state.value,
        protocol_type=group.protocol_type or "",
        protocol=protocol or "",
        members=tuple(_member(each, protocol) for each in group.members.values()),
        operations=operations,
    )


def _group(
    group_id: GroupId,
    state: str,
    *,
    error: Error = Error.NONE,
    message: str | None = None,
    protocol_type: str = "",
    protocol: str = "",
    members: tuple[DescribedGroupMember, ...] = (),
    operations: int = OPERATIONS_NOT_ASKED,
) -> DescribedGroup:
    return DescribedGroup(
        error_code=ErrorCode(error),
        error_message=message,
        group_id=group_id,
        group_state=state,
        protocol_type=protocol_type,
        protocol_data=protocol,
        members=members,
        authorized_operations=i32(operations),
    )


def _member(member: Member, protocol: str | None) -> DescribedGroupMember:
    return DescribedGroupMember(
        member_id=member.member_id,
        group_instance_id=member.group_instance_id,
        client_id=member.client_id,
        client_host=member.client_host,
        member_metadata=member.metadata(protocol),
        member_assignment=member.assignment,
    )
