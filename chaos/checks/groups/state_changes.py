"""State changes of classic groups, by ``rules``.

``responses`` judges the responses to members, and ``timeouts`` follows sessions and timeouts.
"""

from collections.abc import Container, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from chaos.checks.check import Check, CheckContext, Inspection
from chaos.checks.groups.responses import (
    COMMIT,
    DELETE,
    HEARTBEAT,
    JOIN,
    LEAVE,
    NAMES,
    SYNC,
    TXN_COMMIT,
    Call,
    error_in,
    milliseconds,
    wrong_responses,
)
from chaos.checks.groups.rules import (
    COMPLETING,
    EMPTY,
    STABLE,
    GroupView,
    leave_errors,
    view_of,
    wrong_choice,
    wrong_settings,
    wrong_steps,
)
from chaos.checks.groups.timeouts import SLACK_US, FollowedGroup
from chaos.checks.history import OFFSETS_TOPIC
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.replication.replica_view import offsets_partition
from reference_broker.core.events import Close, Closed, Effect, Event, Note, Reply, Request

if TYPE_CHECKING:
    from reference_broker.core.node import Node

STATE, MEMBER, LOADED, UNLOADED = "group_state", "group_member", "coordinator_loaded", "coordinator_unloaded"
MAX_ORPHAN_US = 2_000_000
"""Physical: within this time a coordinator that lost a group has failed all its parked requests, in slices."""


