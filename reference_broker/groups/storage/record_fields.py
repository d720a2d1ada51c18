"""Reads and writes the fields of a coordinator's records in turn, in Kafka's plain and flexible encodings."""

from collections.abc import Mapping
from typing import Any

from reference_broker.wire.decoding import primitive_reader
from reference_broker.wire.encoding import primitive_writer
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.reading import (
    BAD_BYTES,
    Reader,
    error_of_bad_bytes,
    read_compact_count,
    read_known_tags,
    read_legacy_count,
)
from reference_broker.wire.writing import tag_buffer, tagged, uvarint

_NEVER = 1 << 15


class DamagedRecord(Exception):  # noqa: N818 - a record that is no record, not a failure of this program
    """The bytes do not hold what their version says, or the version is not known."""


class TextTooLong(Exception):  # noqa: N818 - a text that has no place in a record, not a failure of this program
    """A flexible request can carry this text, but a record that is not flexible cannot hold it."""


MOST_TEXT_BYTES = 0x7FFF
"""The longest text in a record, and in a message that is not flexible."""


def fits(text: str | None, spare_bytes: int = 0) -> bool:
    """Says whether a record can hold the text with so many bytes more."""
    most = MOST_TEXT_BYTES - spare_bytes
    return text is None or len(text) <= most // 4 or len(text.encode()) <= most


class FieldWriter:
    """``data`` begins with the version. Lengths are compact from version ``flexible_from`` on."""

    __slots__ = ("_flexible", "data")

    def __init__(self, version: int, flexible_from: int = _NEVER) -> None:
        self.data = bytearray()
        self._flexible = version >= flexible_from
        self._write("int16", version)

    def int32(self, value: int) -> None:
        self._write("int32", value)

    def int64(self, value: int) -> None:
        self._write("int64", value)

    def length(self, count: int) -> None:
        """Writes the length of an array."""
        if self._flexible:
            self.data += uvarint(count + 1)
        else:
            self._write("int32", count)

    def string(self, value: str) -> None:
        """Raises TextTooLong."""
        self.nullable_string(value)

    def nullable_string(self, value: str | None) -> None:
        """Raises TextTooLong."""
        if not self._flexible and not fits(value):
            raise TextTooLong(f"a text of {len(str(value).encode())} bytes")
        self._write("string", value)

    def blob(self, value: bytes) -> None:
        self._write("bytes", value)

    def tagged(self, fields: Mapping[int, bytes]) -> None:
        """Writes tagged fields, which are given by ascending tag. Only flexible versions have them."""
        self.data += tag_buffer([tagged(tag, content) for tag, content in fields.items()])

    def _write(self, kind: str, value: object) -> None:
        primitive_writer(kind, self._flexible, nullable=True)(self.data, value)


class FieldReader:
    """Every method raises DamagedRecord where the bytes end too early. Bytes after the last field are ignored, as Kafka
    ignores them."""

    __slots__ = ("_data", "_flexible", "_position", "version")

    def __init__(self, data: bytes, flexible_from: int = _NEVER, greatest: int = _NEVER) -> None:
        self._data = data
        self._position = 0
        self._flexible = False
        self.version = int(self._read("int16"))
        self._flexible = self.version >= flexible_from
        if not 0 <= self.version <= greatest:
            raise DamagedRecord(f"version {self.version} of a record's value is not known")

    def int32(self) -> int:
        return int(self._read("int32"))

    def int64(self) -> int:
        return int(self._read("int64"))

    def length(self) -> int:
        """Reads the length of an array. It is never more than what is left."""
        read_count = read_compact_count if self._flexible else read_legacy_count
        return int(self._take(lambda data, position: read_count(data, position, 1)))

    def string(self) -> str:
        return str(self._read("string"))

    def nullable_string(self) -> str | None:
        found: str | None = self._read("string", nullable=True)
        return found

    def blob(self) -> bytes:
        return bytes(self._read("bytes"))

    def tagged(self, readers: Mapping[int, Reader]) -> Mapping[int, Any]:
        """Reads the tagged fields that have a reader, by tag. A version that is not flexible has none."""
        if not self._flexible:
            return {}
        found: Mapping[int, Any] = self._take(lambda data, position: read_known_tags(data, position, readers))
        return found

    def _read(self, kind: str, nullable: bool = False) -> Any:
        return self._take(primitive_reader(kind, self._flexible, nullable))

    def _take(self, read: Reader) -> Any:
        try:
            value, self._position = read(self._data, self._position)
        except BAD_BYTES as failure:
            raise DamagedRecord(str(error_of_bad_bytes("a record", failure))) from None
        except ProtocolError as damage:
            raise DamagedRecord(str(damage)) from None
        return value
