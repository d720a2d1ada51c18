"""Reads the batches of a log from their bytes, without the broker's own reader.

The bytes come from the log's own ``read``, which serves fetches too. What it left out would be missing for every client
as well: poll-skip, lost-write and fetch-gap judge that from what clients saw.
"""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple, Protocol

from chaos.watched_disk import WatchedDisk

_PREFIX = Struct(">qiiBIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""
_LENGTH_FROM = 12
_LEAST_LENGTH = 49
"""Length of a batch without records: its header has 61 bytes."""
_CONTROL = 0x20
_READ_BYTES = 1 << 20


class Batch(NamedTuple):
    """One batch. ``crc`` covers all but base offset and leader epoch, so those two are fields of their own."""

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


def batches_of(data: bytes) -> Iterator[tuple[Batch, bytes]]:
    """Yields the whole batches in ``data``, each with its bytes. Ends at a length that no batch has: a client's bytes
    may be damaged, and what follows cannot be found."""
    position, size = 0, len(data)
    while position + _PREFIX.size <= size:
        base, length, epoch, _, crc, attributes, last_delta = _PREFIX.unpack_from(data, position)
        end = position + _LENGTH_FROM + length
        if length < _LEAST_LENGTH or end > size:
            return
        yield Batch(base, epoch, crc, base + last_delta, bool(attributes & _CONTROL)), data[position:end]
        position = end


def read_batches(log: Readable, offset: int, end_offset: int) -> Iterator[tuple[Batch, bytes]]:
    """Yields the batches of [offset, end_offset), each with its bytes."""
    while offset < end_offset:
        last_offset = offset - 1
        with WatchedDisk.looked_at():
            read = log.read(offset, _READ_BYTES, end_offset)
        for batch, data in batches_of(read):
            yield batch, data
            last_offset = batch.last_offset
        if last_offset < offset:
            return
        offset = last_offset + 1


def record_count(batch: bytes) -> int:
    """Returns how many records a batch has, as its header says."""
    return int.from_bytes(batch[57:61])
