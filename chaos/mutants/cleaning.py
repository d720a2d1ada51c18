"""Mutants of the log cleaner: how far it may clean, which record of a key it keeps, and what of transactions."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Sequence
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.log.cleaner.offset_map import short
from reference_broker.records.batch import DELETE_HORIZON


@mutant("reference_broker.log.cleaner.offset_map:OffsetMap.put")
def newest_record_cleaned(original: Function, self: Any, keys: Sequence[bytes], offsets: Sequence[int]) -> bool:
    """The cleaner takes the newest record of a key for superseded, and removes it."""
    noted: bool = original(self, keys, offsets)
    for key, offset in zip(keys, offsets, strict=True):
        if self.offsets.get(short(key)) == offset:
            self.offsets[short(key)] = offset + 1
    return noted


@mutant("reference_broker.log.cleaner.retention:Retention.keep")
def superseded_record_kept(original: Function, self: Any, header: Any, batch: memoryview) -> Any:
    """The cleaner takes no record for superseded, so all of them stay."""
    kept = yield from original(self, header, batch)
    return kept if header.is_control else batch


@mutant("reference_broker.log.cleaner.cleanable:_end")
def cleaned_above_high_watermark(original: Function, log: Any, first_dirty: int, now: Any) -> int:
    """The cleaner cleans up to the active segment, also above the high watermark."""
    base: int = log.bases[-1]
    return base


@mutant("reference_broker.log.cleaner.cleanable:_end")
def cleaned_above_last_stable_offset(original: Function, log: Any, first_dirty: int, now: Any) -> int:
    """The cleaner cleans up to the high watermark, also above the last stable offset (X-11)."""
    end: int = log.bases[log.segments.index_of(min(log.high_watermark, log.bases[-1]))]
    return end


@mutant("reference_broker.log.cleaner.transactions:CleanedTransactions.of_data")
def aborted_record_survives(original: Function, self: Any, header: Any) -> bool:
    """The cleaner takes the records of an aborted transaction for committed ones (X-11)."""
    original(self, header)
    return False


@mutant("reference_broker.log.cleaner.retention:Retention.keep")
def marker_removed_at_once(original: Function, self: Any, header: Any, batch: memoryview) -> Any:
    """The cleaner removes a marker as soon as no batch of its transaction is left, before its delete horizon (X-11)."""
    if header.is_control:
        header = header._replace(attributes=header.attributes | DELETE_HORIZON, base_timestamp_ms=0)
    return original(self, header, batch)


@mutant("reference_broker.log.reading:first_with_records")
def empty_batches_sent_alone(original: Function, segments: Any, offset: int, end_offset: int) -> int:
    """A fetch reads from where the client stands, also if the cleaner has left nothing but empty batches there
    (F-16)."""
    return offset
