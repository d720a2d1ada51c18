"""Second set: votes, the quorum's high watermark, what a leader serves, and snapshots of the metadata log."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.quorum.metadata_log import VALID, Diverging, NeedsSnapshot, Validity
from reference_broker.quorum.values import OffsetAndEpoch
from reference_broker.wire.errors import Error, ErrorCode

LEADER = "reference_broker.quorum.leader:LeaderState"
QUORUM = "reference_broker.quorum.raft_client:KafkaRaftClient"
LOG = "reference_broker.quorum.metadata_log:MetadataLog"


# --- votes ------------------------------------------------------------------------------------------------------------


@mutant("reference_broker.quorum.unattached:UnattachedState.can_grant_vote")
def second_vote_in_one_epoch(
    original: Function, self: Any, candidate_id: int, is_log_up_to_date: bool, pre_vote: bool
) -> bool:
    """A voter that has voted in an epoch grants its vote to another candidate of that epoch, too, so that two leaders
    may win (KIP-595)."""
    return is_log_up_to_date


@mutant("reference_broker.quorum.follower:FollowerState.can_grant_vote")
def pre_vote_granted_beside_leader(
    original: Function, self: Any, candidate_id: int, is_log_up_to_date: bool, pre_vote: bool
) -> bool:
    """A follower whose leader is alive grants pre-votes, so that a voter that was cut off replaces the leader when
    it comes back (KIP-996)."""
    return pre_vote and is_log_up_to_date


# --- the high watermark -----------------------------------------------------------------------------------------------


@mutant(f"{LEADER}._maybe_update_high_watermark")
def records_of_earlier_epoch_committed(original: Function, self: Any) -> None:
    """A leader commits records of earlier epochs before a majority has one of its own. A later leader may still cut
    them (KIP-595)."""
    context = self.context
    ends = [context.log.synced_offset, *(replica.end_offset for replica in self.voters.values())]
    replicated_by_majority = sorted(ends, reverse=True)[context.majority - 1]
    if context.high_watermark.advance(replicated_by_majority) and self.live:
        high_watermark = context.high_watermark.offset
        self._complete(lambda parked: parked.partition.high_watermark < high_watermark)


@mutant(f"{LEADER}._update_replica_state")
def end_of_voter_never_goes_back(original: Function, self: Any, replica: Any, offset: int) -> bool:
    """The leader keeps the largest fetch offset of a voter that has cut its log or lost its disk, and commits records
    that it lacks (KIP-595)."""
    before = replica.end_offset
    moved: bool = original(self, replica, offset)
    replica.end_offset = max(before, offset)
    return moved


@mutant(f"{LEADER}.fetch")
def diverging_fetch_counts(original: Function, self: Any, partition: Any, request: Any, respond: Any) -> None:
    """The fetch offset of a voter whose log diverges counts towards the high watermark, although the leader's records
    are not in that log (KIP-595)."""
    validity = self.context.log.validate_offset_and_epoch(partition.fetch_offset, partition.last_fetched_epoch)
    replica = self._replica_state(request.replica_id)
    is_diverging = replica is not None and isinstance(validity, Diverging)
    if is_diverging and self._update_replica_state(replica, partition.fetch_offset):
        self._maybe_update_high_watermark()
    original(self, partition, request, respond)


# --- what a leader serves ---------------------------------------------------------------------------------------------


@mutant(f"{QUORUM}.validate_leader_only_request")
def older_leader_epoch_served(original: Function, self: Any, cluster_id: str | None, leader_epoch: int) -> Error | None:
    """A leader serves requests that name an older leader epoch, and does not fence them (KIP-595, S-7)."""
    error: Error | None = original(self, cluster_id, leader_epoch)
    return None if error is ErrorCode.fenced_leader_epoch and self.is_leader else error


@mutant(f"{QUORUM}._fail_parked_fetches")
def parked_metadata_fetches_dropped(original: Function, self: Any, state: Any) -> None:
    """A leader that resigns drops the parked fetches of the metadata log. Their replicas learn of it only after their
    request timeout (KIP-595)."""


@mutant(f"{LOG}.validate_offset_and_epoch")
def other_epoch_at_log_start_valid(original: Function, self: Any, offset: int, epoch: int) -> Validity:
    """A replica whose log ends where the leader's log begins, with a record of another epoch than the snapshot there,
    is not sent to the snapshot (S-10)."""
    start, oldest, latest = self.start_offset, self.snapshots.oldest, self.snapshots.latest
    if oldest is not None and latest is not None:
        if offset == 0 or offset < start or epoch < oldest.epoch:
            return NeedsSnapshot(latest)
    elif offset == 0 == start:
        return VALID
    end = self.end_for_epoch(epoch)
    return VALID if end.epoch == epoch and offset <= end.offset else Diverging(end)


# --- snapshots --------------------------------------------------------------------------------------------------------


@mutant(f"{LOG}.install_snapshot")
def longer_log_outlives_snapshot(original: Function, self: Any, now: Any, id: OffsetAndEpoch) -> bool:  # noqa: A002
    """A node that has downloaded a snapshot keeps a log that ends at or beyond it, also if that log's records are of an
    older epoch and diverge (S-9)."""
    return False if id.offset <= self.end.offset else bool(original(self, now, id))


@mutant("reference_broker.metadata.snapshots:snapshot_id")
def snapshot_named_by_its_last_record(original: Function, image: Any) -> OffsetAndEpoch:
    """The end offset in a snapshot's ID is that of its last record, and not one more, so that this record is replayed
    again behind it (S-12, KAFKA-14618)."""
    return OffsetAndEpoch(image.provenance.offset, image.provenance.epoch)


@mutant("reference_broker.quorum.snapshots.store:SnapshotCleaner._is_over")
def snapshot_retention_time_ignored(original: Function, self: Any, snapshot: Any) -> bool:
    """``metadata.max.retention.ms`` is not applied: superseded snapshots, and the log before them, are deleted only by
    size (S-15)."""
    limit_bytes = self._config.metadata_max_retention_bytes
    return bool(0 <= limit_bytes < self._log.log.size_bytes + self._store.size_bytes)
