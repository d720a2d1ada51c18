"""The follower role. A follower fetches the leader's log, syncs it to disk, and names its new end in the next fetch.

It truncates records that diverge from the leader's log, and downloads a snapshot where the leader no longer has the
log.
When the leader is gone, a voter seeks an election.
"""

from reference_broker.ports.disk import DiskError
from reference_broker.quorum.messages import RaftFetchResponse, RaftResponse
from reference_broker.quorum.metadata_log import CutBelowHighWatermark
from reference_broker.quorum.roles import GONE_DELAY_US, ElectionState, Role, RoleContext, RoleState
from reference_broker.quorum.values import (
    Download,
    DownloadOutcome,
    Installed,
    LeaderChanged,
    OffsetAndEpoch,
    Rediscover,
)
from reference_broker.wire.errors import ErrorCode

RETRY_US = 10_000
LONGEST_RETRY_US = 320_000
LONGEST_WRITE_RETRY_US = 5_000_000
"""The longest wait after records that could not be written. It is also at most a quarter of the fetch timeout, so that
the leader keeps getting requests from the follower."""
GONE_AFTER_FAILURES = 2
"""Failures in a row. The first may be the end of an idle connection. The second shows that no process listens."""


class Follower(RoleState):
    """Replicates the log of one leader."""

    role = Role.FOLLOWER

    def __init__(self, context: RoleContext, election: ElectionState, download: Download) -> None:
        super().__init__(context, election)
        self._download = download
        self.has_fetched = False
        """A fetch succeeded since the node entered this role."""
        self.leader_gone = False
        """The leader refused connections, reported that it does not lead, resigned, or the fetch timeout has passed."""
        self._failures = 0
        """Fetches in a row that failed."""
        self._write_failures = 0
        """Fetches in a row whose records the disk refused."""
        self._deadline_us = 0
        """The time at which the fetch timeout passes; one timer follows it."""
        self._busy = False
        """A fetch, a sync before the next fetch, or a download is under way."""
        self._downloading = False
        self._rediscover = False
        """The next fetch starts at offset 0, so that the leader names its snapshot (S-10)."""
        self._truncation_refused = False
        """The last response would have truncated committed records."""

    def start(self) -> None:
        self.restart_fetch_timeout()
        self.at(self._deadline_us, self._check_fetch_timeout)
        self._fetch_when_synced()

    def stop(self) -> None:
        super().stop()
        if self._downloading:  # Decision follower-stops-in-download
            self._download.cancel()

    def would_vote(self, candidate_id: int, up_to_date: bool, pre_vote: bool) -> bool:
        gone = self.leader_gone or not self.has_fetched or candidate_id == self.election.leader_id
        return pre_vote and up_to_date and gone  # Decision follower-grants-pre-vote

    def restart_fetch_timeout(self) -> None:
        """Restart the fetch timeout, because the leader is alive."""
        self._deadline_us = self.now_us + self.context.timing.fetch_timeout_us

    def announced(self) -> None:
        """Note that the leader has sent BeginQuorumEpoch."""
        self.leader_gone = False
        self.restart_fetch_timeout()

    def leader_resigned(self, successors: tuple[int, ...]) -> None:
        """Seek an election: at once as the first successor, and a little later as each further one."""
        node_id = self.context.node_id
        place = successors.index(node_id) if node_id in successors else len(successors)  # Decision named-successor
        self._leader_lost(place * GONE_DELAY_US)

    # Fetching

    def _fetch_when_synced(self) -> None:
        """Send the next fetch. A voter waits until its log is synced, because the leader counts the end that the fetch
        names. An observer need not wait, because its end does not count."""
        if self._busy:
            return
        self._busy = True
        if self.context.is_voter:
            self.when_synced(self._fetch)
        else:
            self.context.log_sync.request(lambda: None)  # No one waits for an observer's log to be synced.
            self._fetch()

    def _fetch(self) -> None:
        self.fetch_log(
            self.election.leader_id,
            OffsetAndEpoch(0, 0) if self._rediscover else self.context.log.end,
            self.context.timing.fetch_wait_ms,
            self._replied,
            self._failed,
        )

    def _failed(self) -> None:
        self._failures += 1
        if self._failures >= GONE_AFTER_FAILURES:  # Decision quorum-leader-unreachable
            self._leader_lost(None)
        self._retry()

    def _retry(self) -> None:
        self.after(min(RETRY_US << min(self._failures, 6), LONGEST_RETRY_US), self._fetch_again)

    def _fetch_after(self, wait_us: int) -> None:
        """Fetch again after ``wait_us``, but within the fetch timeouts of this node and of the leader."""
        self.after(min(wait_us, self.context.timing.fetch_timeout_us // 4), self._fetch_again)

    def _fetch_again(self) -> None:
        self._busy = False
        self._fetch_when_synced()

    def _replied(self, response: RaftResponse) -> None:
        assert isinstance(response, RaftFetchResponse), response
        self._failures = 0
        if response.error is ErrorCode.not_leader_or_follower:
            self._leader_lost(None)
        if response.error is not ErrorCode.none:
            self._failures = 1
            self._retry()
        elif response.snapshot is not None:  # Decision quorum-follower-needs-snapshot
            self._download_snapshot(response.snapshot)
        elif self._rediscover:
            self._rediscover = False
            self._succeeded()
            self._fetch_again()
        elif response.diverging is not None:  # Decision quorum-follower-diverges
            self._truncate(response.diverging)
        else:
            self._append_response(response)

    def _succeeded(self) -> None:
        self.has_fetched = True
        self.leader_gone = self._truncation_refused = False
        self.context.timing.note_contact()
        self.restart_fetch_timeout()

    def _append_response(self, response: RaftFetchResponse) -> None:
        context = self.context
        self._succeeded()
        try:  # Decision fetched-metadata-written
            appended_bytes = context.log.append_fetched(context.ports.now(), response.records, self.election.epoch)
        except DiskError as failure:  # The disk may be full for a while. What was written stays.
            context.ports.note("fetched_not_written", ("why", str(failure)))
            wait_us = min(RETRY_US << min(self._write_failures, 12), LONGEST_WRITE_RETRY_US)
            self._write_failures += 1
            self._fetch_after(wait_us)
            return
        self._write_failures = 0
        context.high_watermark.advance(response.high_watermark)
        if not self.live:
            return
        if len(response.records) and not appended_bytes:
            self._retry()
        else:
            self._fetch_again()

    def _truncate(self, diverging: OffsetAndEpoch) -> None:
        """Truncate the records that the leader does not have.

        Raise CutBelowHighWatermark if the leader reports twice in a row that it lacks committed records. The first
        such response, or the request for it, may have been damaged on its way: frames have no checksum.
        """
        context = self.context
        if diverging.offset < 0 or diverging.epoch < 0:
            self._retry()
            return
        before = context.log.end_offset
        try:
            end_offset = context.log.truncate_to_diverging(diverging)
        except CutBelowHighWatermark as failure:
            if self._truncation_refused:
                raise
            self._truncation_refused = True
            context.ports.note("cut_doubted", ("why", str(failure)))
            self._retry()
            return
        context.ports.note("truncated", ("offset", end_offset))
        self._succeeded()
        if end_offset < before:  # Decision metadata-log-cut
            self._fetch_again()
        else:
            self._retry()

    # Snapshots

    def _download_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """Download the snapshot. An ID with a negative offset or epoch is invalid: it does not restart the fetch
        timeout."""
        if snapshot.offset < 0 or snapshot.epoch < 0:
            self._failures = 1
            self._retry()
            return
        self._rediscover = False
        self._succeeded()
        epoch, leader_id, _voted_id = self.election
        wait_us = self._download.wait_us(leader_id, snapshot)
        # Decision snapshot-download-postponed
        if wait_us > 0:  # The leader may have another snapshot by then, or the disk room.
            self._fetch_after(wait_us)
            return
        self._downloading = True
        self._download.begin(
            leader_id,
            epoch,
            snapshot,
            self.while_live(self._succeeded),
            lambda outcome: self.while_live(lambda: self._downloaded(snapshot, outcome))(),
        )

    def _downloaded(self, snapshot: OffsetAndEpoch, outcome: DownloadOutcome) -> None:
        self._downloading = False
        if isinstance(outcome, LeaderChanged):  # Decision snapshot-download-leader-changed
            self.context.learn_leader(outcome.leader_id, outcome.leader_epoch)
            if self.live:
                self._failed()
            return
        if isinstance(outcome, Installed):
            self._succeeded()
            self.context.high_watermark.snapshot_installed(snapshot)
            self._fetch_again()
        elif isinstance(outcome, Rediscover):  # Decision snapshot-download-rediscovers
            self._rediscover = True
            self._succeeded()
            self._fetch_again()
        else:
            self._failed()

    # When the leader is gone

    def _check_fetch_timeout(self) -> None:
        """Consider the leader gone when the fetch timeout has passed, but do not seek votes at once. Nodes that were
        paused together resume at the same instant and must not all seek votes then. A response of the leader may also
        be about to arrive."""
        if self.now_us >= self._deadline_us:  # Decision quorum-fetch-timeout
            self._leader_lost(None)
            self.after(self.context.timing.fetch_timeout_us, self._check_fetch_timeout)
        else:
            self.at(self._deadline_us, self._check_fetch_timeout)

    def _leader_lost(self, delay_us: int | None) -> None:
        """Consider the leader gone, and seek an election after ``delay_us``. None means a random delay whose limit
        doubles with each failed attempt."""
        if not self.leader_gone:
            self.leader_gone = True
            self.after(self.context.timing.gone_us() if delay_us is None else delay_us, self._leave_if_leader_gone)

    def _leave_if_leader_gone(self) -> Role | None:
        if not self.leader_gone:  # Decision quorum-leader-returned
            return None
        self.context.timing.count_attempt()
        return Role.PROSPECTIVE if self.context.is_voter else Role.UNATTACHED
