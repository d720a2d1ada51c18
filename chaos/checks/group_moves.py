"""Each move of a classic group at its coordinator, by ``group_rules``: states, responses to members, and times."""

from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from chaos.checks.check import Check, CheckContext, Inspection
from chaos.checks.group_rules import (
    COMPLETING,
    EMPTY,
    FENCED_INSTANCE_ID,
    GROUP_MAX_SIZE_REACHED,
    INVALID_REQUEST,
    INVALID_SESSION_TIMEOUT,
    NONE,
    NOT_COORDINATOR,
    NOT_WRITTEN,
    OF_MEMBERS,
    PREPARING,
    REBALANCE_IN_PROGRESS,
    STABLE,
    UNKNOWN_MEMBER_ID,
    GroupView,
    commit_error,
    heartbeat_error,
    join_error,
    leave_errors,
    sync_error,
    view_of,
    wrong_choice,
    wrong_settings,
    wrong_steps,
)
from chaos.checks.history import OFFSETS_TOPIC
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.replica_view import offsets_partition
from reference_broker.core.events import Close, Closed, Effect, Event, Note, Reply, Request
from reference_broker.wire.errors import error_name

if TYPE_CHECKING:
    from reference_broker.core.node import Node


COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC, TXN_COMMIT, DELETE = 8, 11, 12, 13, 14, 28, 42
NAMES = {
    COMMIT: "OffsetCommit",
    JOIN: "JoinGroup",
    HEARTBEAT: "Heartbeat",
    LEAVE: "LeaveGroup",
    SYNC: "SyncGroup",
    TXN_COMMIT: "TxnOffsetCommit",
}
STATE, MEMBER, LOADED, UNLOADED = "group_state", "group_member", "coordinator_loaded", "coordinator_unloaded"
NEW_MEMBER_US = 300_000_000
"""Kafka: how long the first JoinGroup of a member may be parked, which cannot send heartbeats meanwhile."""
MIN_WAIT_MS = 1_000
SLACK_US = 500_000
"""Physical: timers fire late by the time that a node is busy, and a long list is worked off in slices."""
ORPHAN_US = 2_000_000
"""Physical: within this time a coordinator that lost a group has failed all its parked requests, in slices."""


class _Call(NamedTuple):
    """A request of a group that has no response yet."""

    request: Request
    group: str
    at_us: int
    before: GroupView | None
    """the group when the request came"""
    is_judged: bool
    """whether the node coordinated the group then"""


@dataclass(slots=True)
class _Group:
    """A group at its coordinator. Times are by the node's monotonic clock."""

    view: GroupView
    since_us: int
    """when the time to join began: with the rebalance, or again when it was over and nobody had joined"""
    timeout_us: int = 0
    """longest rebalance timeout of its members then"""
    late_until_us: int = 0
    """Until then the timer of an earlier time to join may fire (physical, ``SLACK_US``)."""
    absent_from_us: int = 0
    """when the first time to join is over"""
    began_us: int = 0
    """when its generation began"""
    sync_timeout_us: int = 0
    """longest rebalance timeout of its members then"""
    is_initial: bool = False
    """whether it was Empty before"""
    sessions: dict[str, tuple[int, int]] = field(default_factory=dict)
    """by member, or ID that has not joined: the times before which and by which its session ends"""
    assignments: list[dict[str, bytes]] = field(default_factory=list)
    """what the leader sent in this generation, mostly once"""
    unsynced: dict[str, None] = field(default_factory=dict)
    """members of the generation without a SyncGroup"""
    reported: dict[str, None] = field(default_factory=dict)

    def wait_again(self, until_us: int, nobody_joined: bool, view: GroupView) -> None:
        """Begin the time to join again if it was over by then. Kafka: only static members are there, and all of them
        may be gone."""
        while (
            view.state == PREPARING and nobody_joined and view.members and self.since_us + self.timeout_us <= until_us
        ):
            self.since_us += self.timeout_us
            self.late_until_us = self.since_us + SLACK_US
            self.timeout_us = max(view.rebalance_ms, MIN_WAIT_MS) * 1000


