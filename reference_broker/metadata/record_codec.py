"""Encodes metadata records as record values, and decodes them. A value has Kafka's framing: the frame version 1, the
API key and the version as varints, then the body.

All bodies are flexible (compact strings and arrays, tagged fields). The writer and the reader of each record type are
made once, from its declaration.
"""

import struct
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, fields
from typing import Any, TypeAlias, cast, get_args

from reference_broker.metadata.delta import MetadataFault
from reference_broker.metadata.records import MetadataRecord

FRAME_VERSION = 1

Writer: TypeAlias = Callable[[bytearray, Any], None]
Reader: TypeAlias = Callable[[bytes, int], tuple[Any, int]]
"""(buffer, position) -> (value, position after it)."""


def write_varint(out: bytearray, value: int) -> None:
    """Writes an unsigned varint: seven bits a byte, the lowest first."""
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)


def read_varint(data: bytes, position: int) -> tuple[int, int]:
    if position < len(data) and data[position] < 0x80:
        return data[position], position + 1
    value = shift = 0
    while True:
        if position >= len(data) or shift > 28:
            raise MetadataFault("a metadata record ends inside a number")
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, position
        shift += 7


def _number(layout: str) -> tuple[Writer, Reader]:
    compiled = struct.Struct(layout)
    pack, unpack_from, size = compiled.pack, compiled.unpack_from, compiled.size

    def write(out: bytearray, value: int) -> None:
        out += pack(value)

    def read(data: bytes, position: int) -> tuple[int, int]:
        try:
            return unpack_from(data, position)[0], position + size
        except struct.error:
            raise MetadataFault("a metadata record is shorter than its fields") from None

    return write, read


def _slice(data: bytes, position: int, length: int) -> bytes:
    found = data[position : position + length]
    if len(found) != length:
        raise MetadataFault("a metadata record is shorter than its fields")
    return found


def _write_string(out: bytearray, value: str | None) -> None:
    if value is None:
        out.append(0)
        return
    encoded = value.encode()
    write_varint(out, len(encoded) + 1)
    out += encoded


def _read_string(data: bytes, position: int) -> tuple[str | None, int]:
    length, position = read_varint(data, position)
    if length == 0:
        return None, position
    try:
        return _slice(data, position, length - 1).decode(), position + length - 1
    except UnicodeDecodeError as error:
        raise MetadataFault("a text in a metadata record is not UTF-8") from error


def _write_uuid(out: bytearray, value: bytes) -> None:
    assert len(value) == 16, f"a UUID has 16 bytes, not {len(value)}"
    out += value


def _read_uuid(data: bytes, position: int) -> tuple[bytes, int]:
    return bytes(_slice(data, position, 16)), position + 16


def _array(element: tuple[Writer, Reader]) -> tuple[Writer, Reader]:
    write_element, read_element = element

    def write(out: bytearray, values: tuple[Any, ...] | None) -> None:
        if values is None:
            out.append(0)
            return
        write_varint(out, len(values) + 1)
        for value in values:
            write_element(out, value)

    def read(data: bytes, position: int) -> tuple[tuple[Any, ...] | None, int]:
        length, position = read_varint(data, position)
        if length == 0:
            return None, position
        values = []
        for _ in range(length - 1):
            value, position = read_element(data, position)
            values.append(value)
        return tuple(values), position

    return write, read


_TYPES: dict[str, tuple[Writer, Reader]] = {
    "bool": _number(">?"),
    "int8": _number(">b"),
    "int16": _number(">h"),
    "int32": _number(">i"),
    "int64": _number(">q"),
    "uint16": _number(">H"),
    "string": (_write_string, _read_string),
    "uuid": (_write_uuid, _read_uuid),
}
_TYPES |= {"[]int32": _array(_TYPES["int32"]), "[]uuid": _array(_TYPES["uuid"])}


