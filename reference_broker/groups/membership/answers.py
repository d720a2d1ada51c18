"""What members are told of a generation."""

from reference_broker.groups.membership.requests import JoinAnswer, JoinedMember, SyncAnswer
from reference_broker.groups.state.group import Group
from reference_broker.groups.state.member import Member
from reference_broker.wire.errors import ErrorCode


def generation_answer(group: Group, member_id: str) -> JoinAnswer:
    """Answers a JoinGroup with the generation that has begun. Only the leader is told who is in it."""
    return JoinAnswer(
        ErrorCode.none,
        member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        members=members_told(group) if member_id == group.leader else (),
    )


def members_told(group: Group) -> tuple[JoinedMember, ...]:
    """Returns all members, as the leader needs them to assign."""
    return tuple(
        JoinedMember(each.member_id, each.group_instance_id, each.metadata(group.protocol))
        for each in group.members.values()
    )


def assignment_answer(group: Group, member: Member) -> SyncAnswer:
    """Answers a SyncGroup with what the leader assigned to the member."""
    return SyncAnswer(ErrorCode.none, group.protocol_type, group.protocol, member.assignment)
