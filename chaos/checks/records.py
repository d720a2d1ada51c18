"""Reads the records of a batch from its bytes, without the broker's own reader.

Source: Kafka's documentation, "Record Batch" and "Record" (message format 2). A check that read with the broker's
reader could not see what that reader leaves out.
"""

import gzip
from collections.abc import Callable, Iterator, Mapping
from struct import Struct
from typing import NamedTuple

import cramjam
import lz4.frame
import zstandard

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
    """What the header of a batch says of its producer: ``producer_id`` is -1 if it has none, and ``first_sequence`` is
    the number of its first record. ``largest_ms`` is the largest timestamp in the batch."""

    producer_id: int
    first_sequence: int
    largest_ms: int
    is_transactional: bool


def producing_of(batch: bytes) -> Producing:
    """Reads the header of one whole batch."""
    _, _, _, _, _, attributes, _, _, largest_ms, producer_id, _, first_sequence, _ = _HEADER.unpack_from(batch)
    return Producing(producer_id, first_sequence, largest_ms, bool(attributes & _TRANSACTIONAL))


def last_sequence_of(batch: bytes) -> tuple[int, int, int]:
    """Returns the producer ID, the producer epoch and the last sequence of one whole batch. After the sequence 2^31 - 1
    comes 0. A batch without sequences has -1, however many records it holds."""
    header = _HEADER.unpack_from(batch)
    producer_id, epoch, first = header[9:12]
    return producer_id, epoch, -1 if first < 0 else (first + header[6]) % (1 << 31)


class PlainRecord(NamedTuple):
    offset: int
    timestamp_ms: int
    key: bytes | None
    value: bytes | None


def records_in(batch: bytes) -> Iterator[PlainRecord]:
    """Yields the records of one whole batch, also those of a control batch. Raises ValueError if they do not fill the
    batch exactly."""
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
    """Returns the zigzag number at this place, and the place after it."""
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
