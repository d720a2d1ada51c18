"""Reads the layout of a message from kio's dataclasses, once per class, when a codec is built for it."""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

NUMBERS: Final[Mapping[str, str]] = {
    "int8": "b",
    "int16": "h",
    "int32": "i",
    "int64": "q",
    "uint8": "B",
    "uint16": "H",
    "uint32": "I",
    "uint64": "Q",
    "float64": "d",
}
"""Kafka's number types, by their letter in ``struct``."""

_ZEROES: Final[Mapping[str, object]] = {
    **dict.fromkeys(NUMBERS, 0),
    "float64": 0.0,
    "bool": False,
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": None,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": datetime(1970, 1, 1, tzinfo=UTC),
}


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a struct.

    ``kind`` is kio's name of the primitive type. It is empty for a struct, whose class is in ``struct``. For an array,
    ``nullable`` says whether the array itself may be null. ``tag`` is None if the field is not tagged. ``default`` is
    the schema's, or else Kafka's implicit one (zero, empty, or null if null is allowed).
    """

    name: str
    kind: str
    struct: type | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: object


@cache
def schema_fields(entity: type) -> tuple[SchemaField, ...]:
    """The fields of a kio dataclass in the order of the wire (tagged ones stand among them)."""
    return tuple(_schema_field(each) for each in fields(entity))


def is_flexible_entity(entity: type) -> bool:
    """Whether the struct has compact lengths and a tag buffer."""
    return bool(entity.__flexible__)  # type: ignore[attr-defined]


def _schema_field(each: Any) -> SchemaField:
    inner, nullable = _without_none(each.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner, _ = _without_none(get_args(inner)[0])
    struct = inner if is_dataclass(inner) and isinstance(inner, type) else None
    kind = "" if struct is not None else each.metadata["kafka_type"]
    return SchemaField(
        name=each.name,
        kind=kind,
        struct=struct,
        is_array=is_array,
        nullable=nullable,
        tag=each.metadata.get("tag"),
        default=_default(each, kind, struct, is_array, nullable),
    )


def _without_none(annotation: Any) -> tuple[Any, bool]:
    if get_origin(annotation) not in (UnionType, Union):
        return annotation, False
    rest = [each for each in get_args(annotation) if each is not NoneType]
    assert len(rest) == 1, f"kio declares a union that is not with None: {annotation}"
    return rest[0], True


def _default(each: Any, kind: str, struct: type | None, is_array: bool, nullable: bool) -> object:
    if each.default is not MISSING:
        return each.default
    if nullable:
        return None
    if is_array:
        return ()
    if struct is not None:
        return struct(**{field.name: field.default for field in schema_fields(struct)})
    if kind == "error_code":
        from kio.schema.errors import ErrorCode

        return ErrorCode.none
    return _ZEROES[kind]
