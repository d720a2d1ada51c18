"""SyncGroup: members ask what they are assigned, the leader says it."""

from reference_broker.groups.membership.group_run import GroupRun
from reference_broker.groups.membership.membership_values import SyncAnswer, Synced, SyncRequest
from reference_broker.groups.membership.rebalances import Rebalances, assignment_answer
from reference_broker.groups.membership.transitions import GroupState
from reference_broker.wire.errors import Error


class Syncing:
    __slots__ = ("_rebalances",)

    def __init__(self, rebalances: Rebalances) -> None:
        self._rebalances = rebalances

    def sync(self, run: GroupRun, request: SyncRequest, answer: Synced) -> None:
        """``answer`` is called now, or when the leader's assignment is written."""
        group = run.group
        error = self._refused(run, request)
        if error is not Error.NONE:
            answer(SyncAnswer(error))
        elif group.state is GroupState.STABLE:
            self._rebalances.synced(run, request.member_id)
            answer(assignment_answer(group, group.members[request.member_id]))
        else:
            run.park_sync(request.member_id, answer)
            self._rebalances.synced(run, request.member_id)
            if group.leader == request.member_id and run.writes != group.generation:
                self._assign(run, request.assignments)

    def _refused(self, run: GroupRun, request: SyncRequest) -> Error:
        group = run.group
        if group.state is GroupState.EMPTY:
            return Error.UNKNOWN_MEMBER_ID
        error = group.check_member(request.member_id, request.group_instance_id)
        if error is not Error.NONE:
            return error
        if request.generation != group.generation:
            return Error.ILLEGAL_GENERATION
        if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol, group.protocol):
            return Error.INCONSISTENT_GROUP_PROTOCOL
        return Error.REBALANCE_IN_PROGRESS if group.state is GroupState.PREPARING_REBALANCE else Error.NONE

    def _assign(self, run: GroupRun, assignments: dict[str, bytes]) -> None:
        """Nobody is told before it is replicated: another coordinator must know it, too."""
        group, generation = run.group, run.group.generation
        for member in group.members.values():
            member.assignment = assignments.get(member.member_id, b"")
        run.writes = generation

        def written(error: Error) -> None:
            run.writes = 0 if run.writes == generation else run.writes
            current = group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation
            if not run.owner.alive or not current:
                return
            if error is Error.NONE:
                self._rebalances.stabilise(run)
            else:
                self._rebalances.fail_syncs(run, error)
                self._rebalances.prepare_or_complete(run, f"assignment not stored: {error.name}")

        run.owner.coordinated.write_group(group, written)


def _differs(said: str | None, known: str | None) -> bool:
    """Clients before version 5 say nothing."""
    return said is not None and known is not None and said != known
