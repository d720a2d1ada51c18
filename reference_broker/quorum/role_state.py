"""The base class of the roles. It owns a role's timers and requests, which lose their effect when the role ends."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from reference_broker.ports.channels import Channel
from reference_broker.quorum.messages import Answer
from reference_broker.quorum.values import Role

if TYPE_CHECKING:
    from reference_broker.quorum.quorum import Quorum


class RoleState:
    """One stay in one role of one epoch.

    The quorum creates it when it decides on the role, and calls ``start`` once that decision is durable. It calls
    ``stop`` when it decides on another role, and ``depart`` once that other role is durable.
    """

    __slots__ = ("_timers", "live", "quorum")

    role: ClassVar[Role] = Role.UNATTACHED

    def __init__(self, quorum: "Quorum") -> None:
        self.quorum = quorum
        self.live = True
        self._timers: dict[int, int] = {}

    def start(self) -> None:
        """Begins to act: the role is durable now."""

    def stop(self) -> None:
        """Ends everything that this role began: its timers are cancelled, and late answers are ignored."""
        self.live = False
        for timer in self._timers.values():
            self.quorum.ports.cancel_timer(timer)
        self._timers.clear()

    def depart(self) -> None:
        """Answers the requests that this role kept waiting. The epoch that follows is durable by now."""

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        """Whether ``candidate_id`` gets this node's vote in the epoch of this role.

        ``up_to_date`` says that the candidate's log ends at or beyond this node's.
        """
        raise AssertionError(f"{self.role} neither votes nor refuses ({candidate_id}, {up_to_date}, {pre_vote})")

    def after(self, delay_us: int, fire: Callable[[], None]) -> int:
        """Calls ``fire`` after the delay, unless the role has ended by then. Returns a number for ``forget``."""
        return self.at(self.quorum.ports.now().mono_us + delay_us, fire)

    def at(self, deadline_us: int, fire: Callable[[], None]) -> int:
        number = self.quorum.next_number()

        def fired() -> None:
            if self._timers.pop(number, None) is not None:
                self.quorum.gate.run(lambda: fire() if self.live else None)

        self._timers[number] = self.quorum.ports.set_timer(deadline_us, fired)
        return number

    def when_synced(self, done: Callable[[], None]) -> None:
        """Calls ``done`` when everything that is in the log now is durable, unless the role has ended by then."""
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
        """Sends a request to ``peer`` and calls ``replied`` or ``failed``. ``api`` is the request's key and version.

        Neither is called after the role has ended, nor for an answer that makes the node leave the role. ``failed`` is
        also called for an answer that cannot be read or that is of an older epoch than the role's.
        """

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
