"""What a group has while it is coordinated here: requests that wait, timers, sessions."""

from dataclasses import dataclass, field

from reference_broker.groups.membership.group import Group
from reference_broker.groups.membership.group_store import Coordinated
from reference_broker.groups.membership.membership_values import JoinAnswer, Joined, SyncAnswer, Synced
from reference_broker.wire.errors import Error


@dataclass(slots=True, eq=False)
class Session:
    """How long a member may be silent. Hearing of it moves the deadline; the timer fires earlier and finds that out.

    ``deadline_us``, ``fires_us``: monotonic.
    """

    deadline_us: int
    fires_us: int
    timer: int


@dataclass(slots=True, eq=False)
class Owner:
    """A partition of the offsets topic for as long as it is coordinated here in one stretch."""

    coordinated: Coordinated
    runs: dict[str, "GroupRun"] = field(default_factory=dict)
    alive: bool = True
    """False once it is unloaded: timers and writes that come back later find nothing to do."""


@dataclass(slots=True, eq=False)
class GroupRun:
    """``joins`` and ``syncs``: how the requests that wait are answered, by member ID."""

    owner: Owner
    group: Group
    joins: dict[str, Joined] = field(default_factory=dict)
    syncs: dict[str, Synced] = field(default_factory=dict)
    sessions: dict[str, Session] = field(default_factory=dict)
    join_timer: int | None = None
    sync_timer: int | None = None
    writes: int = 0
    """Generation whose assignment is being written; 0: none."""

    def park_join(self, member_id: str, answer: Joined) -> None:
        """A JoinGroup waits. An earlier one of the same member, whose connection may be lost, waits no more."""
        self._answer_join(member_id, JoinAnswer(Error.REBALANCE_IN_PROGRESS, member_id))
        self.group.await_join(self.group.members[member_id], True)
        self.joins[member_id] = answer

    def answer_join(self, member_id: str, answer: JoinAnswer) -> None:
        """Answers the member's JoinGroup if one waits."""
        if self._answer_join(member_id, answer):
            self.group.await_join(self.group.members[member_id], False)

    def park_sync(self, member_id: str, answer: Synced) -> None:
        """A SyncGroup waits, instead of an earlier one of the same member."""
        self.answer_sync(member_id, SyncAnswer(Error.REBALANCE_IN_PROGRESS))
        self.group.members[member_id].awaits_sync = True
        self.syncs[member_id] = answer

    def answer_sync(self, member_id: str, answer: SyncAnswer) -> bool:
        """Whether a SyncGroup of the member waited."""
        waiting = self.syncs.pop(member_id, None)
        if waiting is None:
            return False
        self.group.members[member_id].awaits_sync = False
        waiting(answer)
        return True

    def fail_all(self, error: Error) -> None:
        """Nobody waits for this group any more."""
        for member_id in list(self.joins):
            self.answer_join(member_id, JoinAnswer(error, member_id))
        for member_id in list(self.syncs):
            self.answer_sync(member_id, SyncAnswer(error))

    def _answer_join(self, member_id: str, answer: JoinAnswer) -> bool:
        waiting = self.joins.pop(member_id, None)
        if waiting is None:
            return False
        waiting(answer)
        return True
