"""Reads and writes the fields of a coordinator's records in turn, in Kafka's plain and flexible encodings."""

from collections.abc import Mapping
from struct import Struct, error

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
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
        self.data = bytearray(_INT16.pack(version))
        self._flexible = version >= flexible_from

    def int32(self, value: int) -> None:
        self.data += _INT32.pack(value)

    def int64(self, value: int) -> None:
        self.data += _INT64.pack(value)

    def length(self, count: int) -> None:
        """Writes the length of an array."""
        if self._flexible:
            _write_varint(self.data, count + 1)
        else:
            self.data += _INT32.pack(count)

    def string(self, value: str) -> None:
        """Raises TextTooLong."""
        encoded = value.encode()
        if self._flexible:
            _write_varint(self.data, len(encoded) + 1)
        elif len(encoded) > MOST_TEXT_BYTES:
            raise TextTooLong(f"a text of {len(encoded)} bytes")
        else:
            self.data += _INT16.pack(len(encoded))
        self.data += encoded

    def nullable_string(self, value: str | None) -> None:
        if value is not None:
            self.string(value)
        elif self._flexible:
            self.data.append(0)
        else:
            self.data += _INT16.pack(-1)

    def blob(self, value: bytes) -> None:
        self.length(len(value))
        self.data += value

    def tagged(self, fields: Mapping[int, bytes]) -> None:
        """Writes tagged fields, which are given by ascending tag. Only flexible versions have them."""
        _write_varint(self.data, len(fields))
        for tag, content in fields.items():
            _write_varint(self.data, tag)
            _write_varint(self.data, len(content))
            self.data += content


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

    def int32(self) -> int:
        return self._number(_INT32)

    def int64(self) -> int:
        return self._number(_INT64)

    def length(self) -> int:
        """Reads the length of an array or of bytes. It is never more than what is left."""
        count = self._varint() - 1 if self._flexible else self._number(_INT32)
        return self._checked(count)

    def string(self) -> str:
        found = self.nullable_string()
        if found is None:
            raise DamagedRecord("a text is null that must not be")
        return found

    def nullable_string(self) -> str | None:
        length = self._varint() - 1 if self._flexible else self._number(_INT16)
        if length == -1:
            return None
        start = self._position
        self._position += self._checked(length)
        try:
            return self._data[start : self._position].decode()
        except UnicodeDecodeError as wrong:
            raise DamagedRecord("a text is not UTF-8") from wrong

    def blob(self) -> bytes:
        length = self.length()
        start = self._position
        self._position += length
        return self._data[start : self._position]

    def tagged(self) -> dict[int, bytes]:
        """Reads the tagged fields, by tag. A version that is not flexible has none."""
        if not self._flexible:
            return {}
        found = {}
        for _ in range(self._varint()):
            tag, size = self._varint(), self._varint()
            start = self._position
            self._position += self._checked(size)
            found[tag] = self._data[start : self._position]
        return found

    def _number(self, layout: Struct) -> int:
        try:
            value = layout.unpack_from(self._data, self._position)[0]
        except error:
            raise DamagedRecord(f"a record ends after {len(self._data)} bytes, inside a number") from None
        self._position += layout.size
        return int(value)

    def _varint(self) -> int:
        value = shift = 0
        while True:
            if self._position >= len(self._data) or shift > 28:
                raise DamagedRecord("a record ends inside a number")
            byte = self._data[self._position]
            self._position += 1
            value |= (byte & 0x7F) << shift
            if byte < 0x80:
                return value
            shift += 7

    def _checked(self, length: int) -> int:
        if not 0 <= length <= len(self._data) - self._position:
            raise DamagedRecord(f"a field of {length} bytes, {len(self._data) - self._position} are left")
        return length


def _write_varint(out: bytearray, value: int) -> None:
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
