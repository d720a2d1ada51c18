"""Mutants of the log cleaner: what it may touch, and which record of a key it keeps."""

from collections.abc import Callable
from typing import Any

from chaos.mutants.mutant import Mutant
from reference_broker.log.cleaner.offset_map import short

Function = Callable[..., Any]


def _newest_record_cleaned(original: Function) -> Function:
    def put(self: Any, key: bytes, offset: int) -> bool:
        noted: bool = original(self, key, offset)
        if noted:
            self.offsets[short(key)] = offset + 1
        return noted

    return put


def _superseded_record_kept(original: Function) -> Function:
    def put(self: Any, key: bytes, offset: int) -> bool:
        first = self.offsets.get(short(key), offset)
        noted: bool = original(self, key, offset)
        if noted:
            self.offsets[short(key)] = first
        return noted

    return put


def _cleaned_above_high_watermark(original: Function) -> Function:  # noqa: ARG001
    def end(log: Any, first_dirty: int, now: Any) -> int:  # noqa: ARG001
        base: int = log.bases[-1]
        return base

    return end


MUTANTS: tuple[Mutant, ...] = (
    Mutant(
        "newest_record_cleaned",
        "the cleaner takes the newest record of a key for a superseded one",
        "node",
        "reference_broker.log.cleaner.offset_map:OffsetMap.put",
        ("self", "key", "offset"),
        _newest_record_cleaned,
    ),
    Mutant(
        "superseded_record_kept",
        "the cleaner notes where a key stood first, not where it stands last",
        "node",
        "reference_broker.log.cleaner.offset_map:OffsetMap.put",
        ("self", "key", "offset"),
        _superseded_record_kept,
    ),
    Mutant(
        "cleaned_above_high_watermark",
        "the cleaner goes up to the active segment, committed or not",
        "node",
        "reference_broker.log.cleaner.cleanable:_end",
        ("log", "first_dirty", "now"),
        _cleaned_above_high_watermark,
    ),
)
