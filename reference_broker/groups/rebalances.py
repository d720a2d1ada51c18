"""Rebalances of classic groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

A consumer C2 joins a Stable group, whose only member is C1. The functions are at the right::

    C1                        coordinator                        C2
     |                             |<--- JoinGroup --------------|  join_group parks it
     |                             |                             |  prepare_rebalance: PreparingRebalance
     |--- Heartbeat -------------->|                             |
     |<-- REBALANCE_IN_PROGRESS ---|                             |  heartbeat
     |--- JoinGroup -------------->|                             |  complete_join, once all members have joined or the
     |<-- generation, members -----|--- generation ------------->|  rebalance timeout is over: CompletingRebalance
     |                             |<--- SyncGroup --------------|  sync_group parks it
     |--- SyncGroup, assignments ->|                             |  _store_assignment writes them to the log
     |<-- its assignment ----------|--- its assignment --------->|  propagate_assignment, once they are replicated:
     |                             |                             |  Stable
     |--- Heartbeat -------------->|                             |
     |<-- NONE --------------------|                             |  heartbeat

A rebalance also begins when a member sends nothing for its session timeout (``expire_heartbeat``), when it leaves
(``leave_group``), or when it does not sync in time (``expire_pending_sync``). ``group.VALID_PREVIOUS_STATES`` has the
transitions. ``group_metadata_manager`` finds the group of a request, and calls the functions here. Many of
their names are those of Kafka's GroupMetadataManager; ``join_group`` is its classicGroupJoin, and ``complete_join`` its
completeClassicGroupJoin.
"""

from dataclasses import replace
from uuid import UUID

from reference_broker.groups.classic_requests import (
    UNKNOWN_MEMBER,
    JoinCallback,
    JoinedMember,
    JoinRequest,
    JoinResponse,
    Leaving,
    SyncCallback,
    SyncRequest,
    SyncResponse,
)
from reference_broker.groups.group import Group, GroupState, Member
from reference_broker.groups.served_group import ServedGroup
from reference_broker.ports.coroutines import run_coroutine
from reference_broker.ports.slicing import REBALANCED_MEMBERS_PER_SLICE, Sliced, run_slices
from reference_broker.wire.errors import Error, ErrorCode, error_name

NEW_MEMBER_TIMEOUT_MS = 300_000
"""How long the first JoinGroup of a member may be parked. The member cannot send heartbeats yet, and the state of its
connection is unknown (Kafka's classicGroupNewMemberJoinTimeoutMs)."""
MIN_WAIT_MS = 1000
"""The shortest wait for static members to join, however short the rebalance timeout is."""


# --- JoinGroup --------------------------------------------------------------------------------------------------------


def join_group(served: ServedGroup, request: JoinRequest, respond: JoinCallback) -> None:
    """JoinGroup: respond now, or when the generation begins. The order of the checks is Kafka's."""
    group = served.group
    if not group.accepts(request.member_id, served.context.config.group_max_size):
        remove_member(served, request.member_id, "removed")
        respond(JoinResponse(ErrorCode.group_max_size_reached))
        maybe_complete_join(served)
    elif not group.supports(request.protocol_type, request.protocols):
        respond(JoinResponse(ErrorCode.inconsistent_group_protocol, request.member_id))
    elif request.member_id == UNKNOWN_MEMBER:
        _join_new_member(served, request, respond)
    else:
        _join_existing_member(served, request, respond)


def _join_new_member(served: ServedGroup, request: JoinRequest, respond: JoinCallback) -> None:
    """JoinGroup without a member ID."""
    instance = request.group_instance_id
    prefix = request.client_id if instance is None else instance
    member_id = f"{prefix}-{UUID(int=served.context.random.getrandbits(128), version=4)}"
    if instance is not None:
        _join_new_static_member(served, request, instance, member_id, respond)
    elif request.needs_member_id:
        _require_member_id(served, request, member_id, respond)
    else:
        _add_member_then_rebalance(served, request, member_id, respond)


