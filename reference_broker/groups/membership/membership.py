"""Who is in which group: JoinGroup, SyncGroup, Heartbeat, LeaveGroup, DeleteGroups, and what time does to members.

The rules are Kafka's GroupMetadataManager's for classic groups. Parts: ``joining``, ``static_members``, ``syncing``,
``rebalances`` (transitions and their timers), ``sessions``; ``group_run`` is what a group has beside its values.
"""

from collections.abc import Callable, Iterator

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.membership.counts import MembershipCounts
from reference_broker.groups.membership.group import Group
from reference_broker.groups.membership.group_run import GroupRun, Owner
from reference_broker.groups.membership.group_store import Coordinated, GroupStore
from reference_broker.groups.membership.joining import MEMBER_ID_SUFFIX_BYTES, Joining
from reference_broker.groups.membership.membership_values import (
    UNKNOWN_MEMBER,
    JoinAnswer,
    Joined,
    JoinRequest,
    Leaving,
    SyncAnswer,
    Synced,
    SyncRequest,
)
from reference_broker.groups.membership.rebalances import Rebalances
from reference_broker.groups.membership.sessions import Sessions
from reference_broker.groups.membership.syncing import Syncing
from reference_broker.groups.membership.transitions import GroupState
from reference_broker.groups.offsets.record_fields import fits
from reference_broker.ports.chance import RandomSource
from reference_broker.ports.node_ports import Ports
from reference_broker.wire.errors import Error

GROUPS_A_SLICE = 64
MEMBERS_A_SLICE = 500
"""Groups that are taken up or dropped in one event: so many, or fewer where they have so many members together."""


