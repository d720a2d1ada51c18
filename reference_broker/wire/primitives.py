"""Functions that read and write primitive types and tagged fields.

A reader takes a frame and an offset, and returns the value and the offset behind it. A length is compared with the
bytes that remain before anything is allocated for it. A read beyond the end of the frame raises TruncatedError or one
of ``BAD_BYTES``. ``messages`` and ``reading()`` turn the latter into ProtocolError.

Writers are for types without a fixed size. Callers write numbers with ``struct`` directly. Each module of this room has
``Struct`` objects of its own: CPython 3.11 calls a method of an imported name more slowly.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from struct import Struct, error
from typing import Any, Final, TypeAlias

from reference_broker.wire.errors import ProtocolError, TruncatedError

Frame: TypeAlias = bytes | memoryview
Reader: TypeAlias = Callable[[Frame, int], tuple[Any, int]]
"""Takes a frame and an offset. Returns the value that begins there and the offset behind it."""

_INT16: Final = Struct(">h")
_INT32: Final = Struct(">i")
MAX_STRING_BYTES: Final = 1 << 20
"""A longer string is refused: decoding it is one piece of work. Kafka takes 32,767 bytes. Handlers refuse by themselves
what is too long for a response."""
MAX_TAGGED_FIELDS: Final = 32
"""The limit for one struct. No message of Kafka has more than five. A frame has room for millions."""
_NO_TAGS: Final[Mapping[int, Any]] = {}


BAD_BYTES: Final = (error, IndexError, UnicodeDecodeError)
"""The exceptions of decoders for bytes that end too early or are not UTF-8."""


def error_of_bad_bytes(what: str, failure: Exception) -> ProtocolError:
    """Return a ProtocolError that says what one of BAD_BYTES says. ``what`` names the message that was read."""
    wrong = "holds a string that is not UTF-8" if isinstance(failure, UnicodeDecodeError) else "ends inside a field"
    return ProtocolError(f"{what} {wrong}")


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn every error that bad bytes can cause in its block into ProtocolError."""
    try:
        yield
    except BAD_BYTES as failure:
        raise error_of_bad_bytes(what, failure) from None


