"""Timeouts of classic groups: sessions of members, and the time to join and to sync.

Sources: KIP-62 (rebalance timeout), KIP-134 (initial delay), KIP-345 (static members), ClassicGroup and
GroupMetadataManager.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from chaos.checks.groups.responses import COMMIT, HEARTBEAT, JOIN, SYNC, Call, error_in, milliseconds
from chaos.checks.groups.rules import (
    COMPLETING,
    EMPTY,
    GROUP_MAX_SIZE_REACHED,
    NONE,
    PREPARING,
    REBALANCE_IN_PROGRESS,
    STABLE,
    GroupView,
    commit_error,
    sync_error,
    view_of,
)
from reference_broker.core.events import Reply, Request

if TYPE_CHECKING:
    from reference_broker.core.node import Node

NEW_MEMBER_US = 300_000_000
"""Kafka: how long the first JoinGroup of a member may be parked, which cannot send heartbeats meanwhile."""
MIN_WAIT_MS = 1_000
SLACK_US = 500_000
"""Physical: timers fire late by the time that a node is busy, and a long list is worked off in slices."""


@dataclass(slots=True)
class FollowedGroup:
    """A group at its coordinator. Times are by the node's monotonic clock."""

    view: GroupView
    since_us: int
    """when the time to join began: with the rebalance, or again when it was over and nobody had joined"""
    timeout_us: int = 0
    """longest rebalance timeout of its members then"""
    late_until_us: int = 0
    """until then the timer of an earlier time to join may fire (physical, ``SLACK_US``)"""
    absent_from_us: int = 0
    """when the first time to join is over"""
    generation_us: int = 0
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
    _reported: dict[str, None] = field(default_factory=dict)

    @classmethod
    def loaded(cls, group: Any, now_us: int) -> "FollowedGroup":
        """Follow a group that a coordinator has loaded now."""
        view = view_of(group)
        followed = cls(view, now_us, view.rebalance_ms * 1000)
        followed.assignments = [{member_id: bytes(member.assignment) for member_id, member in group.members.items()}]
        for member_id, member in view.members.items():
            followed._begin_session(now_us, member_id, member.session_ms)
        return followed

    def is_new(self, explanation: str) -> bool:
        """Return whether the explanation was not reported of the group before, and remember it."""
        is_new = explanation not in self._reported
        self._reported[explanation] = None
        return is_new

    def possibly_expired(self, now_us: int) -> list[str]:
        """Return the IDs that have not joined and may have expired in silence."""
        return [member_id for member_id in self.view.pending if self.sessions[member_id][0] <= now_us]

    def wait_again(self, until_us: int, nobody_joined: bool, view: GroupView) -> None:
        """Begin the time to join again if it was over by then. Kafka: only static members are there, and all of them
        may be gone."""
        while (
            view.state == PREPARING and nobody_joined and view.members and self.since_us + self.timeout_us <= until_us
        ):
            self.since_us += self.timeout_us
            self.late_until_us = self.since_us + SLACK_US
            self.timeout_us = max(view.rebalance_ms, MIN_WAIT_MS) * 1000

    def synced(self, call: Call) -> None:
        """Record the SyncGroup of a member, and the assignments that it has if the leader sent it."""
        if call.request.api_key != SYNC or not call.is_judged:
            return
        body: Any = call.request.body
        if sync_error(self.view, body, call.request.api_version) == NONE:
            self.unsynced.pop(str(body.member_id), None)
            if self.view.state == COMPLETING and body.member_id == self.view.leader:
                self.assignments.append(
                    {str(assignment.member_id): bytes(assignment.assignment) for assignment in body.assignments}
                )

    def follow(
        self,
        now_us: int,
        call: Call | None,
        steps: Sequence[tuple[str, int]],
        replied: Sequence[tuple[Call, Reply]],
        after: GroupView,
    ) -> None:
        """Move the times by an event: its request, the states and generations that the group went through, and the
        responses. ``after`` is the group after the event."""
        before, request = self.view, None if call is None else call.request
        states = [before.state, *(state for state, _ in steps)]
        if PREPARING in states[1:]:
            self.since_us, self.timeout_us, self.unsynced = now_us, after.rebalance_ms * 1000, {}
            self.is_initial = states[states.index(PREPARING, 1) - 1] == EMPTY
            self.absent_from_us, self.late_until_us = self.since_us + self.timeout_us, 0
        else:
            self.wait_again(now_us, not before.joined and not after.joined, after)
        if after.generation != before.generation:
            self.generation_us, self.sync_timeout_us = now_us, after.rebalance_ms * 1000
            self.assignments, self.unsynced = [], dict.fromkeys(after.members)
        for member_id in (*after.members, *after.pending):
            was_known = member_id in before.members or (member_id in before.pending and member_id not in after.members)
            if not was_known:
                self._arrived(now_us, request, member_id, after)
        self.sessions = {
            member_id: session
            for member_id, session in self.sessions.items()
            if member_id in after.members or member_id in after.pending
        }
        self.unsynced = {member_id: None for member_id in self.unsynced if member_id in after.members}
        for member_id, member in after.members.items():
            known = before.members.get(member_id)
            was_parked = known is not None and (known.awaits_join or known.awaits_sync)
            is_free = not member.awaits_join and not member.awaits_sync
            # Kafka: all sessions begin again with a generation, and each when a parked request gets its response.
            if (was_parked and is_free) or (after.generation != before.generation and member_id in before.members):
                self._begin_session(now_us, member_id, member.session_ms)
        for other, reply in replied:
            self._replied(now_us, other, other is call, reply, after)
        if request is not None and request.api_key == COMMIT and call is not None and call.is_judged:
            body: Any = request.body
            member_id = str(body.member_id)
            if before.state in (STABLE, PREPARING) and member_id in after.members:
                error = commit_error(before, body, request.api_version, transactional=False)
                if error == NONE:
                    self._may_begin_session(now_us, member_id, after.members[member_id].session_ms)
        self.view = after

    def _arrived(self, now_us: int, request: Request | None, member_id: str, after: GroupView) -> None:
        """Begin the session of a member that has joined, or of an ID that was assigned."""
        before, member = self.view, after.members.get(member_id)
        if member is None:
            body: Any = None if request is None else request.body
            if request is not None and request.api_key == JOIN:
                self._begin_session(now_us, member_id, milliseconds(body.session_timeout))
            return
        replaced = before.of_instance(member.instance)
        if replaced is None:
            self.sessions[member_id] = now_us + NEW_MEMBER_US, now_us + NEW_MEMBER_US
            return
        self._begin_session(now_us, member_id, before.members[replaced].session_ms)
        self._may_begin_session(now_us, member_id, member.session_ms)
        for by_member in self.assignments:
            if replaced in by_member:
                by_member[member_id] = by_member[replaced]

    def _replied(self, now_us: int, call: Call, is_at_once: bool, reply: Reply, after: GroupView) -> None:
        response: Any = reply.body
        body: Any = call.request.body
        member_id = str(response.member_id if reply.api_key == JOIN else getattr(body, "member_id", ""))
        member = after.members.get(member_id)
        if member is None or reply.api_key not in (JOIN, SYNC, HEARTBEAT):
            return
        error = int(response.error_code)
        begins = reply.api_key == JOIN and error == NONE and after.generation != self.view.generation
        is_alive = reply.api_key == HEARTBEAT and error in (NONE, REBALANCE_IN_PROGRESS)
        if begins or is_alive:
            self._begin_session(now_us, member_id, member.session_ms)
        elif error == NONE and is_at_once:
            self._may_begin_session(now_us, member_id, member.session_ms)

    def _begin_session(self, now_us: int, member_id: str, session_ms: int) -> None:
        """The session of a member begins again."""
        end_us = now_us + session_ms * 1000
        self.sessions[member_id] = end_us, end_us

    def _may_begin_session(self, now_us: int, member_id: str, session_ms: int) -> None:
        """The session of a member may begin again."""
        earliest_us, latest_us = self.sessions.get(member_id, (0, 0))
        end_us = now_us + session_ms * 1000
        self.sessions[member_id] = min(earliest_us, end_us), max(latest_us, end_us)

    # --- violations ---------------------------------------------------------------------------------------------------

    def early_generation(self, now_us: int, node: "Node", joined: Sequence[str], after: GroupView) -> Iterator[str]:
        """KIP-62, KIP-134: a generation begins without members that have not joined only with the end of the rebalance
        timeout, and that of a group that was Empty after the initial delay."""
        if self.view.state != PREPARING:
            return
        waited_us = now_us - self.since_us
        if self.is_initial:
            delay_us = node.broker.config.group_initial_rebalance_delay_ms * 1000
            if waited_us < delay_us:
                yield f"its first generation begins {waited_us} us after its first member, and {delay_us} us are due"
            return
        absent = [
            member_id for member_id in self.view.members if member_id not in joined and member_id in after.members
        ]
        absent += [member_id for member_id in after.pending if member_id in self.view.pending]
        if absent and waited_us < self.timeout_us and now_us > self.late_until_us:
            yield (
                f"generation {after.generation} begins without {absent}, {waited_us} us after the rebalance began, "
                f"and {self.timeout_us} us are due"
            )

    def early_removal(
        self,
        now_us: int,
        member_id: str,
        left: Mapping[str, None],
        replied: Sequence[tuple[Call, Reply]],
        after: GroupView,
    ) -> Iterator[str]:
        """Judge why a member is gone, or an ID that has not joined. ``left`` are the members that left."""
        member = self.view.members.get(member_id)
        if member_id in left or (member is not None and after.of_instance(member.instance) is not None):
            return  # It left, or its instance has another ID (KIP-345).
        if GROUP_MAX_SIZE_REACHED in [error_in(reply) for _, reply in replied if reply.api_key == JOIN]:
            return
        if self.view.state == PREPARING:
            is_absent = member is not None and not member.awaits_join and member.instance is None
            is_late = is_absent and now_us >= self.absent_from_us
        else:
            is_late = member_id in self.unsynced and now_us - self.generation_us >= self.sync_timeout_us
        if is_late:
            return
        earliest_us, _ = self.sessions.get(member_id, (0, 0))
        may_have_expired = now_us >= earliest_us
        if may_have_expired and not (member is not None and member.is_excused):
            return
        why = "a request of it is parked" if may_have_expired else f"its session ends in {earliest_us - now_us} us"
        yield f"{member_id} is removed from generation {self.view.generation} ({self.view.state}), and {why}"

    def overdue(
        self, now_us: int, node: "Node", view: GroupView, is_calm: Callable[["Node", int], bool]
    ) -> Iterator[str]:
        """Yield what should have happened by now. Physical: a node that is paused acts later, so ``is_calm`` says
        whether the node had no fault since a time."""
        limit_us = now_us - SLACK_US
        all_joined = bool(view.members) and not view.pending and len(view.joined) == len(view.members)
        if view.state == PREPARING and not self.is_initial and all_joined:
            yield f"all of {[*view.members]} have joined, and no generation begins"
        for member_id, (_, latest_us) in self.sessions.items():
            member = view.members.get(member_id)
            is_there = member is not None or member_id in view.pending
            is_excused = member is not None and member.is_excused
            if is_there and latest_us < limit_us and not is_excused and is_calm(node, latest_us):
                yield f"{member_id} is there after its session has ended at {latest_us} us"
        end_us = self.since_us + self.timeout_us
        if view.state == PREPARING and (view.joined or not view.members):
            delay_us = node.broker.config.group_initial_rebalance_delay_ms * 1000
            end_us = max(end_us, self.since_us + delay_us) if self.is_initial else end_us
            if end_us < limit_us and is_calm(node, end_us):
                yield f"generation {view.generation + 1} has not started, and the time to join ended at {end_us} us"
        end_us = self.generation_us + self.sync_timeout_us
        is_syncing = view.state in (COMPLETING, STABLE) and bool(self.unsynced)
        if is_syncing and end_us < limit_us and is_calm(node, end_us):
            yield f"{[*self.unsynced]} have not synced, and the time to sync ended at {end_us} us"
