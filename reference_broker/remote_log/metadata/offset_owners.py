"""Which segment owns which offsets of one leader epoch. Of two segments that hold an offset the newer one owns it."""

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple


class Owned(NamedTuple):
    """The offsets ``start <= offset < end`` belong to ``owner``, a segment's ID."""

    start: int
    end: int
    owner: bytes


class OffsetOwners:
    """Ranges that do not overlap, in order. No range is empty."""

    __slots__ = ("_ranges",)

    def __init__(self) -> None:
        self._ranges: list[Owned] = []

    def __iter__(self) -> Iterator[Owned]:
        return iter(self._ranges)

    @property
    def end(self) -> int | None:
        """One past the last offset that is owned. None: nothing is."""
        return self._ranges[-1].end if self._ranges else None

    def find(self, offset: int) -> Owned | None:
        """Returns the range that holds the offset."""
        at = bisect_right(self._ranges, offset, key=_start) - 1
        found = self._ranges[at] if at >= 0 else None
        return found if found is not None and offset < found.end else None

    def add(self, new: Owned, is_newer: Callable[[bytes], bool]) -> set[bytes]:
        """Gives ``new.owner`` those offsets of the range that no newer segment owns. ``is_newer`` says it of an owner.
        Returns the owners that lost offsets or were met. They may own nothing any more."""
        low, high = self._touched(new)
        met = self._ranges[low:high]
        left, right, kept = [], [], []
        for each in met:
            if is_newer(each.owner):
                kept.append(each)
                continue
            if each.start < new.start:
                left.append(each._replace(end=new.start))
            if each.end > new.end:
                right.append(each._replace(start=new.end))
        self._ranges[low:high] = [*left, *_filled(new, kept), *right]
        return {each.owner for each in met}

    def remove(self, old: Owned) -> None:
        """Takes away what ``old.owner`` owns of the range."""
        low, high = self._touched(old)
        self._ranges[low:high] = [each for each in self._ranges[low:high] if each.owner != old.owner]

    def owns(self, asked: Owned) -> bool:
        """Says whether ``asked.owner`` owns an offset of the range."""
        low, high = self._touched(asked)
        return any(each.owner == asked.owner for each in self._ranges[low:high])

    def _touched(self, over: Owned) -> tuple[int, int]:
        """Returns which ranges overlap: from the first index to before the second one."""
        low = bisect_right(self._ranges, over.start, key=_end)
        return low, bisect_left(self._ranges, over.end, key=_start)


def _filled(new: Owned, kept: Iterable[Owned]) -> Iterable[Owned]:
    """Yields the kept ranges, with the new owner's offsets between them."""
    at = new.start
    for each in kept:
        if at < each.start:
            yield new._replace(start=at, end=each.start)
        yield each
        at = each.end
    if at < new.end:
        yield new._replace(start=at)


def _start(each: Owned) -> int:
    return each.start


def _end(each: Owned) -> int:
    return each.end
