"""Reads and writes fields of coordinators' records: in turn, in Kafka's plain and flexible encodings."""

from collections.abc import Callable, Mapping
from struct import Struct, error
from typing import Any

from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.primitives import (
    BAD_BYTES,
    Reader,
    compact_string,
    error_of_bad_bytes,
    legacy_string,
    read_compact_count,
    read_compact_nullable_string,
    read_compact_string,
    read_known_tags,
    read_legacy_count,
    read_legacy_nullable_string,
    read_legacy_string,
    tag_buffer,
    tagged,
    uvarint,
)

_INT8 = Struct(">b")
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_NEVER = 1 << 15


class DamagedRecord(Exception):  # noqa: N818 - a record that is no record, not a failure of this program
    """The bytes do not fit the layout of their version, or the version is unknown."""


class TextTooLong(Exception):  # noqa: N818 - a text that has no place in a record, not a failure of this program
    """A flexible request can carry this text, but a record that is not flexible cannot hold it."""


MAX_TEXT_BYTES = 0x7FFF
"""The longest text in a record, and in a message that is not flexible."""


def fits(text: str | None, spare_bytes: int = 0) -> bool:
    """Return whether a record can hold the text and ``spare_bytes`` more."""
    most = MAX_TEXT_BYTES - spare_bytes
    return text is None or len(text) <= most // 4 or len(text.encode()) <= most


class FieldWriter:
    """``data`` begins with the version. Lengths are compact from version ``flexible_from`` on."""

    __slots__ = ("_flexible", "data")

    def __init__(self, version: int, flexible_from: int = _NEVER) -> None:
        self.data = bytearray(_INT16.pack(version))
        self._flexible = version >= flexible_from

    def int8(self, value: int) -> None:
        self.data += _INT8.pack(value)

    def int16(self, value: int) -> None:
        self.data += _INT16.pack(value)

    def int32(self, value: int) -> None:
        self.data += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self.data += _INT64.pack(value)

    def numbers(self, layout: Struct, *values: int) -> None:
        """Write several numbers at once."""
        self.data += layout.pack(*values)

    def length(self, count: int) -> None:
        """Write the length of an array or of bytes."""
        self.data += uvarint(count + 1) if self._flexible else _INT32.pack(count)

    def null(self) -> None:
        """Write an array or bytes that are not there."""
        self.length(-1)

    def string(self, value: str | None) -> None:
        """Raise TextTooLong."""
        if self._flexible:
            self.data += compact_string(value)
        elif fits(value):
            self.data += legacy_string(value)
        else:
            raise TextTooLong(f"a text of more than {MAX_TEXT_BYTES} bytes")

    def blob(self, value: bytes) -> None:
        self.length(len(value))
        self.data += value

    def tagged(self, fields: Mapping[int, bytes]) -> None:
        """Write tagged fields, which are given by ascending tag. Only flexible versions have them."""
        self.data += tag_buffer([tagged(tag, content) for tag, content in fields.items()])


class FieldReader:
    """Every method raises DamagedRecord where the bytes end too early. Bytes after the last field are ignored, as Kafka
    ignores them."""

    __slots__ = ("_data", "_flexible", "_position", "version")

    def __init__(self, data: bytes, flexible_from: int = _NEVER, greatest: int = _NEVER) -> None:
        self._data = data
        self._position = 0
        self.version = self._number(_INT16)
        self._flexible = self.version >= flexible_from
        if not 0 <= self.version <= greatest:
            raise DamagedRecord(f"version {self.version} of a record's value is not known")

    def int8(self) -> int:
        return self._number(_INT8)

    def int16(self) -> int:
        return self._number(_INT16)

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def length(self) -> int:
        """Read the length of an array or of bytes. It is never more than what is left."""
        read_count = read_compact_count if self._flexible else read_legacy_count
        return int(self._read(read_count, 1))

    def nullable_length(self) -> int | None:
        """Read the length of an array that may not be there."""
        absent = b"\0" if self._flexible else b"\xff\xff\xff\xff"
        if self._data.startswith(absent, self._position):
            self._position += len(absent)
            return None
        return self.length()

    def string(self) -> str:
        return str(self._read(read_compact_string if self._flexible else read_legacy_string))

    def nullable_string(self) -> str | None:
        read = read_compact_nullable_string if self._flexible else read_legacy_nullable_string
        text: str | None = self._read(read)
        return text

    def blob(self) -> bytes:
        length = self.length()
        start = self._position
        self._position += length
        return self._data[start : self._position]

    def tagged(self, readers: Mapping[int, Reader]) -> Mapping[int, Any]:
        """Read the tagged fields that have a reader, by tag. A version that is not flexible has none."""
        if not self._flexible:
            return {}
        fields: Mapping[int, Any] = self._read(read_known_tags, readers)
        return fields

    def _number(self, layout: Struct) -> int:
        try:
            value = layout.unpack_from(self._data, self._position)[0]
        except error:
            raise DamagedRecord(f"a record ends after {len(self._data)} bytes, inside a number") from None
        self._position += layout.size
        return int(value)

    def _read(self, read: Callable[..., tuple[Any, int]], *more: Any) -> Any:
        try:
            value, self._position = read(self._data, self._position, *more)
        except BAD_BYTES as failure:
            raise DamagedRecord(str(error_of_bad_bytes("a record", failure))) from None
        except ProtocolError as damage:
            raise DamagedRecord(str(damage)) from None
        return value
