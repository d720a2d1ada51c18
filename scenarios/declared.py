"""Read and write TOML tables as dataclasses. Each field declares the values that are valid there.

A field is one line, ``poll_interval_ms: Annotated[int, whole(0)] = 100``: its type, what it may hold, and its default.
``read`` makes a value of a table, ``as_table`` writes it back, and ``simulated`` gives the value that the simulator
plays. All three follow these lines, and nothing else names the fields.
"""

from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, TypeAlias, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from scenarios.fields import Reader

T = TypeVar("T")
SIMULATED = "sim_"
"""``sim_count`` beside ``count`` is the number in the simulator. None means the same number."""


Take: TypeAlias = Callable[[Reader, str, Any], Any]
"""Takes a key, whose default comes last; the key must be there if that is None. Raises ScenarioError."""


def _as_it_is(value: Any) -> object:
    return value


@dataclass(frozen=True, slots=True)
class Kind:
    """The kind of a field: how it is read from a file and written to one."""

    take: Take
    write: Callable[[Any], object] = _as_it_is


def whole(low: int | None = None, high: int | None = None) -> Kind:
    """A whole number from ``low`` to ``high``."""
    return Kind(lambda reader, key, default: reader.integer(key, default, low, high))


def number(low: float | None = None) -> Kind:
    """A number of at least ``low``."""
    return Kind(lambda reader, key, default: reader.number(key, default, low))


def text(allowed: tuple[str, ...] | None = None) -> Kind:
    """A text. If ``allowed`` is given it must be one of these."""
    return Kind(lambda reader, key, default: reader.text(key, default, allowed))


def texts(allowed: tuple[str, ...] | None = None, may_be_empty: bool = False) -> Kind:
    """A list of texts. If ``allowed`` is given each must be one of these."""

    def take(reader: Reader, key: str, default: Any) -> tuple[str, ...]:
        words = reader.texts(key, allowed, default)
        if not words and not may_be_empty:
            raise reader.refusal(key, "is empty; name at least one")
        return words

    return Kind(take, list)


def between(low: int = 0) -> Kind:
    """A range of whole numbers of at least ``low``, or one number."""
    return Kind(lambda reader, key, default: reader.range(key, default, low))


def node(words: tuple[str, ...]) -> Kind:
    """A node's number, or one of the words."""
    return Kind(lambda reader, key, default: reader.node(key, default, words))


def settings() -> Kind:
    """A table of settings by Kafka's names, kept as pairs of texts."""
    return Kind(lambda reader, key, _: reader.table(key, required=False).pairs(), dict)


def weights(words: tuple[str, ...]) -> Kind:
    """A table of weights for some of the words, kept as pairs in the words' order. One weight must be above 0."""

    def take(reader: Reader, key: str, default: Any) -> tuple[tuple[str, int], ...]:  # noqa: ARG001
        table = reader.table(key)
        weights = tuple((word, table.integer(word, 0, low=0)) for word in words)
        table.end()
        used = tuple((word, weight) for word, weight in weights if weight)
        if not used:
            raise reader.refusal(key, f"has no weight above 0; give one to any of: {', '.join(words)}")
        return used

    return Kind(take, dict)


def table(of: type[Any]) -> Kind:
    """A table of its own."""
    return Kind(lambda reader, key, _: read(of, reader.table(key)), as_table)


def tables(of: type[Any]) -> Kind:
    """Any number of tables."""
    return Kind(
        lambda reader, key, _: tuple(read(of, table) for table in reader.tables(key)),
        lambda value: [as_table(item) for item in value],
    )


_PLAIN: dict[object, Kind] = {
    str: text(),
    int: whole(),
    float: number(),
    bool: Kind(lambda reader, key, default: reader.boolean(key, default)),
}


def _kind(hint: Any) -> Kind:
    """Return what a field with this type may hold."""
    if get_origin(hint) is Annotated:
        return cast(Kind, hint.__metadata__[0])
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (alternative for alternative in get_args(hint) if alternative is not NoneType)
        return _kind(hint)
    if get_origin(hint) is tuple:
        return tables(get_args(hint)[0])
    return table(cast(type[Any], hint)) if is_dataclass(hint) else _PLAIN[hint]


def read(declared: type[T], reader: Reader, **given: Any) -> T:
    """Make a value of a table. Fields that are ``given`` are not read.

    Raise ScenarioError for an unknown key, and for what a field may not hold.
    """
    hints = get_type_hints(declared, include_extras=True)
    read_fields = [field for field in fields(declared) if field.name not in given]  # type: ignore[arg-type]
    for field in read_fields:
        reader.knows(field.name)
    reader.end()  # First, since a key that is misspelt is missing, too.
    for field in read_fields:
        if field.default is None and not reader.has(field.name):
            continue
        default = None if field.default is MISSING else field.default
        given[field.name] = _kind(hints[field.name]).take(reader, field.name, default)
    return declared(**given)


def as_table(value: Any) -> dict[str, object]:
    """Return the table of which ``read`` makes this value again. Fields at their default are omitted."""
    hints = get_type_hints(type(value), include_extras=True)
    return {
        field.name: _kind(hints[field.name]).write(getattr(value, field.name))
        for field in fields(value)
        if getattr(value, field.name) != field.default
    }


def simulated(value: T) -> T:
    """Return the value for the simulator. In all tables each ``sim_`` field replaces the field that it belongs to."""
    changes: dict[str, Any] = {}
    for field in fields(value):  # type: ignore[arg-type]
        now = getattr(value, field.name)
        if field.name.startswith(SIMULATED):
            if now is not None:
                changes[field.name.removeprefix(SIMULATED)] = now
                changes[field.name] = None
        elif isinstance(now, tuple) and now and is_dataclass(now[0]):
            changes[field.name] = tuple(simulated(item) for item in now)
        elif is_dataclass(now):
            changes[field.name] = simulated(now)
    return replace(value, **changes)  # type: ignore[type-var]
