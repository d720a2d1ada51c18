"""JoinGroup: who may come in, and whether that needs a rebalance. The order of the checks is Kafka's."""

from uuid import UUID

from reference_broker.groups.membership import rebalances, static_members
from reference_broker.groups.membership.answers import generation_answer
from reference_broker.groups.membership.requests import UNKNOWN_MEMBER, JoinAnswer, Joined, JoinRequest
from reference_broker.groups.membership.served_group import ServedGroup
from reference_broker.groups.state.group import Group
from reference_broker.groups.state.member import Member
from reference_broker.groups.state.states import GroupState
from reference_broker.wire.errors import ErrorCode

NEW_MEMBER_TIMEOUT_MS = 300_000
"""How long the first JoinGroup of a member may wait. The member cannot send heartbeats yet, and its connection tells
nothing (Kafka's classicGroupNewMemberJoinTimeoutMs)."""
MEMBER_ID_SUFFIX_BYTES = 37
"""What a member ID has after the ID of the client or of the instance: a hyphen and a UUID."""


def join(served: ServedGroup, request: JoinRequest, answer: Joined) -> None:
    """Answers now, or when the generation begins."""
    group = served.group
    if not group.accepts(request.member_id, served.around.config.group_max_size):
        rebalances.remove(served, request.member_id, "removed")
        answer(JoinAnswer(ErrorCode.group_max_size_reached))
        rebalances.complete_if_joined(served)
    elif not group.supports(request.protocol_type, request.protocols):
        answer(JoinAnswer(ErrorCode.inconsistent_group_protocol, request.member_id))
    elif request.member_id == UNKNOWN_MEMBER:
        _join_without_id(served, request, answer)
    else:
        _join_with_id(served, request, answer)


def _join_without_id(served: ServedGroup, request: JoinRequest, answer: Joined) -> None:
    instance = request.group_instance_id
    member_id = _new_member_id(served, request)
    if instance is not None and instance in served.group.static_members:
        static_members.replace(served, request, member_id, answer)
    elif instance is None and request.needs_member_id:
        _give_id(served, request, member_id, answer)
    else:
        _add(served, request, member_id, answer)


def _give_id(served: ServedGroup, request: JoinRequest, member_id: str, answer: Joined) -> None:
    """A client that gives up and asks again leaves no member behind, only an ID that expires (KIP-394)."""
    served.group.give_id(member_id)
    served.expect(member_id, request.session_timeout_ms)
    answer(JoinAnswer(ErrorCode.member_id_required, member_id))


def _new_member_id(served: ServedGroup, request: JoinRequest) -> str:
    prefix = request.client_id if request.group_instance_id is None else request.group_instance_id
    return f"{prefix}-{UUID(int=served.around.random.getrandbits(128), version=4)}"


def _join_with_id(served: ServedGroup, request: JoinRequest, answer: Joined) -> None:
    group, member_id = served.group, request.member_id
    if member_id in group.pending_joins and request.group_instance_id is None:
        _add(served, request, member_id, answer)
        return
    error = group.check_member(member_id, request.group_instance_id)
    if error:
        answer(JoinAnswer(error, member_id))
        return
    member = group.members[member_id]
    if _is_repeated(group, member, request):
        answer(generation_answer(group, member_id))
        return
    group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
    served.park_join(member_id, answer)
    rebalances.prepare_or_complete(served, _why(f"member {member_id} joins again", request))


def _is_repeated(group: Group, member: Member, request: JoinRequest) -> bool:
    """The request says nothing new, perhaps because an answer was lost. The generation is told again. A leader that
    joins a stable group wants a rebalance, since the topics that it sees have changed."""
    if group.state is GroupState.PREPARING_REBALANCE or member.protocols != request.protocols:
        return False
    return group.state is GroupState.COMPLETING_REBALANCE or group.leader != member.member_id


def _add(served: ServedGroup, request: JoinRequest, member_id: str, answer: Joined) -> None:
    group = served.group
    if not group.members:
        group.protocol_type = request.protocol_type
    if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
        group.new_member_added = True
    group.add(_member(request, member_id), awaits_join=False)
    served.park_join(member_id, answer)
    served.expect(member_id, NEW_MEMBER_TIMEOUT_MS)
    served.note_member(member_id, "joined")
    rebalances.prepare_or_complete(served, _why(f"member {member_id} is new", request))


def _member(request: JoinRequest, member_id: str) -> Member:
    return Member(
        member_id,
        request.group_instance_id,
        request.client_id,
        request.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocols,
        is_new=True,
    )


def _why(text: str, request: JoinRequest) -> str:
    return f"{text}: {request.reason}" if request.reason else text
