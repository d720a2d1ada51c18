"""Requests of members of classic groups (Kafka's GroupMetadataManager): JoinGroup, SyncGroup, Heartbeat, LeaveGroup and
DeleteGroups.

``Membership`` finds the group of a request, and begins and ends the service of the groups of a partition that is loaded
or lost. The functions below it have the rules of one request each: ``join_group`` (also for static members that
restart), ``sync_group`` and ``leave_group``. ``rebalances`` has the transitions from one generation to the next.
"""

from collections.abc import Callable, Iterator
from dataclasses import replace
from uuid import UUID

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.record_fields import fits
from reference_broker.groups import rebalances
from reference_broker.groups.classic_requests import (
    UNKNOWN_MEMBER,
    JoinCallback,
    JoinRequest,
    JoinResponse,
    Leaving,
    SyncCallback,
    SyncRequest,
    SyncResponse,
)
from reference_broker.groups.group import Group, GroupState, Member
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.groups.offsets_partition import OffsetsPartition
from reference_broker.groups.rebalances import assignment_response, generation_response, joined_members
from reference_broker.groups.served_group import GroupContext, ServedGroup
from reference_broker.ports.node_ports import Ports, RandomSource
from reference_broker.ports.slicing import SERVED_GROUPS_PER_SLICE, SERVED_MEMBERS_PER_SLICE, Sliced, run_slices
from reference_broker.wire.errors import Error, ErrorCode, error_name

NEW_MEMBER_TIMEOUT_MS = 300_000
"""How long the first JoinGroup of a member may be parked. The member cannot send heartbeats yet, and the state of its
connection is unknown (Kafka's classicGroupNewMemberJoinTimeoutMs)."""
MEMBER_ID_SUFFIX_BYTES = 37
"""The length of the suffix of a member ID after the ID of the client or of the instance: a hyphen and a UUID."""


