"""A group while this node coordinates it: its value, the parked requests, its timers, and its partition.

The rules are not here but in ``membership`` and ``rebalances``. They may change the group in between, so ``validate``
holds only at the end of an event.

A member has a session: the time within which it must send a request. A heartbeat costs one store. Each session has one
timer, which is set again only when it fires or when the deadline comes nearer, so a thousand heartbeats a second set no
timers.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.groups.group import LAST_GENERATION, Group, GroupState, MemberProtocol
from reference_broker.groups.metrics import GroupMetrics
from reference_broker.groups.offsets_partition import OffsetsPartition
from reference_broker.ports.node_ports import Ports, RandomSource, later
from reference_broker.wire.errors import Error, ErrorCode

UNKNOWN_MEMBER = ""
"""The member ID of a client that has none yet."""
NO_GENERATION = -1
MOST_REASON_CHARACTERS = 255
"""The longest reason of a JoinGroup or LeaveGroup. Clients send no more (KIP-800)."""


@dataclass(frozen=True, slots=True)
class JoinRequest:
    """JoinGroup."""

    group_id: str
    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    session_timeout_ms: int
    rebalance_timeout_ms: int
    protocol_type: str
    protocols: tuple[MemberProtocol, ...]
    reason: str = ""
    needs_member_id: bool = True
    """The client can be told MEMBER_ID_REQUIRED (version 4 on, KIP-394)."""
    skips_assignment: bool = True
    """The client can be told that it leads and need not assign (version 9 on, KIP-814)."""


@dataclass(frozen=True, slots=True)
class JoinedMember:
    """What the leader is told of a member."""

    member_id: str
    group_instance_id: str | None
    metadata: bytes


@dataclass(frozen=True, slots=True)
class JoinAnswer:
    """The answer to JoinGroup. Only the leader is told ``members``."""

    error: Error
    member_id: str = UNKNOWN_MEMBER
    generation: int = NO_GENERATION
    protocol_type: str | None = None
    protocol: str | None = None
    leader: str = ""
    skip_assignment: bool = False
    members: tuple[JoinedMember, ...] = ()


@dataclass(frozen=True, slots=True)
class SyncRequest:
    """SyncGroup."""

    group_id: str
    generation: int
    member_id: str
    group_instance_id: str | None
    protocol_type: str | None
    """None before version 5, as ``protocol`` (KIP-559)."""
    protocol: str | None
    assignments: dict[str, bytes]
    """By member ID. Only the leader sends them."""


@dataclass(frozen=True, slots=True)
class SyncAnswer:
    """The answer to SyncGroup."""

    error: Error
    protocol_type: str | None = None
    protocol: str | None = None
    assignment: bytes = b""


@dataclass(frozen=True, slots=True)
class Leaving:
    """One member of a LeaveGroup. A static member may be named by its instance alone, with an empty member ID."""

    member_id: str
    group_instance_id: str | None
    reason: str = ""


Joined: TypeAlias = Callable[[JoinAnswer], None]
Synced: TypeAlias = Callable[[SyncAnswer], None]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What all groups of a node share."""

    ports: Ports
    config: BrokerConfig
    metrics: GroupMetrics
    random: RandomSource
    expired: Callable[["ServedGroup", str], None]
    """Told of a member, or of an ID that has not joined, whose session is over."""


@dataclass(slots=True, eq=False)
class Session:
    """How long a member may be silent, in monotonic time."""

    deadline_us: int
    fires_us: int
    """When the timer fires, which may be before the deadline."""
    timer: int


