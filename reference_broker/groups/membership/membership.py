"""Who is in which group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup and DeleteGroups, and what time does to members.

The rules are those of Kafka's GroupMetadataManager for classic groups. ``joining``, ``static_members``, ``syncing`` and
``leaving`` hold those of one request each, ``rebalances`` those of the transitions. Here a request finds its group. A
partition that comes or goes begins or ends the service of its groups here, too.
"""

from collections.abc import Callable, Iterator

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.record_fields import fits
from reference_broker.groups.membership import joining, leaving, rebalances, syncing
from reference_broker.groups.membership.requests import (
    UNKNOWN_MEMBER,
    JoinAnswer,
    Joined,
    JoinRequest,
    Leaving,
    SyncAnswer,
    Synced,
    SyncRequest,
)
from reference_broker.groups.membership.served_group import ServedGroup, Surroundings
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.groups.state.group import Group
from reference_broker.groups.state.states import GroupState
from reference_broker.groups.storage.partition import OffsetsPartition
from reference_broker.ports.chance import RandomSource
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.timing import Slices, run_slices
from reference_broker.wire.errors import Error, ErrorCode

GROUPS_A_SLICE = 64
MEMBERS_A_SLICE = 500
"""So many groups begin or end to be served in one event, or fewer if they have so many members together."""


class Membership:
    """A group is served from the moment it is loaded, or first asked for, until its partition is lost or it is deleted.
    ``find`` is ``GroupCoordinator.find``."""

    def __init__(
        self,
        ports: Ports,
        config: BrokerConfig,
        find: Callable[[str], OffsetsPartition | Error],
        metrics: GroupMetrics,
        random: RandomSource,
    ) -> None:
        self._around = Surroundings(ports, config, metrics, random, rebalances.expired)
        self._find = find
        self._served: dict[OffsetsPartition, dict[str, ServedGroup]] = {}
        """By ID, for each partition that is led and loaded."""

    # --- what members ask -------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, answer: Joined) -> None:
        """Answers with the generation once it begins, or with an error: INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT,
        INVALID_REQUEST (a text that no record can hold), those of ``find``, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
        INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED or MEMBER_ID_REQUIRED."""
        served = _refusal(request, self._around.config) or self._joined_group(request)
        if isinstance(served, ServedGroup):
            joining.join(served, request, answer)
        else:
            answer(JoinAnswer(served, request.member_id))

    def sync(self, request: SyncRequest, answer: Synced) -> None:
        """Answers with the assignment once it is written, or with an error: those of ``find``, UNKNOWN_MEMBER_ID,
        FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL or REBALANCE_IN_PROGRESS."""
        served = self._served_group(request.group_id)
        if isinstance(served, ServedGroup):
            syncing.sync(served, request, answer)
        else:
            answer(SyncAnswer(served))

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> Error:
        """Returns NONE, REBALANCE_IN_PROGRESS (join again), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION
        or an error of ``find``."""
        served = self._served_group(group_id)
        if not isinstance(served, ServedGroup):
            return served
        group = served.group
        error = group.check_member(member_id, group_instance_id)
        if error:
            return error
        if generation != group.generation:
            return ErrorCode.illegal_generation
        served.expect(member_id, group.members[member_id].session_timeout_ms)
        rebalancing = group.state is GroupState.PREPARING_REBALANCE
        return ErrorCode.rebalance_in_progress if rebalancing else ErrorCode.none

    def leave(self, group_id: str, members: tuple[Leaving, ...]) -> tuple[Error, tuple[Error, ...]]:
        """Returns an error for all, and if that is NONE one for each: NONE, UNKNOWN_MEMBER_ID or FENCED_INSTANCE_ID."""
        served = self._served_group(group_id)
        if isinstance(served, ServedGroup):
            return ErrorCode.none, leaving.leave(served, members)
        if served is ErrorCode.unknown_member_id:
            return ErrorCode.none, (served,) * len(members)
        return served, ()

    def heard(self, partition: OffsetsPartition, group_id: str, member_id: str) -> None:
        """A member is alive. Its commit was accepted, which counts as a heartbeat."""
        served = self._served.get(partition, {}).get(group_id)
        member = served.group.members.get(member_id) if served is not None else None
        if served is not None and member is not None:
            served.expect(member_id, member.session_timeout_ms)

    # --- groups that go ---------------------------------------------------------------------------------------------

    def delete(self, group_id: str, answer: Callable[[Error], None]) -> None:
        """DeleteGroups: deletes the group with its offsets. Answers NONE once that is written, or NON_EMPTY_GROUP,
        GROUP_ID_NOT_FOUND or an error of ``find``."""
        partition = self._find(group_id)
        if isinstance(partition, Error):
            answer(partition)
            return
        group = partition.groups.get(group_id)
        error = ErrorCode.group_id_not_found if group is None else group.check_delete()
        if group is None or error:
            answer(error)
            return
        self._delete(partition, group, answer)

    def delete_unused(self, partition: OffsetsPartition, group: Group) -> bool:
        """Deletes a group without members whose last offset is gone. Returns False if somebody is in it or about to be,
        or if it cannot be written now."""
        if group.state is not GroupState.EMPTY or group.pending_joins:
            return False
        return self._delete(partition, group, _nobody_asked)

    def _delete(self, partition: OffsetsPartition, group: Group, answer: Callable[[Error], None]) -> bool:
        """What cannot be written changes nothing: the group would be back with the next coordinator."""
        served = self.serve(partition, group)
        if not partition.remove_group(group.group_id, answer):
            return False
        served.enter(group.die)
        del partition.groups[group.group_id]
        del self._served[partition][group.group_id]
        self._end(served)
        return True

    # --- partitions that come and go --------------------------------------------------------------------------------

    def loaded(self, partition: OffsetsPartition) -> None:
        """The partition is led here and loaded, so the sessions of all members begin. This is done in slices. A group
        that is asked for before its turn is served at once."""
        assert partition not in self._served, f"partition {partition.index} is loaded twice"
        self._served[partition] = {}
        run_slices(self._around.ports, self._serve_all(partition))

    def unloaded(self, partition: OffsetsPartition) -> None:
        """The partition is closed. From now on nothing of it happens, and everybody who waits is told NOT_COORDINATOR,
        in slices."""
        assert not partition.is_led, f"partition {partition.index} is unloaded and led"
        run_slices(self._around.ports, self._drop(self._served.pop(partition, {})))

    def serve(self, partition: OffsetsPartition, group: Group) -> ServedGroup:
        """Returns the group as it is served. If it was not, the sessions of its members begin.

        There may be too many members, if group.max.size was lowered. They have to join again, so that those who find no
        place learn it."""
        assert partition.is_led, f"group {group.group_id} is served in partition {partition.index}, which is lost"
        groups = self._served.setdefault(partition, {})
        served = groups.get(group.group_id)
        if served is not None:
            return served
        served = groups[group.group_id] = ServedGroup(self._around, partition, group)
        self._around.metrics.count(group.state, 1)
        for member in group.members.values():
            served.expect(member.member_id, member.session_timeout_ms)
        if len(group.members) > self._around.config.group_max_size:
            rebalances.prepare(served, f"{len(group.members)} members are more than group.max.size")
        return served

    def _serve_all(self, partition: OffsetsPartition) -> Slices:
        groups = iter(tuple(partition.groups.values()))
        while partition.is_led and (batch := _slice_of(groups)):
            for group in batch:
                if partition.groups.get(group.group_id) is group:
                    self.serve(partition, group)
            yield

    def _drop(self, served: dict[str, ServedGroup]) -> Slices:
        groups = iter([each.group for each in served.values()])
        while batch := _slice_of(groups):
            for group in batch:
                self._end(served[group.group_id])
                served[group.group_id].fail_all(ErrorCode.not_coordinator)
            yield

    def _end(self, served: ServedGroup) -> None:
        group = served.group
        self._around.metrics.count(group.state, -1)
        if group.state is not GroupState.DEAD:
            group.die(self._around.ports.now().wall_ms)
        served.halt()

    # --- the group of a request -------------------------------------------------------------------------------------

    def _served_group(self, group_id: str) -> ServedGroup | Error:
        """Returns UNKNOWN_MEMBER_ID where there is no such group, since nobody is a member of it then."""
        if not group_id:
            return ErrorCode.invalid_group_id
        partition = self._find(group_id)
        if isinstance(partition, Error):
            return partition
        group = partition.groups.get(group_id)
        return ErrorCode.unknown_member_id if group is None else self.serve(partition, group)

    def _joined_group(self, request: JoinRequest) -> ServedGroup | Error:
        """Only a client that has no member ID yet makes a group."""
        served = self._served_group(request.group_id)
        if served is not ErrorCode.unknown_member_id or request.member_id != UNKNOWN_MEMBER:
            return served
        partition = self._find(request.group_id)
        if isinstance(partition, Error):
            return partition
        group = Group(request.group_id, self._around.ports.now().wall_ms)
        if not group.supports(request.protocol_type, request.protocols):
            return ErrorCode.inconsistent_group_protocol
        return self.serve(partition, partition.add_group(group))

    # --- invariants -------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Asserts what is true after each event. It looks at every member, so only tests and the simulator ask."""
        for partition, groups in self._served.items():
            assert partition.is_led, f"partition {partition.index} is served and lost"
            for served in groups.values():
                served.validate()


