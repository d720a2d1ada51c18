"""Cached partitions that have data to send, in the order in which answers take them. An answer takes what fits."""

from bisect import bisect_left, insort
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from reference_broker.sessions.cached_partition import CachedPartition


@dataclass(slots=True)
class ListQueue:
    """By ``order``, lowest first. An entry of a partition that left or moved on is dropped when it is met."""

    _entries: list[tuple[int, CachedPartition]] = field(default_factory=list)

    def push(self, cached: CachedPartition) -> None:
        heappush(self._entries, (cached.order, cached))
        if len(self._entries) > 2 * len(cached.session.partitions) + 64:  # entries of partitions that left
            self._entries = [entry for entry in self._entries if entry[1].live]
            heapify(self._entries)

    def take(self, start: int) -> CachedPartition | None:  # noqa: ARG002
        return heappop(self._entries)[1] if self._entries else None


@dataclass(slots=True)
class RingQueue:
    """Ordered by ``order`` from ``start`` on, then from the lowest again. Orders are unique.

    Taking and putting move the later places in memory: about a microsecond for 10,000 partitions with data.
    """

    _orders: list[int] = field(default_factory=list)
    _by_order: dict[int, CachedPartition] = field(default_factory=dict)

    def push(self, cached: CachedPartition) -> None:
        insort(self._orders, cached.order)
        self._by_order[cached.order] = cached

    def take(self, start: int) -> CachedPartition | None:
        if not self._orders:
            return None
        found = bisect_left(self._orders, start)
        return self._by_order.pop(self._orders.pop(found if found < len(self._orders) else 0))