def _require_member_id(served: ServedGroup, request: JoinRequest, member_id: str, respond: JoinCallback) -> None:
    """Respond with a member ID with which the client has to join. A client that stops here leaves no member behind,
    only an ID that expires (KIP-394)."""
    served.group.add_pending_member(member_id)
    served.restart_session(member_id, request.session_timeout_ms)
    respond(JoinResponse(ErrorCode.member_id_required, member_id))


def _join_existing_member(served: ServedGroup, request: JoinRequest, respond: JoinCallback) -> None:
    """JoinGroup with a member ID: that of a member, or one that was assigned to a client (KIP-394)."""
    group, member_id = served.group, request.member_id
    if member_id in group.pending_joins and request.group_instance_id is None:  # Decision pending-member-joins
        _add_member_then_rebalance(served, request, member_id, respond)
        return
    error = group.check_member(member_id, request.group_instance_id)
    if error:
        respond(JoinResponse(error, member_id))
        return
    member = group.members[member_id]
    if _is_repeated(group, member, request):  # Decision group-join-repeated
        respond(join_response(group, member_id))
        return
    _update_member(group, member, request, respond)
    maybe_prepare_rebalance_or_complete_join(served, _reason(f"member {member_id} joins again", request))


def _is_repeated(group: Group, member: Member, request: JoinRequest) -> bool:
    """Return whether the request repeats an earlier one, perhaps because a response was lost. Then it gets the current
    generation. A leader that joins a stable group wants a rebalance, since its topics have changed."""
    if group.state is GroupState.PREPARING_REBALANCE or member.protocols != request.protocols:
        return False
    return group.state is GroupState.COMPLETING_REBALANCE or group.leader != member.member_id


def _update_member(group: Group, member: Member, request: JoinRequest, respond: JoinCallback) -> None:
    group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
    group.park_join(member.member_id, respond)


def _add_member_then_rebalance(
    served: ServedGroup, request: JoinRequest, member_id: str, respond: JoinCallback
) -> None:
    """Add a new member and park its JoinGroup (Kafka's addMemberThenRebalanceOrCompleteJoin)."""
    group = served.group
    if not group.members:
        group.begin_protocol_type(request.protocol_type)
    group.prolong_initial_delay()
    member = Member(
        member_id,
        request.group_instance_id,
        request.client_id,
        request.client_host,
        request.rebalance_timeout_ms,
        request.session_timeout_ms,
        request.protocols,
        is_new=True,
    )
    group.add(member)
    group.park_join(member_id, respond)
    served.restart_session(member_id, NEW_MEMBER_TIMEOUT_MS)
    served.note_member(member_id, "joined")
    maybe_prepare_rebalance_or_complete_join(served, _reason(f"member {member_id} is new", request))


def _reason(text: str, request: JoinRequest) -> str:
    return f"{text}: {request.reason}" if request.reason else text


def join_response(group: Group, member_id: str) -> JoinResponse:
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


# --- JoinGroup of a static member that restarts (KIP-345) -------------------------------------------------------------


def _join_new_static_member(
    served: ServedGroup, request: JoinRequest, instance: str, member_id: str, respond: JoinCallback
) -> None:
    """JoinGroup of a static member without a member ID: it is new, or it has restarted."""
    if instance in served.group.static_members:  # Decision static-member-returns
        _update_static_member_then_rebalance(served, request, instance, member_id, respond)
    else:
        _add_member_then_rebalance(served, request, member_id, respond)


def _update_static_member_then_rebalance(
    served: ServedGroup, request: JoinRequest, instance: str, member_id: str, respond: JoinCallback
) -> None:
    """Give the static member its new member ID, and park its JoinGroup (Kafka's
    updateStaticMemberThenRebalanceOrCompleteJoin). No rebalance is needed where the group is Stable and its protocol
    stays."""
    group = served.group
    old_leader = group.leader or ""
    old_member = replace(group.members[group.static_members[instance]])
    _replace_static_member(served, instance, member_id)
    _update_member(group, group.members[member_id], request, respond)
    # Decision static-member-keeps-generation
    if group.state is GroupState.STABLE and group.protocol == group.select_protocol():
        run_coroutine(_keep_generation(served, request, member_id, old_member, old_leader))
    else:
        maybe_prepare_rebalance_or_complete_join(served, f"static member {instance} joins again")


