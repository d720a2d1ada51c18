"""LeaveGroup: members that go by themselves, or that an administrator takes out."""

from reference_broker.groups.membership import rebalances
from reference_broker.groups.membership.requests import UNKNOWN_MEMBER, Leaving
from reference_broker.groups.membership.served_group import ServedGroup
from reference_broker.groups.state.states import GroupState
from reference_broker.wire.errors import Error, ErrorCode


def leave(served: ServedGroup, leaving: tuple[Leaving, ...]) -> tuple[Error, ...]:
    """Returns an error for each member: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    errors = tuple(_leave(served, each) for each in leaving)
    gone = errors.count(ErrorCode.none)
    if gone and served.group.state is not GroupState.EMPTY:
        reason = next((each.reason for each in leaving if each.reason), "")
        rebalances.prepare_or_complete(served, f"{gone} members left" + (f": {reason}" if reason else ""))
    return errors


def _leave(served: ServedGroup, leaving: Leaving) -> Error:
    group, member_id = served.group, leaving.member_id
    if member_id == UNKNOWN_MEMBER:
        member_id = group.static_members.get(leaving.group_instance_id or "", UNKNOWN_MEMBER)
    elif member_id not in group.pending_joins:
        error = group.check_member(member_id, leaving.group_instance_id)
        if error:
            return error
    if member_id == UNKNOWN_MEMBER:
        return ErrorCode.unknown_member_id
    rebalances.remove(served, member_id, "removed")
    return ErrorCode.none
