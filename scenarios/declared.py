"""Dataclasses that describe the tables of a file. Each field declares what the file may say there.

A field is one line, ``poll_interval_ms: Annotated[int, Whole(0)] = 100``: its type, what it may hold, and its default.
``read`` makes a value of a table, ``as_table`` writes it back, and ``simulated`` gives the value that the simulator
plays. All three follow these lines, and nothing else names the fields.
"""

from collections.abc import Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from types import NoneType, UnionType
from typing import Annotated, Any, Protocol, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from scenarios.fields import Reader

T = TypeVar("T")
SIMULATED = "sim_"
"""``sim_count`` beside ``count`` is the number in the simulator. None means the same number."""


class Kind(Protocol):
    """What a field may hold."""

    def take(self, reader: Reader, key: str, default: Any) -> Any:
        """The key's value. The key must be there if ``default`` is None. Raises ScenarioError."""
        ...

    def told(self, value: Any) -> object:
        """The value as it stands in a file."""
        ...


@dataclass(frozen=True, slots=True)
class Whole:
    """A whole number from ``low`` to ``high``."""

    low: int | None = None
    high: int | None = None

    def take(self, reader: Reader, key: str, default: Any) -> int:
        return reader.integer(key, default, self.low, self.high)

    def told(self, value: int) -> object:
        return value


@dataclass(frozen=True, slots=True)
class Number:
    """A number of at least ``low``."""

    low: float | None = None

    def take(self, reader: Reader, key: str, default: Any) -> float:
        return reader.number(key, default, self.low)

    def told(self, value: float) -> object:
        return value


@dataclass(frozen=True, slots=True)
class Text:
    """A text. If ``allowed`` is given it must be one of these."""

    allowed: tuple[str, ...] | None = None

    def take(self, reader: Reader, key: str, default: Any) -> str:
        return reader.text(key, default, self.allowed)

    def told(self, value: str) -> object:
        return value


@dataclass(frozen=True, slots=True)
class Truth:
    """true or false; a field of this kind has a default."""

    def take(self, reader: Reader, key: str, default: Any) -> bool:
        return reader.boolean(key, default)

    def told(self, value: bool) -> object:
        return value


@dataclass(frozen=True, slots=True)
class Texts:
    """A list of at least one text. If ``allowed`` is given each must be one of these."""

    allowed: tuple[str, ...] | None = None

    def take(self, reader: Reader, key: str, default: Any) -> tuple[str, ...]:
        found = reader.texts(key, self.allowed, default)
        if not found:
            raise reader.refusal(key, "is empty; name at least one")
        return found

    def told(self, value: Sequence[str]) -> object:
        return list(value)


@dataclass(frozen=True, slots=True)
class Node:
    """A node's number, or one of the words."""

    words: tuple[str, ...]

    def take(self, reader: Reader, key: str, default: Any) -> int | str:
        return reader.node(key, default, self.words)

    def told(self, value: int | str) -> object:
        return value


@dataclass(frozen=True, slots=True)
class Settings:
    """A table of settings by Kafka's names, kept as pairs of texts."""

    def take(self, reader: Reader, key: str, default: Any) -> tuple[tuple[str, str], ...]:  # noqa: ARG002
        return reader.table(key, required=False).pairs()

    def told(self, value: Sequence[tuple[str, str]]) -> object:
        return dict(value)


@dataclass(frozen=True, slots=True)
class Weights:
    """A table of weights for some of the words, kept as pairs in the words' order. One weight must be above 0."""

    words: tuple[str, ...]

    def take(self, reader: Reader, key: str, default: Any) -> tuple[tuple[str, int], ...]:  # noqa: ARG002
        table = reader.table(key)
        weights = tuple((word, table.integer(word, 0, low=0)) for word in self.words)
        table.end()
        used = tuple((word, weight) for word, weight in weights if weight)
        if not used:
            raise reader.refusal(key, f"has no weight above 0; give one to any of: {', '.join(self.words)}")
        return used

    def told(self, value: Sequence[tuple[str, int]]) -> object:
        return dict(value)


@dataclass(frozen=True, slots=True)
class Table:
    """A table of its own, or none."""

    of: type[Any]

    def take(self, reader: Reader, key: str, default: Any) -> Any:  # noqa: ARG002
        return read(self.of, reader.table(key))

    def told(self, value: Any) -> object:
        return as_table(value)


@dataclass(frozen=True, slots=True)
class Tables:
    """Any number of tables."""

    of: type[Any]

    def take(self, reader: Reader, key: str, default: Any) -> tuple[Any, ...]:  # noqa: ARG002
        return tuple(read(self.of, each) for each in reader.tables(key))

    def told(self, value: Sequence[Any]) -> object:
        return [as_table(each) for each in value]


_PLAIN: dict[object, Kind] = {str: Text(), int: Whole(), float: Number(), bool: Truth()}


def kinds_of(declared: type[Any]) -> dict[str, Kind]:
    """What each field may hold, by name and in order."""
    hints = get_type_hints(declared, include_extras=True)
    return {field.name: _kind(hints[field.name]) for field in fields(declared)}


def _kind(hint: Any) -> Kind:
    if get_origin(hint) is Annotated:
        return cast(Kind, hint.__metadata__[0])
    if get_origin(hint) in (Union, UnionType):
        (hint,) = (each for each in get_args(hint) if each is not NoneType)
        return Table(cast(type[Any], hint)) if is_dataclass(hint) else _kind(hint)
    if get_origin(hint) is tuple:
        return Tables(get_args(hint)[0])
    return _PLAIN[hint]


def read(declared: type[T], reader: Reader) -> T:
    """Makes a value of a table. Raises ScenarioError for an unknown key, and for what a field may not hold."""
    found: dict[str, Any] = {}
    kinds = kinds_of(declared)
    for field in fields(declared):  # type: ignore[arg-type]
        kind = kinds[field.name]
        if field.default is None and not reader.has(field.name):
            reader.knows(field.name)
            continue
        default = None if field.default is MISSING else field.default
        found[field.name] = kind.take(reader, field.name, default)
    reader.end()
    return declared(**found)


def as_table(value: Any) -> dict[str, object]:
    """The table of which ``read`` makes this value again. Fields at their default are left out."""
    kinds = kinds_of(type(value))
    return {
        field.name: kinds[field.name].told(getattr(value, field.name))
        for field in fields(value)
        if getattr(value, field.name) != field.default
    }


def simulated(value: T) -> T:
    """The value for the simulator. In all tables each ``sim_`` field replaces the field that it is named after."""
    changes: dict[str, Any] = {}
    for field in fields(value):  # type: ignore[arg-type]
        now = getattr(value, field.name)
        if field.name.startswith(SIMULATED):
            if now is not None:
                changes[field.name.removeprefix(SIMULATED)] = now
                changes[field.name] = None
        elif isinstance(now, tuple) and now and is_dataclass(now[0]):
            changes[field.name] = tuple(simulated(each) for each in now)
        elif is_dataclass(now):
            changes[field.name] = simulated(now)
    return replace(value, **changes)  # type: ignore[type-var]
