"""Reads batches and records from bytes.

This shares no code with the broker's own reader. A check that read with the broker's reader could not detect batches
that the reader skips. Source: Kafka's documentation, "Record Batch" and "Record" (message format 2).

The bytes come from the log's own ``read``, which also serves fetches. A batch that it omits is missing for every
client, too: poll-skip, lost-write and fetch-gap find that from what clients read.
"""

import gzip
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import NamedTuple, Protocol

import cramjam
import lz4.frame
import zstandard
from crc32c import crc32c

from chaos.interceptor.watched_disk import WatchedDisk
from reference_broker.log.unified_log import UnifiedLog

_PREFIX = Struct(">qiiBIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""
_LENGTH_FROM = 12
_MIN_LENGTH = 49
"""Length of a batch without records: its header has 61 bytes."""
_CRC_COVERS_FROM = 21
_CONTROL = 0x20
_READ_BYTES = 1 << 20


class BatchIdentity(NamedTuple):
    """The identity of a batch: ``crc`` covers all but base offset and leader epoch."""

    base_offset: int
    epoch: int
    crc: int
    last_offset: int
    control: bool

    @property
    def named(self) -> str:
        return f"batch {self.base_offset}..{self.last_offset} of epoch {self.epoch} (CRC {self.crc:08x})"


class Readable(Protocol):
    """A partition's log or the metadata log."""

    def read(self, offset: int, max_bytes: int, end_offset: int, /) -> bytes: ...


def batches_of(data: bytes) -> Iterator[tuple[BatchIdentity, bytes]]:
    """Yield the whole batches in ``data``, each with its bytes.

    The walk ends at a length that no batch has: a client's bytes may be damaged, and the next batch cannot be found.
    """
    position, size = 0, len(data)
    while position + _PREFIX.size <= size:
        base, length, epoch, _, crc, attributes, last_delta = _PREFIX.unpack_from(data, position)
        end = position + _LENGTH_FROM + length
        if length < _MIN_LENGTH or end > size:
            return
        yield BatchIdentity(base, epoch, crc, base + last_delta, bool(attributes & _CONTROL)), data[position:end]
        position = end


def is_intact(data: bytes) -> bool:
    """Return whether these are whole batches up to the end, each with the right CRC."""
    end = 0
    for identity, batch in batches_of(data):
        if crc32c(batch[_CRC_COVERS_FROM:]) != identity.crc:
            return False
        end += len(batch)
    return end == len(data)


def read_batches(log: Readable, offset: int, end_offset: int) -> Iterator[tuple[BatchIdentity, bytes]]:
    """Yield the batches of [offset, end_offset), each with its bytes."""
    while offset < end_offset:
        last_offset = offset - 1
        with WatchedDisk.unwatched():
            read = log.read(offset, _READ_BYTES, end_offset)
        for batch in batches_of(read):
            yield batch
            last_offset = batch[0].last_offset
        if last_offset < offset:
            return
        offset = last_offset + 1


def record_count(batch: bytes) -> int:
    """Return the number of records in the batch's header."""
    return int.from_bytes(batch[57:61])


_HEADER = Struct(">qiiBIhiqqqhii")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta, base timestamp, largest timestamp,
producer ID, producer epoch, base sequence, number of records."""
_CODEC = 0x07
_LOG_APPEND_TIME = 0x08
_TRANSACTIONAL = 0x10
_XERIAL_HEADER_BYTES = 16
"""Snappy as Java writes it: a header, and then blocks, each after its length (int32)."""
_LENGTH = Struct(">i")


class Producing(NamedTuple):
    """The fields of a batch's header about its producer."""

    producer_id: int
    """-1 if it has none"""
    first_sequence: int
    largest_ms: int
    """largest timestamp in the batch"""
    is_transactional: bool


def producing_of(batch: bytes) -> Producing:
    """Read the header of one whole batch."""
    _, _, _, _, _, attributes, _, _, largest_ms, producer_id, _, first_sequence, _ = _HEADER.unpack_from(batch)
    return Producing(producer_id, first_sequence, largest_ms, bool(attributes & _TRANSACTIONAL))


def last_sequence_of(batch: bytes) -> tuple[int, int, int]:
    """Return the producer ID, the producer epoch and the last sequence of one whole batch.

    Sequence 0 follows 2^31 - 1. A batch without sequences has -1, however many records it has.
    """
    header = _HEADER.unpack_from(batch)
    producer_id, epoch, first = header[9:12]
    return producer_id, epoch, -1 if first < 0 else (first + header[6]) % (1 << 31)


class PlainRecord(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def records_in(batch: bytes) -> Iterator[PlainRecord]:
    """Yield the records of one whole batch, also those of a control batch. Raise ValueError if they do not fill
    the batch exactly."""
    base, length, _, _, _, attributes, _, base_ms, largest_ms, _, _, _, count = _HEADER.unpack_from(batch)
    plain = _PLAIN[attributes & _CODEC](bytes(batch[_HEADER.size : 12 + length]))
    at = 0
    for _ in range(count):
        size, at = _varint(plain, at)
        end = at + size
        delta_ms, at = _varint(plain, at + 1)  # One byte of attributes, which no version uses.
        delta, at = _varint(plain, at)
        key, at = _bytes(plain, at)
        value, at = _bytes(plain, at)
        time_ms = largest_ms if attributes & _LOG_APPEND_TIME else base_ms + delta_ms
        yield PlainRecord(base + delta, time_ms, key, value)
        at = end
    if at != len(plain):
        raise ValueError(f"{count} records end at byte {at} of {len(plain)}")


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """Return the zigzag number at this place, and the place after it."""
    number, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def _bytes(data: bytes, at: int) -> tuple[bytes | None, int]:
    size, at = _varint(data, at)
    return (None, at) if size < 0 else (data[at : at + size], at + size)


def _unsnapped(data: bytes) -> bytes:
    if not data.startswith(b"\x82SNAPPY\x00"):
        return bytes(cramjam.snappy.decompress_raw(data))
    at, blocks = _XERIAL_HEADER_BYTES, []
    while at < len(data):
        (size,) = _LENGTH.unpack_from(data, at)
        blocks.append(bytes(cramjam.snappy.decompress_raw(data[at + 4 : at + 4 + size])))
        at += 4 + size
    return b"".join(blocks)


def _unzstd(data: bytes) -> bytes:
    return zstandard.ZstdDecompressor().decompressobj().decompress(data)


_PLAIN: Mapping[int, Callable[[bytes], bytes]] = {
    0: bytes,
    1: gzip.decompress,
    2: _unsnapped,
    3: lz4.frame.decompress,
    4: _unzstd,
}


def newest_offsets(log: UnifiedLog, end_offset: int) -> dict[bytes | None, int]:
    """Return the newest offset below ``end_offset`` at which the log has each key. Tombstones count."""
    return {
        record.key: record.offset
        for batch, data in read_batches(log, log.log_start_offset, end_offset)
        if not batch.control
        for record in records_in(data)
    }
