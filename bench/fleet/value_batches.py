"""Batches of values: made and read as columns of numpy arrays, with every value's proof.

Records of the same sizes have the same layout in each batch of as many records. A ``BatchLayout`` holds the bytes of
such a batch and the places of what differs from batch to batch: keys, sequences and CRCs of values. ``BatchMaker``
writes these columns and the header. Its batches are byte for byte those that ``ValueMaker`` and ``record.build`` make.

``ColumnReader`` expects the layout of a batch's first record, and sequences that ascend by one. It makes this batch,
CRCs included, and compares all bytes. Unless they are equal, ``batch_reader`` decodes the batch record by record.

A CRC is linear over GF(2): the CRC of a value with the sequence s differs from the one with the sequence 0 by a number
that depends on s alone. It is the exclusive or of eight numbers, one for each byte of s, from tables of 256.
"""

from abc import ABC, abstractmethod
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from bench.fleet.values import HEAD, MAGIC, NAME_AT, ValueMaker, ValueSpan, read_value
from reference_broker.records import batch as batches
from reference_broker.records.batch import HEADER_BYTES, BatchHeader, InvalidRecords, sealed
from reference_broker.records.compression import Compression, compress, decompress
from reference_broker.records.record import read_zigzag, zigzag

Bytes = NDArray[np.uint8]

_CRC_AT: Final = len(MAGIC)
_SEQUENCE_AT: Final = HEAD.size + 1
_MAX_SEQUENCE: Final = 2**63 - 1
CACHED_LAYOUTS: Final = 256
"""Number of layouts that a reader caches."""


def crc_tables(covered_bytes: int) -> NDArray[np.uint32]:
    """Return what each byte of the sequence contributes to the CRC of a value, which covers ``covered_bytes``. The
    shape is (8, 256)."""
    zero = crc32c(bytes(covered_bytes))
    tables = np.zeros((8, 256), dtype=np.uint32)
    for place in range(8):
        for bit in range(8):
            message = bytearray(covered_bytes)
            message[1 + place] = 1 << bit
            tables[place, 1 << bit] = crc32c(message) ^ zero
        for byte in range(1, 256):
            low = byte & -byte
            tables[place, byte] = tables[place, byte ^ low] ^ tables[place, low]
    return tables


class RecordRun(NamedTuple):
    """Successive records of a layout that have one size, because their offset deltas take equally many bytes. Places
    count from a record's start."""

    start: int  # of the first record's bytes
    first: int  # index of the first record
    end: int  # index after the last record
    record_bytes: int
    key_at: int
    value_at: int


@dataclass(slots=True, frozen=True, eq=False)
class BatchLayout:
    """The records of a batch. Sequences, CRCs and keys are those that were written last."""

    plain: Bytes
    runs: tuple[RecordRun, ...]
    key_bytes: int
    zero_crc: int  # of a value with the sequence 0
    tables: NDArray[np.uint32]

    def write(self, first_sequence: int, keys: Bytes | None = None) -> None:
        """Write ascending sequences, the CRCs of their values, and keys, which have one row for each record."""
        self.write_all(self.plain[np.newaxis], np.array([first_sequence], dtype=np.int64))
        for run in self.runs if keys is not None else ():
            columns = slice(run.key_at, run.key_at + self.key_bytes)
            self.rows(self.plain[np.newaxis], run)[0, :, columns] = keys[run.first : run.end]  # type: ignore[index]

    def write_all(self, batches: Bytes, first_sequences: NDArray[np.int64]) -> None:
        """Write the sequences and CRCs of several batches of this layout. ``batches`` has a row for each, and
        ``first_sequences`` what the sequences of each ascend from."""
        count, several = self.runs[-1].end, len(batches)
        numbers = first_sequences[:, np.newaxis] + np.arange(count, dtype=np.int64)
        sequences = numbers.astype(">i8").view(np.uint8).reshape(several, count, 8)
        firsts = first_sequences.tolist()
        crcs = self._crcs(sequences, min(firsts), max(firsts) + count - 1)
        crc_bytes = crcs.astype(">u4").view(np.uint8).reshape(several, count, 4)
        for run in self.runs:
            rows = self.rows(batches, run)
            crc_at, sequence_at = run.value_at + _CRC_AT, run.value_at + _SEQUENCE_AT
            rows[:, :, crc_at : crc_at + 4] = crc_bytes[:, run.first : run.end]
            rows[:, :, sequence_at : sequence_at + 8] = sequences[:, run.first : run.end]

    @staticmethod
    def rows(batches: Bytes, run: RecordRun) -> Bytes:
        """Return a view of batches, which have a row each, with a row for each record of a run."""
        size = (run.end - run.first) * run.record_bytes
        return batches[:, run.start : run.start + size].reshape(len(batches), -1, run.record_bytes)

    def _crcs(self, sequences: Bytes, least: int, greatest: int) -> NDArray[np.uint32]:
        """Return the CRCs of the values with these sequences, of which ``least`` and ``greatest`` are the bounds."""
        # What both bounds have in common in front, all in between have. Mostly these are the upper bytes.
        low, high = (each.to_bytes(8, signed=True) for each in (least, greatest))
        crc, tables, shared = self.zero_crc, self.tables, 0
        while shared < 8 and low[shared] == high[shared]:
            crc ^= int(tables[shared, low[shared]])
            shared += 1
        crcs = np.full(sequences.shape[:2], crc, dtype=np.uint32)
        for place in range(shared, 8):
            crcs ^= tables[place].take(sequences[:, :, place])
        return crcs


