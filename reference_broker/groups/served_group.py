"""A group while this node coordinates it: its value, the parked requests, its timers, and its partition.

The rules are not here but in ``membership`` and ``rebalances``. They may change the group in between, so ``validate``
holds only at the end of an event.

A member has a session: the time within which it must send a request. A heartbeat costs one store. Each session has one
timer, which is set again only when it fires or when the deadline comes nearer, so a thousand heartbeats a second set no
timers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.classic_requests import JoinCallback, JoinResponse, SyncCallback, SyncResponse
from reference_broker.groups.group import LAST_GENERATION, Group, GroupState
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.groups.offsets_partition import OffsetsPartition
from reference_broker.ports.node_ports import Ports, RandomSource, later
from reference_broker.wire.errors import Error, ErrorCode


@dataclass(frozen=True, slots=True)
class GroupContext:
    """The part that all groups of a node share."""

    ports: Ports
    config: BrokerConfig
    metrics: GroupMetrics
    random: RandomSource
    expired: Callable[["ServedGroup", str], None]
    """Called with a member, or an ID that has not joined, whose session has timed out."""


@dataclass(slots=True, eq=False)
class Session:
    """The session of one member, in monotonic time."""

    deadline_us: int
    fires_us: int
    """When the timer fires, possibly before the deadline."""
    timer: int


@dataclass(slots=True, eq=False)
class ServedGroup:
    """One coordinated group. The dictionaries are by member ID. Each parked request gets exactly one response."""

    context: GroupContext
    shard: OffsetsPartition
    group: Group
    joins: dict[str, JoinCallback] = field(default_factory=dict)
    syncs: dict[str, SyncCallback] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    timer: int | None = None
    """The one timer of a rebalance: how long members may take to join, and after that to sync."""
    assigned: int = 0
    """The generation whose assignment is being written, 0 if none is."""

    # --- parked requests ----------------------------------------------------------------------------------------------

    def park_join(self, member_id: str, respond: JoinCallback) -> None:
        """Park a JoinGroup. An earlier one of the same member fails, since its connection may be lost."""
        self._respond_to_join(member_id, JoinResponse(ErrorCode.rebalance_in_progress, member_id))
        self.group.await_join(self.group.members[member_id], True)
        self.joins[member_id] = respond

    def respond_to_join(self, member_id: str, response: JoinResponse) -> None:
        """Respond to the member's parked JoinGroup, if there is one."""
        if self._respond_to_join(member_id, response):
            self.group.await_join(self.group.members[member_id], False)

    def _respond_to_join(self, member_id: str, response: JoinResponse) -> bool:
        respond = self.joins.pop(member_id, None)
        if respond is None:
            return False
        respond(response)
        return True

    def park_sync(self, member_id: str, respond: SyncCallback) -> None:
        """Park a SyncGroup. An earlier one of the same member fails."""
        self.respond_to_sync(member_id, SyncResponse(ErrorCode.rebalance_in_progress))
        self.group.await_sync(member_id, True)
        self.syncs[member_id] = respond

    def respond_to_sync(self, member_id: str, response: SyncResponse) -> None:
        """Respond to the member's parked SyncGroup, if there is one."""
        respond = self.syncs.pop(member_id, None)
        if respond is not None:
            self.group.await_sync(member_id, False)
            respond(response)

    def fail_all(self, error: Error) -> None:
        """Fail all parked requests."""
        for member_id in list(self.joins):
            self.respond_to_join(member_id, JoinResponse(error, member_id))
        for member_id in list(self.syncs):
            self.respond_to_sync(member_id, SyncResponse(error))

    # --- sessions -----------------------------------------------------------------------------------------------------

    def restart_session(self, member_id: str, timeout_ms: int) -> None:
        """Begin the member's session again: its next request must come within this time."""
        deadline_us = self.context.ports.now().mono_us + timeout_ms * 1000
        session = self.sessions.get(member_id)
        if session is None:
            session = self.sessions[member_id] = Session(deadline_us, deadline_us, 0)
            self._arm(member_id, session)
            return
        session.deadline_us = deadline_us
        if deadline_us < session.fires_us:
            self.context.ports.cancel_timer(session.timer)
            self._arm(member_id, session)

    def end_session(self, member_id: str) -> None:
        """End the member's session without consequences."""
        session = self.sessions.pop(member_id, None)
        if session is not None:
            self.context.ports.cancel_timer(session.timer)

    def _arm(self, member_id: str, session: Session) -> None:
        session.fires_us = session.deadline_us
        session.timer = self.context.ports.set_timer(session.deadline_us, lambda: self._fired(member_id, session))

    def _fired(self, member_id: str, session: Session) -> None:
        if self.context.ports.now().mono_us < session.deadline_us:  # Decision group-member-session
            self._arm(member_id, session)
            return
        del self.sessions[member_id]
        self.context.expired(self, member_id)

    # --- timers -------------------------------------------------------------------------------------------------------

    def set_timer(self, delay_ms: int, fire: Callable[[], None]) -> None:
        """Set the timer of the rebalance, in place of an earlier one."""
        self.cancel_timer()
        self.timer = self.after(delay_ms, fire)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.context.ports.cancel_timer(self.timer)
            self.timer = None

    def after(self, delay_ms: int, fire: Callable[[], None]) -> int:
        """Call ``fire`` later, unless the partition is lost by then."""

        def fired() -> None:
            if self.shard.is_led:
                fire()

        return later(self.context.ports, delay_ms * 1000, fired)

    def halt(self) -> None:
        """Cancel all timers of this group."""
        self.cancel_timer()
        for member_id in tuple(self.sessions):
            self.end_session(member_id)

    # --- what happens to the group ------------------------------------------------------------------------------------

    def enter(self, step: Callable[[int], None], *more: tuple[str, str]) -> None:
        """Take one transition of the group, and count and note it."""
        group, before = self.group, self.group.generation
        self.context.metrics.count(group.state, -1)
        step(self.context.ports.now().wall_ms)
        self.context.metrics.count(group.state, 1)
        rises = group.generation >= before or before == LAST_GENERATION
        assert rises, f"generation {before} of group {group.group_id} became {group.generation}"
        self.context.ports.note(
            "group_state",
            ("group", group.group_id),
            ("state", group.state.value),
            ("generation", group.generation),
            ("leader", group.leader or ""),
            ("members", len(group.members)),
            *more,
        )

    def note_member(self, member_id: str, what: str) -> None:
        """``what`` is joined, removed, expired or fenced."""
        self.context.ports.note(
            "group_member",
            ("group", self.group.group_id),
            ("member_id", member_id),
            ("what", what),
            ("generation", self.group.generation),
        )

    # --- invariants ---------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Assert the invariants. This costs O(members), so only tests and the simulator call it."""
        group, members = self.group, self.group.members
        name, state = f"group {group.group_id}", group.state
        group.validate()
        assert self.shard.groups.get(group.group_id) is group, f"{name} is not the one of its partition"
        without = (GroupState.EMPTY, GroupState.PREPARING_REBALANCE)
        assert members or state in without, f"{name} is {state.value} without members"
        assert not members or state is not GroupState.EMPTY, f"{name} is Empty with {len(members)} members"
        joins = {each.member_id for each in members.values() if each.awaits_join}
        assert self.joins.keys() == joins, f"{name}: JoinGroups of {[*self.joins]} wait, marked are {joins}"
        syncs = {each.member_id for each in members.values() if each.awaits_sync}
        assert self.syncs.keys() == syncs, f"{name}: SyncGroups of {[*self.syncs]} wait, marked are {syncs}"
        ids = members.keys() | group.pending_joins.keys()
        assert self.sessions.keys() <= ids, f"{name}: an ID that is no member has a session"
        silent = [each.member_id for each in members.values() if each.member_id not in self.sessions]
        assert all(members[each].is_excused for each in silent), f"{name}: no session expires for {silent}"
        is_waiting = state is GroupState.PREPARING_REBALANCE or bool(group.pending_syncs)
        assert self.timer is not None or not is_waiting, f"{name} is {state.value} and waits without a timer"
