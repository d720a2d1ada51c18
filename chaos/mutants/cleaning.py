"""Mutants of the log cleaner: how far it may clean, and which record of a key it keeps."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.log.cleaner.offset_map import short


@mutant("reference_broker.log.cleaner.offset_map:OffsetMap.put")
def newest_record_cleaned(original: Function, self: Any, key: bytes, offset: int) -> bool:
    """The cleaner takes the newest record of a key for superseded, and removes it."""
    noted: bool = original(self, key, offset)
    if noted:
        self.offsets[short(key)] = offset + 1
    return noted


@mutant("reference_broker.log.cleaner.offset_map:OffsetMap.put")
def superseded_record_kept(original: Function, self: Any, key: bytes, offset: int) -> bool:
    """The cleaner notes the first offset of a key instead of the last, so superseded records stay."""
    first = self.offsets.get(short(key), offset)
    noted: bool = original(self, key, offset)
    if noted:
        self.offsets[short(key)] = first
    return noted


@mutant("reference_broker.log.cleaner.cleanable:_end")
def cleaned_above_high_watermark(original: Function, log: Any, first_dirty: int, now: Any) -> int:
    """The cleaner cleans up to the active segment, also above the high watermark."""
    base: int = log.bases[-1]
    return base
