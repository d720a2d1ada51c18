"""Reads batches for all behaviours of a process.

A batch that many of them read is decoded once: its spans are cached by its place and the CRC of the bytes that came
*this time*. Large batches are read by column (``value_batches``) where their layout allows it.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Final, TypeAlias

from bench.fleet.values import FOREIGN, ValueSpan, compress, read_record
from reference_broker.client.consumer import TakenBatch
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import CRC_FROM, BatchHeader, InvalidRecords, checksum
from reference_broker.records.compression import Compression
from reference_broker.records.record import HeaderPair, read_records

if TYPE_CHECKING:
    from bench.fleet.value_batches import ColumnReader

COLUMN_RECORDS: Final = 16
"""Batches with fewer records are decoded record by record: a new layout costs about a millisecond."""
CACHED_BATCHES: Final = 4096
ALIKE_BYTES: Final = 1 << 18
"""The most bytes of batches that are read by column together: what they are compared with fits a processor's cache."""

_Key: TypeAlias = tuple[TopicPartition, int, int, int, bool]
"""Partition, base offset, size in bytes, CRC of the bytes that came, and whether it is the header's."""


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
        self._found: dict[_Key, tuple[ValueSpan, ...]] = {}

    def read(self, partition: TopicPartition, taken: Iterable[TakenBatch]) -> list[ValueSpan]:
        """Return the spans of a partition's batches, from each batch's ``from_offset`` on."""
        parts: list[ValueSpan] = []
        keyed = [(self._key(partition, batch), batch) for batch in taken]
        if len(keyed) > 1 and not self._by_record:
            self._read_alike(keyed)
        for key, batch in keyed:
            found, from_offset = self._spans(key, batch), batch.from_offset
            if from_offset <= batch.header.base_offset:
                parts.extend(found)
            else:
                parts.extend(tail for span in found if (tail := span.tail(from_offset)) is not None)
        return compress(parts) if len(parts) > 1 else parts

    @staticmethod
    def _key(partition: TopicPartition, batch: TakenBatch) -> _Key:
        crc = checksum(batch.data[CRC_FROM:])
        return (partition, batch.header.base_offset, batch.header.size_bytes, crc, crc == batch.header.crc)

    def _read_alike(self, keyed: Sequence[tuple[_Key, TakenBatch]]) -> None:
        """Read neighbours of one size and number of records together, as far as they are new and not damaged."""
        for (size_bytes, records), group in groupby(keyed, lambda each: (each[0][2], each[1].header.record_count)):
            most = ALIKE_BYTES // size_bytes
            if records < COLUMN_RECORDS or most < 2:
                continue
            new = [
                (key, batch)
                for key, batch in group
                if key[-1] and key not in self._found and batch.header.compression == Compression.NONE
            ]
            for at in range(0, len(new), most):
                alike = new[at : at + most]
                if len(alike) > 1:
                    spans = self._by_column().read_alike(
                        [batch.header for _, batch in alike], [batch.data for _, batch in alike]
                    )
                    for (key, _), span in zip(alike, spans, strict=True):
                        if span is not None:
                            self._remember(key, (span,))

    def _spans(self, key: _Key, batch: TakenBatch) -> tuple[ValueSpan, ...]:
        header, data, _ = batch
        found = self._found.pop(key, None)
        if found is None:
            if key[-1]:
                found = self._decoded(header, data)
            else:
                count = max(1, header.last_offset_delta + 1)
                found = (ValueSpan(header.base_offset, count, header.producer_id, "", -1, False),)
        self._remember(key, found)
        return found

    def _remember(self, key: _Key, spans: tuple[ValueSpan, ...]) -> None:
        if len(self._found) >= self._capacity:
            del self._found[next(iter(self._found))]
        self._found[key] = spans

    def _by_column(self) -> "ColumnReader":
        if self._columns is None:
            # Only those who read large batches need numpy, whose threads would take the signals of a process that
            # waits for them in a thread of its own (``await_end_signals``).
            from bench.fleet.value_batches import ColumnReader

            self._columns = ColumnReader()
        return self._columns

    def _decoded(self, header: BatchHeader, data: memoryview) -> tuple[ValueSpan, ...]:
        if header.record_count >= COLUMN_RECORDS and not self._by_record:
            try:
                span = self._by_column().read(header, data)
            except InvalidRecords:
                span = None
            if span is not None:
                return (span,)
        return spans_of_batch(data, header.producer_id, header.last_offset, header.base_offset, self._headers)
