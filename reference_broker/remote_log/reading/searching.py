"""Searches in the indexes of a remote segment. They stay bytes as they were stored, and are searched in place, so that
an index of megabytes costs nothing to load. Their formats are those of ``log.indexes``.
"""

from collections.abc import Callable, Iterator
from struct import Struct

from reference_broker.log.indexes import OFFSET_ENTRY, TIME_ENTRY, Aborted
from reference_broker.log.indexes import TRANSACTION_ENTRY as ABORTED_ENTRY
from reference_broker.records.batch import InvalidRecords
from reference_broker.wire.errors import ErrorCode


def floor_position(offset_index: bytes, relative_offset: int) -> int:
    """Returns the byte position of a batch from which a walk finds the offset. The offset is relative to the segment's
    base offset. An entry has the last offset of its batch. Raises InvalidRecords for a damaged index."""
    at = _count_while(offset_index, OFFSET_ENTRY, lambda entry: entry[0] <= relative_offset)
    return int(OFFSET_ENTRY.unpack_from(offset_index, (at - 1) * OFFSET_ENTRY.size)[1]) if at else 0


def boundary_before(offset_index: bytes, position: int) -> int:
    """Returns the last byte position <= ``position`` at which a batch is known to begin."""
    at = _count_while(offset_index, OFFSET_ENTRY, lambda entry: entry[1] <= position)
    return int(OFFSET_ENTRY.unpack_from(offset_index, (at - 1) * OFFSET_ENTRY.size)[1]) if at else 0


def offset_before(time_index: bytes, timestamp_ms: int) -> int:
    """Returns a relative offset before which every record has a smaller timestamp. It is 0 if nothing is known."""
    at = _count_while(time_index, TIME_ENTRY, lambda entry: entry[0] < timestamp_ms)
    return int(TIME_ENTRY.unpack_from(time_index, (at - 1) * TIME_ENTRY.size)[1]) if at else 0


def aborted_from(transaction_index: bytes, offset: int) -> Iterator[Aborted]:
    """Yields the aborted transactions whose markers lie at ``offset`` or beyond, in the order of their markers."""
    at = _count_while(transaction_index, ABORTED_ENTRY, lambda entry: entry[3] < offset)
    for _, *fields in ABORTED_ENTRY.iter_unpack(memoryview(transaction_index)[at * ABORTED_ENTRY.size :]):
        yield Aborted(*fields)


def _count_while(index: bytes, layout: Struct, is_before: Callable[[tuple[int, ...]], bool]) -> int:
    """How many entries at the beginning fit. All that fit come before all that do not."""
    if len(index) % layout.size:
        raise InvalidRecords(ErrorCode.corrupt_message, f"an index of {len(index)} bytes is damaged")
    low, high = 0, len(index) // layout.size
    while low < high:
        middle = (low + high) // 2
        fits = is_before(layout.unpack_from(index, middle * layout.size))
        low, high = (middle + 1, high) if fits else (low, middle)
    return low
