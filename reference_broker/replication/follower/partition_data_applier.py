"""Applies one partition's part of a leader's response to a follower's log: appends, truncates or empties it (Kafka's
ReplicaFetcherThread.processPartitionData)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from reference_broker.log.producer_state import ProducerStateManager
from reference_broker.log.unified_log import RecordsRefused, UnexpectedOffset, UnifiedLog
from reference_broker.ports.disk import Buffer, DiskError
from reference_broker.ports.node_ports import Ports
from reference_broker.replication.follower.followed import FollowedPartition
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import EpochEndOffset, PartitionData

UNDEFINED = -1


def truncation_offset(log: UnifiedLog, leader: EpochEndOffset) -> int:
    """Return the offset at which ``log`` must end, at most (KIP-101, KIP-279, KIP-595's DivergingEpoch).

    ``leader`` is the largest epoch of the leader's log that is not above the one that the follower named, with its end
    in that log. A follower that does not know this epoch truncates to the end of the largest epoch below it that it
    knows, and fetches again. If the leader knows no such epoch, the follower keeps what is committed.
    """
    if leader.end_offset == UNDEFINED:  # Decision leader-epoch-unknown
        return log.high_watermark
    if leader.epoch == UNDEFINED:
        return min(leader.end_offset, log.log_end_offset)
    own = log.end_offset_for_epoch(leader.epoch)
    if own.end_offset == UNDEFINED:
        return min(leader.end_offset, log.log_end_offset)
    if own.epoch != leader.epoch:  # Decision own-epoch-at-divergence
        return min(own.end_offset, log.log_end_offset)
    return min(leader.end_offset, own.end_offset, log.log_end_offset)


class ApplyOutcome(Enum):
    APPLIED = 0
    """Fetching continues where the log ends now."""
    OUT_OF_RANGE = 1
    """The follower must look up where the leader's log begins and ends."""
    MOVED = 4
    """The requested records are in the remote tier: the follower begins where the leader has local records."""
    RETRY = 2
    """The follower retries later, with the same metadata or newer."""
    FENCED = 3
    """The leadership that the follower knows is over: it waits for newer metadata."""


class TierState(NamedTuple):
    """The state with which a log goes on at ``offset``."""

    offset: int
    epochs: Sequence[tuple[int, int]]
    """(epoch, start offset)."""
    snapshot: bytes
    """Kafka's file of producers."""
    producers: ProducerStateManager
    """Its decoded content."""


@dataclass(frozen=True, slots=True)
class PartitionDataApplier:
    """Applies the partitions of responses to logs, and calls back for consumers and the file of high watermarks."""

    ports: Ports
    high_watermark_moved: Callable[[UnifiedLog], None]
    """Called with each log whose high watermark changed."""
    changed: Callable[[FollowedPartition], None] = lambda _: None
    """Called with each partition whose high watermark or log start moved, or whose end went back."""

    def apply(self, followed: FollowedPartition, data: PartitionData) -> ApplyOutcome:
        """Apply the response to the latest request of ``followed``."""
        if data.error_code:
            return self._refused(followed, data.error_code)
        if data.diverging_epoch is not None:  # Decision replica-diverges
            return self.apply_or_retry(followed, lambda: self.diverged(followed, data.diverging_epoch))
        if data.tombstone_horizon >= 0:
            return self.apply_or_retry(followed, lambda: self._apply_if_complete(followed, data))
        if not data.records and data.log_start_offset <= followed.log.log_start_offset:
            self.follow_high_watermark(followed, data)
            return ApplyOutcome.APPLIED
        return self.apply_or_retry(followed, lambda: self._apply_records(followed, data))

    def diverged(self, followed: FollowedPartition, leader: EpochEndOffset | None) -> None:
        """Truncate to the last offset that both logs may share. Raise DiskError.

        Raise RecordsRefused if that changes nothing, since the next fetch would find the same divergence.
        """
        assert leader is not None
        log = followed.log
        before = (log.log_end_offset, log.latest_epoch)
        self.truncate(followed, truncation_offset(log, leader))
        if log.log_end_offset == before[0]:  # Decision divergence-of-empty-epoch
            log.forget_empty_epochs()  # The epoch that the leader does not know holds no record here.
            if (log.log_end_offset, log.latest_epoch) == before:
                where = f"epoch {leader.epoch} up to {leader.end_offset}"
                raise RecordsRefused(
                    ErrorCode.unknown_server_error, f"the leader's log has {where}, which is all of this"
                )

    def truncate(self, followed: FollowedPartition, offset: int) -> None:
        """Truncate the log to ``offset``. Raise DiskError.

        A truncation below the high watermark happens only if the cluster lost committed records, and leaves a note.
        """
        log = followed.log
        where = ("partition", followed.trace_name)
        if offset < log.high_watermark:  # Decision truncation-of-committed
            high_watermark = ("high_watermark", log.high_watermark)
            self.ports.note("truncated_below_high_watermark", where, ("offset", offset), high_watermark)
        if offset < log.log_end_offset:
            known_high_watermark = log.high_watermark
            try:
                log.truncate_to(offset)
                self.ports.note("truncated", where, ("offset", log.log_end_offset))
            finally:  # If the disk failed half-way, nothing tells a retry what the log lost before.
                if log.high_watermark != known_high_watermark:
                    self.high_watermark_moved(log)
                self.changed(followed)

    def restart_at(self, followed: FollowedPartition, offset: int) -> None:
        """Empty the log, which begins at ``offset`` then, since the leader no longer has any of it. Raise
        DiskError."""
        followed.log.truncate_fully_and_start_at(offset, self.ports.now())
        self.high_watermark_moved(followed.log)
        self.ports.note("truncated_fully", ("partition", followed.trace_name), ("offset", offset))
        self.changed(followed)

    def _apply_if_complete(self, followed: FollowedPartition, data: PartitionData) -> None:
        """Take all, or empty the log if the leader has removed tombstones that it lacks (H-4). The records that
        they deleted would stay here for ever. Raise DiskError."""
        log, horizon = followed.log, data.tombstone_horizon
        where, position = ("partition", followed.trace_name), log.log_end_offset
        if log.horizon.must_empty(position, horizon):  # Decision replica-below-horizon
            self.restart_at(followed, data.log_start_offset)
            log.horizon.begin(horizon)
            self.ports.note("unsafe_bootstrap", where, ("position", position), ("horizon", horizon))
        else:
            self._apply_records(followed, data)

    def start_in_tier(self, followed: FollowedPartition, state: TierState, log_start_offset: int) -> None:
        """Begin the log behind records that are in the remote tier. Raise DiskError."""
        log = followed.log
        now, producers = self.ports.now(), state.producers
        log.start_from_remote(now, state.offset, log_start_offset, state.epochs, state.snapshot, producers)
        self.high_watermark_moved(log)
        self.ports.note("started_in_the_tier", ("partition", followed.trace_name), ("offset", state.offset))
        self.changed(followed)

    def _apply_records(self, followed: FollowedPartition, data: PartitionData) -> None:
        """Append the records. High watermark and log start follow the leader's, as far as the log reaches."""
        log = followed.log
        if data.records:
            self._append(followed, data.records)
        self.follow_high_watermark(followed, data)
        if data.log_start_offset > log.log_start_offset:
            log.delete_records_before(min(data.log_start_offset, log.high_watermark))
            self.changed(followed)

    def _append(self, followed: FollowedPartition, records: Buffer) -> None:
        """Append the leader's batches.

        After DeleteRecords a leader's log may start inside a batch. A follower's empty log then begins with that whole
        batch.
        """
        log, now = followed.log, self.ports.now()
        try:  # Decision replicated-batch-early
            log.append_replicated(now, records, followed.leader_epoch)
        except UnexpectedOffset as early:
            is_empty = log.log_start_offset == log.log_end_offset
            if not is_empty or not early.first_offset < log.log_end_offset <= early.last_offset:
                raise
            self.restart_at(followed, early.first_offset)
            log.append_replicated(now, records, followed.leader_epoch)

    def follow_high_watermark(self, followed: FollowedPartition, data: PartitionData) -> None:
        """Move the high watermark to the leader's, as far as the log reaches. Raise DiskError."""
        log = followed.log
        # Decision follower-watermark
        if data.high_watermark > log.high_watermark and log.advance_high_watermark(data.high_watermark):
            self.high_watermark_moved(log)
            self.changed(followed)
        if log.quarantine is not None and log.release(data.high_watermark):  # Decision quarantine-refilled
            self.ports.note("quarantine_ended", ("partition", log.directory), ("end_offset", log.log_end_offset))

    def _refused(self, followed: FollowedPartition, code: int) -> ApplyOutcome:
        if code == ErrorCode.offset_out_of_range:  # Decision replica-out-of-range
            return ApplyOutcome.OUT_OF_RANGE
        if code == ErrorCode.offset_moved_to_tiered_storage:  # Decision replica-sent-to-tier
            return ApplyOutcome.MOVED
        if followed.errors == 0:
            where = ("partition", followed.trace_name)
            self.ports.note("replica_fetch_error", where, ("leader", followed.leader_id), ("error", code))
        # Decision replica-fenced
        return ApplyOutcome.FENCED if code == ErrorCode.fenced_leader_epoch else ApplyOutcome.RETRY

    def apply_or_retry(self, followed: FollowedPartition, work: Callable[[], None]) -> ApplyOutcome:
        """Run ``work``. Damaged records or a failing disk harm no client: the replica falls behind and retries."""
        try:  # Decision replica-append-fails
            work()
        except (RecordsRefused, DiskError) as failure:
            if followed.errors == 0:
                self.ports.note("replica_append_failed", ("partition", followed.trace_name), ("reason", str(failure)))
            return ApplyOutcome.RETRY
        return ApplyOutcome.APPLIED
