"""Work on very many cached partitions, done in slices."""

from collections.abc import Callable, Generator, Iterable, Iterator
from heapq import merge
from typing import TypeAlias, TypeVar

from reference_broker.ports.timing import Slices
from reference_broker.sessions.cached_partition import CachedPartition, PartitionKey

ItemT = TypeVar("ItemT")

A_SLICE = 2000
"""A slice of the work looks at so many partitions, which takes 1 to 4 ms."""

Left: TypeAlias = dict[PartitionKey, CachedPartition]
"""Partitions that a session no longer caches. They must be given to ``leave``."""


def pieces(items: list[ItemT]) -> Iterator[list[ItemT]]:
    """The items, as many at a time as a slice may look at."""
    for at in range(0, len(items), A_SLICE):
        yield items[at : at + A_SLICE]


def in_order(items: list[ItemT], place: Callable[[ItemT], int | tuple[str, int]]) -> Generator[None, None, list[ItemT]]:
    """Returns the items sorted by their place."""
    if len(items) <= A_SLICE:
        return sorted(items, key=place)
    runs = []
    for some in pieces(items):
        runs.append(sorted(some, key=place))
        yield
    ordered: list[ItemT] = []
    for item in merge(*runs, key=place):
        ordered.append(item)
        if len(ordered) % A_SLICE == 0:
            yield
    return ordered


def leave(all_left: Iterable[Left]) -> Slices:
    """Takes partitions that left their sessions from the lists of those who are told of changes."""
    done = 0
    for left in all_left:
        while left:
            if done == A_SLICE:
                done = 0
                yield
            left.popitem()[1].leave()
            done += 1