class Membership:
    """The served groups of the led partitions, and the requests to them. A group is served from when it is loaded, or
    first named in a request, until it is deleted or its partition is lost. ``find`` is ``GroupCoordinator.find``."""

    def __init__(
        self,
        ports: Ports,
        config: BrokerConfig,
        find: Callable[[str], OffsetsPartition | Error],
        metrics: GroupMetrics,
        random: RandomSource,
    ) -> None:
        self._context = GroupContext(ports, config, metrics, random, rebalances.expired)
        self._find = find
        self._served: dict[OffsetsPartition, dict[str, ServedGroup]] = {}
        """The groups by their IDs, for each partition that is led and loaded."""

    # --- requests of members ------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, respond: JoinCallback) -> None:
        """JoinGroup: respond with the generation once it begins, or with an error: INVALID_GROUP_ID,
        INVALID_SESSION_TIMEOUT, INVALID_REQUEST (a text that no record can hold), those of ``find``, UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED or MEMBER_ID_REQUIRED."""
        refusal = _join_refusal(request, self._context.config)
        group_or_error = refusal or self._find_or_create(request)
        if isinstance(group_or_error, ServedGroup):
            join_group(group_or_error, request, respond)
        else:
            respond(JoinResponse(group_or_error, request.member_id))

    def sync(self, request: SyncRequest, respond: SyncCallback) -> None:
        """SyncGroup: respond with the assignment once it is written, or with an error: those of ``find``,
        UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL or REBALANCE_IN_PROGRESS.
        """
        group_or_error = self._find_group(request.group_id)
        if isinstance(group_or_error, ServedGroup):
            sync_group(group_or_error, request, respond)
        else:
            respond(SyncResponse(group_or_error))

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> Error:
        """Return NONE, REBALANCE_IN_PROGRESS (join again), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION
        or an error of ``find``."""
        group_or_error = self._find_group(group_id)
        if not isinstance(group_or_error, ServedGroup):
            return group_or_error
        served, group = group_or_error, group_or_error.group
        error = group.check_member(member_id, group_instance_id)
        if error:
            return error
        # Decision group-heartbeat-generation: stale | current
        if generation != group.generation:
            return ErrorCode.illegal_generation
        served.restart_session(member_id, group.members[member_id].session_timeout_ms)
        rebalancing = group.state is GroupState.PREPARING_REBALANCE
        # Decision group-heartbeat-in-rebalance: must join again | goes on
        return ErrorCode.rebalance_in_progress if rebalancing else ErrorCode.none

    def leave(self, group_id: str, members: tuple[Leaving, ...]) -> tuple[Error, tuple[Error, ...]]:
        """Return an error for all, and if that is NONE one for each: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        group_or_error = self._find_group(group_id)
        if isinstance(group_or_error, ServedGroup):
            return ErrorCode.none, leave_group(group_or_error, members)
        if group_or_error is ErrorCode.unknown_member_id:
            return ErrorCode.none, (group_or_error,) * len(members)
        return group_or_error, ()

    def extend_session(self, shard: OffsetsPartition, group_id: str, member_id: str) -> None:
        """Extend the session of a member whose commit was accepted, which counts as a heartbeat."""
        served = self._served.get(shard, {}).get(group_id)
        member = served.group.members.get(member_id) if served is not None else None
        if served is not None and member is not None:
            served.restart_session(member_id, member.session_timeout_ms)

    # --- the group of a request ---------------------------------------------------------------------------------------

    def _find_group(self, group_id: str) -> ServedGroup | Error:
        """Return the group, INVALID_GROUP_ID, an error of ``find``, or UNKNOWN_MEMBER_ID where there is no such group,
        so that it has no members."""
        if not group_id:
            return ErrorCode.invalid_group_id
        shard = self._find(group_id)
        if isinstance(shard, Error):
            return shard
        group = shard.groups.get(group_id)
        return ErrorCode.unknown_member_id if group is None else self.serve(shard, group)

    def _find_or_create(self, request: JoinRequest) -> ServedGroup | Error:
        """Return the group to join, or an error. A client without a member ID creates the group if there is none."""
        group_or_error = self._find_group(request.group_id)
        is_missing = group_or_error is ErrorCode.unknown_member_id
        if not is_missing or request.member_id != UNKNOWN_MEMBER:
            return group_or_error
        shard = self._find(request.group_id)
        if isinstance(shard, Error):
            return shard
        group = Group(request.group_id, self._context.ports.now().wall_ms)
        if not group.supports(request.protocol_type, request.protocols):
            return ErrorCode.inconsistent_group_protocol
        return self.serve(shard, shard.add_group(group))

    # --- deletion -----------------------------------------------------------------------------------------------------

    def delete(self, group_id: str, respond: Callable[[Error], None]) -> None:
        """DeleteGroups: delete the group with its offsets. Responds with NONE once that is written, or NON_EMPTY_GROUP,
        GROUP_ID_NOT_FOUND or an error of ``find``."""
        shard = self._find(group_id)
        if isinstance(shard, Error):
            respond(shard)
            return
        group = shard.groups.get(group_id)
        error = ErrorCode.group_id_not_found if group is None else group.check_delete()
        if group is None or error:
            respond(error)
            return
        self._delete(shard, group, respond)

    def delete_unused(self, shard: OffsetsPartition, group: Group) -> bool:
        """Delete a group without members whose last offset is gone. Returns False if it has members or pending member
        IDs, or if it cannot be written now."""
        # Decision unused-group (M-8): in use, stays | may be deleted
        if group.state is not GroupState.EMPTY or group.pending_joins:
            return False
        return self._delete(shard, group, _ignore_result)

    def _delete(self, shard: OffsetsPartition, group: Group, respond: Callable[[Error], None]) -> bool:
        """Delete the group once the tombstones are in the log. Otherwise it would be back with the next coordinator."""
        served = self.serve(shard, group)
        if not shard.remove_group(group.group_id, respond):
            return False
        served.enter(group.die)
        del shard.groups[group.group_id]
        del self._served[shard][group.group_id]
        self._end(served)
        return True

    # --- partitions ---------------------------------------------------------------------------------------------------

    def loaded(self, shard: OffsetsPartition) -> None:
        """Begin the sessions of all members of a partition that is led here and loaded. A group that is named in a
        request before its turn is served at once."""
        assert shard not in self._served, f"partition {shard.index} is loaded twice"
        self._served[shard] = {}
        run_slices(self._context.ports, self._serve_all(shard))

    def unloaded(self, shard: OffsetsPartition) -> None:
        """End the service of the groups of a closed partition: all parked requests get NOT_COORDINATOR."""
        assert not shard.is_led, f"partition {shard.index} is unloaded and led"
        run_slices(self._context.ports, self._drop(self._served.pop(shard, {})))

    def serve(self, shard: OffsetsPartition, group: Group) -> ServedGroup:
        """Return the group as it is served. If it was not, the sessions of its members begin.

        There may be too many members, if group.max.size was lowered. They have to join again, so that the surplus is
        refused."""
        assert shard.is_led, f"group {group.group_id} is served in partition {shard.index}, which is lost"
        groups = self._served.setdefault(shard, {})
        served = groups.get(group.group_id)
        if served is not None:
            return served
        served = groups[group.group_id] = ServedGroup(self._context, shard, group)
        self._context.metrics.count(group.state, 1)
        for member in group.members.values():
            served.restart_session(member.member_id, member.session_timeout_ms)
        # Decision loaded-group-size: too many, rebalance | fits
        if len(group.members) > self._context.config.group_max_size:
            rebalances.prepare(served, f"{len(group.members)} members are more than group.max.size")
        return served

    def _serve_all(self, shard: OffsetsPartition) -> Sliced[None]:
        groups = iter(tuple(shard.groups.values()))
        while shard.is_led and (batch := _batch_of(groups)):
            for group in batch:
                if shard.groups.get(group.group_id) is group:
                    self.serve(shard, group)
            yield

    def _drop(self, served: dict[str, ServedGroup]) -> Sliced[None]:
        groups = iter([each.group for each in served.values()])
        while batch := _batch_of(groups):
            for group in batch:
                self._end(served[group.group_id])
                served[group.group_id].fail_all(ErrorCode.not_coordinator)
            yield

    def _end(self, served: ServedGroup) -> None:
        group = served.group
        self._context.metrics.count(group.state, -1)
        if group.state is not GroupState.DEAD:
            group.die(self._context.ports.now().wall_ms)
        served.halt()

    # --- invariants ---------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Assert the invariants. This walks over every member, so only tests and the simulator call it."""
        for shard, groups in self._served.items():
            assert shard.is_led, f"partition {shard.index} is served and lost"
            for served in groups.values():
                served.validate()


