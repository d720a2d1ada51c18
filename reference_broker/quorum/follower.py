"""Follows a leader: fetches its log, makes that durable, names the new end with the next fetch; cuts what diverges,
downloads a snapshot where the leader has no more log. Seeks an election when the leader is gone.
"""

from typing import TYPE_CHECKING

from reference_broker.ports.disk import DiskError
from reference_broker.quorum.fetch_messages import FETCH_VERSION, FetchAnswer, fetch, read_fetched
from reference_broker.quorum.messages import Answer
from reference_broker.quorum.offset_and_epoch import OffsetAndEpoch
from reference_broker.quorum.role_state import RoleState
from reference_broker.quorum.timing import GONE_DELAY_US
from reference_broker.quorum.values import Installed, LeaderChanged, Outcome, Rediscover, Role
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

if TYPE_CHECKING:
    from reference_broker.quorum.quorum import Quorum

LONGEST_WAIT_MS = 1000
"""Of one fetch at the leader, and never more than half the fetch timeout, so that one late answer is no lost leader.
(KafkaRaftClient.fetchMaxWaitMs is 500: twice as many questions that nothing answers.)"""
RETRY_US = 10_000
LONGEST_RETRY_US = 320_000
GONE_AFTER_FAILURES = 2
"""In a row: the first may be the end of a connection that was idle, the second says that nobody listens."""