def _replace_static_member(served: ServedGroup, group_instance_id: str, member_id: str) -> None:
    """Give the static member another member ID. The old ID is fenced, and the member keeps its place."""
    group = served.group
    old_id = group.static_members[group_instance_id]
    group.respond_to_join(old_id, JoinResponse(ErrorCode.fenced_instance_id, old_id))
    group.respond_to_sync(old_id, SyncResponse(ErrorCode.fenced_instance_id))
    served.end_session(old_id)
    served.note_member(old_id, "fenced")
    member = group.replace_static(group_instance_id, member_id)
    served.restart_session(member_id, member.session_timeout_ms)
    served.note_member(member_id, "joined")


async def _keep_generation(
    served: ServedGroup, request: JoinRequest, member_id: str, old_member: Member, old_leader: str
) -> None:
    """Write the new member ID, and then respond with the current generation. If it cannot be written, restore the old
    member."""
    group, generation = served.group, served.group.generation
    error = await served.shard.write_group(group)
    unchanged = group.state is GroupState.STABLE and group.generation == generation
    # Decision static-rejoin-overtaken
    if not served.shard.is_led or not unchanged or not group.has_joined(member_id):
        return
    if not error:  # Decision static-rejoin-stored
        group.respond_to_join(member_id, _response_of_kept_generation(served, request, member_id, old_leader))
        # The session may have ended while the JoinGroup was parked.
        served.restart_session(member_id, group.members[member_id].session_timeout_ms)
    else:
        group.respond_to_join(member_id, JoinResponse(error))
        _restore_static_member(served, group.members[member_id], old_member)


def _restore_static_member(served: ServedGroup, member: Member, old_member: Member) -> None:
    assert old_member.group_instance_id is not None, "only static members are replaced"
    served.group.update(member, old_member.protocols, old_member.rebalance_timeout_ms, old_member.session_timeout_ms)
    _replace_static_member(served, old_member.group_instance_id, old_member.member_id)


def _response_of_kept_generation(
    served: ServedGroup, request: JoinRequest, member_id: str, old_leader: str
) -> JoinResponse:
    """Return the response that keeps the generation. A leader must not assign now, because the others would not fetch
    the assignment. Clients that support KIP-814 get ``skip_assignment`` and all members. Others get the old ID of the
    leader, so that they take themselves for followers."""
    group = served.group
    response = replace(join_response(group, member_id), members=())
    if not request.skips_assignment:
        return replace(response, leader=old_leader)
    leads = member_id == group.leader
    return replace(response, skip_assignment=leads, members=joined_members(group) if leads else ())


# --- a rebalance begins: members have to join -------------------------------------------------------------------------


def maybe_prepare_rebalance_or_complete_join(served: ServedGroup, reason: str) -> None:
    """Begin a rebalance because something changed, or complete the join phase of the one in progress."""
    if served.group.can_rebalance:  # Decision rebalance-begins
        prepare_rebalance(served, reason)
    else:
        maybe_complete_join(served)


