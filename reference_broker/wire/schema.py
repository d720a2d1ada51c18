"""The layout of a message, read once per class.

``LazySchema`` loads kio's module of one message when one of its classes is first used. Creating a message's classes
costs 3 to 10 ms of processor time, and a node needs few of them before its first request. A user of ``LazySchema`` also
imports kio's module under the same name in an ``if TYPE_CHECKING`` block, so that types stay exact.
"""

from collections.abc import Mapping
from dataclasses import MISSING, dataclass, fields, is_dataclass
from datetime import UTC, datetime, timedelta
from functools import cache
from importlib import import_module
from types import NoneType, UnionType
from typing import Any, Final, Union, get_args, get_origin

from reference_broker.wire.errors import ErrorCode

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
"""Kafka's number types, with their letters in ``struct``."""

FIXED: Final[Mapping[str, str]] = {
    **NUMBERS,
    "bool": "?",
    "error_code": "h",
    "uuid": "16s",
    "raw_uuid": "16s",
    "timedelta_i32": "i",
    "timedelta_i64": "q",
    "datetime_i64": "q",
}
"""All types of a fixed size, with their letters in ``struct``."""

EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
MILLISECOND: Final = timedelta(milliseconds=1)
NO_UUID: Final = bytes(16)

_ZEROES: Final[Mapping[str, object]] = {
    **dict.fromkeys(NUMBERS, 0),
    "float64": 0.0,
    "bool": False,
    "error_code": ErrorCode.none,
    "string": "",
    "bytes": b"",
    "records": None,
    "uuid": None,
    "raw_uuid": NO_UUID,
    "timedelta_i32": timedelta(0),
    "timedelta_i64": timedelta(0),
    "datetime_i64": EPOCH,
}


@dataclass(frozen=True, slots=True)
class SchemaField:
    """One field of a struct.

    ``kind`` is kio's name of the primitive type, or ``raw_uuid`` for a UUID that is kept as 16 bytes. It is empty for a
    struct, whose class is in ``struct``. For an array, ``nullable`` says whether the array itself may be null. ``tag``
    is None if the field is not tagged. ``default`` is the schema's, or else Kafka's implicit one (zero, empty, or null
    if null is allowed). ``since`` is the first version that has the field, in classes that serve several versions.
    """

    name: str
    kind: str
    struct: type | None
    is_array: bool
    nullable: bool
    tag: int | None
    default: object
    since: int = 0


@cache
def schema_fields(entity: type) -> tuple[SchemaField, ...]:
    """Return the fields of a message's dataclass, in the order of the wire. Tagged fields are among them."""
    return tuple(_schema_field(field) for field in fields(entity))


def is_flexible_entity(entity: type) -> bool:
    """Return whether the struct has compact lengths and a tag buffer. It has if its class does not say otherwise."""
    return getattr(entity, "__flexible__", True)


def _schema_field(each: Any) -> SchemaField:
    inner, nullable = _without_none(each.type)
    is_array = get_origin(inner) is tuple
    if is_array:
        inner, _ = _without_none(get_args(inner)[0])
    struct = inner if is_dataclass(inner) and isinstance(inner, type) else None
    kind = "" if struct is not None else _kind(each, inner)
    return SchemaField(
        name=each.name,
        kind=kind,
        struct=struct,
        is_array=is_array,
        nullable=nullable,
        tag=each.metadata.get("tag"),
        default=_default(each, kind, struct, is_array, nullable),
        since=each.metadata.get("since", 0),
    )


def _kind(each: Any, inner: Any) -> str:
    named: str = each.metadata["kafka_type"] if "kafka_type" in each.metadata else inner.__metadata__[0]
    return "raw_uuid" if named.endswith("uuid") and inner is bytes else named.removeprefix("[]")


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
    return _ZEROES[kind]


class LazySchema:
    """Has the attributes of kio's module. ``module`` is its path below ``kio.schema``, such as ``vote.v2.request``."""

    def __init__(self, module: str) -> None:
        self._module = module

    def __getattr__(self, name: str) -> Any:
        found = getattr(import_module(f"kio.schema.{self._module}"), name)
        setattr(self, name, found)
        return found