@dataclass(slots=True, eq=False)
class ServedGroup:
    """The dictionaries are by member ID. Each request that waits is answered exactly once."""

    around: Surroundings
    partition: OffsetsPartition
    group: Group
    joins: dict[str, Joined] = field(default_factory=dict)
    syncs: dict[str, Synced] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    timer: int | None = None
    """The one timer of a rebalance: how long members may take to join, and after that to sync."""
    assigned: int = 0
    """The generation whose assignment is being written, 0 if none is."""

    # --- requests that wait -----------------------------------------------------------------------------------------

    def park_join(self, member_id: str, answer: Joined) -> None:
        """A JoinGroup waits. An earlier one of the same member waits no more, since its connection may be lost."""
        self._answer_join(member_id, JoinAnswer(ErrorCode.rebalance_in_progress, member_id))
        self.group.await_join(self.group.members[member_id], True)
        self.joins[member_id] = answer

    def answer_join(self, member_id: str, answer: JoinAnswer) -> None:
        """Answers the JoinGroup of the member if one waits."""
        if self._answer_join(member_id, answer):
            self.group.await_join(self.group.members[member_id], False)

    def _answer_join(self, member_id: str, answer: JoinAnswer) -> bool:
        waiting = self.joins.pop(member_id, None)
        if waiting is None:
            return False
        waiting(answer)
        return True

    def park_sync(self, member_id: str, answer: Synced) -> None:
        """A SyncGroup waits, instead of an earlier one of the same member."""
        self.answer_sync(member_id, SyncAnswer(ErrorCode.rebalance_in_progress))
        self.group.await_sync(member_id, True)
        self.syncs[member_id] = answer

    def answer_sync(self, member_id: str, answer: SyncAnswer) -> None:
        """Answers the SyncGroup of the member if one waits."""
        waiting = self.syncs.pop(member_id, None)
        if waiting is not None:
            self.group.await_sync(member_id, False)
            waiting(answer)

    def fail_all(self, error: Error) -> None:
        """Answers everybody who waits."""
        for member_id in list(self.joins):
            self.answer_join(member_id, JoinAnswer(error, member_id))
        for member_id in list(self.syncs):
            self.answer_sync(member_id, SyncAnswer(error))

    # --- sessions ---------------------------------------------------------------------------------------------------

    def expect(self, member_id: str, timeout_ms: int) -> None:
        """From now on the member may be silent for this long."""
        deadline_us = self.around.ports.now().mono_us + timeout_ms * 1000
        session = self.sessions.get(member_id)
        if session is None:
            session = self.sessions[member_id] = Session(deadline_us, deadline_us, 0)
            self._arm(member_id, session)
            return
        session.deadline_us = deadline_us
        if deadline_us < session.fires_us:
            self.around.ports.cancel_timer(session.timer)
            self._arm(member_id, session)

    def forget(self, member_id: str) -> None:
        """Nobody waits to hear of the member any more."""
        session = self.sessions.pop(member_id, None)
        if session is not None:
            self.around.ports.cancel_timer(session.timer)

    def _arm(self, member_id: str, session: Session) -> None:
        session.fires_us = session.deadline_us
        session.timer = self.around.ports.set_timer(session.deadline_us, lambda: self._fired(member_id, session))

    def _fired(self, member_id: str, session: Session) -> None:
        if self.around.ports.now().mono_us < session.deadline_us:
            self._arm(member_id, session)
            return
        del self.sessions[member_id]
        self.around.expired(self, member_id)

    # --- timers -----------------------------------------------------------------------------------------------------

    def set_timer(self, delay_ms: int, fire: Callable[[], None]) -> None:
        """Sets the timer of the rebalance, in place of an earlier one."""
        self.cancel_timer()
        self.timer = self.after(delay_ms, fire)

    def cancel_timer(self) -> None:
        if self.timer is not None:
            self.around.ports.cancel_timer(self.timer)
            self.timer = None

    def after(self, delay_ms: int, fire: Callable[[], None]) -> int:
        """Calls ``fire`` later, unless the partition is lost by then."""

        def fired() -> None:
            if self.partition.is_led:
                fire()

        return later(self.around.ports, delay_ms * 1000, fired)

    def halt(self) -> None:
        """No timer of this group fires any more."""
        self.cancel_timer()
        for member_id in tuple(self.sessions):
            self.forget(member_id)

    # --- what happens to the group ----------------------------------------------------------------------------------

    def enter(self, step: Callable[[int], None], *more: tuple[str, str]) -> None:
        """Takes one transition of the group, which is counted and noted."""
        group, before = self.group, self.group.generation
        self.around.metrics.count(group.state, -1)
        step(self.around.ports.now().wall_ms)
        self.around.metrics.count(group.state, 1)
        rises = group.generation >= before or before == LAST_GENERATION
        assert rises, f"generation {before} of group {group.group_id} became {group.generation}"
        self.around.ports.note(
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
        self.around.ports.note(
            "group_member",
            ("group", self.group.group_id),
            ("member_id", member_id),
            ("what", what),
            ("generation", self.group.generation),
        )

    # --- invariants -------------------------------------------------------------------------------------------------

    def validate(self) -> None:
        """Asserts what is true after each event. It costs O(members), so only tests and the simulator ask."""
        group, members = self.group, self.group.members
        name, state = f"group {group.group_id}", group.state
        group.validate()
        assert self.partition.groups.get(group.group_id) is group, f"{name} is not the one of its partition"
        without = (GroupState.EMPTY, GroupState.PREPARING_REBALANCE)
        assert members or state in without, f"{name} is {state.value} without members"
        assert not members or state is not GroupState.EMPTY, f"{name} is Empty with {len(members)} members"
        joins = {each.member_id for each in members.values() if each.awaits_join}
        assert self.joins.keys() == joins, f"{name}: JoinGroups of {[*self.joins]} wait, marked are {joins}"
        syncs = {each.member_id for each in members.values() if each.awaits_sync}
        assert self.syncs.keys() == syncs, f"{name}: SyncGroups of {[*self.syncs]} wait, marked are {syncs}"
        known = members.keys() | group.pending_joins.keys()
        assert self.sessions.keys() <= known, f"{name}: somebody has a session who is no member"
        silent = [each.member_id for each in members.values() if each.member_id not in self.sessions]
        assert all(members[each].is_excused for each in silent), f"{name}: nobody would miss {silent}"
        is_waiting = state is GroupState.PREPARING_REBALANCE or bool(group.pending_syncs)
        assert self.timer is not None or not is_waiting, f"{name} is {state.value} and waits without a timer"
