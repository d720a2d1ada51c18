"""Functions that write primitive types without a fixed size. Callers write numbers with ``struct`` directly.

Each module of this room has ``Struct`` objects of its own: CPython 3.11 calls a method of an imported name more slowly.
"""

from struct import Struct
from typing import Final, TypeAlias

Buffers: TypeAlias = list[bytes | memoryview]

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")

LARGE_BYTES: Final = 4096
"""Records of at least this size become a buffer of their own. Smaller ones are copied, which is cheaper than one more
buffer for the socket."""

_ONE_BYTE: Final = tuple(bytes((value,)) for value in range(128))


def uvarint(value: int) -> bytes:
    """An unsigned varint. ``value`` is not negative."""
    if value < 128:
        return _ONE_BYTE[value]
    out = bytearray()
    while value >= 128:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def compact_string(text: str | None) -> bytes:
    """Encodes a compact string: its length + 1 as a varint, then UTF-8. Null is the single byte 0."""
    if text is None:
        return b"\0"
    data = text.encode()
    return uvarint(len(data) + 1) + data


def legacy_string(text: str | None) -> bytes:
    """Encodes a legacy string: its length as int16, then UTF-8. Null is the length -1. Raises struct.error if the text
    has more than 32767 bytes."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return _INT16.pack(len(data)) + data


def tagged(tag: int, value: bytes) -> bytes:
    """Encodes one tagged field: tag, size, value."""
    return uvarint(tag) + uvarint(len(value)) + value


def tag_buffer(fields: list[bytes]) -> bytes:
    """The tag buffer of a struct. ``fields`` are results of ``tagged()``, in the order of their tags."""
    return uvarint(len(fields)) + b"".join(fields)


class Output:
    """A frame that is being written. Small pieces are copied together; large records are not copied."""

    __slots__ = ("buffers", "small", "total_bytes")

    def __init__(self, start: bytes) -> None:
        """``start`` holds the frame's length, which ``finish`` sets, and the header."""
        self.buffers: Buffers = []
        self.small = bytearray(start)
        self.total_bytes = 0

    def add_large(self, data: bytes | memoryview) -> None:
        """Adds bytes. If there are LARGE_BYTES or more, they become a buffer of their own and are not copied."""
        if len(data) < LARGE_BYTES:
            self.small += data
            return
        self.buffers.append(bytes(self.small))
        self.buffers.append(data)
        self.total_bytes += len(self.small) + len(data)
        self.small = bytearray()

    def finish(self) -> Buffers:
        """Returns all buffers, with the frame's length in the first four bytes."""
        total_bytes = self.total_bytes + len(self.small) - 4
        if not self.buffers:
            _INT32.pack_into(self.small, 0, total_bytes)
            return [bytes(self.small)]
        self.buffers[0] = _INT32.pack(total_bytes) + self.buffers[0][4:]
        if self.small:
            self.buffers.append(bytes(self.small))
        return self.buffers