def _refusal(request: JoinRequest, config: BrokerConfig) -> Error:
    """Says what no group would accept."""
    if not request.group_id:
        return ErrorCode.invalid_group_id
    least_ms, most_ms = config.group_min_session_timeout_ms, config.group_max_session_timeout_ms
    if not least_ms <= request.session_timeout_ms <= most_ms:
        return ErrorCode.invalid_session_timeout
    return ErrorCode.none if _fits(request) else ErrorCode.invalid_request


def _fits(request: JoinRequest) -> bool:
    """Flexible versions carry longer texts than records can hold, and than other clients may be told."""
    return (
        fits(request.client_id, joining.MEMBER_ID_SUFFIX_BYTES)
        and fits(request.group_instance_id, joining.MEMBER_ID_SUFFIX_BYTES)
        and fits(request.protocol_type)
        and all(fits(each.name) for each in request.protocols)
    )


def _slice_of(groups: Iterator[Group]) -> list[Group]:
    """Returns the groups of one event, and none at the end."""
    found: list[Group] = []
    members = 0
    for group in groups:
        found.append(group)
        members += len(group.members)
        if len(found) == GROUPS_A_SLICE or members >= MEMBERS_A_SLICE:
            break
    return found


def _nobody_asked(error: Error) -> None:
    """If the tombstone is not replicated, a group without members and offsets stays in the log. The next load finds it,
    and the next look for expired offsets deletes it."""