class GroupMoves(Check):
    """groups-consistent: each move of a group follows Kafka's rules of classic groups (``group_rules``).

    - States follow on each other by Kafka's transitions. The generation rises by one with each completed join. The
      leader has joined, and the protocol is one that all members support, with the most votes.
    - JoinGroup, SyncGroup, Heartbeat, LeaveGroup and commits get the error that the group's state demands. All members
      of a generation get its number, its protocol and its leader. Only the leader gets the members, with the metadata
      of their last JoinGroup. SyncGroup returns what the leader assigned.
    - A member is removed when it leaves, when its session expires, or when it has not joined or synced within the
      rebalance timeout: not earlier, and not later. A generation begins when all members have joined, or at the end of
      that timeout.
    - Each parked request gets its response when it is due, at the latest when the coordinator loses the group.

    The check compares the coordinator's group before and after each event. It judges no event that loads or unloads a
    partition.
    """

    guarantee = "groups-consistent"
    inspection = Inspection.AFTER_EVENTS
    acts_on = (
        *(COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC, TXN_COMMIT, DELETE, STATE, MEMBER, LOADED, UNLOADED, Closed),
        type(None),
    )

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._groups: dict[int, dict[str, _Group]] = {}
        """by node: the groups of the partitions that it has loaded"""
        self._loaded: dict[int, dict[int, None]] = {}
        """by node: the indexes of these partitions"""
        self._pending = PendingRequests[_Call]()
        self._orphans: dict[tuple[int, int, int], tuple[int, str]] = {}
        """requests whose node has unloaded their group: the time and the story, by node, connection and number"""
        self._now_us = 0

    # --- one event ----------------------------------------------------------------------------------------------------

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        self._now_us = node.broker.now.mono_us
        if event is None:
            self._groups.pop(node_id, None)
            self._loaded.pop(node_id, None)
            self._pending.restarted(node_id)
            self._orphans = {key: each for key, each in self._orphans.items() if key[0] != node_id}
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
            of_others = {key: each for key, each in self._orphans.items() if key[:2] != (node_id, event.connection)}
            self._orphans = of_others
        call = self._received(node, event) if type(event) is Request and event.api_key in NAMES else None
        steps: dict[str, list[tuple[str, int]]] = {}
        moved: list[Note] = []
        replied: list[tuple[_Call, Reply]] = []
        for effect in effects:
            if type(effect) is Note:
                fields = dict(effect.fields)
                if effect.what == STATE:
                    steps.setdefault(str(fields["group"]), []).append((str(fields["state"]), int(fields["generation"])))
                elif effect.what == MEMBER:
                    steps.setdefault(str(fields["group"]), [])
                elif effect.what in (LOADED, UNLOADED):
                    moved.append(effect)
            elif type(effect) is Reply and effect.api_key in NAMES:
                self._orphans.pop((node_id, effect.connection, effect.correlation_id), None)
                of = self._pending.pop(node_id, effect)
                if of is not None:
                    replied.append((of, effect))
            elif type(effect) is Close:
                # Physical: a request whose connection is closed gets no response. A node that shuts down closes those
                # of clients; ``delays`` judges which connections may be closed.
                self._pending.closed(node_id, effect.connection)
                if call is not None and call.request.connection == effect.connection:
                    call = None
        indexes = self._reload(node, moved) if moved else ()
        groups = dict.fromkeys(steps)
        groups.update(dict.fromkeys(each.group for each, _ in replied))
        if call is not None:
            groups[call.group] = None
        for group_id in groups:
            if self._coordinates(node, group_id, indexes):
                of_group = [each for each in replied if each[0].group == group_id]
                is_own = call is not None and call.group == group_id
                self._judge(at_us, node, group_id, call if is_own else None, steps.get(group_id, ()), of_group)

    def _received(self, node: "Node", request: Request) -> _Call | None:
        body: Any = request.body
        group_id = str(body.group_id)
        if not group_id:
            return None
        of = self._groups.get(node.broker.node_id, {}).get(group_id)
        # An ID that has not joined expires in silence, so it is not known whether it is there.
        doubtful = () if of is None else [key for key in of.view.pending if of.sessions[key][0] <= self._now_us]
        named = (body, *getattr(body, "members", ()))
        is_judged = self._coordinates(node, group_id)
        is_judged &= not any(str(getattr(each, "member_id", "")) in doubtful for each in named)
        call = _Call(request, group_id, self._now_us, None if of is None else of.view, is_judged)
        self._pending.add(node.broker.node_id, request, call)
        return call

    def _coordinates(self, node: "Node", group_id: str, but_not: Container[int] = ()) -> bool:
        index = _index_of(node, group_id)
        return index in self._loaded.get(node.broker.node_id, ()) and index not in but_not

    def _reload(self, node: "Node", moved: Sequence[Note]) -> dict[int, None]:
        """Begin again with what the node has of these partitions now. Return their indexes."""
        node_id, indexes = node.broker.node_id, dict[int, None]()
        known, loaded = self._groups.setdefault(node_id, {}), self._loaded.setdefault(node_id, {})
        for note in moved:
            index = int(dict(note.fields)["partition"])
            indexes[index] = None
            if note.what == LOADED:
                loaded[index] = None
            else:
                loaded.pop(index, None)
        for group_id in [each for each in known if _index_of(node, each) in indexes]:
            del known[group_id]
        for partition in node.broker.groups.active():
            if partition.index in indexes:
                known.update({group_id: self._begun(group) for group_id, group in partition.groups.items()})
        for of_node, each in self._pending.all():
            index = _index_of(node, each.group)
            if of_node == node_id and index in indexes and index not in loaded and each.request.api_key in (JOIN, SYNC):
                key = node_id, each.request.connection, each.request.correlation_id
                story = f"{NAMES[each.request.api_key]} of {each.request.client_id} to group {each.group}"
                self._orphans[key] = self._now_us, story
        return indexes

    def _begun(self, group: Any) -> _Group:
        view = view_of(group)
        of = _Group(view, self._now_us, view.rebalance_ms * 1000)
        of.assignments = [{key: bytes(each.assignment) for key, each in group.members.items()}]
        for key, each in view.members.items():
            self._touch(of, key, each.session_ms)
        return of

    def _judge(
        self,
        at_us: int,
        node: "Node",
        group_id: str,
        call: _Call | None,
        steps: Sequence[tuple[str, int]],
        replied: Sequence[tuple[_Call, Reply]],
    ) -> None:
        node_id = node.broker.node_id
        known = self._groups.setdefault(node_id, {})
        group = next((each.groups[group_id] for each in node.broker.groups.active() if group_id in each.groups), None)
        of = known.get(group_id)
        before = GroupView() if of is None else of.view
        after = None if group is None else view_of(group)
        self.evidence += 1
        if of is not None and call is not None:
            # Parked members may get their assignments in the event in which the leader sends them, before the leader.
            self._synced(of, call, before)
        if of is None and after is not None:
            # A commit of a transaction may have made the group, when its coordinator had verified it.
            of = known[group_id] = _Group(before, self._now_us)
        wrong = list(self._wrong_responses(node, group_id, of, call, replied, after))
        if after is None:
            if of is not None and before.state != EMPTY:
                wrong.append(f"it is gone, and was {before.state}")
            known.pop(group_id, None)
        elif of is not None:
            of.wait_again(self._now_us - 1, not before.joined, before)
            wrong += self._wrong_moves(node, of, call, steps, replied, after)
            self._follow(of, call, steps, replied, after)
            wrong += self._overdue(node, of, after)
        for each in wrong:
            if of is None or each not in of.reported:
                if of is not None:
                    of.reported[each] = None
                self.violated(at_us, f"group {group_id} at node {node_id}: {each}")

    # --- responses ----------------------------------------------------------------------------------------------------

    def _wrong_responses(
        self,
        node: "Node",
        group_id: str,
        of: _Group | None,
        call: _Call | None,
        replied: Sequence[tuple[_Call, Reply]],
        after: GroupView | None,
    ) -> Iterator[str]:
        before = None if of is None else of.view
        if call is not None and call.is_judged and all(each is not call for each, _ in replied):
            expected = self._expected(node, before, call)
            if call.request.api_key in (JOIN, SYNC) and expected not in (None, NONE):
                yield f"{_named(call)} is parked, and {error_name(expected or 0)} is due"
        for each, reply in replied:
            if each.is_judged:
                yield from self._wrong_response(node, of, each, each is call, reply, after)
        if after is not None:
            parked = [each for each in self._pending.of_node(node.broker.node_id) if each.group == group_id]
            for key, marked in ((JOIN, after.joined), (SYNC, [k for k, m in after.members.items() if m.awaits_sync])):
                waiting = [pending for pending in parked if pending.request.api_key == key]
                if len(waiting) > len(marked):
                    names = ", ".join(pending.request.client_id for pending in waiting)
                    yield f"{NAMES[key]} of {names} wait, and nobody but {marked} will get a response"

    def _expected(self, node: "Node", group: GroupView | None, call: _Call) -> int | None:
        """Return the error that a request gets in this state, or None where it is not known."""
        request, config = call.request, node.broker.config
        body: Any = request.body
        if request.api_key == JOIN:
            session_ms = _ms(body.session_timeout)
            if not config.group_min_session_timeout_ms <= session_ms <= config.group_max_session_timeout_ms:
                return INVALID_SESSION_TIMEOUT
            return join_error(group, body, request.api_version, config.group_max_size)
        if request.api_key == SYNC:
            return sync_error(group, body, request.api_version)
        if request.api_key == HEARTBEAT:
            return heartbeat_error(group, body)
        if request.api_key in (COMMIT, TXN_COMMIT):
            return commit_error(group, body, request.api_version, transactional=request.api_key == TXN_COMMIT)
        return None

    def _wrong_response(
        self, node: "Node", of: _Group | None, call: _Call, is_at_once: bool, reply: Reply, after: GroupView | None
    ) -> Iterator[str]:
        body: Any = reply.body
        api_key, before = reply.api_key, None if of is None else of.view
        if api_key == LEAVE:
            yield from self._wrong_leave(call, body, before)
            return
        if api_key in (COMMIT, TXN_COMMIT):
            yield from self._wrong_commit(node, call, is_at_once, body, before, after)
            return
        error = int(body.error_code)
        if api_key == JOIN and error == INVALID_REQUEST:
            return  # A text is longer than records can hold.
        expected = self._expected(node, before, call) if is_at_once else NONE
        if expected != NONE:
            if error != expected:
                yield f"{_named(call)} got {error_name(error)}, and {error_name(expected or 0)} is due"
        elif error:
            if api_key == HEARTBEAT or not _may_fail(api_key, error, is_at_once, call, before, after):
                yield f"{_named(call)} got {error_name(error)}, for no reason"
        elif after is not None and of is not None and api_key == JOIN:
            yield from _wrong_join(call, body, after)
        elif after is not None and of is not None and api_key == SYNC:
            yield from _wrong_sync(of, call, body, after)

    @staticmethod
    def _wrong_leave(call: _Call, response: Any, before: GroupView | None) -> Iterator[str]:
        if int(response.error_code):
            yield f"{_named(call)} got {error_name(response.error_code)}, for no reason"
            return
        body: Any = call.request.body
        due = [error for error, _ in leave_errors(before, body.members)]
        given = [int(each.error_code) for each in response.members]
        if given != due:
            yield f"{_named(call)} got {[*map(error_name, given)]}, and {[*map(error_name, due)]} are due"

    def _wrong_commit(
        self,
        node: "Node",
        call: _Call,
        is_at_once: bool,
        response: Any,
        before: GroupView | None,
        after: GroupView | None,
    ) -> Iterator[str]:
        """A commit is judged when it is written, possibly some events later. So it counts what was due both when it
        came and when it got its response."""
        codes = {int(each.error_code): None for topic in response.topics for each in topic.partitions}
        due = self._expected(node, call.before, call)
        if not is_at_once and due != self._expected(node, before, call):
            return
        if due and NONE in codes:
            yield f"{_named(call)} is acknowledged, and {error_name(due)} is due"
        wrong = [each for each in codes if each in OF_MEMBERS and each != due]
        if wrong and (is_at_once or due == self._expected(node, after, call)):
            yield f"{_named(call)} got {error_name(wrong[0])}, and {error_name(due or 0)} is due"

    # --- moves --------------------------------------------------------------------------------------------------------

    def _wrong_moves(
        self,
        node: "Node",
        of: _Group,
        call: _Call | None,
        steps: Sequence[tuple[str, int]],
        replied: Sequence[tuple[_Call, Reply]],
        after: GroupView,
    ) -> Iterator[str]:
        before = of.view
        wrong = wrong_steps(before, steps, after)
        if wrong:
            yield wrong
            return
        request = None if call is None else call.request
        joining = self._joining(of, request, after)
        wrong = wrong_settings(before, after, joining)
        if wrong:
            yield wrong
        begins = any(state in (COMPLETING, EMPTY) for state, _ in steps)
        yield from _wrong_join_settings(request, joining, replied, after, begins)
        joined = [*before.joined, joining]
        if begins:
            wrong = wrong_choice(before, joined, after)
            if wrong:
                yield wrong
            yield from self._too_early(node, of, joined, after)
        stable = any(state == STABLE for state, _ in steps)
        if stable and not of.assignments:
            yield f"generation {after.generation} is Stable, and its leader has assigned nothing"
        left = self._left(request, before)
        for key in (*before.members, *before.pending):
            if key not in after.members and key not in after.pending:
                yield from self._gone(of, key, left, replied, after)
        is_same = after.generation == before.generation and after.state == before.state in (STABLE, COMPLETING)
        if is_same and len(after.members) != len(before.members) and not steps:
            yield f"it is {after.state} in generation {after.generation} with other members than before"

    @staticmethod
    def _joining(of: _Group, request: Request | None, after: GroupView) -> str:
        """Return the ID of the member whose JoinGroup has come in this event, or nothing."""
        if request is None or request.api_key != JOIN:
            return ""
        body: Any = request.body
        if body.member_id:
            return str(body.member_id)
        return next((key for key in after.members if key not in of.view.members), "")

    @staticmethod
    def _left(request: Request | None, before: GroupView) -> dict[str, None]:
        if request is None or request.api_key != LEAVE:
            return {}
        body: Any = request.body
        return dict.fromkeys(key for _, key in leave_errors(before, body.members) if key)

    def _too_early(self, node: "Node", of: _Group, joined: Sequence[str], after: GroupView) -> Iterator[str]:
        """KIP-62, KIP-134: a generation begins without members that have not joined only with the end of the rebalance
        timeout, and that of a group that was Empty after the initial delay."""
        if of.view.state != PREPARING:
            return
        waited_us = self._now_us - of.since_us
        if of.is_initial:
            least_us = node.broker.config.group_initial_rebalance_delay_ms * 1000
            if waited_us < least_us:
                yield f"its first generation begins {waited_us} us after its first member, and {least_us} us are due"
            return
        absent = [key for key in of.view.members if key not in joined and key in after.members]
        absent += [key for key in after.pending if key in of.view.pending]
        if absent and waited_us < of.timeout_us and self._now_us > of.late_until_us:
            yield (
                f"generation {after.generation} begins without {absent}, {waited_us} us after the rebalance began, "
                f"and {of.timeout_us} us are due"
            )

    def _gone(
        self,
        of: _Group,
        key: str,
        left: dict[str, None],
        replied: Sequence[tuple[_Call, Reply]],
        after: GroupView,
    ) -> Iterator[str]:
        """Judge why a member is gone, or an ID that has not joined."""
        member = of.view.members.get(key)
        if key in left or (member is not None and after.of_instance(member.instance) is not None):
            return  # It left, or its instance has another ID (KIP-345).
        errors = [_error_in(reply) for _, reply in replied if reply.api_key == JOIN]
        if GROUP_MAX_SIZE_REACHED in errors:
            return
        if of.view.state == PREPARING:
            is_absent = member is not None and not member.awaits_join and member.instance is None
            is_late = is_absent and self._now_us >= of.absent_from_us
        else:
            is_late = key in of.unsynced and self._now_us - of.began_us >= of.sync_timeout_us
        if is_late:
            return
        least_us, _ = of.sessions.get(key, (0, 0))
        is_over = self._now_us >= least_us
        if is_over and not (member is not None and member.is_excused):
            return
        why = "a request of it is parked" if is_over else f"its session ends in {least_us - self._now_us} us"
        yield f"{key} is removed from generation {of.view.generation} ({of.view.state}), and {why}"

    # --- times --------------------------------------------------------------------------------------------------------

    def _follow(
        self,
        of: _Group,
        call: _Call | None,
        steps: Sequence[tuple[str, int]],
        replied: Sequence[tuple[_Call, Reply]],
        after: GroupView,
    ) -> None:
        before, request = of.view, None if call is None else call.request
        states = [before.state, *(state for state, _ in steps)]
        if PREPARING in states[1:]:
            of.since_us, of.timeout_us, of.unsynced = self._now_us, after.rebalance_ms * 1000, {}
            of.is_initial = states[states.index(PREPARING, 1) - 1] == EMPTY
            of.absent_from_us, of.late_until_us = of.since_us + of.timeout_us, 0
        else:
            of.wait_again(self._now_us, not before.joined and not after.joined, after)
        if after.generation != before.generation:
            of.began_us, of.sync_timeout_us = self._now_us, after.rebalance_ms * 1000
            of.assignments, of.unsynced = [], dict.fromkeys(after.members)
        for key in (*after.members, *after.pending):
            if key not in before.members and (key in after.members or key not in before.pending):
                self._arrived(of, before, request, key, after)
        of.sessions = {key: each for key, each in of.sessions.items() if key in after.members or key in after.pending}
        of.unsynced = {key: None for key in of.unsynced if key in after.members}
        for key, member in after.members.items():
            known = before.members.get(key)
            is_parked = known is not None and (known.awaits_join or known.awaits_sync)
            is_free = not member.awaits_join and not member.awaits_sync
            # Kafka: all sessions begin again with a generation, and each when a parked request gets its response.
            if (is_parked and is_free) or (after.generation != before.generation and key in before.members):
                self._touch(of, key, member.session_ms)
        for each, reply in replied:
            self._replied_to(of, each, each is call, reply, after)
        if request is not None and request.api_key == COMMIT and call is not None and call.is_judged:
            body: Any = request.body
            key = str(body.member_id)
            if before.state in (STABLE, PREPARING) and key in after.members:
                due = commit_error(before, body, request.api_version, transactional=False)
                if due == NONE:
                    self._extend(of, key, after.members[key].session_ms)
        of.view = after

    def _arrived(self, of: _Group, before: GroupView, request: Request | None, key: str, after: GroupView) -> None:
        member = after.members.get(key)
        if member is None:
            body: Any = None if request is None else request.body
            if request is not None and request.api_key == JOIN:
                self._touch(of, key, _ms(body.session_timeout))
            return
        replaced = before.of_instance(member.instance)
        if replaced is None:
            of.sessions[key] = self._now_us + NEW_MEMBER_US, self._now_us + NEW_MEMBER_US
            return
        self._touch(of, key, before.members[replaced].session_ms)
        self._extend(of, key, member.session_ms)
        for each in of.assignments:
            if replaced in each:
                each[key] = each[replaced]

    def _synced(self, of: _Group, call: _Call, before: GroupView) -> None:
        if call.request.api_key != SYNC or not call.is_judged:
            return
        body: Any = call.request.body
        if sync_error(before, body, call.request.api_version) == NONE:
            of.unsynced.pop(str(body.member_id), None)
            if before.state == COMPLETING and body.member_id == before.leader:
                of.assignments.append({str(each.member_id): bytes(each.assignment) for each in body.assignments})

    def _replied_to(self, of: _Group, call: _Call, is_at_once: bool, reply: Reply, after: GroupView) -> None:
        response: Any = reply.body
        body: Any = call.request.body
        key = str(response.member_id if reply.api_key == JOIN else getattr(body, "member_id", ""))
        member = after.members.get(key)
        if member is None or reply.api_key not in (JOIN, SYNC, HEARTBEAT):
            return
        error = int(response.error_code)
        begins = reply.api_key == JOIN and error == NONE and after.generation != of.view.generation
        is_alive = reply.api_key == HEARTBEAT and error in (NONE, REBALANCE_IN_PROGRESS)
        if begins or is_alive:
            self._touch(of, key, member.session_ms)
        elif error == NONE and is_at_once:
            self._extend(of, key, member.session_ms)

    def _touch(self, of: _Group, key: str, session_ms: int) -> None:
        """The session of a member begins again."""
        end_us = self._now_us + session_ms * 1000
        of.sessions[key] = end_us, end_us

    def _extend(self, of: _Group, key: str, session_ms: int) -> None:
        """The session of a member may begin again."""
        least_us, most_us = of.sessions.get(key, (0, 0))
        end_us = self._now_us + session_ms * 1000
        of.sessions[key] = min(least_us, end_us), max(most_us, end_us)

    def _overdue(self, node: "Node", of: _Group, view: GroupView) -> Iterator[str]:
        """Yield what should have happened by now. Physical: a node that is paused acts later."""
        limit_us = self._now_us - SLACK_US
        has_joined = bool(view.members) and not view.pending and len(view.joined) == len(view.members)
        if view.state == PREPARING and not of.is_initial and has_joined:
            yield f"all of {[*view.members]} have joined, and no generation begins"
        for key, (_, most_us) in of.sessions.items():
            member = view.members.get(key)
            is_there = member is not None or key in view.pending
            is_excused = member is not None and member.is_excused
            if is_there and most_us < limit_us and not is_excused and self._is_calm(node, most_us):
                yield f"{key} is there after its session has ended at {most_us} us"
        end_us = of.since_us + of.timeout_us
        if view.state == PREPARING and (view.joined or not view.members):
            delay_us = node.broker.config.group_initial_rebalance_delay_ms * 1000
            end_us = max(end_us, of.since_us + delay_us) if of.is_initial else end_us
            if end_us < limit_us and self._is_calm(node, end_us):
                yield f"generation {view.generation + 1} has not started, and the time to join ended at {end_us} us"
        end_us = of.began_us + of.sync_timeout_us
        is_syncing = view.state in (COMPLETING, STABLE) and bool(of.unsynced)
        if is_syncing and end_us < limit_us and self._is_calm(node, end_us):
            yield f"{[*of.unsynced]} have not synced, and the time to sync ended at {end_us} us"

    def _is_calm(self, node: "Node", since_us: int) -> bool:
        return not self.context.quorum.fault_times.node_since(node.broker.node_id, since_us - SLACK_US)

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        if not thorough:
            return
        node_id, self._now_us = node.broker.node_id, node.broker.now.mono_us
        served = {
            group_id: group
            for partition in node.broker.groups.active()
            if partition.index in self._loaded.get(node_id, ())
            for group_id, group in partition.groups.items()
        }
        for group_id, of in self._groups.get(node_id, {}).items():
            group = served.get(group_id)
            if group is None:
                continue
            of.wait_again(self._now_us - 1, not of.view.joined, of.view)
            wrong = list(self._overdue(node, of, view_of(group)))
            if (group.state.value, group.generation) != (of.view.state, of.view.generation):
                wrong.append(
                    f"it is {group.state.value} in generation {group.generation}, and was {of.view.state} in "
                    f"{of.view.generation} when it moved last"
                )
            for each in wrong:
                self.violated(at_us, f"group {group_id} at node {node_id}: {each}")
        for key, (since_us, story) in list(self._orphans.items()):
            if key[0] == node_id and self._now_us - since_us > ORPHAN_US and self._is_calm(node, since_us):
                self.violated(at_us, f"node {node_id} lost a group, and left {story} without a response")
                del self._orphans[key]