def prepare_rebalance(served: ServedGroup, reason: str) -> None:
    """Begin a rebalance: every member has to join again. A group that was empty waits for more members first."""
    group = served.group
    is_initial = group.state is GroupState.EMPTY
    if group.state is GroupState.COMPLETING_REBALANCE:  # Decision group-assignment-dropped
        reset_and_propagate_assignment_with_error(served, ErrorCode.rebalance_in_progress)
    else:
        _fail_syncs(served, ErrorCode.rebalance_in_progress)
    served.cancel_timer()
    served.transition(group.begin_rebalance, ("reason", reason))
    if is_initial:  # Decision group-initial-rebalance
        delay_ms = served.context.config.group_initial_rebalance_delay_ms
        _delay_initial_rebalance(served, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
    else:
        _await_joins(served)


def _await_joins(served: ServedGroup) -> None:
    """Complete the join phase when all members have joined, at the latest after the rebalance timeout."""
    if served.group.has_all_members_joined:  # Decision rebalance-needs-joins
        complete_join(served)
    else:
        served.set_timer(served.group.rebalance_timeout_ms, lambda: complete_join(served))


def maybe_complete_join(served: ServedGroup) -> None:
    """Complete the join phase if all members have joined. A new group waits out its initial delay in any case, since
    more members may come."""
    group = served.group
    is_initial = group.previous_state is GroupState.EMPTY
    # Decision rebalance-completes
    if group.state is GroupState.PREPARING_REBALANCE and not is_initial and group.has_all_members_joined:
        complete_join(served)


def _delay_initial_rebalance(served: ServedGroup, delay_ms: int, remaining_ms: int) -> None:
    served.set_timer(delay_ms, lambda: _complete_or_delay_initial_rebalance(served, delay_ms, remaining_ms))


def _complete_or_delay_initial_rebalance(served: ServedGroup, delay_ms: int, remaining_ms: int) -> None:
    """Delay the first rebalance of the group again if a member was added during the last delay, up to the rebalance
    timeout. Otherwise complete its join phase (Kafka's tryCompleteInitialRebalanceElseSchedule)."""
    if not served.group.new_member_added or not remaining_ms:  # Decision group-initial-delay-over
        complete_join(served)
        return
    served.group.restart_initial_delay()
    initial_ms = served.context.config.group_initial_rebalance_delay_ms
    _delay_initial_rebalance(served, min(initial_ms, remaining_ms), max(remaining_ms - delay_ms, 0))


# --- a generation begins: members have to sync ------------------------------------------------------------------------


def complete_join(served: ServedGroup) -> None:
    """Begin the next generation, without the dynamic members that have not joined (Kafka's completeClassicGroupJoin).
    If no member has joined, only static members remain. Then the wait starts again, until their sessions end."""
    group = served.group
    served.cancel_timer()
    _remove_members_not_joined(served)
    if group.members and not group.maybe_elect_new_joined_leader():  # Decision group-nobody-joined
        served.set_timer(max(group.rebalance_timeout_ms, MIN_WAIT_MS), lambda: complete_join(served))
        return
    served.transition(group.init_next_generation)
    if group.state is GroupState.EMPTY:
        # The result is ignored: if this is not written, a failover loads the generation before it. Its members no
        # longer exist, and their sessions end.
        served.shard.write_group(group)
        return
    served.set_timer(group.rebalance_timeout_ms, lambda: expire_pending_sync(served))
    run_slices(served.context.ports, _respond_to_joins(served))


def _remove_members_not_joined(served: ServedGroup) -> None:
    group = served.group
    if len(group.parked_joins) == len(group.members):
        return
    for member in tuple(group.members.values()):
        is_dynamic = member.group_instance_id is None
        if is_dynamic and not group.has_joined(member.member_id):  # Decision group-member-absent
            remove_member(served, member.member_id, "expired")


def _respond_to_joins(served: ServedGroup) -> Sliced[None]:
    """Respond to the parked JoinGroups. When the next rebalance begins, those that are still parked count as joins of
    that rebalance."""
    group, generation = served.group, served.group.generation
    for number, member in enumerate(tuple(group.members.values()), 1):
        if group.members.get(member.member_id) is member:
            member.note_first_response()
            group.respond_to_join(member.member_id, join_response(group, member.member_id))
            served.restart_session(member.member_id, member.session_timeout_ms)
        if number % REBALANCED_MEMBERS_PER_SLICE == 0:
            yield
            is_over = group.generation != generation or group.state is GroupState.PREPARING_REBALANCE
            if is_over or not served.shard.is_led:  # Decision group-generation-overtaken
                return


def expire_pending_sync(served: ServedGroup) -> None:
    """Remove the members whose SyncGroup has not come within the rebalance timeout."""
    served.timer = None
    late = tuple(served.group.pending_syncs)
    for member_id in late:
        remove_member(served, member_id, "expired")
    if late:  # Decision group-members-sync-late
        prepare_rebalance(served, f"{len(late)} members did not sync in time")


# --- SyncGroup --------------------------------------------------------------------------------------------------------


def sync_group(served: ServedGroup, request: SyncRequest, respond: SyncCallback) -> None:
    """SyncGroup: respond now, or when the leader's assignment is written."""
    group = served.group
    error = _validate_sync_group(group, request)
    if error:
        respond(SyncResponse(error))
    elif group.state is GroupState.STABLE:  # Decision group-sync-of-stable-group
        remove_pending_sync_member(served, request.member_id)
        respond(sync_response(group, group.members[request.member_id]))
    else:
        group.park_sync(request.member_id, respond)
        remove_pending_sync_member(served, request.member_id)
        is_stored = served.storing_generation == group.generation
        if group.leader == request.member_id and not is_stored:  # Decision group-sync-of-leader
            run_coroutine(_store_assignment(served, request.assignments))


def _validate_sync_group(group: Group, request: SyncRequest) -> Error:
    if group.state is GroupState.EMPTY:
        return ErrorCode.unknown_member_id
    error = group.check_member(request.member_id, request.group_instance_id)
    if error:
        return error
    if request.generation != group.generation:  # Decision group-sync-generation
        return ErrorCode.illegal_generation
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol, group.protocol):
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.rebalance_in_progress if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.none


