"""DescribeGroups: returns the state and the members of groups.

* Only Stable groups have a protocol and the metadata of members for it.
* Unlike Kafka: there are no ACLs, so all operations on a group are allowed. A group that is named twice is
  described once.
  A response has up to 16 MiB of members. The groups beyond get POLICY_VIOLATION, and a client may request them alone.

Version notes:
* v6: a group that does not exist is Dead with GROUP_ID_NOT_FOUND. Before, it is Dead without an error.

KIPs: 345, 430, 1043.
"""

from kio.schema.describe_groups.v6.request import DescribeGroupsRequest
from kio.schema.describe_groups.v6.response import DescribedGroup, DescribedGroupMember, DescribeGroupsResponse
from kio.schema.types import GroupId
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, respond_in_slices
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, OPERATIONS_NOT_REQUESTED
from reference_broker.coordination.partitioner import CHARACTERS_PER_US, KEY_COST_US
from reference_broker.groups.group import Group, GroupState, Member
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced
from reference_broker.wire.errors import Error, ErrorCode, bounded_message

GROUP_OPERATIONS = sum(1 << operation for operation in (3, 6, 8, 10, 11))
"""READ, DELETE, DESCRIBE, DESCRIBE_CONFIGS, ALTER_CONFIGS."""
NOT_FOUND_FROM = 6
MAX_MEMBER_BYTES = 16 * 2**20
"""The limit for the bytes in a response that members and leaders sent, unless it has a single group. A group's members
may send any bytes, and any client may request all groups in one small request."""


def handle(broker: Broker, call: Call, body: DescribeGroupsRequest) -> None:
    """In the request's order, each group once."""
    respond_in_slices(broker, call, _build_response(broker, call, body))


def _build_response(broker: Broker, call: Call, body: DescribeGroupsRequest) -> Sliced[DescribeGroupsResponse]:
    work = Budget(LOOKUP_US_PER_SLICE)
    operations = GROUP_OPERATIONS if body.include_authorized_operations else OPERATIONS_NOT_REQUESTED
    described_groups: list[DescribedGroup] = []
    member_bytes = 0
    for group_id in dict.fromkeys(body.groups):
        if work.spend(KEY_COST_US + len(group_id) // CHARACTERS_PER_US):
            yield
        described = _described(broker, group_id, operations, call.api_version)
        work.spend(KEY_COST_US * len(described.members))
        size = sum(len(member.member_metadata) + len(member.member_assignment) for member in described.members)
        if size and member_bytes and member_bytes + size > MAX_MEMBER_BYTES:
            described_groups.append(_group(group_id, "", error=ErrorCode.policy_violation, message=TOO_MUCH))
            continue
        member_bytes += size
        described_groups.append(described)
    return DescribeGroupsResponse(throttle_time=NO_THROTTLE, groups=tuple(described_groups))


TOO_MUCH = "The groups before it fill the response: request fewer at once."


API = Api.of(DescribeGroupsRequest, handle)


def _described(broker: Broker, group_id: GroupId, operations: int, version: int) -> DescribedGroup:
    offsets_partition = broker.groups.find(group_id)
    if isinstance(offsets_partition, Error):
        return _group(group_id, "", error=offsets_partition)
    group = offsets_partition.groups.get(group_id)
    if group is not None:
        return _existing(group, operations)
    if version < NOT_FOUND_FROM:
        return _group(group_id, GroupState.DEAD.value, operations=operations)
    message = bounded_message(f"Group {group_id} not found.")
    return _group(group_id, GroupState.DEAD.value, error=ErrorCode.group_id_not_found, message=message)


def _existing(group: Group, operations: int) -> DescribedGroup:
    protocol = group.protocol if group.state is GroupState.STABLE else None
    return _group(
        GroupId(group.group_id),
        group.state.value,
        protocol_type=group.protocol_type or "",
        protocol=protocol or "",
        members=tuple(_member(member, protocol) for member in group.members.values()),
        operations=operations,
    )


def _group(
    group_id: GroupId,
    state: str,
    *,
    error: Error = ErrorCode.none,
    message: str | None = None,
    protocol_type: str = "",
    protocol: str = "",
    members: tuple[DescribedGroupMember, ...] = (),
    operations: int = OPERATIONS_NOT_REQUESTED,
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
