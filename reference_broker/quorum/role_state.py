"""What the roles have in common: timers and questions that end with the role in which they were begun."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from reference_broker.ports.channels import Channel
from reference_broker.quorum.messages import Answer
from reference_broker.quorum.values import Role

if TYPE_CHECKING:
    from reference_broker.quorum.quorum import Quorum


class RoleState:
    """One stay in one role of one epoch. Made when the role is decided, ``start``ed when that is durable, ``stop``ped
    when another role is decided, ``depart``ed when the other one is durable."""

    __slots__ = ("_timers", "live", "quorum")

    role: ClassVar[Role] = Role.UNATTACHED

    def __init__(self, quorum: "Quorum") -> None:
        self.quorum = quorum
        self.live = True
        self._timers: dict[int, int] = {}

    def start(self) -> None:
        """The role is durable: acts."""

    def stop(self) -> None:
        """Nothing that was begun in this role has an effect any more."""
        self.live = False
        for timer in self._timers.values():
            self.quorum.ports.cancel_timer(timer)
        self._timers.clear()

    def depart(self) -> None:
        """Answers whom this role kept waiting; the epoch that follows is durable."""

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        """Whether ``candidate_id`` gets this node's vote in the epoch of this role. ``up_to_date``: its log ends at or
        beyond this node's."""
        raise AssertionError(f"{self.role} neither votes nor refuses ({candidate_id}, {up_to_date}, {pre_vote})")

    def after(self, delay_us: int, fire: Callable[[], None]) -> int:
        """Calls ``fire`` in the role only; returns a number for ``forget``."""
        return self.at(self.quorum.ports.now().mono_us + delay_us, fire)

    def at(self, deadline_us: int, fire: Callable[[], None]) -> int:
        number = self.quorum.next_number()

        def fired() -> None:
            if self._timers.pop(number, None) is not None:
                self.quorum.gate.run(lambda: fire() if self.live else None)

        self._timers[number] = self.quorum.ports.set_timer(deadline_us, fired)
        return number

    def when_synced(self, done: Callable[[], None]) -> None:
        """Calls ``done``, in the role only, when all that stands in the log now is durable."""
        quorum = self.quorum
        quorum.log_sync.request(lambda: quorum.gate.run(lambda: done() if self.live else None))

    def forget(self, number: int) -> None:
        timer = self._timers.pop(number, None)
        if timer is not None:
            self.quorum.ports.cancel_timer(timer)

    def ask(
        self,
        peer: int,
        api: tuple[int, int],
        body: object,
        timeout_ms: int,
        read: Callable[[object], Answer | None],
        replied: Callable[[Answer], None],
        failed: Callable[[], None],
    ) -> None:
        """``replied`` and ``failed`` are called in this role only, and not with what makes the node leave it. ``api``:
        key and version. ``failed`` also where the answer is none, or of an older epoch than the role's."""

        def reply(answer: Answer | None) -> None:
            stale = answer is None or answer.epoch < self.quorum.epoch
            if answer is not None and not stale and self.quorum.heed(answer.leader_id, answer.epoch):
                return
            if self.live and (answer is None or stale):
                failed()
            elif self.live and answer is not None:
                replied(answer)

        gate = self.quorum.gate
        self.quorum.ports.send(
            peer,
            Channel.RAFT,
            *api,
            body,
            timeout_ms,
            lambda answered: gate.run(lambda: reply(read(answered))),
            lambda: gate.run(lambda: failed() if self.live else None),
        )