class Follower(RoleState):
    """``has_fetched``: a fetch succeeded in this stay. ``let_go``: the leader is taken for gone: its connections were
    refused, it said that it does not lead, it resigned, or the fetch timeout has passed.

    ``_deadline_us``: the fetch timeout; one timer follows it. ``_busy``: a fetch, a sync before the next or a download
    is on its way. ``_rediscover``: the next fetch asks for the leader's snapshot (S-10).
    """

    __slots__ = ("_busy", "_deadline_us", "_downloading", "_failures", "_rediscover", "has_fetched", "let_go")

    role = Role.FOLLOWER

    def __init__(self, quorum: "Quorum") -> None:
        super().__init__(quorum)
        self.has_fetched = False
        self.let_go = False
        self._failures = 0
        self._deadline_us = 0
        self._busy = False
        self._downloading = False
        self._rediscover = False

    def start(self) -> None:
        self.heard_of()
        self.at(self._deadline_us, self._check)
        self._continue()

    def stop(self) -> None:
        super().stop()
        if self._downloading:
            self.quorum.download.cancel()

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        gone = self.let_go or not self.has_fetched or candidate_id == self.quorum.leader_id
        return pre_vote and up_to_date and gone

    def heard_of(self) -> None:
        """The leader lives: its fetch timeout starts anew."""
        self._deadline_us = self.quorum.ports.now().mono_us + self.quorum.timing.fetch_timeout_us

    def announced(self) -> None:
        """The leader itself says that it leads."""
        self.let_go = False
        self.heard_of()

    def leader_resigned(self, successors: tuple[int, ...]) -> None:
        """The first of them seeks the election at once, each further one a little later."""
        node_id = self.quorum.node_id
        place = successors.index(node_id) if node_id in successors else len(successors)
        self._release(place * GONE_DELAY_US)

    # Fetching

    def _continue(self) -> None:
        """A voter names only what is durable; nobody counts on an observer."""
        if self._busy:
            return
        self._busy = True
        if self.quorum.is_voter:
            self.when_synced(self._fetch)
        else:
            self.quorum.log_sync.request(_nothing)
            self._fetch()

    def _fetch(self) -> None:
        quorum = self.quorum
        question = fetch(
            quorum.cluster_id,
            quorum.node_id,
            quorum.epoch,
            OffsetAndEpoch(0, 0) if self._rediscover else quorum.log.end,
            quorum.log.start_offset,
            quorum.high_watermark,
            min(LONGEST_WAIT_MS, max(1, quorum.timing.fetch_timeout_us // 2000)),
        )
        self.ask(
            quorum.leader_id,
            (ApiKey.FETCH, FETCH_VERSION),
            question,
            quorum.timing.request_timeout_ms,
            read_fetched,
            self._replied,
            self._failed,
        )

    def _failed(self) -> None:
        self._failures += 1
        if self._failures >= GONE_AFTER_FAILURES:
            self._release(None)
        self._retry()

    def _retry(self) -> None:
        self.after(min(RETRY_US << min(self._failures, 6), LONGEST_RETRY_US), self._again)

    def _again(self) -> None:
        self._busy = False
        self._continue()

    def _replied(self, answer: Answer) -> None:
        assert isinstance(answer, FetchAnswer), answer
        self._failures = 0
        if answer.error is ErrorCode.not_leader_or_follower:
            self._release(None)
        if answer.error is not ErrorCode.none:
            self._failures = 1
            self._retry()
        elif answer.snapshot is not None:
            self._take_snapshot(answer.snapshot)
        elif self._rediscover:
            self._rediscover = False
            self._succeeded()
            self._again()
        elif answer.diverging is not None:
            self._cut(answer.diverging)
        else:
            self._take(answer)

    def _succeeded(self) -> None:
        self.has_fetched = True
        self.let_go = False
        self.quorum.attempts = 0
        self.heard_of()

    def _take(self, answer: FetchAnswer) -> None:
        quorum = self.quorum
        self._succeeded()
        try:
            taken = quorum.log.append_fetched(quorum.ports.now(), answer.records, quorum.epoch)
        except DiskError as failure:  # Full, perhaps not for long; what could be written is good.
            quorum.ports.note("fetched_not_written", ("why", str(failure)))
            self._retry()
            return
        quorum.advance_high_watermark(answer.high_watermark)
        if not self.live:
            return
        if len(answer.records) and not taken:
            self._retry()
        else:
            self._again()

    def _cut(self, diverging: OffsetAndEpoch) -> None:
        quorum = self.quorum
        if diverging.offset < 0 or diverging.epoch < 0:
            self._retry()
            return
        before = quorum.log.end_offset
        end_offset = quorum.log.truncate_to_diverging(diverging)
        quorum.ports.note("truncated", ("offset", end_offset))
        self._succeeded()
        if end_offset < before:
            self._again()
        else:
            self._retry()

    # Snapshots

    def _take_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """A snapshot with a negative half is none; the fetch timeout goes on then."""
        if snapshot.offset < 0 or snapshot.epoch < 0:
            self._failures = 1
            self._retry()
            return
        self._rediscover = False
        self._succeeded()
        self._downloading = True
        quorum = self.quorum
        quorum.download.begin(
            quorum.leader_id,
            quorum.epoch,
            snapshot,
            lambda: quorum.gate.run(lambda: self._succeeded() if self.live else None),
            lambda outcome: quorum.gate.run(lambda: self._downloaded(snapshot, outcome) if self.live else None),
        )

    def _downloaded(self, snapshot: OffsetAndEpoch, outcome: Outcome) -> None:
        self._downloading = False
        quorum = self.quorum
        if isinstance(outcome, LeaderChanged):
            if not quorum.heed(outcome.leader_id, outcome.leader_epoch):
                self._failed()
            return
        if isinstance(outcome, Installed):
            self._succeeded()
            quorum.snapshot_installed(snapshot)
            self._again()
        elif isinstance(outcome, Rediscover):
            self._rediscover = True
            self._succeeded()
            self._again()
        else:
            self._failed()

    # When the leader is gone

    def _check(self) -> None:
        """Nodes that stood still together go on at the same instant: they must not seek votes at the same one, and an
        answer of the leader may lie in wait."""
        if self.quorum.ports.now().mono_us >= self._deadline_us:
            self._release(None)
            self.after(self.quorum.timing.fetch_timeout_us, self._check)
        else:
            self.at(self._deadline_us, self._check)

    def _release(self, delay_us: int | None) -> None:
        """None: after a random time, longer with each attempt that led to nothing."""
        if not self.let_go:
            self.let_go = True
            quorum = self.quorum
            self.after(quorum.timing.gone_us(quorum.attempts) if delay_us is None else delay_us, self._leave_if_let_go)

    def _leave_if_let_go(self) -> None:
        if self.let_go:
            self._leave()

    def _leave(self) -> None:
        quorum = self.quorum
        quorum.attempts += 1
        if quorum.is_voter:
            quorum.become_prospective()
        else:
            quorum.become_unattached(quorum.epoch, voted_id=quorum.voted_id)


def _nothing() -> None:
    """Nobody waits for an observer's log to be durable."""
