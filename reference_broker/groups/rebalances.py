"""Rebalances of classic groups: JoinGroup, SyncGroup, Heartbeat and LeaveGroup.

A consumer C2 joins a Stable group, whose only member is C1. The functions are at the right::

    C1                        coordinator                        C2
     |                             |<--- JoinGroup --------------|  join_group parks it; prepare: PreparingRebalance
     |--- Heartbeat -------------->|                             |
     |<-- REBALANCE_IN_PROGRESS ---|                             |  heartbeat
     |--- JoinGroup -------------->|                             |  complete, once all have joined or the rebalance
     |<-- generation, members -----|--- generation ------------->|  timeout is over: CompletingRebalance
     |                             |<--- SyncGroup --------------|  sync_group parks it
     |--- SyncGroup, assignments ->|                             |  _assign writes them to the log
     |<-- its assignment ----------|--- its assignment --------->|  stabilise, once they are replicated: Stable
     |--- Heartbeat -------------->|                             |
     |<-- NONE --------------------|                             |  heartbeat

``group.TRANSITIONS`` is the table of the states, and ``Group`` changes them. A member that is silent for its session
timeout (``expired``), that leaves (``leave_group``), or that does not sync in time (``_sync_over``) begins the next
rebalance. ``membership`` finds the group of a request, and calls the functions here.
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
        remove(served, request.member_id, "removed")
        respond(JoinResponse(ErrorCode.group_max_size_reached))
        complete_if_joined(served)
    elif not group.supports(request.protocol_type, request.protocols):
        respond(JoinResponse(ErrorCode.inconsistent_group_protocol, request.member_id))
    elif request.member_id == UNKNOWN_MEMBER:
        _join_without_id(served, request, respond)
    else:
        _join_with_id(served, request, respond)


def _join_without_id(served: ServedGroup, request: JoinRequest, respond: JoinCallback) -> None:
    instance = request.group_instance_id
    prefix = request.client_id if instance is None else instance
    member_id = f"{prefix}-{UUID(int=served.context.random.getrandbits(128), version=4)}"
    if instance is not None and instance in served.group.static_members:  # Decision static-member-returns
        _replace_static(served, request, member_id, respond)
    elif instance is None and request.needs_member_id:
        _assign_id(served, request, member_id, respond)
    else:
        _add(served, request, member_id, respond)


def _assign_id(served: ServedGroup, request: JoinRequest, member_id: str, respond: JoinCallback) -> None:
    """Assign a member ID with which the client has to join. A client that stops here leaves no member behind, only an
    ID that expires (KIP-394)."""
    served.group.add_pending_member(member_id)
    served.restart_session(member_id, request.session_timeout_ms)
    respond(JoinResponse(ErrorCode.member_id_required, member_id))


def _join_with_id(served: ServedGroup, request: JoinRequest, respond: JoinCallback) -> None:
    group, member_id = served.group, request.member_id
    if member_id in group.pending_joins and request.group_instance_id is None:  # Decision pending-member-joins
        _add(served, request, member_id, respond)
        return
    error = group.check_member(member_id, request.group_instance_id)
    if error:
        respond(JoinResponse(error, member_id))
        return
    member = group.members[member_id]
    if _is_repeated(group, member, request):  # Decision group-join-repeated
        respond(generation_response(group, member_id))
        return
    group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
    served.park_join(member_id, respond)
    prepare_or_complete(served, _why(f"member {member_id} joins again", request))


def _is_repeated(group: Group, member: Member, request: JoinRequest) -> bool:
    """Return whether the request repeats an earlier one, perhaps because a response was lost. Then it gets the current
    generation. A leader that joins a stable group wants a rebalance, since its topics have changed."""
    if group.state is GroupState.PREPARING_REBALANCE or member.protocols != request.protocols:
        return False
    return group.state is GroupState.COMPLETING_REBALANCE or group.leader != member.member_id


def _add(served: ServedGroup, request: JoinRequest, member_id: str, respond: JoinCallback) -> None:
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
    group.add(member, awaits_join=False)
    served.park_join(member_id, respond)
    served.restart_session(member_id, NEW_MEMBER_TIMEOUT_MS)
    served.note_member(member_id, "joined")
    prepare_or_complete(served, _why(f"member {member_id} is new", request))


def _why(text: str, request: JoinRequest) -> str:
    return f"{text}: {request.reason}" if request.reason else text


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


# --- JoinGroup of a static member that restarts (KIP-345) -------------------------------------------------------------


def _replace_static(served: ServedGroup, request: JoinRequest, member_id: str, respond: JoinCallback) -> None:
    """Give a static member that restarted (KIP-345) a new member ID and its old place. The old ID is fenced.

    No rebalance is needed where the group is Stable and its protocol stays."""
    group = served.group
    assert request.group_instance_id is not None, "only static members are replaced"
    old_leader = group.leader or ""
    old_member = replace(group.members[group.static_members[request.group_instance_id]])
    _rename(served, request.group_instance_id, member_id)
    member = group.members[member_id]
    group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
    served.park_join(member_id, respond)
    # Decision static-member-keeps-generation
    if group.state is GroupState.STABLE and group.protocol == group.select_protocol():
        run_coroutine(_keep_generation(served, request, member_id, old_member, old_leader))
    else:
        prepare_or_complete(served, f"static member {request.group_instance_id} joins again")


def _rename(served: ServedGroup, group_instance_id: str, member_id: str) -> None:
    group = served.group
    old_id = group.static_members[group_instance_id]
    served.respond_to_join(old_id, JoinResponse(ErrorCode.fenced_instance_id, old_id))
    served.respond_to_sync(old_id, SyncResponse(ErrorCode.fenced_instance_id))
    served.end_session(old_id)
    served.note_member(old_id, "fenced")
    member = group.replace_static(group_instance_id, member_id)
    served.restart_session(member_id, member.session_timeout_ms)
    served.note_member(member_id, "joined")


async def _keep_generation(
    served: ServedGroup, request: JoinRequest, member_id: str, old_member: Member, old_leader: str
) -> None:
    """Write the new ID, and then respond with the current generation. The session restarts then, because it may have
    ended while the member was excused. If the new ID cannot be written, restore the old member."""
    group, generation, instance = served.group, served.group.generation, old_member.group_instance_id
    error = await served.shard.write_group(group)
    unchanged = group.state is GroupState.STABLE and group.generation == generation
    if not served.shard.is_led or not unchanged or member_id not in served.joins:  # Decision static-rejoin-overtaken
        return
    member = group.members[member_id]
    if not error:  # Decision static-rejoin-stored
        served.respond_to_join(member_id, _response_of_kept_generation(served, request, member_id, old_leader))
        served.restart_session(member_id, member.session_timeout_ms)
        return
    served.respond_to_join(member_id, JoinResponse(error))
    group.update(member, old_member.protocols, old_member.rebalance_timeout_ms, old_member.session_timeout_ms)
    assert instance is not None, "only static members are replaced"
    _rename(served, instance, old_member.member_id)


def _response_of_kept_generation(
    served: ServedGroup, request: JoinRequest, member_id: str, old_leader: str
) -> JoinResponse:
    """Return the response that keeps the generation. A leader must not assign now, because the others would not fetch
    the assignment. Clients that support KIP-814 get ``skip_assignment`` and all members. Others get the old ID of the
    leader, so that they take themselves for followers."""
    group = served.group
    response = replace(generation_response(group, member_id), members=())
    if not request.skips_assignment:
        return replace(response, leader=old_leader)
    leads = member_id == group.leader
    return replace(response, skip_assignment=leads, members=joined_members(group) if leads else ())


# --- a rebalance begins -----------------------------------------------------------------------------------------------


def prepare_or_complete(served: ServedGroup, reason: str) -> None:
    """Begin a rebalance because something changed, or complete the one in progress."""
    if served.group.can_rebalance:  # Decision rebalance-begins
        prepare(served, reason)
    else:
        complete_if_joined(served)


def prepare(served: ServedGroup, reason: str) -> None:
    """Begin a rebalance: every member has to join again. A group that was empty waits for more members first."""
    group = served.group
    is_initial = group.state is GroupState.EMPTY
    if group.state is GroupState.COMPLETING_REBALANCE:  # Decision group-assignment-dropped
        fail_syncs(served, ErrorCode.rebalance_in_progress)
    _refuse_syncs(served, ErrorCode.rebalance_in_progress)
    served.cancel_timer()
    served.enter(group.begin_rebalance, ("reason", reason))
    if is_initial:  # Decision group-initial-rebalance
        delay_ms = served.context.config.group_initial_rebalance_delay_ms
        _delay(served, delay_ms, max(group.rebalance_timeout_ms - delay_ms, 0))
    elif group.all_joined:  # Decision rebalance-needs-joins
        complete(served)
    else:
        served.set_timer(group.rebalance_timeout_ms, lambda: complete(served))


def complete_if_joined(served: ServedGroup) -> None:
    """Complete the rebalance if all have joined. A new group waits out its initial delay in any case, since more
    members may come."""
    group = served.group
    is_initial = group.previous_state is GroupState.EMPTY
    # Decision rebalance-completes
    if group.state is GroupState.PREPARING_REBALANCE and not is_initial and group.all_joined:
        complete(served)


def _delay(served: ServedGroup, delay_ms: int, remaining_ms: int) -> None:
    served.set_timer(delay_ms, lambda: _delay_over(served, delay_ms, remaining_ms))


def _delay_over(served: ServedGroup, delay_ms: int, remaining_ms: int) -> None:
    """Prolong the delay while members keep coming, up to the rebalance timeout. Otherwise complete the rebalance."""
    if not served.group.new_member_added or not remaining_ms:  # Decision group-initial-delay-over
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
    if group.members and not group.elect_joined_leader():  # Decision group-nobody-joined
        served.set_timer(max(group.rebalance_timeout_ms, MIN_WAIT_MS), lambda: complete(served))
        return
    served.enter(group.begin_generation)
    if group.state is GroupState.EMPTY:
        # The result is ignored: if this is not written, a failover loads the generation before it. Its members no
        # longer exist, and their sessions end.
        served.shard.write_group(group)
        return
    served.set_timer(group.rebalance_timeout_ms, lambda: _sync_over(served))
    run_slices(served.context.ports, _announce_generation(served))


def _remove_absent(served: ServedGroup) -> None:
    group = served.group
    if group.joined == len(group.members):
        return
    for member in tuple(group.members.values()):
        if not member.awaits_join and member.group_instance_id is None:  # Decision group-member-absent
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
            if is_over or not served.shard.is_led:  # Decision group-generation-overtaken
                return


def _sync_over(served: ServedGroup) -> None:
    """Remove the members whose SyncGroup has not come in time."""
    served.timer = None
    late = tuple(served.group.pending_syncs)
    for member_id in late:
        remove(served, member_id, "expired")
    if late:  # Decision group-members-sync-late
        prepare(served, f"{len(late)} members did not sync in time")


# --- SyncGroup --------------------------------------------------------------------------------------------------------


def sync_group(served: ServedGroup, request: SyncRequest, respond: SyncCallback) -> None:
    """SyncGroup: respond now, or when the leader's assignment is written."""
    group = served.group
    error = _sync_refusal(group, request)
    if error:
        respond(SyncResponse(error))
    elif group.state is GroupState.STABLE:  # Decision group-sync-of-stable-group
        synced(served, request.member_id)
        respond(assignment_response(group, group.members[request.member_id]))
    else:
        served.park_sync(request.member_id, respond)
        synced(served, request.member_id)
        if group.leader == request.member_id and served.assigned != group.generation:  # Decision group-sync-of-leader
            run_coroutine(_assign(served, request.assignments))


