"""From one generation of a group to the next: who is waited for, how long, and what ends the wait."""

from collections.abc import Callable, Iterator
from itertools import islice

from reference_broker.groups.membership.counts import MembershipCounts
from reference_broker.groups.membership.group import Group
from reference_broker.groups.membership.group_run import GroupRun
from reference_broker.groups.membership.member import Member
from reference_broker.groups.membership.membership_values import JoinAnswer, JoinedMember, SyncAnswer
from reference_broker.groups.membership.sessions import Sessions
from reference_broker.groups.membership.transitions import GroupState
from reference_broker.ports.node_ports import Ports
from reference_broker.wire.errors import Error

MEMBERS_A_SLICE = 256
"""Members that are told of their generation in one event."""
LEAST_WAIT_MS = 1000
"""Between two looks whether a static member has joined, whatever rebalance timeout its members ask for."""


class Rebalances:
    """Every transition of a group goes through here, but those that end it."""

    __slots__ = ("_counts", "_initial_delay_ms", "_ports", "_sessions")

    def __init__(self, ports: Ports, sessions: Sessions, initial_delay_ms: int, counts: MembershipCounts) -> None:
        self._ports = ports
        self._sessions = sessions
        self._initial_delay_ms = initial_delay_ms
        self._counts = counts

    # --- a rebalance begins -----------------------------------------------------------------------------------------

    def prepare_or_complete(self, run: GroupRun, reason: str) -> None:
        """Something changed: a rebalance begins, or the one that is on its way may be complete."""
        if run.group.can_rebalance:
            self.prepare(run, reason)
        else:
            self.complete_if_joined(run)

    def prepare(self, run: GroupRun, reason: str) -> None:
        """Asks every member to join again. A group that was empty waits for more of them first."""
        group = run.group
        initial = group.state is GroupState.EMPTY
        if group.state is GroupState.COMPLETING_REBALANCE:
            self.fail_syncs(run, Error.REBALANCE_IN_PROGRESS)
        self._refuse_syncs(run, Error.REBALANCE_IN_PROGRESS)
        self._cancel_sync_timer(run)
        self.enter(run, group.begin_rebalance, ("reason", reason))
        if initial:
            remaining_ms = max(group.rebalance_timeout_ms - self._initial_delay_ms, 0)
            self._delay(run, self._initial_delay_ms, remaining_ms)
        elif group.all_joined:
            self.complete(run)
        else:
            self._set_join_timer(run, group.rebalance_timeout_ms, lambda: self.complete(run))

    def complete_if_joined(self, run: GroupRun) -> None:
        """The initial delay of a new group is waited out in any case: more members may come."""
        group = run.group
        initial = group.previous_state is GroupState.EMPTY
        if group.state is GroupState.PREPARING_REBALANCE and not initial and group.all_joined:
            self.complete(run)

    def _delay(self, run: GroupRun, delay_ms: int, remaining_ms: int) -> None:
        self._set_join_timer(run, delay_ms, lambda: self._delay_over(run, delay_ms, remaining_ms))

    def _delay_over(self, run: GroupRun, delay_ms: int, remaining_ms: int) -> None:
        """Where members came meanwhile, others may follow: once more, as long as the rebalance timeout lasts."""
        if not run.group.new_member_added or not remaining_ms:
            self.complete(run)
            return
        run.group.new_member_added = False
        self._delay(run, min(self._initial_delay_ms, remaining_ms), max(remaining_ms - delay_ms, 0))

    # --- a generation begins ----------------------------------------------------------------------------------------

    def complete(self, run: GroupRun) -> None:
        """The next generation, without dynamic members that have not joined. If nobody has (static members only), the
        wait begins anew, until their sessions end."""
        group = run.group
        self._cancel_join_timer(run)
        self._remove_absent(run)
        if group.members and not group.elect_joined_leader():
            wait_ms = max(group.rebalance_timeout_ms, LEAST_WAIT_MS)
            self._set_join_timer(run, wait_ms, lambda: self.complete(run))
            return
        self.enter(run, group.begin_generation)
        if group.state is GroupState.EMPTY:
            run.owner.coordinated.write_group(group, _ignored)
            return
        group.pending_syncs.update(dict.fromkeys(group.members))
        self._set_sync_timer(run)
        self._tell_generation(run, group.generation, iter(tuple(group.members.values())))

    def _remove_absent(self, run: GroupRun) -> None:
        group = run.group
        if group.joined == len(group.members):
            return
        for member in tuple(group.members.values()):
            if not member.awaits_join and member.group_instance_id is None:
                self.remove(run, member.member_id, "expired")

    def _tell_generation(self, run: GroupRun, generation: int, members: Iterator[Member]) -> None:
        """In slices. Whoever has not been told when the next rebalance begins has joined that one already."""
        group = run.group
        if group.generation != generation or group.state is GroupState.PREPARING_REBALANCE:
            return
        batch = tuple(islice(members, MEMBERS_A_SLICE))
        for member in batch:
            if group.members.get(member.member_id) is member:
                member.is_new = False
                run.answer_join(member.member_id, generation_answer(group, member.member_id))
                self._sessions.expect(run, member.member_id, member.session_timeout_ms)
        if len(batch) == MEMBERS_A_SLICE:
            self._set_timer(run, 0, lambda: self._tell_generation(run, generation, members))

    def _sync_over(self, run: GroupRun) -> None:
        """Members that never asked for their assignment are given up."""
        run.sync_timer = None
        late = tuple(run.group.pending_syncs)
        for member_id in late:
            self.remove(run, member_id, "expired")
        if late:
            self.prepare(run, f"{len(late)} members did not sync in time")

    # --- a generation is assigned -----------------------------------------------------------------------------------

    def synced(self, run: GroupRun, member_id: str) -> None:
        """Its SyncGroup of this generation has come."""
        run.group.pending_syncs.pop(member_id, None)
        if not run.group.pending_syncs:
            self._cancel_sync_timer(run)

    def stabilise(self, run: GroupRun) -> None:
        """The assignment is written: everybody who waits is told."""
        group = run.group
        self.enter(run, group.stabilise)
        self._counts.completed_rebalances += 1
        self._tell_assignments(run, group.generation, iter(tuple(run.syncs)))

    def _tell_assignments(self, run: GroupRun, generation: int, member_ids: Iterator[str]) -> None:
        """In slices. Whoever has not been told when the next rebalance begins is told that instead."""
        group = run.group
        if group.generation != generation or group.state is not GroupState.STABLE:
            return
        batch = tuple(islice(member_ids, MEMBERS_A_SLICE))
        for member_id in batch:
            if member_id in run.syncs:
                self._tell_sync(run, member_id, assignment_answer(group, group.members[member_id]))
        if len(batch) == MEMBERS_A_SLICE:
            self._set_timer(run, 0, lambda: self._tell_assignments(run, generation, member_ids))

    def fail_syncs(self, run: GroupRun, error: Error) -> None:
        """There is no assignment of this generation."""
        for member in run.group.members.values():
            member.assignment = b""
        self._refuse_syncs(run, error)

    def _refuse_syncs(self, run: GroupRun, error: Error) -> None:
        for member_id in tuple(run.syncs):
            self._tell_sync(run, member_id, SyncAnswer(error))

    def _tell_sync(self, run: GroupRun, member_id: str, answer: SyncAnswer) -> None:
        """Its session begins anew: it could not send heartbeats meanwhile."""
        run.answer_sync(member_id, answer)
        self._sessions.expect(run, member_id, run.group.members[member_id].session_timeout_ms)

    # --- members go -------------------------------------------------------------------------------------------------

    def remove(self, run: GroupRun, member_id: str, what: str) -> None:
        """Takes a member out, or the ID of one that never joined; what it waits for is answered UNKNOWN_MEMBER_ID, so
        that it joins anew if it is still there. ``what``: removed (it left) or expired."""
        run.answer_join(member_id, JoinAnswer(Error.UNKNOWN_MEMBER_ID))
        run.answer_sync(member_id, SyncAnswer(Error.UNKNOWN_MEMBER_ID))
        self._sessions.forget(run, member_id)
        if run.group.remove(member_id) is not None:
            self.note_member(run.group, member_id, what)

    def note_member(self, group: Group, member_id: str, what: str) -> None:
        self._ports.note(
            "group_member",
            ("group", group.group_id),
            ("member_id", member_id),
            ("what", what),
            ("generation", group.generation),
        )

    # --- transitions and timers -------------------------------------------------------------------------------------

    def enter(self, run: GroupRun, step: Callable[[int], None], *more: tuple[str, str]) -> None:
        """One transition: counted and noted."""
        group = run.group
        self._counts.by_state[group.state] -= 1
        step(self._ports.now().wall_ms)
        self._counts.by_state[group.state] += 1
        self._ports.note(
            "group_state",
            ("group", group.group_id),
            ("state", group.state.value),
            ("generation", group.generation),
            ("leader", group.leader or ""),
            ("members", len(group.members)),
            *more,
        )

    def halt(self, run: GroupRun) -> None:
        """No timer of this group fires any more."""
        self._cancel_join_timer(run)
        self._cancel_sync_timer(run)
        self._sessions.forget_all(run)

    def _set_join_timer(self, run: GroupRun, delay_ms: int, fire: Callable[[], None]) -> None:
        self._cancel_join_timer(run)
        run.join_timer = self._set_timer(run, delay_ms, fire)

    def _cancel_join_timer(self, run: GroupRun) -> None:
        if run.join_timer is not None:
            self._ports.cancel_timer(run.join_timer)
            run.join_timer = None

    def _set_sync_timer(self, run: GroupRun) -> None:
        run.sync_timer = self._set_timer(run, run.group.rebalance_timeout_ms, lambda: self._sync_over(run))

    def _set_timer(self, run: GroupRun, delay_ms: int, fire: Callable[[], None]) -> int:
        def fired() -> None:
            if run.owner.alive:
                fire()

        return self._ports.set_timer(self._ports.now().mono_us + delay_ms * 1000, fired)

    def _cancel_sync_timer(self, run: GroupRun) -> None:
        if run.sync_timer is not None:
            self._ports.cancel_timer(run.sync_timer)
            run.sync_timer = None


def generation_answer(group: Group, member_id: str) -> JoinAnswer:
    """What JoinGroup says of the generation that has begun; who is in it, to the leader only."""
    return JoinAnswer(
        Error.NONE,
        member_id,
        group.generation,
        group.protocol_type,
        group.protocol,
        group.leader or "",
        members=members_told(group) if member_id == group.leader else (),
    )


def members_told(group: Group) -> tuple[JoinedMember, ...]:
    """All members, as the leader needs them to assign."""
    return tuple(
        JoinedMember(each.member_id, each.group_instance_id, each.metadata(group.protocol))
        for each in group.members.values()
    )


def assignment_answer(group: Group, member: Member) -> SyncAnswer:
    return SyncAnswer(Error.NONE, group.protocol_type, group.protocol, member.assignment)


def _ignored(error: Error) -> None:
    """An empty generation that is not written is no loss: after a failover the one before has members that are not
    there, whose sessions end."""
