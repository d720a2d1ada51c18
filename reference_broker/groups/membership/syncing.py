"""SyncGroup: members ask what they are assigned, and the leader says it."""

from reference_broker.groups.membership import rebalances
from reference_broker.groups.membership.answers import assignment_answer
from reference_broker.groups.membership.requests import SyncAnswer, Synced, SyncRequest
from reference_broker.groups.membership.served_group import ServedGroup
from reference_broker.groups.state.group import Group
from reference_broker.groups.state.states import GroupState
from reference_broker.wire.errors import Error, ErrorCode, error_name


def sync(served: ServedGroup, request: SyncRequest, answer: Synced) -> None:
    """Answers now, or when the leader's assignment is written."""
    group = served.group
    error = _refusal(group, request)
    if error:
        answer(SyncAnswer(error))
    elif group.state is GroupState.STABLE:
        rebalances.synced(served, request.member_id)
        answer(assignment_answer(group, group.members[request.member_id]))
    else:
        served.park_sync(request.member_id, answer)
        rebalances.synced(served, request.member_id)
        if group.leader == request.member_id and served.assigned != group.generation:
            _assign(served, request.assignments)


def _refusal(group: Group, request: SyncRequest) -> Error:
    if group.state is GroupState.EMPTY:
        return ErrorCode.unknown_member_id
    error = group.check_member(request.member_id, request.group_instance_id)
    if error:
        return error
    if request.generation != group.generation:
        return ErrorCode.illegal_generation
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol, group.protocol):
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.rebalance_in_progress if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.none


def _assign(served: ServedGroup, assignments: dict[str, bytes]) -> None:
    """Nobody is told of the assignment before it is replicated: the next coordinator must know it, too."""
    group, generation = served.group, served.group.generation
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    served.assigned = generation

    def written(error: Error) -> None:
        served.assigned = 0 if served.assigned == generation else served.assigned
        current = group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation
        if not served.partition.is_led or not current:
            return
        if not error:
            rebalances.stabilise(served)
        else:
            rebalances.fail_syncs(served, error)
            rebalances.prepare_or_complete(served, f"assignment not stored: {error_name(error)}")

    served.partition.write_group(group, written)


def _differs(said: str | None, known: str | None) -> bool:
    """Clients before version 5 say nothing."""
    return said is not None and known is not None and said != known