class Membership:
    """``counts``: for metrics. A group is *run* from the moment it is loaded, or first asked for, until its partition
    is unloaded or it is deleted."""

    __slots__ = (
        "_config",
        "_groups",
        "_joining",
        "_owners",
        "_ports",
        "_rebalances",
        "_runs",
        "_sessions",
        "_syncing",
        "counts",
    )

    def __init__(self, ports: Ports, config: BrokerConfig, groups: GroupStore, random: RandomSource) -> None:
        self.counts = MembershipCounts()
        self._ports = ports
        self._config = config
        self._groups = groups
        self._owners: dict[int, Owner] = {}
        self._runs: dict[str, GroupRun] = {}
        self._sessions = Sessions(ports, self._expired)
        self._rebalances = Rebalances(ports, self._sessions, config.group_initial_rebalance_delay_ms, self.counts)
        self._joining = Joining(self._rebalances, self._sessions, random, config.group_max_size)
        self._syncing = Syncing(self._rebalances)

    # --- what members ask -------------------------------------------------------------------------------------------

    def join(self, request: JoinRequest, answer: Joined) -> None:
        """INVALID_GROUP_ID, INVALID_SESSION_TIMEOUT, INVALID_REQUEST (texts that no record can hold), where the group
        is not coordinated here GroupStore.find's errors, UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID,
        INCONSISTENT_GROUP_PROTOCOL, GROUP_MAX_SIZE_REACHED, MEMBER_ID_REQUIRED, or the generation once it begins."""
        config = self._config
        error = Error.NONE
        if not request.group_id:
            error = Error.INVALID_GROUP_ID
        elif not (
            config.group_min_session_timeout_ms <= request.session_timeout_ms <= config.group_max_session_timeout_ms
        ):
            error = Error.INVALID_SESSION_TIMEOUT
        elif not _fits(request):
            error = Error.INVALID_REQUEST
        run = error or self._joined_run(request)
        if isinstance(run, GroupRun):
            self._joining.join(run, request, answer)
        else:
            answer(JoinAnswer(run, request.member_id))

    def sync(self, request: SyncRequest, answer: Synced) -> None:
        """UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID, ILLEGAL_GENERATION, INCONSISTENT_GROUP_PROTOCOL,
        REBALANCE_IN_PROGRESS, or the assignment once it is written."""
        run = self._find(request.group_id)
        if isinstance(run, GroupRun):
            self._syncing.sync(run, request, answer)
        else:
            answer(SyncAnswer(run))

    def heartbeat(self, group_id: str, member_id: str, group_instance_id: str | None, generation: int) -> Error:
        """NONE, REBALANCE_IN_PROGRESS (join again), UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID or ILLEGAL_GENERATION."""
        run = self._find(group_id)
        if not isinstance(run, GroupRun):
            return run
        group = run.group
        error = group.check_member(member_id, group_instance_id)
        if error is not Error.NONE:
            return error
        if generation != group.generation:
            return Error.ILLEGAL_GENERATION
        self._sessions.expect(run, member_id, group.members[member_id].session_timeout_ms)
        rebalancing = group.state is GroupState.PREPARING_REBALANCE
        return Error.REBALANCE_IN_PROGRESS if rebalancing else Error.NONE

    def leave(self, group_id: str, leaving: tuple[Leaving, ...]) -> tuple[Error, tuple[Error, ...]]:
        """An error for all (then none for each), and one for each: UNKNOWN_MEMBER_ID, FENCED_INSTANCE_ID."""
        run = self._find(group_id)
        if run is Error.UNKNOWN_MEMBER_ID:
            return Error.NONE, (run,) * len(leaving)
        if not isinstance(run, GroupRun):
            return run, ()
        errors = tuple(self._leave(run, each) for each in leaving)
        gone = errors.count(Error.NONE)
        if gone and run.group.state is not GroupState.EMPTY:
            reason = next((each.reason for each in leaving if each.reason), "")
            self._rebalances.prepare_or_complete(run, f"{gone} members left" + (f": {reason}" if reason else ""))
        return Error.NONE, errors

    def _leave(self, run: GroupRun, leaving: Leaving) -> Error:
        group, member_id = run.group, leaving.member_id
        if member_id == UNKNOWN_MEMBER:
            member_id = group.static_members.get(leaving.group_instance_id or "", UNKNOWN_MEMBER)
        elif member_id not in group.pending_joins:
            error = group.check_member(member_id, leaving.group_instance_id)
            if error is not Error.NONE:
                return error
        if member_id == UNKNOWN_MEMBER:
            return Error.UNKNOWN_MEMBER_ID
        self._rebalances.remove(run, member_id, "removed")
        return Error.NONE

    # --- what administrators ask ------------------------------------------------------------------------------------

    def delete(self, group_id: str, answer: Callable[[Error], None]) -> None:
        """DeleteGroups: NON_EMPTY_GROUP, GROUP_ID_NOT_FOUND, or once it is written NONE. Its offsets go, too."""
        found = self._groups.find(group_id)
        if isinstance(found, Error):
            answer(found)
            return
        group = found.groups.get(group_id)
        error = Error.GROUP_ID_NOT_FOUND if group is None else group.check_delete()
        if group is None or error is not Error.NONE:
            answer(error)
            return
        self._delete(found, group, answer)

    # --- what the coordinator's other half tells --------------------------------------------------------------------

    def heard(self, group_id: str, member_id: str) -> None:
        """A member is alive: its commit was accepted, which counts as a heartbeat."""
        run = self._runs.get(group_id)
        member = run.group.members.get(member_id) if run is not None and run.owner.alive else None
        if run is not None and member is not None:
            self._sessions.expect(run, member_id, member.session_timeout_ms)

    def delete_unused(self, coordinated: Coordinated, group: Group) -> bool:
        """Deletes a group without members, whose last offset is gone; False: somebody is in it or about to be, or it
        cannot be written now."""
        if group.state is not GroupState.EMPTY or group.pending_joins:
            return False
        return self._delete(coordinated, group, _nobody_asked)

    def added(self, coordinated: Coordinated, group: Group) -> None:
        """A commit made this group (``coordinated.groups`` has it)."""
        self._run(coordinated, group)

    def loaded(self, coordinated: Coordinated) -> None:
        """The partition is led here and loaded: sessions of all members begin. In slices; a group that is asked for
        before its turn is taken up at once."""
        self._owner(coordinated)
        self._take_up(coordinated, iter(tuple(coordinated.groups.values())))

    def unloaded(self, coordinated: Coordinated) -> None:
        """It is coordinated here no more: from now on nothing of it happens, and everybody who waits is told
        NOT_COORDINATOR, in slices."""
        owner = self._owners.get(coordinated.partition)
        if owner is None or owner.coordinated is not coordinated:
            return
        del self._owners[coordinated.partition]
        owner.alive = False
        runs = owner.runs
        self._drop(runs, iter(tuple(run.group for run in runs.values())))

    def _take_up(self, coordinated: Coordinated, groups: Iterator[Group]) -> None:
        owner = self._owners.get(coordinated.partition)
        if owner is None or owner.coordinated is not coordinated:
            return
        batch = _slice_of(groups)
        for group in batch:
            if coordinated.groups.get(group.group_id) is group:
                self._run(coordinated, group)
        if batch:
            self._later(lambda: self._take_up(coordinated, groups))

    def _drop(self, runs: dict[str, GroupRun], groups: Iterator[Group]) -> None:
        batch = _slice_of(groups)
        for group in batch:
            run = runs[group.group_id]
            self._end(run)
            run.fail_all(Error.NOT_COORDINATOR)
        if batch:
            self._later(lambda: self._drop(runs, groups))

    def _later(self, step: Callable[[], None]) -> None:
        self._ports.set_timer(self._ports.now().mono_us, step)

    # --- runs -------------------------------------------------------------------------------------------------------

    def _find(self, group_id: str) -> GroupRun | Error:
        """UNKNOWN_MEMBER_ID where there is no such group: then nobody is a member of it."""
        run = self._runs.get(group_id)
        if run is not None and run.owner.alive:
            return run
        if not group_id:
            return Error.INVALID_GROUP_ID
        found = self._groups.find(group_id)
        if isinstance(found, Error):
            return found
        group = found.groups.get(group_id)
        return Error.UNKNOWN_MEMBER_ID if group is None else self._run(found, group)

    def _joined_run(self, request: JoinRequest) -> GroupRun | Error:
        """Only who has no member ID yet makes a group."""
        run = self._find(request.group_id)
        if run is not Error.UNKNOWN_MEMBER_ID or request.member_id != UNKNOWN_MEMBER:
            return run
        found = self._groups.find(request.group_id)
        if isinstance(found, Error):
            return found
        group = Group(request.group_id, self._ports.now().wall_ms)
        if not group.supports(request.protocol_type, request.protocols):
            return Error.INCONSISTENT_GROUP_PROTOCOL
        found.groups[request.group_id] = group
        return self._run(found, group)

    def _owner(self, coordinated: Coordinated) -> Owner:
        owner = self._owners.get(coordinated.partition)
        if owner is None or owner.coordinated is not coordinated:
            assert owner is None, f"partition {coordinated.partition} is loaded twice"
            owner = self._owners[coordinated.partition] = Owner(coordinated)
        return owner

    def _run(self, coordinated: Coordinated, group: Group) -> GroupRun:
        owner = self._owner(coordinated)
        run = owner.runs.get(group.group_id)
        if run is None:
            run = owner.runs[group.group_id] = self._runs[group.group_id] = GroupRun(owner, group)
            self.counts.by_state[group.state] += 1
            self._begin(run)
        return run

    def _begin(self, run: GroupRun) -> None:
        """Members that the log tells of are given one session timeout. Too many of them (group.max.size was lowered)
        have to join again, so that those that are left over learn it."""
        members = run.group.members
        for member in members.values():
            self._sessions.expect(run, member.member_id, member.session_timeout_ms)
        if len(members) > self._config.group_max_size:
            self._rebalances.prepare(run, f"{len(members)} members are more than group.max.size")

    def _delete(self, coordinated: Coordinated, group: Group, answer: Callable[[Error], None]) -> bool:
        """What cannot be written changes nothing: the group would be back with the next coordinator."""
        run = self._run(coordinated, group)
        if not coordinated.remove_group(group.group_id, answer):
            return False
        self._rebalances.enter(run, group.die)
        del coordinated.groups[group.group_id]
        del run.owner.runs[group.group_id]
        self._end(run)
        return True

    def _end(self, run: GroupRun) -> None:
        group = run.group
        self.counts.by_state[group.state] -= 1
        if group.state is not GroupState.DEAD:
            group.die(self._ports.now().wall_ms)
        self._rebalances.halt(run)
        if self._runs.get(group.group_id) is run:
            del self._runs[group.group_id]

    def _expired(self, run: GroupRun, member_id: str) -> None:
        """Members that wait for an answer cannot send heartbeats; new ones must not wait for ever."""
        group = run.group
        member = group.members.get(member_id)
        if not run.owner.alive or (member is not None and member.is_excused):
            return
        self.counts.expired_members += member is not None
        self._rebalances.remove(run, member_id, "expired")
        if member is not None and group.state is not GroupState.EMPTY:
            self._rebalances.prepare_or_complete(run, f"member {member_id} was not heard of in time")
        else:
            self._rebalances.complete_if_joined(run)


def _slice_of(groups: Iterator[Group]) -> list[Group]:
    """Those of one event; none at the end."""
    found: list[Group] = []
    members = 0
    for group in groups:
        found.append(group)
        members += len(group.members)
        if len(found) == GROUPS_A_SLICE or members >= MEMBERS_A_SLICE:
            break
    return found


def _fits(request: JoinRequest) -> bool:
    """Flexible versions carry longer texts than records and older versions, in which others may ask for them."""
    return (
        fits(request.client_id, MEMBER_ID_SUFFIX_BYTES)
        and fits(request.group_instance_id, MEMBER_ID_SUFFIX_BYTES)
        and fits(request.protocol_type)
        and all(fits(each.name) for each in request.protocols)
    )


def _nobody_asked(error: Error) -> None:
    """A tombstone that is not replicated leaves a group without members and offsets: the next load finds it, the next
    look for expired offsets deletes it."""
