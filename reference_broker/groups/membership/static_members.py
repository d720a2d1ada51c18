"""Static members (KIP-345): an instance that starts again takes its old place.

No rebalance is needed where the group is Stable and its protocol stays.
"""

from dataclasses import replace as changed

from reference_broker.groups.membership import rebalances
from reference_broker.groups.membership.answers import generation_answer, members_told
from reference_broker.groups.membership.requests import JoinAnswer, Joined, JoinRequest, SyncAnswer
from reference_broker.groups.membership.served_group import ServedGroup
from reference_broker.groups.state.member import MemberProtocol
from reference_broker.groups.state.states import GroupState
from reference_broker.wire.errors import Error, ErrorCode


def replace(served: ServedGroup, request: JoinRequest, member_id: str, answer: Joined) -> None:
    """The instance joins without its member ID and gets this one. Whoever still uses the old ID is fenced."""
    group = served.group
    assert request.group_instance_id is not None, "only static members are replaced"
    old_id, old_leader = group.static_members[request.group_instance_id], group.leader
    _rename(served, request.group_instance_id, member_id)
    member = group.members[member_id]
    old = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
    group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
    served.park_join(member_id, answer)
    if group.state is GroupState.STABLE and group.protocol == group.select_protocol():
        _keep_generation(served, request, member_id, old_id, old_leader or "", old)
    else:
        rebalances.prepare_or_complete(served, f"static member {request.group_instance_id} joins again")


def _rename(served: ServedGroup, group_instance_id: str, member_id: str) -> None:
    group = served.group
    old_id = group.static_members[group_instance_id]
    served.answer_join(old_id, JoinAnswer(ErrorCode.fenced_instance_id, old_id))
    served.answer_sync(old_id, SyncAnswer(ErrorCode.fenced_instance_id))
    served.forget(old_id)
    served.note_member(old_id, "fenced")
    member = group.replace_static(group_instance_id, member_id)
    served.expect(member_id, member.session_timeout_ms)
    served.note_member(member_id, "joined")


def _keep_generation(
    served: ServedGroup,
    request: JoinRequest,
    member_id: str,
    old_id: str,
    old_leader: str,
    old: tuple[tuple[MemberProtocol, ...], int, int],
) -> None:
    """Only the new ID is written. The member is told the generation once that is done. Its session begins anew then,
    because the session may have ended while the member waited and was excused."""
    group, generation, instance = served.group, served.group.generation, request.group_instance_id

    def written(error: Error) -> None:
        unchanged = group.state is GroupState.STABLE and group.generation == generation
        if not served.partition.is_led or not unchanged or member_id not in served.joins:
            return
        if not error:
            served.answer_join(member_id, _kept(served, request, member_id, old_leader))
            served.expect(member_id, group.members[member_id].session_timeout_ms)
            return
        served.answer_join(member_id, JoinAnswer(error))
        group.update(group.members[member_id], *old)
        assert instance is not None, "only static members are replaced"
        _rename(served, instance, old_id)

    served.partition.write_group(group, written)


def _kept(served: ServedGroup, request: JoinRequest, member_id: str, old_leader: str) -> JoinAnswer:
    """A leader must not assign now, because the others would not ask for the assignment. Clients that understand
    KIP-814 are told so, with all members. Others are told the old ID of the leader, so that they take themselves for
    followers."""
    group = served.group
    told = changed(generation_answer(group, member_id), members=())
    if not request.skips_assignment:
        return changed(told, leader=old_leader)
    leads = member_id == group.leader
    return changed(told, skip_assignment=leads, members=members_told(group) if leads else ())
