"""Decoders for kio's message classes. They turn the layout of one version directly into the class that handlers see.

kio's own decoder is not safe for bytes from a peer. It reserves memory for an array before it looks at what arrived
(a count of 2^31 ends the process), and it refuses unknown tagged fields. The decoders here check every length first
and skip unknown tagged fields at each level. Tests compare their results with kio's.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime, timedelta
from functools import cache
from itertools import groupby
from struct import Struct, calcsize
from typing import Any, Final, TypeAlias
from uuid import UUID

from reference_broker.ports.slicing import Sliced
from reference_broker.wire import primitives
from reference_broker.wire.errors import ErrorCode, ProtocolError
from reference_broker.wire.primitives import Frame, Reader
from reference_broker.wire.request_limits import BYTES_PER_UNIT, SMALL_ITEMS, UNITS_PER_LOOK, UnitBudget
from reference_broker.wire.schema import (
    EPOCH,
    FIXED,
    MILLISECOND,
    NO_UUID,
    NUMBERS,
    SchemaField,
    is_flexible_entity,
    schema_fields,
)

SlicedReader: TypeAlias = Callable[[Frame, int, UnitBudget], Sliced[tuple[Any, int]]]
"""A Reader that yields where the rest must wait for another event."""
Step: TypeAlias = Callable[[Frame, int, dict[str, Any]], int]

_MAX_DATETIME_MS: Final = (datetime.max.replace(tzinfo=UTC) - EPOCH) // MILLISECOND
_ERROR_CODES: Final[Mapping[int, ErrorCode]] = {int(code): code for code in ErrorCode}
_NEWEST: Final = 0x7FFF
MAX_TAG_BYTES: Final = 64 << 10
"""The limit for the tagged fields of a struct in a large message, since they are read in one piece. A string takes half
of it."""


@cache
def decoder(wire: type, target: type, version: int = _NEWEST) -> Reader:
    """Make a reader that reads a ``wire`` struct and returns a ``target``. Fields of the same name are copied. Other
    fields of ``wire`` are dropped, and other fields of ``target`` get the schema's default. Fields of ``wire`` that
    came after ``version`` are not read."""
    wanted = {field.name: field for field in schema_fields(target)}
    defaults = {name: each.default for name, each in wanted.items()}
    steps = _steps(wire, wanted, version)
    dropped = tuple(field.name for field in schema_fields(wire) if field.name not in wanted)

    def read(frame: Frame, offset: int) -> tuple[Any, int]:
        values = defaults.copy()
        for step in steps:
            offset = step(frame, offset, values)
        for name in dropped:
            values.pop(name, None)
        return target(**values), offset

    return read


@cache
def sliced_decoder(wire: type, target: type, version: int = _NEWEST) -> SlicedReader:
    """As ``decoder``, for large messages, which take several events. It raises TooMuchError before it reads more items
    than the message may hold."""
    wanted = {field.name: field for field in schema_fields(target)}
    defaults = {name: each.default for name, each in wanted.items()}
    steps = _sliced_steps(wire, wanted, version)
    dropped = tuple(field.name for field in schema_fields(wire) if field.name not in wanted)

    def read(frame: Frame, offset: int, work: UnitBudget) -> Sliced[tuple[Any, int]]:
        values = defaults.copy()
        for name, step, sliced in steps:
            if sliced is None:
                offset = step(frame, offset, values)
            else:
                value, offset = yield from sliced(frame, offset, work)
                values[name] = default_of(name, value)
        for name in dropped:
            values.pop(name, None)
        return target(**values), offset

    def default_of(name: str, value: Any) -> Any:
        """This version may allow null where handlers never see it."""
        return defaults[name] if value is None and name in wanted and not wanted[name].nullable else value

    return read


def _sliced_steps(
    wire: type, wanted: Mapping[str, SchemaField], version: int
) -> list[tuple[str, Step, SlicedReader | None]]:
    """Arrays may take several events, and every other field takes one. A tagged array fits into one event."""
    flexible = is_flexible_entity(wire)
    steps: list[tuple[str, Step, SlicedReader | None]] = []
    fields = [field for field in schema_fields(wire) if field.since <= version]
    for field in fields:
        if field.tag is not None:
            continue
        step = _number_step([field]) if field.kind in NUMBERS and not field.is_array else None
        step = step or _field_step(field, wanted.get(field.name), flexible)
        target = wanted.get(field.name)
        steps.append((field.name, step, _sliced_array_reader(field, target, flexible) if field.is_array else None))
    if flexible:
        read_tags = _tags_of(fields, wanted)

        def bounded(frame: Frame, offset: int, values: dict[str, Any]) -> int:
            return read_tags(frame[: offset + MAX_TAG_BYTES], offset, values)

        steps.append(("", bounded, None))
    return steps


def _sliced_array_reader(schema_field: SchemaField, target: SchemaField | None, flexible: bool) -> SlicedReader:
    inner: SlicedReader | None = None
    if schema_field.struct is not None:
        kind = target.struct if target is not None and target.struct else schema_field.struct
        item, least = decoder(schema_field.struct, kind), least_bytes(schema_field.struct)
        if any(field.is_array for field in schema_fields(schema_field.struct)):
            inner = sliced_decoder(schema_field.struct, kind)
    else:
        item = primitive_reader(schema_field.kind, flexible, nullable=False)
        least = _least_primitive_bytes(schema_field.kind, flexible)
    read_length = primitives.read_compact_length if flexible else primitives.read_legacy_length32
    nullable, are_small = schema_field.nullable, schema_field.struct is None and schema_field.kind in FIXED
    items_per_unit = SMALL_ITEMS if are_small else 1

    def read(frame: Frame, offset: int, work: UnitBudget) -> Sliced[tuple[Any, int]]:
        count, offset = read_length(frame, offset)
        if count < 0 and nullable:
            return None, offset
        primitives.check_count(frame, offset, count, least)
        work.announce(count, are_small)
        items = []
        start, done = offset, 0
        for number in range(1, count + 1):
            if inner is None:
                value, offset = item(frame, offset)
            else:
                value, offset = yield from inner(frame, offset, work)
            items.append(value)
            if number - done == UNITS_PER_LOOK or offset - start >= UNITS_PER_LOOK * BYTES_PER_UNIT:
                if work.spend((number - done) // items_per_unit + (offset - start) // BYTES_PER_UNIT):
                    yield
                start, done = offset, number
        if work.spend((count - done) // items_per_unit + (offset - start) // BYTES_PER_UNIT):
            yield
        return tuple(items), offset

    return read


def _steps(wire: type, wanted: Mapping[str, SchemaField], version: int) -> tuple[Step, ...]:
    flexible = is_flexible_entity(wire)
    steps: list[Step] = []
    fields = [field for field in schema_fields(wire) if field.since <= version]
    untagged = (field for field in fields if field.tag is None)
    for are_numbers, run in groupby(untagged, lambda each: each.kind in NUMBERS and not each.is_array):
        if are_numbers:
            steps.append(_number_step(list(run)))
        else:
            steps += [_field_step(each, wanted.get(each.name), flexible) for each in run]
    if flexible:
        steps.append(_tags_of(fields, wanted))
    return tuple(steps)


def _tags_of(fields: list[SchemaField], wanted: Mapping[str, SchemaField]) -> Step:
    tagged = {field.tag: field for field in fields if field.tag is not None}
    readers = {tag: _field_reader(each, wanted.get(each.name), True) for tag, each in tagged.items()}
    return _tags_step({tag: each.name for tag, each in tagged.items()}, readers)


def _number_step(run: list[SchemaField]) -> Step:
    """Neighbouring numbers are read in one go."""
    layout = Struct(">" + "".join(NUMBERS[each.kind] for each in run))
    names = tuple(each.name for each in run)
    size, unpack_from = layout.size, layout.unpack_from

    def step(frame: Frame, offset: int, values: dict[str, Any]) -> int:
        values.update(zip(names, unpack_from(frame, offset), strict=True))
        return offset + size

    return step


def _field_step(field: SchemaField, target: SchemaField | None, flexible: bool) -> Step:
    read = _field_reader(field, target, flexible)
    name = field.name
    # This version allows null here, but handlers never see null in this field.
    refuses_null = field.nullable and target is not None and not target.nullable and target.kind != "records"
    default = target.default if target is not None else None

    def step(frame: Frame, offset: int, values: dict[str, Any]) -> int:
        value, offset = read(frame, offset)
        values[name] = default if refuses_null and value is None else value
        return offset

    return step


def _tags_step(names: Mapping[int, str], readers: Mapping[int, Reader]) -> Step:
    read_known_tags = primitives.read_known_tags

    def step(frame: Frame, offset: int, values: dict[str, Any]) -> int:
        found, offset = read_known_tags(frame, offset, readers)
        for tag, value in found.items():
            values[names[tag]] = value
        return offset

    return step


def _field_reader(field: SchemaField, target: SchemaField | None, flexible: bool) -> Reader:
    if field.struct is not None:
        inner = decoder(field.struct, target.struct if target is not None and target.struct else field.struct)
        if field.is_array:
            return _array_reader(inner, least_bytes(field.struct), flexible, field.nullable)
        return _nullable_struct_reader(inner) if field.nullable and field.tag is None else inner
    if field.is_array:
        item = primitive_reader(field.kind, flexible, nullable=False)
        return _array_reader(item, _least_primitive_bytes(field.kind, flexible), flexible, field.nullable)
    return primitive_reader(field.kind, flexible, field.nullable and field.tag is None)


def _array_reader(item: Reader, least_item_bytes: int, flexible: bool, nullable: bool) -> Reader:
    read_length = primitives.read_compact_length if flexible else primitives.read_legacy_length32
    check_count = primitives.check_count
    assert least_item_bytes > 0, "items without bytes could be claimed without end"

    def read(frame: Frame, offset: int) -> tuple[Any, int]:
        count, offset = read_length(frame, offset)
        if count < 0 and nullable:
            return None, offset
        check_count(frame, offset, count, least_item_bytes)
        items = []
        for _ in range(count):
            value, offset = item(frame, offset)
            items.append(value)
        return tuple(items), offset

    return read


def _nullable_struct_reader(inner: Reader) -> Reader:
    """KIP-893: one byte precedes the struct, -1 for null and 1 for a value. Kafka looks only at its sign."""

    def read(frame: Frame, offset: int) -> tuple[Any, int]:
        marker = frame[offset]
        if marker > 0x7F:
            return None, offset + 1
        return inner(frame, offset + 1)

    return read


def least_bytes(entity: type) -> int:
    """The fewest bytes that a struct can have."""
    flexible = is_flexible_entity(entity)
    total = 1 if flexible else 0
    for field in schema_fields(entity):
        if field.tag is not None:
            continue
        if field.is_array:
            total += 1 if flexible else 4
        elif field.struct is not None:
            total += 1 if field.nullable else least_bytes(field.struct)
        else:
            total += _least_primitive_bytes(field.kind, flexible)
    return total


def _least_primitive_bytes(kind: str, flexible: bool) -> int:
    if kind in FIXED:
        return calcsize(">" + FIXED[kind])
    if flexible:
        return 1
    return 2 if kind == "string" else 4


@cache
def primitive_reader(kind: str, flexible: bool, nullable: bool) -> Reader:
    """Make a reader of one value of a primitive type."""
    if kind == "string":
        if flexible:
            return primitives.read_compact_nullable_string if nullable else primitives.read_compact_string
        return primitives.read_legacy_nullable_string if nullable else primitives.read_legacy_string
    if kind in ("bytes", "records"):
        return _bytes_reader(flexible, nullable)
    convert = _nullable_datetime if kind == "datetime_i64" and nullable else _CONVERSIONS.get(kind)
    return _fixed_reader(FIXED[kind], convert)


def _fixed_reader(letter: str, convert: Callable[[Any], Any] | None) -> Reader:
    layout = Struct(">" + letter)

    def read(frame: Frame, offset: int) -> tuple[Any, int]:
        return layout.unpack_from(frame, offset)[0], offset + layout.size

    if convert is None:
        return read

    def read_converted(frame: Frame, offset: int) -> tuple[Any, int]:
        return convert(layout.unpack_from(frame, offset)[0]), offset + layout.size

    return read_converted


def _bytes_reader(flexible: bool, nullable: bool) -> Reader:
    read_length = primitives.read_compact_length if flexible else primitives.read_legacy_length32

    def read(frame: Frame, offset: int) -> tuple[Any, int]:
        length, offset = read_length(frame, offset)
        if length < 0 and nullable:
            return None, offset
        end = primitives.end_of(frame, offset, length, "a byte string")
        return bytes(frame[offset:end]), end

    return read


def _uuid(raw: bytes) -> UUID | None:
    return None if raw == NO_UUID else UUID(bytes=raw)


def _error_code(code: int) -> ErrorCode:
    """Read a code that kio does not know as UNKNOWN_SERVER_ERROR. Kafka's clients do so with codes that are newer than
    they are."""
    return _ERROR_CODES.get(code, ErrorCode.unknown_server_error)


def _duration(duration_ms: int) -> timedelta:
    try:
        return timedelta(milliseconds=duration_ms)
    except OverflowError:
        raise ProtocolError(f"a duration of {duration_ms} ms is out of range") from None


def _datetime(at_ms: int) -> datetime:
    """Kafka sends -1 where there is no time, also in fields whose schema does not say so (DescribeTransactions). That
    becomes a millisecond before the epoch."""
    if not -1 <= at_ms <= _MAX_DATETIME_MS:
        raise ProtocolError(f"a timestamp of {at_ms} ms is out of range")
    return EPOCH + timedelta(milliseconds=at_ms)


def _nullable_datetime(at_ms: int) -> datetime | None:
    return None if at_ms == -1 else _datetime(at_ms)


_CONVERSIONS: Final[Mapping[str, Callable[[Any], Any]]] = {
    "uuid": _uuid,
    "error_code": _error_code,
    "timedelta_i32": _duration,
    "timedelta_i64": _duration,
    "datetime_i64": _datetime,
}
"""Converts what ``struct`` reads to the value that handlers see. Only types for which the two differ are here."""
