"""Work on very many cached partitions, done in slices. Work on up to A_SLICE of them is one slice."""

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


def in_slices(items: list[ItemT], do: Callable[[list[ItemT]], object]) -> Iterable[None]:
    """Calls ``do`` with all items, as many at a time as a slice may look at: those of one slice now, and more as the
    caller goes on with what is returned."""
    if len(items) <= A_SLICE:
        do(items)
        return ()
    return _piece_by_piece(items, do)


def _piece_by_piece(items: list[ItemT], do: Callable[[list[ItemT]], object]) -> Slices:
    for some in _pieces(items):
        do(some)
        yield


def _pieces(items: list[ItemT]) -> Iterator[list[ItemT]]:
    for at in range(0, len(items), A_SLICE):
        yield items[at : at + A_SLICE]


def steps_in_slices(steps: Iterable[object]) -> Slices:
    """Takes one step after the other. Each is the work on one partition."""
    done = 0
    for _ in steps:
        done += 1
        if done == A_SLICE:
            done = 0
            yield


def in_order(items: list[ItemT], place: Callable[[ItemT], int | tuple[str, int]]) -> Generator[None, None, list[ItemT]]:
    """Returns the items sorted by their place."""
    if len(items) <= A_SLICE:
        return sorted(items, key=place)
    runs = []
    for some in _pieces(items):
        runs.append(sorted(some, key=place))
        yield
    ordered: list[ItemT] = []
    yield from steps_in_slices(map(ordered.append, merge(*runs, key=place)))
    return ordered


def leave(all_left: Iterable[Left]) -> Slices:
    """Takes partitions that left their sessions from the lists of those who are told of changes.

    Until then such a partition may still be told of a change. It does nothing then, since it is not ``live``.
    """
    for left in all_left:
        yield from steps_in_slices(_leaving(left))


def _leaving(left: Left) -> Iterator[None]:
    while left:
        left.popitem()[1].leave()
        yield
