"""Typed reading of TOML tables. Each key is read once, and remaining keys are rejected."""

from collections.abc import Iterable, Mapping, Sequence
from difflib import get_close_matches
from sys import float_info
from typing import Any, NamedTuple


class Range(NamedTuple):
    """``low <= x <= high``."""

    low: int
    high: int


class ScenarioError(ValueError):
    """A scenario file or name cannot be used. The message is one sentence for the person who gave it."""


def did_you_mean(unknown: str, known: Iterable[str]) -> str:
    """Return the part of a refusal that names the known word nearest to the given one; empty if none is near."""
    near = get_close_matches(unknown, list(known), n=1)
    return f", did you mean {near[0]}" if near else ""


class Reader:
    """Reads one table. ``file`` and ``where`` are named in messages. The allowed keys are those that are read."""

    def __init__(self, table: Mapping[str, object], file: str, where: str) -> None:
        self._table = table
        self._file = file
        self._where = where
        self._allowed: set[str] = set()

    def has(self, key: str) -> bool:
        return key in self._table

    def refusal(self, key: str, must: str) -> ScenarioError:
        return ScenarioError(f"{self._file}: {self._path(key)} {must}")

    def knows(self, key: str) -> None:
        """Allow the key."""
        self._allowed.add(key)

    def end(self) -> None:
        """Refuse keys that were never read."""
        for key in self._table:
            if key not in self._allowed:
                allowed = ", ".join(sorted(self._allowed)) or "none"
                hint = did_you_mean(key, self._allowed)
                raise ScenarioError(f"{self._file}: unknown key {self._path(key)}{hint}; allowed here: {allowed}")

    def text(self, key: str, default: str | None = None, allowed: Sequence[str] | None = None) -> str:
        value: str = self._typed(key, default, "a text", str)
        if default is None and not value:
            raise self.refusal(key, "must be a text, not ''")
        if allowed is not None and value not in allowed:
            raise self.refusal(key, f"is {value!r}; allowed: {', '.join(word for word in allowed if word)}")
        return value

    def texts(
        self, key: str, allowed: Sequence[str] | None = None, default: Sequence[str] | None = None
    ) -> tuple[str, ...]:
        value = self._value_of(key, None if default is None else list(default))
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise self.refusal(key, f"must be a list of texts, not {_shown(value)}")
        for word in value:
            if allowed is not None and word not in allowed:
                raise self.refusal(key, f"has {word!r}; allowed: {', '.join(allowed)}")
        return tuple(value)

    def integer(self, key: str, default: int | None = None, low: int | None = None, high: int | None = None) -> int:
        """Return a whole number within the bounds. A default may lie outside them."""
        value: int = self._typed(key, default, "a whole number", int)
        if self.has(key) and ((low is not None and value < low) or (high is not None and value > high)):
            raise self.refusal(key, f"is {value}; it must be {_bounds(low, high)}")
        return value

    def number(self, key: str, default: float | None = None, low: float | None = None) -> float:
        """Return a finite number of at least ``low``. A default may be less."""
        value: float = self._typed(key, default, "a number", int, float)
        if not abs(value) <= float_info.max:  # NaN is not, either.
            raise self.refusal(key, f"is {value}; it must be finite")
        if self.has(key) and low is not None and value < low:
            raise self.refusal(key, f"is {value}; it must be at least {low:g}")
        return float(value)

    def boolean(self, key: str, default: bool | None = None) -> bool:
        value: bool = self._typed(key, default, "true or false", bool)
        return value

    def node(self, key: str, default: int | str, words: Sequence[str]) -> int | str:
        """Return a node's number, or one of the words."""
        value = self._value_of(key, default)
        if isinstance(value, int) and not isinstance(value, bool) and value >= 0:
            return value
        if isinstance(value, str) and value in words:
            return value
        raise self.refusal(key, f"is {_shown(value, str)}; it must be a node's number or one of: {', '.join(words)}")

    def range(self, key: str, default: tuple[int, int] | None = None, low: int | None = None) -> Range:
        """Take a whole number, or a list of two numbers: the least and the greatest."""
        value = self._value_of(key, None if default is None else list(default))
        ends = [value, value] if isinstance(value, int) else value
        if (
            not isinstance(ends, list)
            or len(ends) != 2
            or any(not isinstance(end, int) or isinstance(end, bool) for end in ends)
        ):
            raise self.refusal(key, f"must be a whole number or a list of two, not {_shown(value)}")
        if ends[0] > ends[1] or (low is not None and ends[0] < low):
            raise self.refusal(
                key, f"is {ends}; the least must come first{'' if low is None else f' and be at least {low}'}"
            )
        return Range(ends[0], ends[1])

    def table(self, key: str, required: bool = True) -> "Reader":
        value = self._typed(key, None if required else {}, "a table", dict)
        return Reader(value, self._file, self._path(key))

    def tables(self, key: str) -> list["Reader"]:
        """Take an array of tables, which may be empty."""
        value = self._value_of(key, [])
        if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
            raise self.refusal(key, f"must be tables, each under [[{self._path(key)}]], not {_shown(value)}")
        return [Reader(table, self._file, f"{self._path(key)}[{number}]") for number, table in enumerate(value)]

    def pairs(self) -> tuple[tuple[str, str], ...]:
        """Return all entries of a free table as texts, sorted by key. Kafka writes ``true`` and numbers this way."""
        return tuple(sorted((key, self._plain(key, value)) for key, value in self._table.items()))

    def integers(self) -> tuple[tuple[str, int], ...]:
        """Return all entries of a free table of whole numbers, sorted by key."""
        return tuple(sorted((key, self.integer(key)) for key in self._table))

    def conditions(self, known: Sequence[str]) -> tuple[tuple[str, Range | str], ...]:
        """Return all entries but the ``known`` ones, sorted by key. Each is a number, a list of two, or a text (a
        shell pattern)."""
        keys = [key for key in sorted(self._table) if key not in known]
        return tuple((key, self.text(key) if isinstance(self._table[key], str) else self.range(key)) for key in keys)

    def _plain(self, key: str, value: object) -> str:
        if isinstance(value, bool):
            return "true" if value else "false"
        if isinstance(value, str | int | float):
            return str(value)
        raise self.refusal(key, f"must be a text, a number, true or false, not {_shown(value)}")

    def _typed(self, key: str, default: object, what: str, *types: type) -> Any:
        """Take a key whose value must be of one of these types. A truth value is no number."""
        value = self._value_of(key, default)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            raise self.refusal(key, f"must be {what}, not {_shown(value)}")
        return value

    def _value_of(self, key: str, default: object) -> object:
        self.knows(key)
        if key in self._table:
            return self._table[key]
        if default is None:
            raise self.refusal(key, "is missing")
        return default

    def _path(self, key: str) -> str:
        return f"{self._where}.{key}" if self._where else key


def _bounds(low: int | None, high: int | None) -> str:
    if low is not None and high is not None:
        return f"between {low} and {high}"
    return f"at least {low}" if low is not None else f"at most {high}"


def _shown(value: object, as_it_is: type = bytes) -> str:
    if isinstance(value, as_it_is):
        return repr(value)
    return {dict: "a table", list: "a list", str: "a text", bool: "a truth value"}.get(type(value), repr(value))