def _index_of(node: "Node", group_id: str) -> int:
    """Return which partition of the offsets topic has the group, -1 while the topic is unknown."""
    topic = node.broker.quorum_node.loader.image.topics.get(OFFSETS_TOPIC)
    return -1 if topic is None else offsets_partition(group_id, len(topic.partitions))


def _error_in(reply: Reply) -> int:
    body: Any = reply.body
    return int(body.error_code)


def _ms(time: Any) -> int:
    return int(time.total_seconds() * 1000)


def _named(call: _Call) -> str:
    body: Any = call.request.body
    member_id = getattr(body, "member_id", "")
    who = f"{call.request.client_id} ({member_id})" if member_id else call.request.client_id
    return f"{NAMES[call.request.api_key]} of {who}"


def _may_fail(
    api_key: int,
    error: int,
    is_at_once: bool,
    call: _Call,
    before: GroupView | None,
    after: GroupView | None,
) -> bool:
    """Return whether a request that was accepted may fail with this error, as the group is now."""
    body: Any = call.request.body
    member_id = str(body.member_id)
    if error in NOT_WRITTEN:
        is_static = body.group_instance_id is not None
        return api_key == SYNC or is_static or (error == NOT_COORDINATOR and not is_at_once)
    if after is None or is_at_once:
        return error == REBALANCE_IN_PROGRESS and api_key == SYNC and after is not None and after.state == PREPARING
    if error == UNKNOWN_MEMBER_ID:
        return not member_id or member_id not in after.members
    if error == FENCED_INSTANCE_ID:
        known = after.of_instance(body.group_instance_id)
        return known is not None and known != member_id
    if error == REBALANCE_IN_PROGRESS:
        # Another JoinGroup or SyncGroup of the same member takes the place of this one, or a rebalance begins.
        member = after.members.get(member_id)
        is_repeated = member is not None and (member.awaits_join if api_key == JOIN else member.awaits_sync)
        is_over = before is not None and (after.state, after.generation) != (before.state, before.generation)
        return is_repeated or is_over or (before is not None and api_key == SYNC and after.state == PREPARING)
    return False


