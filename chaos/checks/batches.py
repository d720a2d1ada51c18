"""Reads the batches of a metadata log from its bytes, without the broker's own reader."""

from collections.abc import Iterator
from struct import Struct
from typing import NamedTuple

_HEADER = Struct(">qiiBIhi")
"""Base offset, length, leader epoch, magic, CRC, attributes, last offset delta."""
_LENGTH_FROM = 12
_CONTROL = 0x20


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


def batches_of(data: bytes) -> Iterator[tuple[Batch, int, int]]:
    """Yields whole batches, each with where it begins and ends in ``data``."""
    position, size = 0, len(data)
    while position + _HEADER.size <= size:
        base, length, epoch, _, crc, attributes, last_delta = _HEADER.unpack_from(data, position)
        end = position + _LENGTH_FROM + length
        if end > size:
            return
        yield Batch(base, epoch, crc, base + last_delta, bool(attributes & _CONTROL)), position, end
        position = end
