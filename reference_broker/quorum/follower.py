"""The follower role (Kafka's FollowerState). A follower fetches the leader's log and syncs it to disk. Its next fetch
reports the new end.

It truncates records that diverge from the leader's log, and downloads a snapshot if the leader no longer has the
records that it needs. When the leader is lost, a voter becomes PROSPECTIVE.
"""

from reference_broker.ports.disk import DiskError
from reference_broker.quorum.messages import RaftFetchResponse, RaftResponse
from reference_broker.quorum.metadata_log import TruncationBelowHighWatermark
from reference_broker.quorum.roles import ELECTION_JITTER_US, ElectionState, EpochState, Role, RoleContext
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
"""The pause after the first failed fetch, or the first fetched records that could not be written. It doubles with each
further failure."""
LONGEST_RETRY_US = 320_000
LONGEST_WRITE_RETRY_US = 5_000_000
"""The longest pause after records that could not be written. It is also at most a quarter of the fetch timeout, so that
the leader does not count the follower as silent."""
FAILED_FETCHES_UNTIL_ELECTION = 2
"""Failed fetches in a row. The first may be due to an idle connection that was closed. After the second, no process
listens at the leader's address."""


class FollowerState(EpochState):
    """A follower of one leader in one epoch: its fetch in flight, or its snapshot download, and the fetch timeout."""

    role = Role.FOLLOWER

    def __init__(self, context: RoleContext, election: ElectionState, download: Download) -> None:
        super().__init__(context, election)
        self._download = download
        self.has_fetched = False
        """Whether a fetch has succeeded in this role."""
        self.is_leader_lost = False
        """Whether the leader refused connections, responded that it does not lead, resigned, or sent no response within
        the fetch timeout. Set back by the next successful fetch."""
        self._failures = 0
        """Number of failed fetches in a row."""
        self._write_failures = 0
        """Number of fetches in a row whose records the disk refused."""
        self._deadline_us = 0
        """The end of the fetch timeout, in monotonic time. One timer follows it."""
        self._is_fetching = False
        """Whether a fetch, the sync before it, a download or the pause before a retry is in progress."""
        self._is_downloading = False
        self._rediscover = False
        """Whether the next fetch is at offset 0 and epoch 0, to which the leader responds with its snapshot ID
        (S-10)."""
        self._truncation_refused = False
        """Whether the last response would have truncated committed records."""

    def start(self) -> None:
        self.restart_fetch_timeout()
        self.at(self._deadline_us, self._check_fetch_timeout)
        self._fetch_when_synced()

    def stop(self) -> None:
        super().stop()
        if self._is_downloading:  # Decision follower-stops-in-download
            self._download.cancel()

    def can_grant_vote(self, candidate_id: int, is_log_up_to_date: bool, pre_vote: bool) -> bool:
        has_live_leader = self.has_fetched and not self.is_leader_lost and candidate_id != self.election.leader_id
        return pre_vote and is_log_up_to_date and not has_live_leader  # Decision follower-grants-pre-vote

    def restart_fetch_timeout(self) -> None:
        """Start the fetch timeout again, because the leader is alive."""
        self._deadline_us = self.now_us + self.context.timing.fetch_timeout_us

    def leader_announced(self) -> None:
        """Note that the leader is alive, because it sent a BeginQuorumEpoch."""
        self.is_leader_lost = False
        self.restart_fetch_timeout()

    def leader_resigned(self, preferred_successors: tuple[int, ...]) -> None:
        """Begin an election without a delay as the first preferred successor, and a little later as each further
        one."""
        node_id = self.context.node_id
        # Decision named-successor
        position = preferred_successors.index(node_id) if node_id in preferred_successors else len(preferred_successors)
        self._leader_lost(position * ELECTION_JITTER_US)

    # Fetching

    def _fetch_when_synced(self) -> None:
        """Send the next fetch. A voter syncs its log first, because the leader counts the offset of the fetch towards
        the high watermark. It does not count that of an observer."""
        if self._is_fetching:
            return
        self._is_fetching = True
        if self.context.is_voter:
            self.when_synced(self._fetch)
        else:
            self.context.log_sync.request(lambda: None)  # The fetch does not wait for the sync.
            self._fetch()

    def _fetch(self) -> None:
        self.fetch_log(
            self.election.leader_id,
            OffsetAndEpoch(0, 0) if self._rediscover else self.context.log.end,
            self.context.timing.fetch_wait_ms,
            self._handle_fetch_response,
            self._fetch_failed,
        )

    def _fetch_failed(self) -> None:
        self._failures += 1
        if self._failures >= FAILED_FETCHES_UNTIL_ELECTION:  # Decision quorum-leader-unreachable
            self._leader_lost(None)
        self._retry()

    def _retry(self) -> None:
        self.after(min(RETRY_US << min(self._failures, 6), LONGEST_RETRY_US), self._fetch_again)

    def _fetch_after(self, wait_us: int) -> None:
        """Fetch again after ``wait_us``, at most a quarter of the fetch timeout."""
        self.after(min(wait_us, self.context.timing.fetch_timeout_us // 4), self._fetch_again)

    def _fetch_again(self) -> None:
        self._is_fetching = False
        self._fetch_when_synced()

    def _handle_fetch_response(self, response: RaftResponse) -> None:
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
            self._leader_responded()
            self._fetch_again()
        elif response.diverging is not None:  # Decision quorum-follower-diverges
            self._truncate(response.diverging)
        else:
            self._append_records(response)

    def _leader_responded(self) -> None:
        """Note a response that the leader of the epoch sent: it is alive, and has not been lost."""
        self.has_fetched = True
        self.is_leader_lost = self._truncation_refused = False
        self.context.timing.leader_found()
        self.restart_fetch_timeout()

    def _append_records(self, response: RaftFetchResponse) -> None:
        context = self.context
        self._leader_responded()
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

        Raise TruncationBelowHighWatermark if two responses in a row require to truncate committed records. A single one
        may have been damaged on its way, or the request for it: frames have no checksum.
        """
        context = self.context
        if diverging.offset < 0 or diverging.epoch < 0:
            self._retry()
            return
        before = context.log.end_offset
        try:
            end_offset = context.log.truncate_to_diverging(diverging)
        except TruncationBelowHighWatermark as failure:
            if self._truncation_refused:
                raise
            self._truncation_refused = True
            context.ports.note("cut_doubted", ("why", str(failure)))
            self._retry()
            return
        context.ports.note("truncated", ("offset", end_offset))
        self._leader_responded()
        if end_offset < before:  # Decision metadata-log-cut
            self._fetch_again()
        else:
            self._retry()

    # Snapshots

    def _download_snapshot(self, snapshot: OffsetAndEpoch) -> None:
        """Download the snapshot, unless that is postponed. An ID with a negative offset or epoch is invalid, and does
        not count as a sign of life of the leader."""
        if snapshot.offset < 0 or snapshot.epoch < 0:
            self._failures = 1
            self._retry()
            return
        self._rediscover = False
        self._leader_responded()
        epoch, leader_id, _voted_id = self.election
        wait_us = self._download.wait_us(leader_id, snapshot)
        # Decision snapshot-download-postponed
        if wait_us > 0:  # The leader may have another snapshot by then, or the disk room.
            self._fetch_after(wait_us)
            return
        self._is_downloading = True
        self._download.begin(
            leader_id,
            epoch,
            snapshot,
            self.while_live(self._leader_responded),
            lambda outcome: self.while_live(lambda: self._downloaded(snapshot, outcome))(),
        )

    def _downloaded(self, snapshot: OffsetAndEpoch, outcome: DownloadOutcome) -> None:
        self._is_downloading = False
        if isinstance(outcome, LeaderChanged):  # Decision snapshot-download-leader-changed
            self.context.maybe_transition(outcome.leader_id, outcome.leader_epoch)
            if self.live:
                self._fetch_failed()
            return
        if isinstance(outcome, Installed):
            self._leader_responded()
            self.context.high_watermark.snapshot_installed(snapshot)
            self._fetch_again()
        elif isinstance(outcome, Rediscover):  # Decision snapshot-download-rediscovers
            self._rediscover = True
            self._leader_responded()
            self._fetch_again()
        else:
            self._fetch_failed()

    # Loss of the leader

    def _check_fetch_timeout(self) -> None:
        """Count the leader as lost when the fetch timeout has passed. The election begins after a random delay, because
        nodes that were paused together resume at the same instant, and a response may be about to arrive."""
        if self.now_us >= self._deadline_us:  # Decision quorum-fetch-timeout
            self._leader_lost(None)
            self.after(self.context.timing.fetch_timeout_us, self._check_fetch_timeout)
        else:
            self.at(self._deadline_us, self._check_fetch_timeout)

    def _leader_lost(self, delay_us: int | None) -> None:
        """Count the leader as lost, and begin an election after ``delay_us``, unless the leader responds before. None
        means a random delay whose limit doubles with each election."""
        if not self.is_leader_lost:
            self.is_leader_lost = True
            self.after(
                self.context.timing.election_jitter_us() if delay_us is None else delay_us, self._leave_if_leader_lost
            )

    def _leave_if_leader_lost(self) -> Role | None:
        if not self.is_leader_lost:  # Decision quorum-leader-returned
            return None
        self.context.timing.count_election()
        return Role.PROSPECTIVE if self.context.is_voter else Role.UNATTACHED