@dataclass(frozen=True, slots=True)
class _Field:
    name: str
    write: Writer
    read: Reader
    since: int
    nullable: bool
    default: Any


@dataclass(frozen=True, slots=True)
class _Layout:
    """One declared structure. ``plain`` holds its fields in the order of their declaration, and ``tagged`` its tagged
    fields by ascending tag."""

    cls: type
    plain: tuple[_Field, ...]
    tagged: dict[int, _Field]

    def write(self, out: bytearray, value: object, version: int) -> None:
        for field in self.plain:
            if version >= field.since:
                field.write(out, getattr(value, field.name))
        present = [
            (tag, field, getattr(value, field.name))
            for tag, field in self.tagged.items()
            if version >= field.since and getattr(value, field.name) != field.default
        ]
        write_varint(out, len(present))
        for tag, field, content in present:
            encoded = bytearray()
            field.write(encoded, content)
            write_varint(out, tag)
            write_varint(out, len(encoded))
            out += encoded

    def read(self, data: bytes, position: int, version: int) -> tuple[Any, int]:
        values: dict[str, Any] = {}
        for field in self.plain:
            if version >= field.since:
                value, position = field.read(data, position)
                values[field.name] = self._checked(field, value)
        count, position = read_varint(data, position)
        for _ in range(count):
            tag, position = read_varint(data, position)
            size, position = read_varint(data, position)
            content = _slice(data, position, size)
            position += size
            known = self.tagged.get(tag)
            if known is not None:
                value, _ = known.read(content, 0)
                values[known.name] = self._checked(known, value)
        return self.cls(**values), position

    def _checked(self, field: _Field, value: Any) -> Any:
        if value is None and not field.nullable:
            raise MetadataFault(f"{self.cls.__name__}.{field.name} is null")
        return value


def _layout(cls: type) -> _Layout:
    plain, tagged = [], {}
    for declared in fields(cls):
        meta = declared.metadata
        write, read = _codec_of(meta)
        default = None if declared.default is MISSING else declared.default
        field = _Field(declared.name, write, read, meta.get("since", 0), meta.get("nullable", False), default)
        if "tag" in meta:
            tagged[meta["tag"]] = field
        else:
            plain.append(field)
    return _Layout(cls, tuple(plain), dict(sorted(tagged.items())))


def _codec_of(meta: Mapping[str, Any]) -> tuple[Writer, Reader]:
    if "of" in meta:
        return _array(_struct(meta["of"]))
    return _struct(meta["struct"]) if "struct" in meta else _TYPES[meta["kafka_type"]]


def _struct(cls: type) -> tuple[Writer, Reader]:
    layout = _layout(cls)
    return (lambda out, value: layout.write(out, value, 0)), (lambda data, at: layout.read(data, at, 0))


_LAYOUTS: dict[int, _Layout] = {cls.__api_key__: _layout(cls) for cls in get_args(MetadataRecord)}


def encode(record: MetadataRecord) -> bytes:
    """Returns the value of a record of the metadata log."""
    out = bytearray()
    write_varint(out, FRAME_VERSION)
    write_varint(out, record.__api_key__)
    write_varint(out, record.__version__)
    _LAYOUTS[record.__api_key__].write(out, record, record.__version__)
    return bytes(out)


def decode(data: bytes) -> MetadataRecord:
    """Raises MetadataFault for an unknown frame, type or version, or a body that does not fit."""
    frame, position = read_varint(data, 0)
    key, position = read_varint(data, position)
    version, position = read_varint(data, position)
    layout = _LAYOUTS.get(key)
    if frame != FRAME_VERSION or layout is None or version > layout.cls.__versions__:  # type: ignore[attr-defined]
        raise MetadataFault(f"metadata record type {key} version {version} (frame {frame}) is not known here")
    record, position = layout.read(data, position, version)
    if position != len(data):
        raise MetadataFault(f"{layout.cls.__name__} is followed by {len(data) - position} bytes too many")
    return cast(MetadataRecord, record)
