"""Reads batches for all behaviours of a process.

A batch that many of them read is decoded once: its spans are cached by its place and the CRC of the bytes that came
*this time*. Large batches are read by column (``value_batches``) where their layout allows it.
"""

from collections.abc import Iterable
from typing import TYPE_CHECKING, Final

from bench.fleet.values import FOREIGN, ValueSpan, compress, read_record
from reference_broker.client.consumer import TakenBatch
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import CRC_FROM, BatchHeader, InvalidRecords, checksum
from reference_broker.records.record import HeaderPair, read_records

if TYPE_CHECKING:
    from bench.fleet.value_batches import ColumnReader

COLUMN_RECORDS: Final = 16
"""Batches with fewer records are decoded record by record: a new layout costs about a millisecond."""
CACHED_BATCHES: Final = 4096


def spans_of_batch(
    data: memoryview,
    producer_id: int,
    last_offset: int,
    base_offset: int,
    headers: tuple[HeaderPair, ...] | None = None,
) -> tuple[ValueSpan, ...]:
    """Decode one batch into spans. A damaged batch is one foreign span over its offsets. A record without exactly these
    ``headers`` is damaged, if any are expected."""
    try:
        parts = [
            ValueSpan(record.offset, 1, producer_id, value.writer, value.sequence, value.valid)
            for record in read_records(data)
            for value in (read_record(record.value, record.headers) if headers in (None, record.headers) else FOREIGN,)
        ]
    except InvalidRecords:
        parts = [ValueSpan(base_offset, max(1, last_offset - base_offset + 1), producer_id, "", -1, False)]
    return tuple(compress(parts))


class BatchReader:
    """Reads batches for all behaviours of one process. It remembers the spans of at most ``capacity`` batches.

    With ``by_record`` it tries no columns, because records have sizes of their own, or these ``headers``.
    """

    __slots__ = ("_by_record", "_capacity", "_columns", "_found", "_headers")

    def __init__(
        self,
        capacity: int = CACHED_BATCHES,
        *,
        by_record: bool = False,
        headers: tuple[HeaderPair, ...] | None = None,
    ) -> None:
        self._capacity = capacity
        self._by_record = by_record or headers is not None
        self._headers = headers
        self._columns: ColumnReader | None = None
        self._found: dict[tuple[TopicPartition, int, int, int, bool], tuple[ValueSpan, ...]] = {}

    def read(self, where: TopicPartition, taken: Iterable[TakenBatch]) -> list[ValueSpan]:
        """Return the spans of a partition's batches, from each batch's ``from_offset`` on."""
        parts: list[ValueSpan] = []
        for batch in taken:
            found, from_offset = self._spans(where, batch), batch.from_offset
            if from_offset <= batch.header.base_offset:
                parts.extend(found)
            else:
                parts.extend(tail for span in found if (tail := span.tail(from_offset)) is not None)
        return compress(parts) if len(parts) > 1 else parts

    def _spans(self, where: TopicPartition, batch: TakenBatch) -> tuple[ValueSpan, ...]:
        header, data, _ = batch
        crc = checksum(data[CRC_FROM:])
        key = (where, header.base_offset, header.size_bytes, crc, crc == header.crc)
        found = self._found.pop(key, None)
        if found is None:
            if crc == header.crc:
                found = self._decoded(header, data)
            else:
                count = max(1, header.last_offset_delta + 1)
                found = (ValueSpan(header.base_offset, count, header.producer_id, "", -1, False),)
            if len(self._found) >= self._capacity:
                del self._found[next(iter(self._found))]
        self._found[key] = found
        return found

    def _decoded(self, header: BatchHeader, data: memoryview) -> tuple[ValueSpan, ...]:
        if header.record_count >= COLUMN_RECORDS and not self._by_record:
            if self._columns is None:
                # Only those who read large batches need numpy, whose threads would take the signals of a process that
                # waits for them in a thread of its own (``await_end_signals``).
                from bench.fleet.value_batches import ColumnReader

                self._columns = ColumnReader()
            try:
                span = self._columns.read(header, data)
            except InvalidRecords:
                span = None
            if span is not None:
                return (span,)
        return spans_of_batch(data, header.producer_id, header.last_offset, header.base_offset, self._headers)