def _join_refusal(request: JoinRequest, config: BrokerConfig) -> Error:
    """Return the error of a request that no group would accept."""
    if not request.group_id:
        return ErrorCode.invalid_group_id
    least_ms, most_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not least_ms <= request.session_timeout_ms <= most_ms:
        return ErrorCode.invalid_session_timeout
    return ErrorCode.none if _fits(request) else ErrorCode.invalid_request


def _fits(request: JoinRequest) -> bool:
    """Return whether records, and responses to other clients, have room for the texts. Flexible versions allow longer
    ones."""
    return (
        fits(request.client_id, MEMBER_ID_SUFFIX_BYTES)
        and fits(request.group_instance_id, MEMBER_ID_SUFFIX_BYTES)
        and fits(request.protocol_type)
        and all(fits(each.name) for each in request.protocols)
    )


def join_group(served: ServedGroup, request: JoinRequest, respond: JoinCallback) -> None:
    """JoinGroup: respond now, or when the generation begins. The order of the checks is Kafka's."""
    group = served.group
    if not group.accepts(request.member_id, served.context.config.group_max_size):
        rebalances.remove(served, request.member_id, "removed")
        respond(JoinResponse(ErrorCode.group_max_size_reached))
        rebalances.complete_if_joined(served)
    elif not group.supports(request.protocol_type, request.protocols):
        respond(JoinResponse(ErrorCode.inconsistent_group_protocol, request.member_id))
    elif request.member_id == UNKNOWN_MEMBER:
        _join_without_id(served, request, respond)
    else:
        _join_with_id(served, request, respond)


def _join_without_id(served: ServedGroup, request: JoinRequest, respond: JoinCallback) -> None:
    instance = request.group_instance_id
    member_id = _new_member_id(served, request)
    # Decision static-member-returns: replaces its former self | new member
    if instance is not None and instance in served.group.static_members:
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


def _new_member_id(served: ServedGroup, request: JoinRequest) -> str:
    prefix = request.client_id if request.group_instance_id is None else request.group_instance_id
    return f"{prefix}-{UUID(int=served.context.random.getrandbits(128), version=4)}"


def _join_with_id(served: ServedGroup, request: JoinRequest, respond: JoinCallback) -> None:
    group, member_id = served.group, request.member_id
    # Decision pending-member-joins: joins with its ID | had no pending ID
    if member_id in group.pending_joins and request.group_instance_id is None:
        _add(served, request, member_id, respond)
        return
    error = group.check_member(member_id, request.group_instance_id)
    if error:
        respond(JoinResponse(error, member_id))
        return
    member = group.members[member_id]
    # Decision group-join-repeated: same generation again | rebalances
    if _is_repeated(group, member, request):
        respond(generation_response(group, member_id))
        return
    group.update(member, request.protocols, request.rebalance_timeout_ms, request.session_timeout_ms)
    served.park_join(member_id, respond)
    rebalances.prepare_or_complete(served, _why(f"member {member_id} joins again", request))


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
    group.add(_member(request, member_id), awaits_join=False)
    served.park_join(member_id, respond)
    served.restart_session(member_id, NEW_MEMBER_TIMEOUT_MS)
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
    # Decision static-member-keeps-generation: no rebalance | rebalances
    if group.state is GroupState.STABLE and group.protocol == group.select_protocol():
        _keep_generation(served, request, member_id, old_member, old_leader)
    else:
        rebalances.prepare_or_complete(served, f"static member {request.group_instance_id} joins again")


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


