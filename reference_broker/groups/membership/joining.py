"""JoinGroup: who may come in, and whether that needs a rebalance. The order of checks is Kafka's."""

from uuid import UUID

from reference_broker.groups.membership.group_run import GroupRun
from reference_broker.groups.membership.member import Member
from reference_broker.groups.membership.membership_values import UNKNOWN_MEMBER, JoinAnswer, Joined, JoinRequest
from reference_broker.groups.membership.rebalances import Rebalances, generation_answer
from reference_broker.groups.membership.sessions import Sessions
from reference_broker.groups.membership.static_members import StaticMembers
from reference_broker.groups.membership.transitions import GroupState
from reference_broker.ports.chance import RandomSource
from reference_broker.wire.errors import Error

NEW_MEMBER_TIMEOUT_MS = 300_000
"""How long the first JoinGroup of a member may wait: it cannot send heartbeats, and its connection tells nothing
(Kafka's classicGroupNewMemberJoinTimeoutMs)."""
MEMBER_ID_SUFFIX_BYTES = 37
"""What a member ID has behind the client's ID or the instance's: a hyphen and a UUID."""


class Joining:
    """Works on groups that are coordinated here; ``answer`` is called now or when the generation begins."""

    __slots__ = ("_max_size", "_random", "_rebalances", "_sessions", "_static")

    def __init__(self, rebalances: Rebalances, sessions: Sessions, random: RandomSource, max_size: int) -> None:
        self._rebalances = rebalances
        self._sessions = sessions
        self._random = random
        self._max_size = max_size
        self._static = StaticMembers(rebalances, sessions)

    def join(self, run: GroupRun, request: JoinRequest, answer: Joined) -> None:
        group = run.group
        if not group.accepts(request.member_id, self._max_size):
            self._rebalances.remove(run, request.member_id, "removed")
            answer(JoinAnswer(Error.GROUP_MAX_SIZE_REACHED))
            self._rebalances.complete_if_joined(run)
        elif not group.supports(request.protocol_type, request.protocols):
            answer(JoinAnswer(Error.INCONSISTENT_GROUP_PROTOCOL, request.member_id))
        elif request.member_id == UNKNOWN_MEMBER:
            self._join_unknown(run, request, answer)
        else:
            self._join_known(run, request, answer)

    # --- without a member ID ----------------------------------------------------------------------------------------

    def _join_unknown(self, run: GroupRun, request: JoinRequest, answer: Joined) -> None:
        instance = request.group_instance_id
        member_id = self._new_member_id(request)
        if instance is not None and instance in run.group.static_members:
            self._static.replace(run, request, member_id, answer)
        elif instance is None and request.needs_member_id:
            self._give_member_id(run, request, member_id, answer)
        else:
            self._add(run, request, member_id, answer)

    def _give_member_id(self, run: GroupRun, request: JoinRequest, member_id: str, answer: Joined) -> None:
        """KIP-394: a client that gives up and asks again leaves no member behind, only an ID that expires."""
        run.group.pending_joins[member_id] = None
        self._sessions.expect(run, member_id, request.session_timeout_ms)
        answer(JoinAnswer(Error.MEMBER_ID_REQUIRED, member_id))

    def _new_member_id(self, request: JoinRequest) -> str:
        prefix = request.client_id if request.group_instance_id is None else request.group_instance_id
        return f"{prefix}-{UUID(int=self._random.getrandbits(128), version=4)}"

    # --- with one ---------------------------------------------------------------------------------------------------

    def _join_known(self, run: GroupRun, request: JoinRequest, answer: Joined) -> None:
        group, member_id = run.group, request.member_id
        if member_id in group.pending_joins and request.group_instance_id is None:
            self._add(run, request, member_id, answer)
            return
        error = group.check_member(member_id, request.group_instance_id)
        if error is not Error.NONE:
            answer(JoinAnswer(error, member_id))
            return
        member = group.members[member_id]
        if self._is_repeated(run, member, request):
            answer(generation_answer(group, member_id))
            return
        group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
        run.park_join(member_id, answer)
        self._rebalances.prepare_or_complete(run, _why(f"member {member_id} joins again", request))

    def _is_repeated(self, run: GroupRun, member: Member, request: JoinRequest) -> bool:
        """It says nothing new, perhaps since an answer was lost: the generation is told again. A leader that joins
        a stable group asks for a rebalance: what it sees outside (topics) has changed."""
        group = run.group
        if group.state is GroupState.PREPARING_REBALANCE or member.protocols != request.protocols:
            return False
        return group.state is GroupState.COMPLETING_REBALANCE or group.leader != member.member_id

    # --- both -------------------------------------------------------------------------------------------------------

    def _add(self, run: GroupRun, request: JoinRequest, member_id: str, answer: Joined) -> None:
        group = run.group
        if not group.members:
            group.protocol_type = request.protocol_type
        if group.state is GroupState.PREPARING_REBALANCE and group.previous_state is GroupState.EMPTY:
            group.new_member_added = True
        group.add(_member(request, member_id), awaits_join=False)
        run.park_join(member_id, answer)
        self._sessions.expect(run, member_id, NEW_MEMBER_TIMEOUT_MS)
        self._rebalances.note_member(group, member_id, "joined")
        self._rebalances.prepare_or_complete(run, _why(f"member {member_id} is new", request))


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