def layout_of(value: bytes, count: int, key_bytes: int | None) -> BatchLayout:
    """Return the layout of ``count`` records without headers. ``value`` is any of the writer's values. ``key_bytes`` is
    the size of each key; None for records without a key."""
    blank = bytearray(value)
    blank[_CRC_AT : HEAD.size] = bytes(4)
    blank[_SEQUENCE_AT:NAME_AT] = bytes(8)
    key = b"" if key_bytes is None else bytes(key_bytes)
    key_size = zigzag(-1 if key_bytes is None else key_bytes)
    value_size = zigzag(len(blank))
    plain, runs = bytearray(), list[RecordRun]()
    for index in range(count):
        start = len(plain)
        before_key = b"\0" + zigzag(0) + zigzag(index) + key_size
        plain += zigzag(len(before_key) + len(key) + len(value_size) + len(blank) + 1) + before_key
        key_at = len(plain) - start
        plain += key + value_size
        value_at = len(plain) - start
        plain += blank + zigzag(0)
        run = RecordRun(start, index, index + 1, len(plain) - start, key_at, value_at)
        if runs and runs[-1][3:] == run[3:]:
            runs[-1] = runs[-1]._replace(end=index + 1)
        else:
            runs.append(run)
    return BatchLayout(
        np.frombuffer(plain, dtype=np.uint8),
        tuple(runs),
        len(key),
        crc32c(blank[HEAD.size :]),
        crc_tables(len(blank) - HEAD.size),
    )


class ValueBatches(ABC):
    """Makes batches of ``count`` records of one writer."""

    __slots__ = ("count",)

    def __init__(self, count: int) -> None:
        self.count = count

    @abstractmethod
    def plain(self, first_sequence: int) -> bytes:
        """Return the records of a batch with the values from ``first_sequence`` on, not compressed."""

    def make(
        self,
        first_sequence: int,
        wall_ms: int,
        *,
        producer_id: int = batches.NO_PRODUCER_ID,
        producer_epoch: int = batches.NO_PRODUCER_EPOCH,
        base_sequence: int = batches.NO_SEQUENCE,
        compression: Compression = Compression.NONE,
        is_transactional: bool = False,
    ) -> bytes:
        """Return a whole batch with the values ``first_sequence`` to ``first_sequence + count - 1``.

        All records have the timestamp ``wall_ms``. ``base_sequence`` is the producer's, which Kafka knows.
        """
        header = BatchHeader(
            base_offset=0,
            batch_length=0,
            leader_epoch=batches.NO_LEADER_EPOCH,
            magic=batches.MAGIC,
            crc=0,
            attributes=int(compression) | (batches.TRANSACTIONAL if is_transactional else 0),
            last_offset_delta=self.count - 1,
            base_timestamp_ms=wall_ms,
            max_timestamp_ms=wall_ms,
            producer_id=producer_id,
            producer_epoch=producer_epoch,
            base_sequence=base_sequence,
            record_count=self.count,
        )
        return sealed(header, compress(compression, self.plain(first_sequence)))


class BatchMaker(ValueBatches):
    """Makes batches of ``count`` records of one writer.

    Keys take turns by sequence. They must be equally long; without any, records have none.
    """

    __slots__ = ("_keys", "_layout")

    def __init__(self, values: ValueMaker, count: int, keys: Sequence[bytes] = ()) -> None:
        if len({len(key) for key in keys}) > 1:
            raise ValueError("the keys of a layout must be equally long")
        super().__init__(count)
        self._layout = layout_of(values.make(0), count, len(keys[0]) if keys else None)
        self._keys = np.frombuffer(b"".join(keys), dtype=np.uint8).reshape(len(keys), -1) if keys else None

    def plain(self, first_sequence: int) -> bytes:
        """Write the columns, and return a copy of all."""
        keys = None
        if self._keys is not None:
            keys = self._keys[np.arange(first_sequence, first_sequence + self.count) % len(self._keys)]
        self._layout.write(first_sequence, keys)
        return self._layout.plain.tobytes()


