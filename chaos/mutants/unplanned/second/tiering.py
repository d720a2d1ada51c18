"""Second set: the metadata of remote segments, copies, expiry, reads from the tier, and replicas that begin there."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.log.retention import count_before
from reference_broker.ports.slicing import Sliced
from reference_broker.remote_log.metadata.events import RemoteLogSegmentMetadataUpdate
from reference_broker.remote_log.reading.readings import Reading

EXPIRER = "reference_broker.remote_log.expiring.expirer"
METADATA = "reference_broker.remote_log.metadata"


# --- metadata ---------------------------------------------------------------------------------------------------------


@mutant(f"{METADATA}.remote_log_metadata_cache:RemoteLogMetadataCache.apply")
def fencing_event_fences_nobody(original: Function, self: Any, event: Any) -> Any:
    """Only the begin of a copy raises the known leader epoch. A new leader's no-op event does not, so that the former
    leader's events still count after it (P-11)."""
    known = self.newest_epoch, self.last_attempt
    error = original(self, event)
    if isinstance(event, RemoteLogSegmentMetadataUpdate):
        self.newest_epoch, self.last_attempt = known
    return error


@mutant(f"{METADATA}.metadata_topic_client:MetadataReader._apply_all")
def ready_with_the_first_response(original: Function, self: Any, results: Sequence[Any]) -> Sliced[None]:
    """The metadata of remote segments counts as known after the first response, and not when all events are applied
    that were there. Reads of listed records are out of range until then (P-11)."""
    for sent, data in results:
        for watched in sent.watched.values():
            if watched.ready_from is None and data is not None and not data.error_code:
                watched.ready_from = 0
    yield from original(self, results)


# --- local and remote retention ---------------------------------------------------------------------------------------


@mutant("reference_broker.log.log_files:LogFiles.count_deletable")
def deleted_without_producer_snapshot(original: Function, self: Any, end_offset: int) -> int:
    """Local segments are deleted although no whole producer snapshot is behind them, so that a start forgets producers
    and open transactions (P-11, P-12)."""
    return count_before(self.segments, end_offset)


@mutant("reference_broker.remote_log.copier:CopiedEnd.advance_unfenced")
def copied_end_outlives_removed_segment(original: Function, self: Any, leader_epoch: int) -> None:
    """A follower keeps its copied end offset when the leader removes a segment below it, and deletes local records that
    are nowhere else (P-11)."""
    self.removals = self.metadata.of(self.topic_id, self.index).removals
    original(self, leader_epoch)


@mutant(f"{EXPIRER}:due")
def retention_bytes_without_local_log(
    original: Function, segments: Sequence[Any], log: Any, now_ms: int
) -> Sliced[Any]:
    """``retention.bytes`` counts the remote segments only, so that a partition keeps as much again as its local log has
    uncopied (KIP-405, P-11)."""
    return (yield from original(segments, replace(log, local_only_bytes=0), now_ms))


@mutant(f"{EXPIRER}:due")
def remote_age_counts_from_the_copy(original: Function, segments: Sequence[Any], log: Any, now_ms: int) -> Sliced[Any]:
    """``retention.ms`` of remote segments counts from their copy, and not from their largest timestamp (KIP-405,
    P-11)."""
    copied = [replace(segment, max_timestamp_ms=segment.event_timestamp_ms) for segment in segments]
    return (yield from original(copied, log, now_ms))


@mutant(f"{EXPIRER}:Expirer._begin")
def expired_before_former_leaders_are_fenced(original: Function, self: Any) -> None:
    """A new leader deletes remote segments by the events that it knows, without waiting until those of former leaders
    are fenced (P-11)."""
    self._has_slot = True
    if self._is_closed or not self._is_known or self._known.generation is not self._generation:
        self._end()
        return
    is_tiered = self._partition.log.config.remote_storage_enable
    if self._epoch != self._partition.leader_epoch or self._is_tiered != is_tiered:
        self._epoch, self._is_tiered = self._partition.leader_epoch, is_tiered
        self._sweeps = self._sweeps_at_us = 0
    self._collect()


# --- reading ----------------------------------------------------------------------------------------------------------


@mutant("reference_broker.apis.records.fetch:Fetch._release_remote")
def read_of_the_tier_not_marked(original: Function, self: Any) -> None:
    """A partition that was read in the tier is not looked up by the session's next fetch, so that records for which the
    response had no room do not come any more (F-14, P-11)."""
    self._end_remote()


@mutant(f"{METADATA}.events:common_end")
def records_of_another_lineage_read(original: Function, segment: Any, lineage: Any, log_end_offset: int) -> int:
    """A read from the tier goes on to the end of a remote segment, also beyond the offset at which an unclean election
    has cut the log (P-11)."""
    end_offset: int = segment.next_offset
    return end_offset


@mutant("reference_broker.remote_log.reading.segment_readings:_first_in")
def largest_timestamp_of_segment_not_found(
    original: Function, segment: Any, timestamp_ms: int, start_offset: int, end_offset: int, budget: Any
) -> Reading[Any]:
    """A search by time skips a remote segment whose largest timestamp is the requested one (KIP-405, P-11)."""
    if segment.max_timestamp_ms == timestamp_ms:
        return None
    return (yield from original(segment, timestamp_ms, start_offset, end_offset, budget))


@mutant("reference_broker.replication.follower.offset_lookups:TierStarts._handle_epoch")
def epoch_of_first_local_record_used(
    original: Function, self: Any, followed: Any, epoch: int, local: Any, response: object
) -> None:
    """A replica that begins in the tier looks up the segment before the leader's local records under the epoch of the
    first local record, and finds none if an epoch begins there (KIP-405, P-11)."""
    waiting = self._locals.get(followed.name)
    if waiting is not None and waiting[0] is followed and followed.leader_epoch == epoch:
        del self._locals[followed.name]
        self._read_tier(followed, local.epoch, local.offset)
