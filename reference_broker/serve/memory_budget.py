"""One bound for the memory of all connections: requests being received or served, and responses not yet read."""

from collections.abc import Hashable, Iterator
from typing import Final, Protocol

from reference_broker.metrics.metrics import Counter, Metrics

NODES_SHARE: Final = 4
"""A quarter of the bound is reserved for connections of other nodes."""
FREED_SHARE: Final = 8
"""When a share is full, connections close until an eighth of it is free, so that not every byte closes one. What peers
have read meanwhile counts as free."""
RESERVE_SHARE: Final = 16
"""A sixteenth of a share comes on top of it for small requests, while connections that were closed are not gone yet."""
WORTH_CLOSING_BYTES: Final = 32 << 10
"""Connections that hold less come last, since closing them frees next to nothing. They are nearly all, so what they
hold is not counted again before that."""

REASON: Final = "queued.max.request.bytes is reached, and this connection has held memory longest"


class Holder(Hashable, Protocol):
    """A connection that the budget counts."""

    of_node: bool
    """Whether another node is at the other end."""

    def held_bytes(self) -> int:
        """The memory that this connection holds now."""
        ...

    def waits_since_s(self) -> float | None:
        """When its oldest frame began that is unfinished, or its oldest response was sent that is unread. None if it
        waits for this node."""
        ...

    def evict(self, reason: str) -> int:
        """Close the connection. Return the bytes that it holds until it is gone, which is a moment later."""
        ...


class MemoryBudget:
    """Counts what each connection holds. When a share is full, it closes the connections that have kept memory longest.

    A connection whose peer keeps us waiting goes first: the one with the oldest unfinished frame or the longest unread
    response. Connections whose requests are with the node go last. ``limit_bytes`` is ``queued.max.request.bytes``; a
    negative limit is none.
    """

    def __init__(self, limit_bytes: int, metrics: Metrics) -> None:
        closed = metrics.counter("crucible.network", "SocketServer", "ConnectionsClosedForMemoryPerSec")
        for_nodes = limit_bytes // NODES_SHARE
        self._shares = {
            False: Share(limit_bytes - for_nodes if limit_bytes >= 0 else -1, closed),
            True: Share(for_nodes if limit_bytes >= 0 else -1, closed, keeps_one=True),
        }
        used = metrics.gauge("kafka.network", "SocketServer", "MemoryPoolUsed")
        available = metrics.gauge("kafka.network", "SocketServer", "MemoryPoolAvailable")

        def measure() -> None:
            used.value = sum(share.recount() for share in self._shares.values())
            available.value = max(0, limit_bytes - used.value)

        metrics.before_reading.append(measure)

    def changed(self, holder: Holder) -> None:
        """Count a connection that may hold more than before. This may close it, or others."""
        self._shares[holder.of_node].changed(holder)

    def is_full(self, holder: Holder, is_small: bool = False) -> bool:
        """Return whether a new request must wait, because connections that were closed still hold what they held.
        ``is_small`` says that the request and its response are small, so that it may come out of the reserve.

        Otherwise, all requests that arrive in one turn of the event loop could be served before any memory is free
        again.
        """
        return self._shares[holder.of_node].is_full(is_small)

    def forget(self, holder: Holder) -> None:
        """The connection is gone, or another share counts it from now on."""
        for share in self._shares.values():
            share.forget(holder)


class Share:
    """The bound of one kind of connections. ``total_bytes`` may be too high, since there is no event when a peer reads.

    With ``keeps_one`` the last connection that holds much stays open, even if it holds more than the bound. Else a
    batch that is larger than the share of nodes would keep all followers out for ever.
    """

    def __init__(self, limit_bytes: int, closed: Counter, keeps_one: bool = False) -> None:
        self.total_bytes = 0
        self._limit_bytes = limit_bytes
        self._closed = closed
        self._keeps_one = keeps_one
        self._held: dict[Holder, int] = {}
        self._ending: dict[Holder, int] = {}
        """The bytes of connections that were closed and are not gone yet."""
        self._ending_bytes = 0

    def is_full(self, is_small: bool) -> bool:
        if not self._ending_bytes:
            return False
        reserve_bytes = self._limit_bytes // RESERVE_SHARE if is_small else 0
        return self.total_bytes + self._ending_bytes > self._limit_bytes + reserve_bytes

    def changed(self, holder: Holder) -> None:
        if holder in self._ending:
            return
        held_bytes = holder.held_bytes()
        self.total_bytes += held_bytes - self._held.get(holder, 0)
        if held_bytes:
            self._held[holder] = held_bytes
        else:
            self._held.pop(holder, None)
        if 0 <= self._limit_bytes < self.total_bytes:
            self._make_room()

    def forget(self, holder: Holder) -> None:
        self.total_bytes -= self._held.pop(holder, 0)
        self._ending_bytes -= self._ending.pop(holder, 0)

    def recount(self) -> int:
        """Count each connection again, and return the sum."""
        self._held = {holder: held for holder in self._held if (held := holder.held_bytes())}
        self.total_bytes = sum(self._held.values())
        return self.total_bytes

    def _count_large_again(self) -> None:
        for holder, before in [each for each in self._held.items() if each[1] >= WORTH_CLOSING_BYTES]:
            self._held[holder] = held_bytes = holder.held_bytes()
            self.total_bytes += held_bytes - before

    def _make_room(self) -> None:
        """Counting again takes milliseconds, so it must not be needed again right after this."""
        self._count_large_again()
        target_bytes = self._limit_bytes - self._limit_bytes // FREED_SHARE
        if self.total_bytes <= target_bytes:
            return
        for holder in self._closing_order():
            self._closed.value += 1
            self.forget(holder)
            self._ending[holder] = 0
            self._ending[holder] = ends_bytes = holder.evict(REASON)
            self._ending_bytes += ends_bytes
            if self.total_bytes <= target_bytes:
                return

    def _closing_order(self) -> Iterator[Holder]:
        """Among thousands of connections those that are worth closing are few. Others are ranked only if need be."""
        large = [holder for holder, held_bytes in self._held.items() if held_bytes >= WORTH_CLOSING_BYTES]
        if self._keeps_one:
            yield from sorted(large, key=self._rank)[:-1]
            return
        ages = [(since_s, number) for number, each in enumerate(large) if (since_s := each.waits_since_s()) is not None]
        for _, number in sorted(ages):
            yield large[number]
        if self.recount() <= self._limit_bytes - self._limit_bytes // FREED_SHARE:
            return
        yield from [holder for holder in large if holder in self._held]
        yield from sorted(self._held, key=self._rank)

    def _rank(self, holder: Holder) -> tuple[bool, float]:
        """The order of closing: the lowest rank first."""
        since_s = holder.waits_since_s()
        return since_s is None, since_s or 0.0
