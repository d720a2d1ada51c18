"""Static members (KIP-345): an instance that starts again takes its old place.

Without a rebalance where the group is Stable and its protocol stays.
"""

from reference_broker.groups.membership.group_run import GroupRun
from reference_broker.groups.membership.member import MemberProtocol
from reference_broker.groups.membership.membership_values import JoinAnswer, Joined, JoinRequest, SyncAnswer
from reference_broker.groups.membership.rebalances import Rebalances, generation_answer, members_told
from reference_broker.groups.membership.sessions import Sessions
from reference_broker.groups.membership.transitions import GroupState
from reference_broker.wire.errors import Error


class StaticMembers:
    __slots__ = ("_rebalances", "_sessions")

    def __init__(self, rebalances: Rebalances, sessions: Sessions) -> None:
        self._rebalances = rebalances
        self._sessions = sessions

    def replace(self, run: GroupRun, request: JoinRequest, member_id: str, answer: Joined) -> None:
        """The instance joins without its member ID: it gets ``member_id``, whoever still uses the old one is fenced."""
        group = run.group
        assert request.group_instance_id is not None, "only static members are replaced"
        old_id, old_leader = group.static_members[request.group_instance_id], group.leader
        self._rename(run, request.group_instance_id, member_id)
        member = group.members[member_id]
        old = (member.protocols, member.rebalance_timeout_ms, member.session_timeout_ms)
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        run.park_join(member_id, answer)
        if group.state is GroupState.STABLE and group.protocol == group.select_protocol():
            self._keep_generation(run, request, member_id, old_id, old_leader or "", old)
        else:
            self._rebalances.prepare_or_complete(run, f"static member {request.group_instance_id} joins again")

    def _rename(self, run: GroupRun, group_instance_id: str, member_id: str) -> None:
        group = run.group
        old_id = group.static_members[group_instance_id]
        run.answer_join(old_id, JoinAnswer(Error.FENCED_INSTANCE_ID, old_id))
        run.answer_sync(old_id, SyncAnswer(Error.FENCED_INSTANCE_ID))
        self._sessions.forget(run, old_id)
        self._rebalances.note_member(group, old_id, "fenced")
        member = group.replace_static(group_instance_id, member_id)
        self._sessions.expect(run, member_id, member.session_timeout_ms)
        self._rebalances.note_member(group, member_id, "joined")

    def _keep_generation(
        self,
        run: GroupRun,
        request: JoinRequest,
        member_id: str,
        old_id: str,
        old_leader: str,
        old: tuple[tuple[MemberProtocol, ...], int, int],
    ) -> None:
        """Only the new ID is written; the member is told the generation once that is done."""
        generation, instance = run.group.generation, request.group_instance_id

        def written(error: Error) -> None:
            group = run.group
            unchanged = group.state is GroupState.STABLE and group.generation == generation
            if not run.owner.alive or not unchanged or member_id not in run.joins:
                return
            if error is Error.NONE:
                run.answer_join(member_id, self._told(run, request, member_id, old_leader))
                return
            run.answer_join(member_id, JoinAnswer(error))
            group.update(group.members[member_id], *old)
            assert instance is not None, "only static members are replaced"
            self._rename(run, instance, old_id)

        run.owner.coordinated.write_group(run.group, written)

    def _told(self, run: GroupRun, request: JoinRequest, member_id: str, old_leader: str) -> JoinAnswer:
        """A leader must not assign: the others would not ask for it. KIP-814 says so to those that understand, with all
        members; to others the leader's old ID is told, so that they take themselves for followers."""
        group = run.group
        if not request.skips_assignment:
            follower = generation_answer(group, member_id)
            return JoinAnswer(
                Error.NONE, member_id, follower.generation, follower.protocol_type, follower.protocol, old_leader
            )
        leads = member_id == group.leader
        return JoinAnswer(
            Error.NONE,
            member_id,
            group.generation,
            group.protocol_type,
            group.protocol,
            group.leader or "",
            skip_assignment=leads,
            members=members_told(group) if leads else (),
        )
