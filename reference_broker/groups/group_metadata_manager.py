"""The groups that this node serves: found for a request, created, deleted, loaded, and lost with their partition.

JoinGroup, SyncGroup, Heartbeat and LeaveGroup find their group here, and are handled in ``rebalances``.
"""

from collections.abc import Callable, Iterator

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
from reference_broker.groups.group import Group, GroupState
from reference_broker.groups.group_coordinator_shard import GroupCoordinatorShard, OffsetsWrite
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.groups.served_group import GroupContext, ServedGroup
from reference_broker.ports.node_ports import Ports, RandomSource
from reference_broker.ports.slicing import SERVED_GROUPS_PER_SLICE, SERVED_MEMBERS_PER_SLICE, Sliced, run_slices
from reference_broker.wire.errors import Error, ErrorCode

MEMBER_ID_SUFFIX_BYTES = 37
"""The length of the suffix of a member ID after the ID of the client or of the instance: a hyphen and a UUID."""


class GroupMetadataManager:
    """The served groups of the led partitions, and the requests to them. A group is served from when it is loaded, or
    first named in a request, until it is deleted or its partition is lost. ``find`` is ``GroupCoordinator.find``."""

    def __init__(
        self,
        ports: Ports,
        config: BrokerConfig,
        find: Callable[[str], GroupCoordinatorShard | Error],
        metrics: GroupMetrics,
        random: RandomSource,
    ) -> None:
        self._context = GroupContext(ports, config, metrics, random, rebalances.expire_heartbeat)
        self._find = find
        self._served: dict[GroupCoordinatorShard, dict[str, ServedGroup]] = {}
        """The groups by their IDs, for each partition that is led and loaded."""

    # --- requests of members ------------------------------------------------------------------------------------------

    def join_group(self, request: JoinRequest, respond: JoinCallback) -> None:
        """JoinGroup: respond with the generation once it begins, or with an error: INVALID_GROUP_ID,
        INVALID_SESSION_TIMEOUT, INVALID_REQUEST (a text that no record can hold), those of ``find``, UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID, INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED or MEMBER_ID_REQUIRED."""
        refusal = _join_refusal(request, self._context.config)
        group_or_error = refusal or self._find_or_create(request)
        if isinstance(group_or_error, ServedGroup):
            rebalances.join_group(group_or_error, request, respond)
        else:
            respond(JoinResponse(group_or_error, request.member_id))

    def sync_group(self, request: SyncRequest, respond: SyncCallback) -> None:
        """SyncGroup: respond with the assignment once it is written, or with an error: those of ``find``,
        UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL or REBALANCE_IN_PROGRESS.
        """
        group_or_error = self._find_group(request.group_id)
        if isinstance(group_or_error, ServedGroup):
            rebalances.sync_group(group_or_error, request, respond)
        else:
            respond(SyncResponse(group_or_error))

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> Error:
        """Return NONE, REBALANCE_IN_PROGRESS (join again), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION
        or an error of ``find``."""
        group_or_error = self._find_group(group_id)
        if not isinstance(group_or_error, ServedGroup):
            return group_or_error
        return rebalances.heartbeat(group_or_error, member_id, group_instance_id, generation)

    def leave_group(self, group_id: str, members: tuple[Leaving, ...]) -> tuple[Error, tuple[Error, ...]]:
        """Return an error for all, and if that is NONE one for each: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        group_or_error = self._find_group(group_id)
        if isinstance(group_or_error, ServedGroup):
            return ErrorCode.none, rebalances.leave_group(group_or_error, members)
        if group_or_error is ErrorCode.unknown_member_id:
            return ErrorCode.none, (group_or_error,) * len(members)
        return group_or_error, ()

    def extend_session(self, shard: GroupCoordinatorShard, group_id: str, member_id: str) -> None:
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

    def delete_group(self, group_id: str, respond: Callable[[Error], None]) -> None:
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
        self._delete(shard, group).error.add_done_callback(respond)

    def delete_unused(self, shard: GroupCoordinatorShard, group: Group) -> bool:
        """Delete a group without members whose last offset is gone. Returns False if it has members or pending member
        IDs, or if it cannot be written now."""
        if group.state is not GroupState.EMPTY or group.pending_joins:  # Decision unused-group
            return False
        # If the tombstone is not replicated, a group without members and offsets stays in the log. The next load finds
        # it, and the next check for expired offsets deletes it.
        return self._delete(shard, group).is_in_log

    def _delete(self, shard: GroupCoordinatorShard, group: Group) -> OffsetsWrite:
        """Delete the group once the tombstones are in the log. Otherwise it would be back with the next coordinator."""
        served = self.serve(shard, group)
        removal = shard.remove_group(group.group_id)
        if removal.is_in_log:
            served.transition(group.die)
            del shard.groups[group.group_id]
            del self._served[shard][group.group_id]
            self._end(served)
        return removal

    # --- partitions ---------------------------------------------------------------------------------------------------

    def loaded(self, shard: GroupCoordinatorShard) -> None:
        """Begin the sessions of all members of a partition that is led here and loaded. A group that is named in a
        request before its turn is served at once."""
        assert shard not in self._served, f"partition {shard.index} is loaded twice"
        self._served[shard] = {}
        run_slices(self._context.ports, self._serve_all(shard))

    def unloaded(self, shard: GroupCoordinatorShard) -> None:
        """End the service of the groups of a closed partition: all parked requests get NOT_COORDINATOR."""
        assert not shard.is_led, f"partition {shard.index} is unloaded and led"
        run_slices(self._context.ports, self._drop(self._served.pop(shard, {})))

    def serve(self, shard: GroupCoordinatorShard, group: Group) -> ServedGroup:
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
        if len(group.members) > self._context.config.group_max_size:  # Decision loaded-group-size
            rebalances.prepare_rebalance(served, f"{len(group.members)} members are more than group.max.size")
        return served

    def _serve_all(self, shard: GroupCoordinatorShard) -> Sliced[None]:
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
                group.fail_parked(ErrorCode.not_coordinator)
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
    # Records, and responses to other clients, must have room for the texts. Flexible versions allow longer ones.
    is_storable = (
        fits(request.client_id, MEMBER_ID_SUFFIX_BYTES)
        and fits(request.group_instance_id, MEMBER_ID_SUFFIX_BYTES)
        and fits(request.protocol_type)
        and all(fits(each.name) for each in request.protocols)
    )
    return ErrorCode.none if is_storable else ErrorCode.invalid_request


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
