"""A group while this node coordinates it: its timers, and its partition.

The rules are not here but in ``group_metadata_manager`` and ``rebalances``. They may change the group in between, so
``validate`` holds only at the end of an event.

A member has a session: the time within which it must send a request. A heartbeat costs one store. Each session has one
timer, which is set again only when it fires or when the deadline comes nearer, so a thousand heartbeats a second set no
timers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.group import LAST_GENERATION, Group, GroupState
from reference_broker.groups.group_coordinator_shard import GroupCoordinatorShard
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.ports.node_ports import Ports, RandomSource, later


@dataclass(frozen=True, slots=True)
class GroupContext:
    """The part that all groups of a node share."""

    ports: Ports
    config: BrokerConfig
    metrics: GroupMetrics
    random: RandomSource
    expire_heartbeat: Callable[["ServedGroup", str], None]
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
    """One coordinated group."""

    context: GroupContext
    shard: GroupCoordinatorShard
    """The partition of ``__consumer_offsets`` that stores the group."""
    group: Group
    sessions: dict[str, Session] = field(default_factory=dict)
    """By member ID: those of members, and of clients that have to join with an assigned ID."""
    timer: int | None = None
    """The one timer of a rebalance: how long members may take to join, and after that to sync."""
    storing_generation: int = 0
    """The generation whose assignment is being written, 0 if none is."""

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
        self.context.expire_heartbeat(self, member_id)

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

    def transition(self, change: Callable[[int], None], *more: tuple[str, str]) -> None:
        """Change the state of the group by one of its methods, which gets the Unix time. Count and note the change."""
        group, before = self.group, self.group.generation
        self.context.metrics.count(group.state, -1)
        change(self.context.ports.now().wall_ms)
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

    def note_member(self, member_id: str, change: str) -> None:
        """Note a change of the member: joined, removed, expired or fenced."""
        self.context.ports.note(
            "group_member",
            ("group", self.group.group_id),
            ("member_id", member_id),
            ("what", change),
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
        ids = members.keys() | group.pending_joins.keys()
        assert self.sessions.keys() <= ids, f"{name}: an ID that is no member has a session"
        silent = [each.member_id for each in members.values() if each.member_id not in self.sessions]
        assert all(group.is_excused(members[each]) for each in silent), f"{name}: no session expires for {silent}"
        is_waiting = state is GroupState.PREPARING_REBALANCE or bool(group.pending_syncs)
        assert self.timer is not None or not is_waiting, f"{name} is {state.value} and waits without a timer"
