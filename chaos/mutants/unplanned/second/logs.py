"""Second set: segments, indexes, checkpoints, recovery, the log cleaner, and leader epochs of logs."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.log.appending import AppendResult, BatchOrigin
from reference_broker.log.leader_epochs import UNDEFINED
from reference_broker.log.segments import CLEANED_SUFFIX, SWAP_SUFFIX
from reference_broker.log.timestamp_lookup import NOTHING, READ_COST_US
from reference_broker.ports.slicing import Sliced
from reference_broker.wire.fetch import EpochEndOffset

LOG = "reference_broker.log.unified_log:UnifiedLog"


# --- reading ----------------------------------------------------------------------------------------------------------


@mutant("reference_broker.log.segment:Segment.truncate")
def known_positions_survive_truncation(original: Function, self: Any, disk: Any, size: int, next_offset: int) -> None:
    """A segment keeps the byte positions at which readers stopped when it is truncated there. Readers then begin inside
    other batches (F-16, E-7)."""
    known = dict(self.known)
    original(self, disk, size, next_offset)
    self.known.update(known)


@mutant("reference_broker.log.timestamp_lookup:LookUp.largest")
def last_of_equal_timestamps_found(original: Function, self: Any) -> Sliced[Any]:
    """ListOffsets for the largest timestamp returns a record of the last segment that has it, and not the first such
    record (KIP-734)."""
    best = NOTHING
    for segment in tuple(self.segments.items):
        if segment.max_timestamp_ms < max(best.timestamp_ms, 0):
            continue
        yield from self._spend(segment, READ_COST_US)
        found = yield from self._largest_of_segment(segment)
        if found is not None and found.timestamp_ms >= best.timestamp_ms:
            best = found
    return best


@mutant("reference_broker.log.leader_epochs:LeaderEpochFileCache.end_offset_for")
def epoch_ends_where_it_begins(original: Function, self: Any, epoch: int, log_end_offset: int) -> EpochEndOffset:
    """The end of an older leader epoch is returned as the place where it begins, with the epoch before it, so that
    fetchers see divergences that do not exist (KIP-101, F-13)."""
    if epoch == UNDEFINED or not self.epochs or epoch >= self.epochs[-1]:
        found: EpochEndOffset = original(self, epoch, log_end_offset)
        return found
    higher = bisect_left(self.epochs, epoch)
    return EpochEndOffset(self.epochs[higher - 1] if higher > 0 else epoch, self.starts[higher])


# --- appending and truncating -----------------------------------------------------------------------------------------


@mutant(f"{LOG}.append")
def retried_batch_gets_new_offset(
    original: Function,
    self: Any,
    now: Any,
    records: Any,
    leader_epoch: int,
    *,
    origin: BatchOrigin = BatchOrigin.CLIENT,
    is_validated: bool = False,
    guard: Any = None,
) -> AppendResult:
    """The response to a batch that was written before has the log end as its base offset, and not the offset that the
    batch has (P-6, KIP-98)."""
    appended: AppendResult = original(
        self, now, records, leader_epoch, origin=origin, is_validated=is_validated, guard=guard
    )
    return replace(appended, first_offset=self.log_end_offset) if appended.duplicate else appended


@mutant(f"{LOG}.truncate_to")
def high_watermark_survives_truncation(original: Function, self: Any, offset: int) -> int:
    """A log that is truncated below its high watermark keeps it, so that the next records count as committed when they
    are appended (E-2, E-7)."""
    high_watermark = self.high_watermark
    try:
        end_offset: int = original(self, offset)
        return end_offset
    finally:
        self.high_watermark = high_watermark


@mutant(f"{LOG}._empty_and_restart_at")
def producers_survive_emptied_log(original: Function, self: Any, offset: int, created_ms: int) -> None:
    """A log that is emptied and starts at another offset keeps the state of the producers, open transactions included
    (P-1, X-13)."""
    self._empty()
    self.epochs.clear()
    self.durability.note_emptied(self.segments.create(offset, created_ms).path)
    self._begin_at(offset)
    self._begin_where_records_do(offset)


@mutant(f"{LOG}._move_log_start")
def log_start_not_written(original: Function, self: Any, offset: int) -> None:
    """The log start offset moves in memory, but not in its checkpoint file. After a restart deleted records are back
    (KIP-107)."""
    self.log_start_offset = offset
    self.local_log_start_offset = max(self.local_log_start_offset, offset)


# --- syncs and recovery -----------------------------------------------------------------------------------------------


@mutant("reference_broker.log.durability:Durability.note_synced")
def change_during_sync_taken_for_durable(original: Function, self: Any, point: Any) -> tuple[str, ...]:
    """A file that changed while it was synced counts as durable, and is not synced again, so that a power loss takes
    acknowledged records (E-7)."""
    clean = tuple(path for path in point.paths if path in self.dirty)
    for path in clean:
        del self.dirty[path]
    if point.change >= self.last_cut:
        self.synced_offset = max(self.synced_offset, point.end_offset)
        self.unsettled_cut = ""
    return clean


@mutant("reference_broker.log.recovery:Recovery._misfit")
def hole_between_segments_accepted(original: Function, self: Any, base: int) -> tuple[int, str] | None:
    """Recovery takes a log without the end of a segment as it is, if later segments survived a power loss. The replica
    lacks records that it has acknowledged (E-7, P-4)."""
    items = self.segments.items
    if items and base > items[-1].next_offset:
        return None
    misfit: tuple[int, str] | None = original(self, base)
    return misfit


@mutant("reference_broker.log.segments:finish_swaps")
def unfinished_swap_deleted(original: Function, disk: Any, directory: str, names: Sequence[str]) -> Sliced[list[str]]:
    """A start deletes cleaned segments that were being swapped in, although some of the segments that they replace are
    deleted already (X-11, E-7)."""
    for name in names:
        if name.endswith((CLEANED_SUFFIX, SWAP_SUFFIX)):
            disk.delete(f"{directory}/{name}")
    return list(disk.list(directory))
    yield


# --- the log cleaner --------------------------------------------------------------------------------------------------


@mutant("reference_broker.log.cleaner.retention:CleanedTransactions.begin")
def aborted_transaction_ends_with_its_segment(
    original: Function, self: Any, aborted: Sequence[Any], end_offset: int
) -> None:
    """The cleaner forgets at the end of a segment that a transaction is aborted. Its records in the next segment stay,
    and replace committed ones of their keys (X-11)."""
    self._ongoing_aborted.clear()
    original(self, aborted, end_offset)


@mutant(f"{LOG}.note_cleaned")
def cleaned_offset_survives_truncation(original: Function, self: Any, offset: int) -> None:
    """A truncation does not lower the cleaner's checkpoint. The records that are appended there next are never cleaned
    (X-11)."""
    if offset > self.cleaned_offset:
        original(self, offset)
