"""Which offsets the events of a partition ever told of, also those of segments that are gone."""

from bisect import bisect_left, bisect_right


class ToldOffsets:
    """Ranges that neither overlap nor touch, in order. Segments follow one another, so there is mostly one."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._ends: list[int] = []

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._starts, offset) - 1
        return at >= 0 and offset < self._ends[at]

    def add(self, start: int, end: int) -> None:
        """Adds ``start <= offset < end``, together with the ranges that it meets."""
        low, high = bisect_left(self._ends, start), bisect_right(self._starts, end)
        if low < high:
            start, end = min(start, self._starts[low]), max(end, self._ends[high - 1])
        self._starts[low:high], self._ends[low:high] = [start], [end]

    def clear(self) -> None:
        self._starts.clear()
        self._ends.clear()