def _wrong_join(call: _Call, response: Any, after: GroupView) -> Iterator[str]:
    key, who = str(response.member_id), _named(call)
    if key not in after.members:
        yield f"{who} joined as {key}, which is no member"
        return
    given = int(response.generation_id), response.protocol_type, response.protocol_name or None
    due = after.generation, after.protocol_type, after.protocol or None
    if given != due:
        yield f"{who} got generation, type and protocol {given}, and the group has {due}"
    members = {str(each.member_id): (each.group_instance_id, bytes(each.metadata)) for each in response.members}
    leads = key == after.leader
    body: Any = call.request.body
    is_kept = not body.member_id and body.group_instance_id is not None
    if members and not leads:
        yield f"{who} got the members, and {after.leader} leads"
    elif leads and (members or not is_kept):
        all_members = {
            member_id: (each.instance, next((data for name, data in each.protocols if name == after.protocol), b""))
            for member_id, each in after.members.items()
        }
        if members != all_members:
            yield f"{who} leads and got members {members}, and the group has {all_members}"
    if str(response.leader) != after.leader and not is_kept:
        yield f"{who} got leader {response.leader}, and {after.leader} leads"


def _wrong_sync(of: _Group, call: _Call, response: Any, after: GroupView) -> Iterator[str]:
    body: Any = call.request.body
    key, given = str(body.member_id), bytes(response.assignment)
    if after.state != STABLE:
        yield f"{_named(call)} got an assignment, and the group is {after.state}"
    if not any(each.get(key, b"") == given for each in of.assignments):
        yield f"{_named(call)} got assignment {given!r}, and the leader sent {of.assignments}"
    if (response.protocol_type or None, response.protocol_name or None) != (after.protocol_type, after.protocol):
        yield f"{_named(call)} got protocol {response.protocol_name}, and the group has {after.protocol}"


def _wrong_join_settings(
    request: Request | None, joining: str, replied: Sequence[tuple[_Call, Reply]], after: GroupView, begins: bool
) -> Iterator[str]:
    """A member that joins again has the timeouts and the metadata of its last JoinGroup."""
    member = after.members.get(joining)
    if request is None or member is None:
        return
    errors = [_error_in(reply) for each, reply in replied if each.request is request]
    if any(errors):
        return
    body: Any = request.body
    protocols = tuple((str(each.name), bytes(each.metadata)) for each in body.protocols)
    session_ms = _ms(body.session_timeout)
    rebalance_ms = session_ms if request.api_version == 0 else _ms(body.rebalance_timeout)
    if not errors or member.awaits_join or begins:
        given = session_ms, rebalance_ms, protocols
        kept = member.session_ms, member.rebalance_ms, member.protocols
        if given != kept:
            yield f"{joining} joins with {given}, and the group has {kept} of it"
    elif protocols != member.protocols:
        yield f"{joining} joins with protocols {protocols}, and the group has {member.protocols}"