def read_uvarint(frame: Frame, offset: int) -> tuple[int, int]:
    """An unsigned varint of at most 5 bytes."""
    value = frame[offset]
    offset += 1
    if value < 0x80:
        return value, offset
    value &= 0x7F
    for shift in (7, 14, 21, 28):
        byte = frame[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
    raise ProtocolError("a varint has more than 5 bytes")


def read_compact_length(frame: Frame, offset: int) -> tuple[int, int]:
    """The length of a compact string, byte string or array; -1 is null. It is not yet compared with what remains."""
    value, offset = read_uvarint(frame, offset)
    return value - 1, offset


def read_legacy_length16(frame: Frame, offset: int) -> tuple[int, int]:
    """The int16 length of a string; -1 is null."""
    (length,) = _INT16.unpack_from(frame, offset)
    return _checked(length), offset + 2


def read_legacy_length32(frame: Frame, offset: int) -> tuple[int, int]:
    """The int32 length of a byte string or array; -1 is null."""
    (length,) = _INT32.unpack_from(frame, offset)
    return _checked(length), offset + 4


def _checked(length: int) -> int:
    if length < -1:
        raise ProtocolError(f"a length is {length}; the least is -1, which means null")
    return length


def end_of(frame: Frame, offset: int, length: int, what: str) -> int:
    """Return the offset at which a field of ``length`` bytes ends. Raise TruncatedError if that lies beyond the
    frame, and ProtocolError if ``length`` is -1 (null)."""
    if length < 0:
        raise ProtocolError(f"{what} is null where null is not allowed")
    end = offset + length
    if end > len(frame):
        raise TruncatedError(what, length, len(frame) - offset)
    return end


def _too_long(length: int) -> ProtocolError:
    return ProtocolError(f"a string of {length} bytes; the limit is {MAX_STRING_BYTES}")


def read_compact_string(frame: Frame, offset: int) -> tuple[str, int]:
    length, offset = read_compact_length(frame, offset)
    if length > MAX_STRING_BYTES:
        raise _too_long(length)
    end = end_of(frame, offset, length, "a string")
    return str(frame[offset:end], "utf-8"), end


def read_compact_nullable_string(frame: Frame, offset: int) -> tuple[str | None, int]:
    length, offset = read_compact_length(frame, offset)
    if length < 0:
        return None, offset
    if length > MAX_STRING_BYTES:
        raise _too_long(length)
    end = end_of(frame, offset, length, "a string")
    return str(frame[offset:end], "utf-8"), end


def read_legacy_string(frame: Frame, offset: int) -> tuple[str, int]:
    length, offset = read_legacy_length16(frame, offset)
    end = end_of(frame, offset, length, "a string")
    return str(frame[offset:end], "utf-8"), end


def read_legacy_nullable_string(frame: Frame, offset: int) -> tuple[str | None, int]:
    length, offset = read_legacy_length16(frame, offset)
    if length < 0:
        return None, offset
    end = end_of(frame, offset, length, "a string")
    return str(frame[offset:end], "utf-8"), end


def check_count(frame: Frame, offset: int, count: int, least_bytes: int) -> None:
    """Raise TruncatedError if the frame has no room for ``count`` items of at least ``least_bytes`` each, and
    ProtocolError if ``count`` is -1 (null)."""
    if count < 0:
        raise ProtocolError("an array is null where null is not allowed")
    if count * least_bytes > len(frame) - offset:
        raise TruncatedError(f"an array of {count} items", count * least_bytes, len(frame) - offset)


def read_compact_count(frame: Frame, offset: int, least_bytes: int) -> tuple[int, int]:
    """The number of items of a compact array that is not null."""
    count, offset = read_compact_length(frame, offset)
    check_count(frame, offset, count, least_bytes)
    return count, offset


def read_legacy_count(frame: Frame, offset: int, least_bytes: int) -> tuple[int, int]:
    """The number of items of an array that is not null."""
    count, offset = read_legacy_length32(frame, offset)
    check_count(frame, offset, count, least_bytes)
    return count, offset


def read_tag(frame: Frame, offset: int) -> tuple[int, int, int]:
    """Return one tagged field's tag and the offsets at which its value begins and ends."""
    tag, offset = read_uvarint(frame, offset)
    size, offset = read_uvarint(frame, offset)
    return tag, offset, end_of(frame, offset, size, "a tagged field")


def _too_many_tags(count: int) -> ProtocolError:
    return ProtocolError(f"a struct has {count} tagged fields; the limit is {MAX_TAGGED_FIELDS}")


def read_known_tags(frame: Frame, offset: int, readers: Mapping[int, Reader]) -> tuple[Mapping[int, Any], int]:
    """Return the values of the tagged fields that ``readers`` has a reader for, by tag, and the offset behind the tag
    buffer. Other tagged fields are skipped."""
    if frame[offset] == 0:  # Most structs have no tagged field.
        return _NO_TAGS, offset + 1
    found: dict[int, Any] = {}
    count, offset = read_uvarint(frame, offset)
    if count > MAX_TAGGED_FIELDS:
        raise _too_many_tags(count)
    for _ in range(count):
        tag, offset, end = read_tag(frame, offset)
        read = readers.get(tag)
        if read is not None:
            found[tag], stop = read(frame, offset)
            if stop != end:
                raise ProtocolError(f"tagged field {tag} has {end - offset} bytes, but its value takes {stop - offset}")
        offset = end
    return found, offset


def skip_tagged_fields(frame: Frame, offset: int) -> int:
    """Skip a tag buffer in which no tag is known, and return the offset behind it."""
    try:
        count, offset = read_uvarint(frame, offset)
        if count > MAX_TAGGED_FIELDS:
            raise _too_many_tags(count)
        for _ in range(count):
            _, _, offset = read_tag(frame, offset)
    except IndexError:
        raise ProtocolError("tagged fields reach beyond the frame") from None
    return offset


Buffers: TypeAlias = list[bytes | memoryview]


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
    """Encode a compact string: its length + 1 as a varint, then UTF-8. Null is the single byte 0."""
    if text is None:
        return b"\0"
    data = text.encode()
    return uvarint(len(data) + 1) + data


def legacy_string(text: str | None) -> bytes:
    """Encode a legacy string: its length as int16, then UTF-8. Null is the length -1. Raise struct.error if the text
    has more than 32767 bytes."""
    if text is None:
        return b"\xff\xff"
    data = text.encode()
    return _INT16.pack(len(data)) + data


def tagged(tag: int, value: bytes) -> bytes:
    """Encode one tagged field: tag, size, value."""
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
        """Add bytes. If there are LARGE_BYTES or more, they become a buffer of their own and are not copied."""
        if len(data) < LARGE_BYTES:
            self.small += data
            return
        self.buffers.append(bytes(self.small))
        self.buffers.append(data)
        self.total_bytes += len(self.small) + len(data)
        self.small = bytearray()

    def finish(self) -> Buffers:
        """Return all buffers, with the frame's length in the first four bytes."""
        total_bytes = self.total_bytes + len(self.small) - 4
        if not self.buffers:
            _INT32.pack_into(self.small, 0, total_bytes)
            return [bytes(self.small)]
        self.buffers[0] = _INT32.pack(total_bytes) + self.buffers[0][4:]
        if self.small:
            self.buffers.append(bytes(self.small))
        return self.buffers
