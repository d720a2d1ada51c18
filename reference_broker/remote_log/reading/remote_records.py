"""What a read of the remote tier gives to a fetch."""

from collections.abc import Sequence
from typing import Final, NamedTuple

from reference_broker.records.batch import iterate
from reference_broker.remote_log.reading.searching import boundary_before, floor_position
from reference_broker.wire.fetch import AbortedTransaction

MOST_HEADERS: Final = 1000
"""So many headers are looked at to find out what fits, which takes some 2 ms. What lies behind them is left out."""
_NOT_KNOWN: Final = 1 << 63


class Layout(NamedTuple):
    """Where batches lie: the offset index of a segment, its base offset, and the byte at which the records begin that
    were read."""

    offset_index: bytes = b""
    base_offset: int = 0
    position: int = 0

    def batch_within(self, size: int, end_offset: int) -> int:
        """Returns the last known place in the records, at most ``size``, of a batch that begins before ``end_offset``.
        It is 0 if the index knows none."""
        by_size = boundary_before(self.offset_index, self.position + size)
        by_offset = floor_position(self.offset_index, end_offset - 1 - self.base_offset)
        return max(min(by_size, by_offset) - self.position, 0)


class RemoteRecords(NamedTuple):
    """Whole batches. ``aborted`` is None where all records are read, committed or not. No batch reaches beyond
    ``end_offset``."""

    records: bytes
    aborted: Sequence[AbortedTransaction] | None
    end_offset: int = _NOT_KNOWN
    layout: Layout = Layout()

    def fitting(self, max_bytes: int, end_offset: int, *, at_least_one: bool) -> bytes:
        """Returns the batches that begin before ``end_offset`` and fit into ``max_bytes``, or fewer. With
        ``at_least_one`` the first batch may be larger."""
        if self.end_offset <= end_offset and len(self.records) <= max_bytes:
            return self.records
        size = start = self.layout.batch_within(max_bytes, end_offset)
        for number, (position, header) in enumerate(iterate(memoryview(self.records)[start:]), 1):
            end = start + position + header.size_bytes
            is_too_large = end > max_bytes and not (at_least_one and size == 0)
            if header.base_offset >= end_offset or is_too_large:
                break
            size = end
            if number == MOST_HEADERS:
                break
        return self.records[:size]
