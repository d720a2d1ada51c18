"""Derive a table's columns from its class of rows. Its fields are the columns, each with its type and its meaning.

    @table("ends", "history/ends*.parquet")
    @dataclass(slots=True)
    class EndRow(Row):
        topic: str
        high_watermark: Annotated[int, "once all was quiet"]

A field is declared once: the recorder, the Parquet files and the Spark jobs' schemas all follow from it.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, fields
from operator import attrgetter
from types import NoneType
from typing import Any, Literal, TypeVar, get_args, get_type_hints

R = TypeVar("R", bound="type[Row]")
Kind = Literal["int64", "float64", "string", "bool"]
_KINDS: dict[object, Kind] = {int: "int64", float: "float64", str: "string", bool: "bool"}


class _Meaning(str):
    """A meaning that is never equal to a plain string of the same text. Some versions of Python share equal Annotated
    objects, which would replace the class of the meaning."""

    __slots__ = ()

    def __eq__(self, other: object) -> bool:
        return type(other) is type(self) and str(self) == str(other)

    def __hash__(self) -> int:
        return hash((type(self), str(self)))


class Moment(_Meaning):
    """The meaning of a column with a time. The row has the time of its writer's clock, and the file has microseconds
    since the run's start."""

    __slots__ = ()


class Later(_Meaning):
    """The meaning of a column that older runs lack. It is null for them."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Column:
    name: str
    kind: Kind
    doc: str
    nullable: bool = False
    is_moment: bool = False


@dataclass(frozen=True, slots=True)
class Table:
    """A table of the history: its files and columns."""

    name: str
    path: str
    """A glob below the run folder. Several writers add files of their own to it."""
    doc: str
    columns: tuple[Column, ...]


class Row:
    """Base of all rows."""

    __slots__ = ()

    def values(self) -> tuple[Any, ...]:
        """The row's values in the order of the columns."""
        return _GETTERS[type(self)](self)


ROW_TABLES: dict[type[Row], Table] = {}
"""Each class of rows and its table, in the order of their declaration."""
_GETTERS: dict[type[Row], Callable[[Row], tuple[Any, ...]]] = {}


def table(name: str, path: str, among: dict[type[Row], Table] = ROW_TABLES) -> Callable[[R], R]:
    """Make a dataclass of rows a table of the history, or one ``among`` others."""

    def declared(row: R) -> R:
        columns = tuple(_columns(row))
        among[row] = Table(name, path, (row.__doc__ or "").strip(), columns)
        _GETTERS[row] = attrgetter(*(column.name for column in columns))
        return row

    return declared


def _columns(row: type[Row]) -> Iterator[Column]:
    hints = get_type_hints(row, include_extras=True)
    for field in fields(row):  # type: ignore[arg-type]
        hint = hints[field.name]
        note = getattr(hint, "__metadata__", ("",))[0]
        plain = getattr(hint, "__origin__", hint)
        kinds = [kind for kind in get_args(plain) if kind is not NoneType] or [plain]
        nullable = NoneType in get_args(plain) or isinstance(note, Later)
        yield Column(field.name, _KINDS[kinds[0]], str(note), nullable, isinstance(note, Moment))
