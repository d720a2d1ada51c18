"""Partitions, the values that runs hold, and rows grouped by a key."""

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import NamedTuple, Protocol, TypeVar

from reports.rows import RunRow

Place = tuple[str, int]
"""Topic and partition."""


class OfPartition(Protocol):
    """A row that speaks of one partition."""

    topic: str
    partition: int


def place(row: OfPartition) -> Place:
    return row.topic, row.partition


class Sent(NamedTuple):
    """One value at one offset."""

    offset: int
    writer: str
    sequence: int
    producer_id: int


def expanded(run: RunRow) -> Iterator[Sent]:
    """Yields the values of a run. A value that no writer of this run made has an empty writer and sequence -1."""
    for step in range(run.count):
        sequence = run.first_sequence + step if run.writer else -1
        yield Sent(run.first_offset + step, run.writer, sequence, run.producer_id)


def named(run: RunRow, value: Sent) -> str:
    """Says which value stands where, for stories."""
    return f"{run.topic}-{run.partition} offset {value.offset}: {value.writer}/{value.sequence}"


Item = TypeVar("Item")
Key = TypeVar("Key", bound=Hashable)
NodeKey = TypeVar("NodeKey", bound=tuple[int, ...])


def grouped(items: Iterable[Item], key: Callable[[Item], Key]) -> dict[Key, list[Item]]:
    """Returns the items by key, in their order."""
    found: dict[Key, list[Item]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def without_node(table: dict[NodeKey, Item], node_id: int) -> dict[NodeKey, Item]:
    """Returns a table without the entries whose key begins with this node."""
    return {key: item for key, item in table.items() if key[0] != node_id}
