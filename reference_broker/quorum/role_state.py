"""The base class of the roles. It owns a role's timers and requests, which lose their effect when the role ends."""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

from reference_broker.ports.channels import Channel
from reference_broker.quorum.fetch_messages import fetch, fetched, read_fetched
from reference_broker.quorum.messages import Answer
from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch
from reference_broker.quorum.values import MAX_EPOCH, Role
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import Error
from reference_broker.wire.fetch import FetchResponse

if TYPE_CHECKING:
    from reference_broker.quorum.quorum import Quorum


class RoleState:
    """One stay in one role of one epoch.

    The quorum creates it when it decides on the role, and calls ``start`` once that decision is durable. It calls
    ``stop`` when it decides on another role, and ``depart`` once that other role is durable.
    """

    role: ClassVar[Role] = Role.UNATTACHED

    def __init__(self, quorum: "Quorum") -> None:
        self.quorum = quorum
        self.live = True
        self._timers: dict[int, None] = {}

    @property
    def now_us(self) -> int:
        return self.quorum.ports.now().mono_us

    def start(self) -> None:
        """Begins to act: the role is durable now."""

    def stop(self) -> None:
        """Ends everything that this role began: its timers are cancelled, and late answers are ignored."""
        self.live = False
        for timer in self._timers:
            self.quorum.ports.cancel_timer(timer)
        self._timers.clear()

    def depart(self) -> None:
        """Answers the requests that this role kept waiting. The epoch that follows is durable by now."""

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        """Whether ``candidate_id`` gets this node's vote in the epoch of this role.

        ``up_to_date`` says that the candidate's log ends at or beyond this node's.
        """
        raise AssertionError(f"{self.role} neither votes nor refuses ({candidate_id}, {up_to_date}, {pre_vote})")

    def after(self, delay_us: int, fire: Callable[[], None]) -> None:
        """Calls ``fire`` after the delay, unless the role has ended by then."""
        self.at(self.now_us + delay_us, fire)

    def at(self, deadline_us: int, fire: Callable[[], None]) -> None:
        guarded = self.while_live(fire)

        def fired() -> None:
            self._timers.pop(timer, None)
            guarded()

        timer = self.quorum.ports.set_timer(deadline_us, fired)
        self._timers[timer] = None

    def when_synced(self, done: Callable[[], None]) -> None:
        """Calls ``done`` when everything that is in the log now is durable, unless the role has ended by then."""
        self.quorum.log_sync.request(self.while_live(done))

    def while_live(self, action: Callable[[], None]) -> Callable[[], None]:
        """A callback that runs ``action`` in its turn, unless the role has ended by then."""
        return lambda: self.quorum.gate.run(lambda: action() if self.live else None)

    def ask_for_log(
        self,
        peer: int,
        end: OffsetAndEpoch,
        wait_ms: int,
        replied: Callable[[Answer], None],
        failed: Callable[[], None],
    ) -> None:
        """Asks ``peer`` for what follows ``end`` in its log, with the same callbacks as ``ask``."""
        quorum = self.quorum
        question = fetch(
            quorum.cluster_id,
            quorum.node_id,
            quorum.epoch,
            end,
            quorum.log.start_offset,
            quorum.high_watermark,
            wait_ms,
        )
        self.ask(peer, ApiKey.FETCH, question, read_fetched, replied, failed)

    def fetch_refused(self, error: Error) -> FetchResponse:
        """Builds the answer to a fetch of the metadata log that has an error."""
        quorum = self.quorum
        return fetched(error, quorum.leader_id, quorum.epoch, quorum.high_watermark, quorum.log.start_offset)

    def ask(
        self,
        peer: int,
        api_key: ApiKey,
        body: object,
        read: Callable[[object], Answer | None],
        replied: Callable[[Answer], None],
        failed: Callable[[], None],
        timeout_ms: int | None = None,
    ) -> None:
        """Sends a request to ``peer`` and calls ``replied`` or ``failed``. The timeout is that of the quorum's requests
        if none is given.

        Neither is called after the role has ended, nor for an answer that makes the node leave the role. ``failed`` is
        also called for an answer that cannot be read, that is of an older epoch than the role's, or whose epoch nobody
        can have.
        """

        def reply(answer: Answer | None) -> None:
            if answer is None or not self.quorum.epoch <= answer.epoch <= MAX_EPOCH:
                if self.live:
                    failed()
            elif not self.quorum.heed(answer.leader_id, answer.epoch) and self.live:
                replied(answer)

        self.quorum.ports.send(
            peer,
            Channel.RAFT,
            api_key,
            VERSIONS[api_key][1],
            body,
            timeout_ms or self.quorum.timing.request_timeout_ms,
            lambda answered: self.quorum.gate.run(lambda: reply(read(answered))),
            self.while_live(failed),
        )
