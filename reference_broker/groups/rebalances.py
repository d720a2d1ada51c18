"""From one generation of a group to the next: which members are waited for, how long, and what ends the wait.

1. The set of members changes: ``prepare`` begins a rebalance, and all of them have to join again.
2. All have joined, or the rebalance timeout is over: ``complete`` begins a generation and responds to the JoinGroups.
3. The leader's assignment is written (``membership.sync_group``): ``stabilise`` responds to the SyncGroups.
"""

from reference_broker.groups.classic_requests import JoinedMember, JoinResponse, SyncResponse
from reference_broker.groups.group import Group, GroupState, Member
from reference_broker.groups.served_group import ServedGroup
from reference_broker.ports.slicing import REBALANCED_MEMBERS_PER_SLICE, Sliced, run_slices
from reference_broker.wire.errors import Error, ErrorCode


def generation_response(group: Group, member_id: str) -> JoinResponse:
    """Return the response to a JoinGroup when the generation has begun. Only the leader gets the members."""
    return JoinResponse(
        ErrorCode.none,
        member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        members=joined_members(group) if member_id == group.leader else (),
    )


def joined_members(group: Group) -> tuple[JoinedMember, ...]:
    """Return all members, for the leader, which assigns."""
    return tuple(
        JoinedMember(each.member_id, each.group_instance_id, each.metadata(group.protocol))
        for each in group.members.values()
    )


def assignment_response(group: Group, member: Member) -> SyncResponse:
    """Return the response to a SyncGroup with the member's assignment."""
    return SyncResponse(ErrorCode.none, group.protocol_type, group.protocol, member.assignment)


MIN_WAIT_MS = 1000
"""The shortest wait for static members to join, however short the rebalance timeout is."""


# --- a rebalance begins -----------------------------------------------------------------------------------------------


def prepare_or_complete(served: ServedGroup, reason: str) -> None:
    """Begin a rebalance because something changed, or complete the one in progress."""
    # Decision rebalance-begins: begins | one runs
    if served.group.can_rebalance:
        prepare(served, reason)
    else:
        complete_if_joined(served)


