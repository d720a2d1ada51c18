"""Finds the batches of which no record is the newest of its key, so that nobody need look into them again.

A pass reads the dirty part twice, and in a log whose keys recur most batches are of that kind. Only the newest offset
of each key stays, and these offsets are known once all keys are noted. A batch that holds none of them goes.
"""

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Generator, Iterable
from itertools import islice

from reference_broker.records.batch import BatchHeader

OFFSETS_PER_SLICE = 5_000


class Superseded:
    """The batches of the dirty part that were noted. At most ``most`` are; the others are looked into."""

    __slots__ = ("_bases", "_has_newest", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._bases = array("q")
        """The base offset of each batch, in ascending order."""
        self._has_newest = bytearray()

    def note(self, header: BatchHeader) -> None:
        """Notes the next batch. Each of its records is in the map of newest offsets, or superseded there."""
        if len(self._bases) < self._most:
            self._bases.append(header.base_offset)

    def settle(self, newest: Iterable[int]) -> Generator[None, None, None]:
        """Takes the newest offset of each key, in any order, once all batches are noted. An offset that lies in no
        noted batch counts for the one before it, which is then looked into for nothing. Yields between two slices."""
        bases, has_newest = self._bases, bytearray(len(self._bases))
        self._has_newest = has_newest
        rest = iter(newest) if bases else iter(())
        some = list(islice(rest, OFFSETS_PER_SLICE))
        while some:
            for offset in some:
                has_newest[bisect_right(bases, offset) - 1] = 1
            some = list(islice(rest, OFFSETS_PER_SLICE))
            if some:
                yield

    def holds(self, header: BatchHeader) -> bool:
        """Whether the batch was noted, and no record of it is the newest of its key."""
        at = bisect_left(self._bases, header.base_offset)
        return at < len(self._bases) and self._bases[at] == header.base_offset and not self._has_newest[at]