def _sync_refusal(group: Group, request: SyncRequest) -> Error:
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


async def _assign(served: ServedGroup, assignments: dict[str, bytes]) -> None:
    """Write the assignment. Members get it only once it is replicated, since the next coordinator must know it, too."""
    group, generation = served.group, served.group.generation
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    served.assigned = generation
    error = await served.shard.write_group(group)
    served.assigned = 0 if served.assigned == generation else served.assigned
    current = group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation
    if not served.shard.is_led or not current:  # Decision group-assignment-overtaken
        return
    if not error:  # Decision group-assignment-stored
        stabilise(served)
    else:
        fail_syncs(served, error)
        prepare_or_complete(served, f"assignment not stored: {error_name(error)}")


def synced(served: ServedGroup, member_id: str) -> None:
    """Record that the SyncGroup of this member for this generation has come. The last one cancels the timer."""
    served.group.synced(member_id)
    if served.group.state is not GroupState.PREPARING_REBALANCE and not served.group.pending_syncs:
        served.cancel_timer()


# --- the generation is assigned ---------------------------------------------------------------------------------------


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
            if is_over or not served.shard.is_led:  # Decision group-assignments-overtaken
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


def assignment_response(group: Group, member: Member) -> SyncResponse:
    """Return the response to a SyncGroup with the member's assignment."""
    return SyncResponse(ErrorCode.none, group.protocol_type, group.protocol, member.assignment)


# --- Heartbeat, and members that go -----------------------------------------------------------------------------------


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
    gone = errors.count(ErrorCode.none)
    if gone and served.group.state is not GroupState.EMPTY:  # Decision group-leave-rebalances
        reason = next((each.reason for each in leaving if each.reason), "")
        prepare_or_complete(served, f"{gone} members left" + (f": {reason}" if reason else ""))
    return errors


def _leave(served: ServedGroup, leaving: Leaving) -> Error:
    group, member_id = served.group, leaving.member_id
    if member_id == UNKNOWN_MEMBER:
        member_id = group.static_members.get(leaving.group_instance_id or "", UNKNOWN_MEMBER)
    elif member_id not in group.pending_joins:
        error = group.check_member(member_id, leaving.group_instance_id)
        if error:
            return error
    if member_id == UNKNOWN_MEMBER:
        return ErrorCode.unknown_member_id
    remove(served, member_id, "removed")
    return ErrorCode.none


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
    if not served.shard.is_led or (member is not None and member.is_excused):  # Decision group-member-expiry-excused
        return
    remove(served, member_id, "expired")
    if member is not None and group.state is not GroupState.EMPTY:
        prepare_or_complete(served, f"the session of member {member_id} timed out")
    else:
        complete_if_joined(served)
