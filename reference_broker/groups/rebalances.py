"""From one generation of a group to the next: which members are waited for, how long, and what ends the wait.

1. The set of members changes: ``prepare`` begins a rebalance, and all of them have to join again.
2. All have joined, or the rebalance timeout is over: ``complete`` begins a generation and answers the JoinGroups.
3. The leader's assignment is written (``membership.sync``): ``stabilise`` answers the SyncGroups.
"""

from collections.abc import Iterator
from itertools import islice

from reference_broker.groups.group import Group, GroupState, Member
from reference_broker.groups.served_group import JoinAnswer, JoinedMember, ServedGroup, SyncAnswer
from reference_broker.wire.errors import Error, ErrorCode


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


MEMBERS_A_SLICE = 256
"""How many members are told of their generation in one event."""
LEAST_WAIT_MS = 1000
"""The least time between two looks whether a static member has joined, however short the rebalance timeout is."""


# --- a rebalance begins ---------------------------------------------------------------------------------------------


def prepare_or_complete(served: ServedGroup, reason: str) -> None:
    """Something changed. A rebalance begins, or the one that is on its way may be complete."""
    if served.group.can_rebalance:
        prepare(served, reason)
    else:
        complete_if_joined(served)


def prepare(served: ServedGroup, reason: str) -> None:
    """Asks every member to join again. A group that was empty waits for more members first."""
    group = served.group
    is_initial = group.state is GroupState.EMPTY
    if group.state is GroupState.COMPLETING_REBALANCE:
        fail_syncs(served, ErrorCode.rebalance_in_progress)
    _refuse_syncs(served, ErrorCode.rebalance_in_progress)
    served.cancel_timer()
    served.enter(group.begin_rebalance, ("reason", reason))
    if is_initial:
        delay_ms = served.around.config.group_initial_rebalance_delay_ms
        _delay(served, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
    elif group.all_joined:
        complete(served)
    else:
        served.set_timer(group.rebalance_timeout_ms, lambda: complete(served))


def complete_if_joined(served: ServedGroup) -> None:
    """A new group waits out its initial delay in any case, since more members may come."""
    group = served.group
    is_initial = group.previous_state is GroupState.EMPTY
    if group.state is GroupState.PREPARING_REBALANCE and not is_initial and group.all_joined:
        complete(served)


def _delay(served: ServedGroup, delay_ms: int, remaining_ms: int) -> None:
    served.set_timer(delay_ms, lambda: _delay_over(served, delay_ms, remaining_ms))


def _delay_over(served: ServedGroup, delay_ms: int, remaining_ms: int) -> None:
    """Where members came meanwhile others may follow. The delay is prolonged as long as the rebalance timeout lasts."""
    if not served.group.new_member_added or not remaining_ms:
        complete(served)
        return
    served.group.new_member_added = False
    initial_ms = served.around.config.group_initial_rebalance_delay_ms
    _delay(served, min(initial_ms, remaining_ms), max(remaining_ms - delay_ms, 0))


# --- a generation begins --------------------------------------------------------------------------------------------


def complete(served: ServedGroup) -> None:
    """Begins the next generation, without the dynamic members that have not joined. If nobody has joined, only static
    members are left. Then the wait begins anew, until their sessions end."""
    group = served.group
    served.cancel_timer()
    _remove_absent(served)
    if group.members and not group.elect_joined_leader():
        served.set_timer(max(group.rebalance_timeout_ms, LEAST_WAIT_MS), lambda: complete(served))
        return
    served.enter(group.begin_generation)
    if group.state is GroupState.EMPTY:
        served.partition.write_group(group, _ignored)
        return
    served.set_timer(group.rebalance_timeout_ms, lambda: _sync_over(served))
    _tell_generation(served, group.generation, iter(tuple(group.members.values())))


def _remove_absent(served: ServedGroup) -> None:
    group = served.group
    if group.joined == len(group.members):
        return
    for member in tuple(group.members.values()):
        if not member.awaits_join and member.group_instance_id is None:
            remove(served, member.member_id, "expired")


def _tell_generation(served: ServedGroup, generation: int, members: Iterator[Member]) -> None:
    """Works in slices. Whoever has not been told when the next rebalance begins has joined that one already."""
    group = served.group
    if group.generation != generation or group.state is GroupState.PREPARING_REBALANCE:
        return
    batch = tuple(islice(members, MEMBERS_A_SLICE))
    for member in batch:
        if group.members.get(member.member_id) is member:
            member.is_new = False
            served.answer_join(member.member_id, generation_answer(group, member.member_id))
            served.expect(member.member_id, member.session_timeout_ms)
    if len(batch) == MEMBERS_A_SLICE:
        served.after(0, lambda: _tell_generation(served, generation, members))


def _sync_over(served: ServedGroup) -> None:
    """Members that never asked for their assignment are given up."""
    served.timer = None
    late = tuple(served.group.pending_syncs)
    for member_id in late:
        remove(served, member_id, "expired")
    if late:
        prepare(served, f"{len(late)} members did not sync in time")


# --- a generation is assigned ---------------------------------------------------------------------------------------


def synced(served: ServedGroup, member_id: str) -> None:
    """The SyncGroup of this member for this generation has come. After the last one nobody is waited for."""
    served.group.synced(member_id)
    if served.group.state is not GroupState.PREPARING_REBALANCE and not served.group.pending_syncs:
        served.cancel_timer()


def stabilise(served: ServedGroup) -> None:
    """The assignment is written: everybody who waits is told."""
    group = served.group
    served.enter(group.stabilise)
    served.around.metrics.rebalances.value += 1
    _tell_assignments(served, group.generation, iter(tuple(served.syncs)))


def _tell_assignments(served: ServedGroup, generation: int, member_ids: Iterator[str]) -> None:
    """Works in slices. Whoever has not been told when the next rebalance begins is told that instead."""
    group = served.group
    if group.generation != generation or group.state is not GroupState.STABLE:
        return
    batch = tuple(islice(member_ids, MEMBERS_A_SLICE))
    for member_id in batch:
        if member_id in served.syncs:
            _answer_sync(served, member_id, assignment_answer(group, group.members[member_id]))
    if len(batch) == MEMBERS_A_SLICE:
        served.after(0, lambda: _tell_assignments(served, generation, member_ids))


def fail_syncs(served: ServedGroup, error: Error) -> None:
    """There will be no assignment of this generation."""
    for member in served.group.members.values():
        member.assignment = b""
    _refuse_syncs(served, error)


def _refuse_syncs(served: ServedGroup, error: Error) -> None:
    for member_id in tuple(served.syncs):
        _answer_sync(served, member_id, SyncAnswer(error))


def _answer_sync(served: ServedGroup, member_id: str, answer: SyncAnswer) -> None:
    """The session begins anew, because the member could not send heartbeats while it waited."""
    served.answer_sync(member_id, answer)
    served.expect(member_id, served.group.members[member_id].session_timeout_ms)


# --- members go -----------------------------------------------------------------------------------------------------


def remove(served: ServedGroup, member_id: str, what: str) -> None:
    """Takes out a member, or an ID that never joined. Its requests that wait are answered UNKNOWN_MEMBER_ID, so that it
    joins anew if it is still there. ``what`` is removed (it left) or expired."""
    served.answer_join(member_id, JoinAnswer(ErrorCode.unknown_member_id))
    served.answer_sync(member_id, SyncAnswer(ErrorCode.unknown_member_id))
    served.forget(member_id)
    if served.group.remove(member_id) is not None:
        served.note_member(member_id, what)


def expired(served: ServedGroup, member_id: str) -> None:
    """The session of a member, or of an ID that never joined, is over. Members that wait for an answer cannot send
    heartbeats and are excused."""
    group = served.group
    member = group.members.get(member_id)
    if not served.partition.is_led or (member is not None and member.is_excused):
        return
    remove(served, member_id, "expired")
    if member is not None and group.state is not GroupState.EMPTY:
        prepare_or_complete(served, f"member {member_id} was not heard of in time")
    else:
        complete_if_joined(served)


def _ignored(error: Error) -> None:
    """An empty generation that is not written is no loss. After a failover the generation before it has members that
    are not there, and their sessions end."""