class GroupMoves(Check):
    """groups-consistent: each move of a group follows Kafka's rules of classic groups (``rules``).

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
    inspection = Inspection.ONLY_THOROUGH
    acts_on = (
        *(COMMIT, JOIN, HEARTBEAT, LEAVE, SYNC, TXN_COMMIT, DELETE, STATE, MEMBER, LOADED, UNLOADED, Closed),
        type(None),
    )

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._groups: dict[int, dict[str, FollowedGroup]] = {}
        """by node: the groups of the partitions that it has loaded"""
        self._loaded: dict[int, dict[int, None]] = {}
        """by node: the indexes of these partitions"""
        self._pending = PendingRequests[Call]()
        self._orphans: dict[tuple[int, int, int], tuple[int, str]] = {}
        """requests whose node has unloaded their group: the time and the description, by node, connection and number"""
        self._now_us = 0

    # --- one event ----------------------------------------------------------------------------------------------------

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        self._now_us = node.broker.now.mono_us
        if event is None:
            self._groups.pop(node_id, None)
            self._loaded.pop(node_id, None)
            self._pending.restarted(node_id)
            self._orphans = {key: orphan for key, orphan in self._orphans.items() if key[0] != node_id}
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
            closed = (node_id, event.connection)
            self._orphans = {key: orphan for key, orphan in self._orphans.items() if key[:2] != closed}
        call = self._received(node, event) if type(event) is Request and event.api_key in NAMES else None
        steps: dict[str, list[tuple[str, int]]] = {}
        moved: list[Note] = []
        replied: list[tuple[Call, Reply]] = []
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
                pending = self._pending.pop(node_id, effect)
                if pending is not None:
                    replied.append((pending, effect))
            elif type(effect) is Close:
                # Physical: a request whose connection is closed gets no response. A node that shuts down closes those
                # of clients; ``delays`` judges which connections may be closed.
                self._pending.closed(node_id, effect.connection)
                if call is not None and call.request.connection == effect.connection:
                    call = None
        reloaded = self._reload(node, moved) if moved else ()
        group_ids = dict.fromkeys(steps)
        group_ids.update(dict.fromkeys(pending.group_id for pending, _ in replied))
        if call is not None:
            group_ids[call.group_id] = None
        for group_id in group_ids:
            if self._coordinates(node, group_id, reloaded):
                own_call = call if call is not None and call.group_id == group_id else None
                own_replied = [pair for pair in replied if pair[0].group_id == group_id]
                self._judge(at_us, node, group_id, own_call, steps.get(group_id, ()), own_replied)

    def _received(self, node: "Node", request: Request) -> Call | None:
        body: Any = request.body
        group_id = str(body.group_id)
        if not group_id:
            return None
        group = self._groups.get(node.broker.node_id, {}).get(group_id)
        # An ID that has not joined expires in silence, so it is not known whether it is there.
        doubtful = [] if group is None else group.possibly_expired(self._now_us)
        named = (body, *getattr(body, "members", ()))
        is_judged = self._coordinates(node, group_id)
        is_judged &= not any(str(getattr(member, "member_id", "")) in doubtful for member in named)
        call = Call(request, group_id, self._now_us, None if group is None else group.view, is_judged)
        self._pending.add(node.broker.node_id, request, call)
        return call

    def _coordinates(self, node: "Node", group_id: str, except_indexes: Container[int] = ()) -> bool:
        index = _index_of(node, group_id)
        return index in self._loaded.get(node.broker.node_id, ()) and index not in except_indexes

    def _reload(self, node: "Node", moved: Sequence[Note]) -> dict[int, None]:
        """Begin again with what the node has of these partitions now. Return their indexes."""
        node_id, indexes = node.broker.node_id, dict[int, None]()
        groups, loaded = self._groups.setdefault(node_id, {}), self._loaded.setdefault(node_id, {})
        for note in moved:
            index = int(dict(note.fields)["partition"])
            indexes[index] = None
            if note.what == LOADED:
                loaded[index] = None
            else:
                loaded.pop(index, None)
        for group_id in [group_id for group_id in groups if _index_of(node, group_id) in indexes]:
            del groups[group_id]
        for partition in node.broker.groups.active():
            if partition.index in indexes:
                for group_id, group in partition.groups.items():
                    groups[group_id] = FollowedGroup.loaded(group, self._now_us)
        for call_node_id, call in self._pending.all():
            request, index = call.request, _index_of(node, call.group_id)
            if call_node_id == node_id and index in indexes and index not in loaded and request.api_key in (JOIN, SYNC):
                description = f"{NAMES[request.api_key]} of {request.client_id} to group {call.group_id}"
                self._orphans[node_id, request.connection, request.correlation_id] = self._now_us, description
        return indexes

    def _judge(
        self,
        at_us: int,
        node: "Node",
        group_id: str,
        call: Call | None,
        steps: Sequence[tuple[str, int]],
        replied: Sequence[tuple[Call, Reply]],
    ) -> None:
        """Judge what an event of the node did to one group: its request, the states and generations that the group went
        through, and the responses."""
        node_id = node.broker.node_id
        groups = self._groups.setdefault(node_id, {})
        held = next((each.groups[group_id] for each in node.broker.groups.active() if group_id in each.groups), None)
        group = groups.get(group_id)
        before = GroupView() if group is None else group.view
        after = None if held is None else view_of(held)
        self.evidence += 1
        if group is not None and call is not None:
            # Parked members may get their assignments in the event in which the leader sends them, before the leader.
            group.synced(call)
        if group is None and after is not None:
            # A commit of a transaction may have made the group, when its coordinator had verified it.
            group = groups[group_id] = FollowedGroup(before, self._now_us)
        known_before, assignments = (None, []) if group is None else (before, group.assignments)
        parked = [other for other in self._pending.of_node(node_id) if other.group_id == group_id]
        wrong = list(wrong_responses(node, known_before, assignments, call, replied, parked, after))
        if after is None:
            if group is not None and before.state != EMPTY:
                wrong.append(f"it is gone, and was {before.state}")
            groups.pop(group_id, None)
        elif group is not None:
            group.wait_again(self._now_us - 1, not before.joined, before)
            wrong += self._wrong_moves(node, group, call, steps, replied, after)
            group.follow(self._now_us, call, steps, replied, after)
            wrong += group.overdue(self._now_us, node, after, self._is_calm)
        for explanation in wrong:
            if group is None or group.is_new(explanation):
                self.violated(at_us, f"group {group_id} at node {node_id}: {explanation}")

    def _wrong_moves(
        self,
        node: "Node",
        group: FollowedGroup,
        call: Call | None,
        steps: Sequence[tuple[str, int]],
        replied: Sequence[tuple[Call, Reply]],
        after: GroupView,
    ) -> Iterator[str]:
        before = group.view
        wrong = wrong_steps(before, steps, after)
        if wrong:
            yield wrong
            return
        request = None if call is None else call.request
        joining = _joining_member(before, request, after)
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
            yield from group.early_generation(self._now_us, node, joined, after)
        if any(state == STABLE for state, _ in steps) and not group.assignments:
            yield f"generation {after.generation} is Stable, and its leader has assigned nothing"
        left = _leaving_members(request, before)
        for member_id in (*before.members, *before.pending):
            if member_id not in after.members and member_id not in after.pending:
                yield from group.early_removal(self._now_us, member_id, left, replied, after)
        is_same = after.generation == before.generation and after.state == before.state in (STABLE, COMPLETING)
        if is_same and len(after.members) != len(before.members) and not steps:
            yield f"it is {after.state} in generation {after.generation} with other members than before"

    # --- all groups ---------------------------------------------------------------------------------------------------

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:  # noqa: ARG002
        node_id, self._now_us = node.broker.node_id, node.broker.now.mono_us
        held = {
            group_id: group
            for partition in node.broker.groups.active()
            if partition.index in self._loaded.get(node_id, ())
            for group_id, group in partition.groups.items()
        }
        for group_id, group in self._groups.get(node_id, {}).items():
            current = held.get(group_id)
            if current is None:
                continue
            group.wait_again(self._now_us - 1, not group.view.joined, group.view)
            wrong = list(group.overdue(self._now_us, node, view_of(current), self._is_calm))
            if (current.state.value, current.generation) != (group.view.state, group.view.generation):
                wrong.append(
                    f"it is {current.state.value} in generation {current.generation}, and was {group.view.state} in "
                    f"{group.view.generation} when it moved last"
                )
            for explanation in wrong:
                self.violated(at_us, f"group {group_id} at node {node_id}: {explanation}")
        for key, (since_us, description) in list(self._orphans.items()):
            if key[0] == node_id and self._now_us - since_us > MAX_ORPHAN_US and self._is_calm(node, since_us):
                self.violated(at_us, f"node {node_id} lost a group, and left {description} without a response")
                del self._orphans[key]

    def _is_calm(self, node: "Node", since_us: int) -> bool:
        return not self.context.quorum.fault_times.node_since(node.broker.node_id, since_us - SLACK_US)


def _index_of(node: "Node", group_id: str) -> int:
    """Return which partition of the offsets topic has the group, -1 while the topic is unknown."""
    topic = node.broker.quorum_node.loader.image.topics.get(OFFSETS_TOPIC)
    return -1 if topic is None else offsets_partition(group_id, len(topic.partitions))


def _joining_member(before: GroupView, request: Request | None, after: GroupView) -> str:
    """Return the ID of the member whose JoinGroup has come in this event, or nothing."""
    if request is None or request.api_key != JOIN:
        return ""
    body: Any = request.body
    if body.member_id:
        return str(body.member_id)
    return next((member_id for member_id in after.members if member_id not in before.members), "")


def _leaving_members(request: Request | None, before: GroupView) -> dict[str, None]:
    if request is None or request.api_key != LEAVE:
        return {}
    body: Any = request.body
    return dict.fromkeys(member_id for _, member_id in leave_errors(before, body.members) if member_id)


def _wrong_join_settings(
    request: Request | None, joining: str, replied: Sequence[tuple[Call, Reply]], after: GroupView, begins: bool
) -> Iterator[str]:
    """A member that joins again has the timeouts and the metadata of its last JoinGroup."""
    member = after.members.get(joining)
    if request is None or member is None:
        return
    errors = [error_in(reply) for call, reply in replied if call.request is request]
    if any(errors):
        return
    body: Any = request.body
    protocols = tuple((str(protocol.name), bytes(protocol.metadata)) for protocol in body.protocols)
    session_ms = milliseconds(body.session_timeout)
    rebalance_ms = session_ms if request.api_version == 0 else milliseconds(body.rebalance_timeout)
    if not errors or member.awaits_join or begins:
        sent = session_ms, rebalance_ms, protocols
        kept = member.session_ms, member.rebalance_ms, member.protocols
        if sent != kept:
            yield f"{joining} joins with {sent}, and the group has {kept} of it"
    elif protocols != member.protocols:
        yield f"{joining} joins with protocols {protocols}, and the group has {member.protocols}"