def _keep_generation(
    served: ServedGroup, request: JoinRequest, member_id: str, old_member: Member, old_leader: str
) -> None:
    """Write the new ID, and then respond with the current generation. The session restarts then, because it may have
    ended while the member was excused. If the new ID cannot be written, restore the old member."""
    group, generation, instance = served.group, served.group.generation, old_member.group_instance_id

    def written(error: Error) -> None:
        unchanged = group.state is GroupState.STABLE and group.generation == generation
        # Decision static-rejoin-overtaken: overtaken | still current
        if not served.shard.is_led or not unchanged or member_id not in served.joins:
            return
        member = group.members[member_id]
        # Decision static-rejoin-stored: stored | former member restored
        if not error:
            served.respond_to_join(member_id, _response_of_kept_generation(served, request, member_id, old_leader))
            served.restart_session(member_id, member.session_timeout_ms)
            return
        served.respond_to_join(member_id, JoinResponse(error))
        group.update(member, old_member.protocols, old_member.rebalance_timeout_ms, old_member.session_timeout_ms)
        assert instance is not None, "only static members are replaced"
        _rename(served, instance, old_member.member_id)

    served.shard.write_group(group, written)


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


def sync_group(served: ServedGroup, request: SyncRequest, respond: SyncCallback) -> None:
    """SyncGroup: respond now, or when the leader's assignment is written."""
    group = served.group
    error = _sync_refusal(group, request)
    if error:
        respond(SyncResponse(error))
    # Decision group-sync-of-stable-group: responds at once | parked
    elif group.state is GroupState.STABLE:
        rebalances.synced(served, request.member_id)
        respond(assignment_response(group, group.members[request.member_id]))
    else:
        served.park_sync(request.member_id, respond)
        rebalances.synced(served, request.member_id)
        # Decision group-sync-of-leader: assignment is stored | waits for the leader
        if group.leader == request.member_id and served.assigned != group.generation:
            _assign(served, request.assignments)


def _sync_refusal(group: Group, request: SyncRequest) -> Error:
    if group.state is GroupState.EMPTY:
        return ErrorCode.unknown_member_id
    error = group.check_member(request.member_id, request.group_instance_id)
    if error:
        return error
    # Decision group-sync-generation: stale | current
    if request.generation != group.generation:
        return ErrorCode.illegal_generation
    if _differs(request.protocol_type, group.protocol_type) or _differs(request.protocol, group.protocol):
        return ErrorCode.inconsistent_group_protocol
    return ErrorCode.rebalance_in_progress if group.state is GroupState.PREPARING_REBALANCE else ErrorCode.none


def _assign(served: ServedGroup, assignments: dict[str, bytes]) -> None:
    """Write the assignment. Members get it only once it is replicated, since the next coordinator must know it, too."""
    group, generation = served.group, served.group.generation
    for member in group.members.values():
        member.assignment = assignments.get(member.member_id, b"")
    served.assigned = generation

    def written(error: Error) -> None:
        served.assigned = 0 if served.assigned == generation else served.assigned
        current = group.state is GroupState.COMPLETING_REBALANCE and group.generation == generation
        # Decision group-assignment-overtaken: overtaken | still wanted
        if not served.shard.is_led or not current:
            return
        # Decision group-assignment-stored: stored, group is stable | refused, rebalances
        if not error:
            rebalances.stabilise(served)
        else:
            rebalances.fail_syncs(served, error)
            rebalances.prepare_or_complete(served, f"assignment not stored: {error_name(error)}")

    served.shard.write_group(group, written)


def _differs(requested: str | None, current: str | None) -> bool:
    """Return whether the protocol of a request differs from the group's. Clients before version 5 send none."""
    return requested is not None and current is not None and requested != current


def leave_group(served: ServedGroup, leaving: tuple[Leaving, ...]) -> tuple[Error, ...]:
    """LeaveGroup: return an error for each member: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
    errors = tuple(_leave(served, each) for each in leaving)
    gone = errors.count(ErrorCode.none)
    # Decision group-leave-rebalances: rebalances | empty or nobody left
    if gone and served.group.state is not GroupState.EMPTY:
        reason = next((each.reason for each in leaving if each.reason), "")
        rebalances.prepare_or_complete(served, f"{gone} members left" + (f": {reason}" if reason else ""))
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
    rebalances.remove(served, member_id, "removed")
    return ErrorCode.none


def _ignore_result(error: Error) -> None:
    """If the tombstone is not replicated, a group without members and offsets stays in the log. The next load finds it,
    and the next check for expired offsets deletes it."""


def _batch_of(groups: Iterator[Group]) -> list[Group]:
    """Return the groups of the next slice, and none at the end."""
    batch: list[Group] = []
    members = 0
    for group in groups:
        batch.append(group)
        members += len(group.members)
        if len(batch) == SERVED_GROUPS_PER_SLICE or members >= SERVED_MEMBERS_PER_SLICE:
            break
    return batch