class ColumnReader:
    """A reader of batches by column. It remembers the layouts that it met last."""

    __slots__ = ("_buffers", "_capacity", "_layouts")

    def __init__(self, capacity: int = CACHED_LAYOUTS) -> None:
        self._capacity = capacity
        self._buffers = [np.empty(0, dtype=np.uint8)] * 3
        """Buffers for the read bytes, the expected ones, and where both are equal. The system hands out large new
        buffers page by page, which costs more than all the rest."""
        self._layouts: OrderedDict[tuple[bytes, int, int | None], BatchLayout] = OrderedDict()

    @property
    def remembered(self) -> int:
        """Number of remembered layouts."""
        return len(self._layouts)

    def read(self, header: BatchHeader, batch: memoryview) -> ValueSpan | None:
        """Return the one span that a batch is; None if it must be decoded record by record.

        The caller has checked the batch's own CRC.

        :raises InvalidRecords: the records cannot be decompressed.
        """
        plain = decompress(header.compression, batch[HEADER_BYTES : header.size_bytes])
        return self._read([header], np.frombuffer(plain, dtype=np.uint8)[np.newaxis])[0]

    def read_alike(self, headers: Sequence[BatchHeader], batches: Sequence[memoryview]) -> list[ValueSpan | None]:
        """Return what ``read`` returns for each of several batches of one size, one number of records and no
        compression, or None for one that ``read`` must read by itself. That costs a fraction of as many calls."""
        found = self._buffer(0, len(headers), headers[0].size_bytes - HEADER_BYTES)
        for row, header, batch in zip(found, headers, batches, strict=True):
            row[:] = np.frombuffer(batch[HEADER_BYTES : header.size_bytes], dtype=np.uint8)
        return self._read(headers, found)

    def _buffer(self, number: int, rows: int, size: int) -> Bytes:
        if len(self._buffers[number]) < rows * size:
            self._buffers[number] = np.empty(rows * size, dtype=np.uint8)
        return self._buffers[number][: rows * size].reshape(rows, size)

    def _read(self, headers: Sequence[BatchHeader], data: Bytes) -> list[ValueSpan | None]:
        """Read batches that have the layout of the first one. ``data`` has a row for the records of each."""
        count, nothing = headers[0].record_count, list[ValueSpan | None]([None] * len(headers))
        if count < 2 or any(header.is_control or count != header.last_offset_delta + 1 for header in headers):
            return nothing
        try:
            first, key_bytes = _first_value(memoryview(data[0]))
        except InvalidRecords:
            return nothing
        value = read_value(first)
        if not value.valid:
            return nothing
        layout = self._layout(bytes(first), count, key_bytes)
        if len(layout.plain) != data.shape[1]:
            return nothing
        sequence_at = layout.runs[0].value_at + _SEQUENCE_AT
        sequences = data[:, sequence_at : sequence_at + 8].copy().view(">i8")[:, 0].astype(np.int64)
        if sequences.max() > _MAX_SEQUENCE - count:
            return nothing
        expected = self._buffer(1, *data.shape)
        expected[:] = layout.plain
        layout.write_all(expected, sequences)
        for run in layout.runs if key_bytes else ():
            columns = slice(run.key_at, run.key_at + layout.key_bytes)
            layout.rows(expected, run)[:, :, columns] = layout.rows(data, run)[:, :, columns]
        same = self._buffer(2, *data.shape).view(np.bool_)
        np.equal(expected, data, out=same)
        equal = np.logical_and.reduce(same, axis=1).tolist()
        return [
            ValueSpan(header.base_offset, count, header.producer_id, value.writer, sequence, valid=True)
            if is_equal
            else None
            for header, sequence, is_equal in zip(headers, sequences.tolist(), equal, strict=True)
        ]

    def _layout(self, value: bytes, count: int, key_bytes: int | None) -> BatchLayout:
        key = (value[HEAD.size : _SEQUENCE_AT] + value[NAME_AT:], count, key_bytes)
        layout = self._layouts.get(key)
        if layout is None:
            layout = self._layouts[key] = layout_of(value, count, key_bytes)
            if len(self._layouts) > self._capacity:
                self._layouts.popitem(last=False)
        else:
            self._layouts.move_to_end(key)
        return layout


def _first_value(plain: memoryview) -> tuple[memoryview, int | None]:
    """Return the value of the first record, and the size of its key."""
    _, position = read_zigzag(plain, 0)
    _, position = read_zigzag(plain, position + 1)
    _, position = read_zigzag(plain, position)
    key_bytes, position = read_zigzag(plain, position)
    value_bytes, position = read_zigzag(plain, position + max(0, key_bytes))
    return plain[position : position + max(0, value_bytes)], None if key_bytes < 0 else key_bytes