def _differs(requested: str | None, current: str | None) -> bool:
    """Return whether the protocol of a request differs from the group's. Clients before version 5 send none."""
    return requested is not None and current is not None and requested != current


def remove_pending_sync_member(served: ServedGroup, member_id: str) -> None:
    """Record that the SyncGroup of this member for this generation has come. The last one cancels the timer."""
    served.group.remove_pending_sync_member(member_id)
    if served.group.state is not GroupState.PREPARING_REBALANCE and not served.group.pending_syncs:
        served.cancel_timer()


# --- the assignment is stored: the group is Stable --------------------------------------------------------------------


async def _store_assignment(served: ServedGroup, assignments: dict[str, bytes]) -> None:
    """Write the assignment, and propagate it once it is replicated, since the next coordinator must have it, too."""
    group, generation = served.group, served.group.generation
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    served.storing_generation = generation
    error = await served.shard.write_group(group)
    if served.storing_generation == generation:
        served.storing_generation = 0
    is_current = group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation
    if not served.shard.is_led or not is_current:  # Decision group-assignment-overtaken
        return
    if not error:  # Decision group-assignment-stored
        propagate_assignment(served)
    else:
        reset_and_propagate_assignment_with_error(served, error)
        maybe_prepare_rebalance_or_complete_join(served, f"assignment not stored: {error_name(error)}")


def propagate_assignment(served: ServedGroup) -> None:
    """Make the group Stable, and respond to the parked SyncGroups with the assignments of their members."""
    group = served.group
    served.transition(group.become_stable)
    served.context.metrics.rebalances.value += 1
    run_slices(served.context.ports, _respond_to_syncs(served))


def _respond_to_syncs(served: ServedGroup) -> Sliced[None]:
    """Respond to the parked SyncGroups. The next rebalance fails those that remain."""
    group, generation = served.group, served.group.generation
    for number, member_id in enumerate(tuple(group.parked_syncs), 1):
        if member_id in group.parked_syncs:
            _respond_to_sync(served, member_id, sync_response(group, group.members[member_id]))
        if number % REBALANCED_MEMBERS_PER_SLICE == 0:
            yield
            is_over = group.generation != generation or group.state is not GroupState.STABLE
            if is_over or not served.shard.is_led:  # Decision group-assignments-overtaken
                return


def reset_and_propagate_assignment_with_error(served: ServedGroup, error: Error) -> None:
    """Fail the parked SyncGroups of this generation, which gets no assignment."""
    for member in served.group.members.values():
        member.assignment = b""
    _fail_syncs(served, error)