def prepare(served: ServedGroup, reason: str) -> None:
    """Begin a rebalance: every member has to join again. A group that was empty waits for more members first."""
    group = served.group
    is_initial = group.state is GroupState.EMPTY
    # Decision group-assignment-dropped: parked syncs are refused | none was awaited
    if group.state is GroupState.COMPLETING_REBALANCE:
        fail_syncs(served, ErrorCode.rebalance_in_progress)
    _refuse_syncs(served, ErrorCode.rebalance_in_progress)
    served.cancel_timer()
    served.enter(group.begin_rebalance, ("reason", reason))
    # Decision group-initial-rebalance: waits for more members | not the first
    if is_initial:
        delay_ms = served.context.config.group_initial_rebalance_delay_ms
        _delay(served, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
    # Decision rebalance-needs-joins: all have joined | waits for joins
    elif group.all_joined:
        complete(served)
    else:
        served.set_timer(group.rebalance_timeout_ms, lambda: complete(served))


def complete_if_joined(served: ServedGroup) -> None:
    """Complete the rebalance if all have joined. A new group waits out its initial delay in any case, since more
    members may come."""
    group = served.group
    is_initial = group.previous_state is GroupState.EMPTY
    # Decision rebalance-completes: last one has joined | goes on
    if group.state is GroupState.PREPARING_REBALANCE and not is_initial and group.all_joined:
        complete(served)


def _delay(served: ServedGroup, delay_ms: int, remaining_ms: int) -> None:
    served.set_timer(delay_ms, lambda: _delay_over(served, delay_ms, remaining_ms))


def _delay_over(served: ServedGroup, delay_ms: int, remaining_ms: int) -> None:
    """Prolong the delay while members keep coming, up to the rebalance timeout. Otherwise complete the rebalance."""
    # Decision group-initial-delay-over: generation begins | waits for more
    if not served.group.new_member_added or not remaining_ms:
        complete(served)
        return
    served.group.restart_initial_delay()
    initial_ms = served.context.config.group_initial_rebalance_delay_ms
    _delay(served, min(initial_ms, remaining_ms), max(remaining_ms - delay_ms, 0))


# --- a generation begins ----------------------------------------------------------------------------------------------


def complete(served: ServedGroup) -> None:
    """Begin the next generation, without the dynamic members that have not joined. If nobody has joined, only static
    members remain. Then the wait starts again, until their sessions end."""
    group = served.group
    served.cancel_timer()
    _remove_absent(served)
    # Decision group-nobody-joined: waits again | generation begins
    if group.members and not group.elect_joined_leader():
        served.set_timer(max(group.rebalance_timeout_ms, MIN_WAIT_MS), lambda: complete(served))
        return
    served.enter(group.begin_generation)
    if group.state is GroupState.EMPTY:
        served.shard.write_group(group, _ignore_result)
        return
    served.set_timer(group.rebalance_timeout_ms, lambda: _sync_over(served))
    run_slices(served.context.ports, _announce_generation(served))


def _remove_absent(served: ServedGroup) -> None:
    group = served.group
    if group.joined == len(group.members):
        return
    for member in tuple(group.members.values()):
        # Decision group-member-absent: removed | stays
        if not member.awaits_join and member.group_instance_id is None:
            remove(served, member.member_id, "expired")


def _announce_generation(served: ServedGroup) -> Sliced[None]:
    """Respond to the JoinGroups. When the next rebalance begins, the JoinGroups that are still parked count as joins of
    that rebalance."""
    group, generation = served.group, served.group.generation
    for number, member in enumerate(tuple(group.members.values()), 1):
        if group.members.get(member.member_id) is member:
            member.note_first_response()
            served.respond_to_join(member.member_id, generation_response(group, member.member_id))
            served.restart_session(member.member_id, member.session_timeout_ms)
        if number % REBALANCED_MEMBERS_PER_SLICE == 0:
            yield
            is_over = group.generation != generation or group.state is GroupState.PREPARING_REBALANCE
            # Decision group-generation-overtaken: overtaken or lost | still current
            if is_over or not served.shard.is_led:
                return


def _sync_over(served: ServedGroup) -> None:
    """Remove the members whose SyncGroup has not come in time."""
    served.timer = None
    late = tuple(served.group.pending_syncs)
    for member_id in late:
        remove(served, member_id, "expired")
    # Decision group-members-sync-late: rebalances without them | all have synced
    if late:
        prepare(served, f"{len(late)} members did not sync in time")


# --- a generation is assigned -----------------------------------------------------------------------------------------


def synced(served: ServedGroup, member_id: str) -> None:
    """Record that the SyncGroup of this member for this generation has come. The last one cancels the timer."""
    served.group.synced(member_id)
    if served.group.state is not GroupState.PREPARING_REBALANCE and not served.group.pending_syncs:
        served.cancel_timer()


def stabilise(served: ServedGroup) -> None:
    """Make the group Stable, since the assignment is written, and respond to the parked SyncGroups."""
    group = served.group
    served.enter(group.stabilise)
    served.context.metrics.rebalances.value += 1
    run_slices(served.context.ports, _send_assignments(served))


def _send_assignments(served: ServedGroup) -> Sliced[None]:
    """Respond to the SyncGroups. The next rebalance fails those that remain."""
    group, generation = served.group, served.group.generation
    for number, member_id in enumerate(tuple(served.syncs), 1):
        if member_id in served.syncs:
            _respond_to_sync(served, member_id, assignment_response(group, group.members[member_id]))
        if number % REBALANCED_MEMBERS_PER_SLICE == 0:
            yield
            is_over = group.generation != generation or group.state is not GroupState.STABLE
            # Decision group-assignments-overtaken: overtaken or lost | still current
            if is_over or not served.shard.is_led:
                return


def fail_syncs(served: ServedGroup, error: Error) -> None:
    """Fail the SyncGroups of this generation, which gets no assignment."""
    for member in served.group.members.values():
        member.assignment = b""
    _refuse_syncs(served, error)


def _refuse_syncs(served: ServedGroup, error: Error) -> None:
    for member_id in tuple(served.syncs):
        _respond_to_sync(served, member_id, SyncResponse(error))


def _respond_to_sync(served: ServedGroup, member_id: str, response: SyncResponse) -> None:
    """Respond to a SyncGroup. The session restarts, because the member could not send heartbeats meanwhile."""
    served.respond_to_sync(member_id, response)
    served.restart_session(member_id, served.group.members[member_id].session_timeout_ms)


# --- members go -------------------------------------------------------------------------------------------------------


def remove(served: ServedGroup, member_id: str, what: str) -> None:
    """Remove a member, or an ID that never joined. Its parked requests get UNKNOWN_MEMBER_ID, so that it joins again if
    it is still there. ``what`` is removed (it left) or expired."""
    served.respond_to_join(member_id, JoinResponse(ErrorCode.unknown_member_id))
    served.respond_to_sync(member_id, SyncResponse(ErrorCode.unknown_member_id))
    served.end_session(member_id)
    if served.group.remove(member_id) is not None:
        served.note_member(member_id, what)


def expired(served: ServedGroup, member_id: str) -> None:
    """Handle the end of the session of a member, or of an ID that never joined. Members with a parked request cannot
    send heartbeats and are excused."""
    group = served.group
    member = group.members.get(member_id)
    # Decision group-member-expiry-excused: stays, its request is parked | expired
    if not served.shard.is_led or (member is not None and member.is_excused):
        return
    remove(served, member_id, "expired")
    if member is not None and group.state is not GroupState.EMPTY:
        prepare_or_complete(served, f"the session of member {member_id} timed out")
    else:
        complete_if_joined(served)


def _ignore_result(error: Error) -> None:
    """An empty generation that is not written is no loss: after a failover the generation before it has members that no
    longer exist, and their sessions end."""
