"""Work on very many cached partitions, done in slices. Work on up to PARTITIONS_PER_SLICE of them is one slice."""

from collections.abc import Callable, Collection, Iterable, Iterator
from heapq import merge
from typing import TypeAlias, TypeVar

from reference_broker.ports.node_ports import Slices

ItemT = TypeVar("ItemT")

PARTITIONS_PER_SLICE = 2000
"""Number of partitions in a slice of work, which takes 1 to 4 ms."""

Work: TypeAlias = Slices | tuple[()]
"""The rest of some work. Most work is small and done at once; then the rest is ()."""


def in_slices(items: Collection[ItemT], do: Callable[[Collection[ItemT]], object]) -> Work:
    """Calls ``do`` with all items now, or returns the work if there are more than fit a slice."""
    if len(items) <= PARTITIONS_PER_SLICE:
        do(items)
        return ()
    return _piece_by_piece(list(items), do)


def _piece_by_piece(items: list[ItemT], do: Callable[[Collection[ItemT]], object]) -> Slices:
    for some in _pieces(items):
        do(some)
        yield


def after(work: Work, go_on: Callable[[], Work]) -> Work:
    """Continues once the work is done, which is now if nothing remains of it."""
    return _both(work, go_on) if work else go_on()


def in_turn(steps: Iterable[Callable[[ItemT], Work]], item: ItemT) -> Work:
    """Takes one step after the other, all of them now if no step leaves work for later."""
    following = iter(steps)
    for step in following:
        work = step(item)
        if work:
            return _both(work, lambda: in_turn(following, item))
    return ()


def _both(work: Work, go_on: Callable[[], Work]) -> Slices:
    yield from work
    yield from go_on()


def _pieces(items: list[ItemT]) -> Iterator[list[ItemT]]:
    for at in range(0, len(items), PARTITIONS_PER_SLICE):
        yield items[at : at + PARTITIONS_PER_SLICE]


def steps_in_slices(steps: Iterable[object]) -> Slices:
    """Takes one step after the other. Each is the work on one partition."""
    done = 0
    for _ in steps:
        done += 1
        if done == PARTITIONS_PER_SLICE:
            done = 0
            yield


def sort(items: list[ItemT], place: Callable[[ItemT], int | tuple[str, int]]) -> Work:
    """Sorts the items by their place."""
    if len(items) <= PARTITIONS_PER_SLICE:
        items.sort(key=place)
        return ()
    return _sort_piece_by_piece(items, place)


def _sort_piece_by_piece(items: list[ItemT], place: Callable[[ItemT], int | tuple[str, int]]) -> Slices:
    runs = []
    for some in _pieces(items):
        runs.append(sorted(some, key=place))
        yield
    items.clear()
    yield from steps_in_slices(map(items.append, merge(*runs, key=place)))