def _fail_syncs(served: ServedGroup, error: Error) -> None:
    for member_id in tuple(served.group.parked_syncs):
        _respond_to_sync(served, member_id, SyncResponse(error))


def _respond_to_sync(served: ServedGroup, member_id: str, response: SyncResponse) -> None:
    """Respond to a SyncGroup. The session restarts, because the member could not send heartbeats meanwhile."""
    served.group.respond_to_sync(member_id, response)
    served.restart_session(member_id, served.group.members[member_id].session_timeout_ms)


def sync_response(group: Group, member: Member) -> SyncResponse:
    """Return the response to a SyncGroup with the member's assignment."""
    return SyncResponse(ErrorCode.none, group.protocol_type, group.protocol, member.assignment)


# --- Heartbeat, LeaveGroup, expiration --------------------------------------------------------------------------------


def heartbeat(served: ServedGroup, member_id: str, group_instance_id: str | None, generation: int) -> Error:
    """Heartbeat: return NONE, REBALANCE_IN_PROGRESS (join again), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or
    ILLEGAL_GENERATION."""
    group = served.group
    error = group.check_member(member_id, group_instance_id)
    if error:
        return error
    if generation != group.generation:  # Decision group-heartbeat-generation
        return ErrorCode.illegal_generation
    served.restart_session(member_id, group.members[member_id].session_timeout_ms)
    rebalancing = group.state is GroupState.PREPARING_REBALANCE
    return ErrorCode.rebalance_in_progress if rebalancing else ErrorCode.none  # Decision group-heartbeat-in-rebalance


def leave_group(served: ServedGroup, leaving: tuple[Leaving, ...]) -> tuple[Error, ...]:
    """LeaveGroup: return an error for each member: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    errors = tuple(_leave(served, each) for each in leaving)
    left = errors.count(ErrorCode.none)
    if left and served.group.state is not GroupState.EMPTY:  # Decision group-leave-rebalances
        reason = next((each.reason for each in leaving if each.reason), "")
        maybe_prepare_rebalance_or_complete_join(served, f"{left} members left" + (f": {reason}" if reason else ""))
    return errors


def _leave(served: ServedGroup, leaving: Leaving) -> Error:
    group = served.group
    if leaving.member_id == UNKNOWN_MEMBER:
        member_id = group.static_members.get(leaving.group_instance_id or "")
        if member_id is None:
            return ErrorCode.unknown_member_id
    else:
        member_id = leaving.member_id
        is_pending = member_id in group.pending_joins
        error = ErrorCode.none if is_pending else group.check_member(member_id, leaving.group_instance_id)
        if error:
            return error
    remove_member(served, member_id, "removed")
    return ErrorCode.none


def remove_member(served: ServedGroup, member_id: str, change: str) -> None:
    """Remove a member, or an ID that never joined. Its parked requests get UNKNOWN_MEMBER_ID, so that it joins again if
    it is still there. ``change`` is noted: removed (it left) or expired."""
    served.group.respond_to_join(member_id, JoinResponse(ErrorCode.unknown_member_id))
    served.group.respond_to_sync(member_id, SyncResponse(ErrorCode.unknown_member_id))
    served.end_session(member_id)
    if served.group.remove(member_id) is not None:
        served.note_member(member_id, change)


def expire_heartbeat(served: ServedGroup, member_id: str) -> None:
    """Handle the end of the session of a member, or of an ID that never joined. Members with a parked request cannot
    send heartbeats and are excused."""
    group = served.group
    member = group.members.get(member_id)
    is_excused = member is not None and group.is_excused(member)
    if not served.shard.is_led or is_excused:  # Decision group-member-expiry-excused
        return
    remove_member(served, member_id, "expired")
    if member is not None and group.state is not GroupState.EMPTY:
        maybe_prepare_rebalance_or_complete_join(served, f"the session of member {member_id} timed out")
    else:
        maybe_complete_join(served)
