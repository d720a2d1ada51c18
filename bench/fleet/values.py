"""Record values that prove themselves: (writer, sequence, CRC), padded to a given size.

The layout is big-endian: magic ``CV`` (2 bytes), CRC-32C of all that follows (4), length of the writer's name (1),
sequence (8), the name in UTF-8, padding. No two values of a run are equal, because a writer's name is unique in the run
and its sequence only rises. A tombstone has no value, so a header of the record holds what would be its value.
"""

from collections.abc import Sequence
from struct import Struct
from typing import Final, NamedTuple

from crc32c import crc32c

_HEAD: Final = Struct(">2sI")
_BODY: Final = Struct(">Bq")
_MAGIC: Final = b"CV"
_NAME_AT: Final = _HEAD.size + _BODY.size
MAX_NAME_BYTES: Final = 255
PROOF: Final = "proof"
"""The name of the header that proves a tombstone."""


class Value(NamedTuple):
    """``valid`` is False for foreign or damaged values. Then ``writer`` is empty and ``sequence`` is -1."""

    writer: str
    sequence: int
    valid: bool


FOREIGN: Final = Value("", -1, False)


def smallest_size_bytes(writer: str) -> int:
    return _NAME_AT + len(writer.encode())


class ValueMaker:
    """Makes one writer's values, all of ``size_bytes``.

    :raises ValueError: the name is empty or too long, or does not fit the size.
    """

    __slots__ = ("_name_bytes", "_tail")

    def __init__(self, writer: str, size_bytes: int, padding: bytes = b"") -> None:
        name = writer.encode()
        if not 0 < len(name) <= MAX_NAME_BYTES:
            raise ValueError(f"a writer's name has 1 to {MAX_NAME_BYTES} bytes, {writer!r} has {len(name)}")
        room = size_bytes - _NAME_AT - len(name)
        if room < 0:
            raise ValueError(f"a value of {writer} needs {_NAME_AT + len(name)} bytes, {size_bytes} were given")
        pattern = padding or b"."
        self._tail = name + (pattern * (room // len(pattern) + 1))[:room]
        self._name_bytes = len(name)

    def make(self, sequence: int) -> bytes:
        body = _BODY.pack(self._name_bytes, sequence)
        return _HEAD.pack(_MAGIC, crc32c(self._tail, crc32c(body))) + body + self._tail


def read_value(value: bytes | memoryview | None) -> Value:
    """Reads a record's value. It is FOREIGN unless magic, length and CRC are right."""
    if value is None or len(value) < _NAME_AT:
        return FOREIGN
    magic, crc = _HEAD.unpack_from(value)
    name_bytes, sequence = _BODY.unpack_from(value, _HEAD.size)
    end = _NAME_AT + name_bytes
    if magic != _MAGIC or name_bytes == 0 or end > len(value) or crc32c(value[_HEAD.size :]) != crc:
        return FOREIGN
    return Value(bytes(value[_NAME_AT:end]).decode(errors="replace"), sequence, True)


def read_record(value: bytes | memoryview | None, headers: Sequence[tuple[str, bytes | None]]) -> Value:
    """Reads what proves a record: its value or, of a tombstone, its header."""
    return read_value(dict(headers).get(PROOF) if value is None else value)
