"""Mutants of compaction: the log cleaner, and the tombstone horizon in leaders, followers and consumers."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.log.cleaner.retention import short
from reference_broker.log.tombstone_horizon import NO_LIMIT
from reference_broker.records.batch import DELETE_HORIZON


@mutant("reference_broker.log.cleaner.retention:OffsetMap.put")
def newest_record_cleaned(original: Function, self: Any, keys: Sequence[bytes], offsets: Sequence[int]) -> bool:
    """The cleaner treats the newest record of a key as superseded, and removes it."""
    noted: bool = original(self, keys, offsets)
    for key, offset in zip(keys, offsets, strict=True):
        if self.offsets.get(short(key)) == offset:
            self.offsets[short(key)] = offset + 1
    return noted


@mutant("reference_broker.log.cleaner.retention:Retention.keep")
def superseded_record_kept(original: Function, self: Any, header: Any, batch: memoryview) -> Any:
    """The cleaner treats no record as superseded, so all of them stay."""
    kept = yield from original(self, header, batch)
    return kept if header.is_control else batch


@mutant("reference_broker.log.cleaner.cleaning:_end")
def cleaned_above_high_watermark(original: Function, log: Any, first_dirty: int, now: Any) -> int:
    """The cleaner cleans up to the active segment, also above the high watermark."""
    base: int = log.bases[-1]
    return base


@mutant("reference_broker.log.cleaner.cleaning:_end")
def cleaned_above_last_stable_offset(original: Function, log: Any, first_dirty: int, now: Any) -> int:
    """The cleaner cleans up to the high watermark, also above the last stable offset (X-11)."""
    end: int = log.bases[log.segments.index_of(min(log.high_watermark, log.bases[-1]))]
    return end


@mutant("reference_broker.log.cleaner.retention:CleanedTransactions.of_data")
def aborted_record_survives(original: Function, self: Any, header: Any) -> bool:
    """The cleaner treats the records of an aborted transaction as committed (X-11)."""
    original(self, header)
    return False


@mutant("reference_broker.log.cleaner.retention:Retention.keep")
def marker_removed_at_once(original: Function, self: Any, header: Any, batch: memoryview) -> Any:
    """The cleaner removes a marker as soon as no batch of its transaction remains, before its delete horizon (X-11)."""
    if header.is_control:
        header = header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp_ms=0)
    return original(self, header, batch)


@mutant("reference_broker.log.reading:first_with_records")
def empty_batches_sent_alone(original: Function, segments: Any, offset: int, end_offset: int) -> int:
    """A fetch reads from the client's offset, also if only empty batches remain there (F-16)."""
    return offset


STARTS_OVER = "reference_broker.client.consumer_partitions:HeldPartitions.starts_over"
MUST_EMPTY = "reference_broker.log.tombstone_horizon:TombstoneHorizon.must_empty"


@mutant("reference_broker.log.tombstone_horizon:TombstoneHorizon.settle")
def marker_not_moved(original: Function, self: Any) -> None:
    """Tombstones are removed without moving the horizon marker (H-1)."""
    marker = self.offset
    original(self)
    self.offset = marker


@mutant("reference_broker.apis.records.fetch_response:_with_horizon")
def marker_not_returned(original: Function, cached: Any, data: Any) -> Any:
    """Fetch responses contain the marker 0, whatever it is (H-1)."""
    sent = original(cached, data)
    return replace(sent, tombstone_horizon=min(sent.tombstone_horizon, 0))


@mutant(MUST_EMPTY)
def follower_overtakes_marker(original: Function, self: Any, position: int, leader_horizon: int) -> bool:
    """A follower's cleaner removes tombstones that its leader still has (H-2)."""
    begins_again: bool = original(self, position, leader_horizon)
    self.limit = NO_LIMIT
    return begins_again


@mutant(MUST_EMPTY)
def follower_beyond_marker_goes_on(original: Function, self: Any, position: int, leader_horizon: int) -> bool:
    """A follower whose marker is beyond that of a new leader continues to remove tombstones, instead of pausing until
    the leader has caught up (H-2)."""
    begins_again: bool = original(self, position, leader_horizon)
    if not begins_again and self.offset > leader_horizon:
        self.limit = NO_LIMIT
    return begins_again


@mutant(STARTS_OVER, side="client")
def consumer_reads_on(
    original: Function, self: Any, partition: Any, horizon: int, log_start_offset: int, metadata_epoch: int
) -> bool:
    """A consumer below the marker continues to read (H-3)."""
    return False


@mutant(MUST_EMPTY)
def follower_keeps_its_log(original: Function, self: Any, position: int, leader_horizon: int) -> bool:
    """A follower below the marker keeps its log (H-4)."""
    self.limit = leader_horizon
    return False


@mutant(STARTS_OVER, side="client")
def consumer_begins_for_ever(
    original: Function, self: Any, partition: Any, horizon: int, log_start_offset: int, metadata_epoch: int
) -> bool:
    """A consumer stores no marker, and restarts again and again because of the same one (H-5)."""
    self.held[partition].remembered_horizon = 0
    begins_again: bool = original(self, partition, horizon, log_start_offset, metadata_epoch)
    return begins_again


@mutant(MUST_EMPTY)
def follower_begins_for_ever(original: Function, self: Any, position: int, leader_horizon: int) -> bool:
    """A follower stores no marker, and empties its log again and again because of the same one (H-5)."""
    self.remembered = 0
    begins_again: bool = original(self, position, leader_horizon)
    return begins_again


@mutant(STARTS_OVER, side="client")
def consumer_ignores_moved_marker(
    original: Function, self: Any, partition: Any, horizon: int, log_start_offset: int, metadata_epoch: int
) -> bool:
    """A consumer in an unsafe bootstrap continues, although the marker has moved (H-6)."""
    remembered = self.held[partition].remembered_horizon
    kept = min(horizon, remembered) if remembered else horizon
    begins_again: bool = original(self, partition, kept, log_start_offset, metadata_epoch)
    return begins_again


@mutant(MUST_EMPTY)
def follower_ignores_moved_marker(original: Function, self: Any, position: int, leader_horizon: int) -> bool:
    """A follower in an unsafe bootstrap continues, although the marker has moved (H-6)."""
    begins_again: bool = original(
        self, position, min(leader_horizon, self.remembered) if self.remembered else leader_horizon
    )
    return begins_again


@mutant("reference_broker.client.consumer:remembered_after", side="client")
def unsafe_for_ever(original: Function, position: int, horizon: int) -> int:
    """A fetcher stays unsafe beyond the marker, so it restarts at each move of the marker (H-7)."""
    return horizon
