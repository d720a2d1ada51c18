"""Requests that wait for a partition's high watermark (acks=all) or low watermark (DeleteRecords).

Each partition keeps its waiting requests in a heap by offset, so the cost of completing is proportional to what
completes. One timer serves all requests. It is set to the earliest deadline, which a second heap finds; answered
requests drop out of that heap.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import TypeAlias

from reference_broker.ports.node_ports import Ports
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode

Offsets: TypeAlias = list[tuple[Partition, int]]
"""Pairs of (partition, the watermark that it must reach)."""

Answered: TypeAlias = Callable[[dict[Partition, Error]], None]
"""Called with the partitions that failed and their errors. All others have reached their offset."""

Abandon: TypeAlias = Callable[[], None]
"""Called when nobody waits for the answer any more, to forget the request."""

Heap: TypeAlias = list[tuple[int, int, object]]

LONGEST_TIMEOUT_MS = 0x7FFFFFFF
_COMPACT_FROM = 64


@dataclass(slots=True, eq=False)
class Waiting:
    """One request. ``pending`` holds the partitions below their offset; it is empty once the request is answered."""

    pending: dict[Partition, int]
    answered: Answered
    errors: dict[Partition, Error] = field(default_factory=dict)

    def settle(self, partition: Partition, error: Error) -> None:
        """Decides one partition's part; the last one answers the request. An answered request ignores the call."""
        pending = self.pending
        if pending.pop(partition, None) is None:
            return
        if error:
            self.errors[partition] = error
        if not pending:
            self.answered(self.errors)


@dataclass(slots=True)
class Acknowledgements:
    """``heap_of`` returns the heap in which a partition keeps the requests that wait for it."""

    _ports: Ports
    _heap_of: Callable[[Partition], Heap]
    _deadlines: list[tuple[int, int, Waiting]] = field(default_factory=list)
    _compact_at: int = _COMPACT_FROM
    _last: int = 0
    _timer: int | None = None
    _timer_us: int = 0

    def wait(self, offsets: Offsets, timeout_ms: int, answered: Answered) -> Abandon:
        """Waits for ``offsets``, none of which is reached yet.

        Partitions that do not reach theirs within ``timeout_ms`` fail with REQUEST_TIMED_OUT.
        """
        pending = dict(offsets)
        if len(pending) < len(offsets):
            for partition, offset in offsets:
                pending[partition] = max(pending[partition], offset)
        waiting = Waiting(pending, answered)
        for partition, offset in pending.items():
            self._last += 1
            heappush(self._heap_of(partition), (offset, self._last, waiting))
        deadline_us = self._ports.now().mono_us + min(max(timeout_ms, 0), LONGEST_TIMEOUT_MS) * 1000
        self._forget_answered()
        heappush(self._deadlines, (deadline_us, self._last, waiting))
        if self._timer is None or deadline_us < self._timer_us:
            self._arm(deadline_us)
        return partial(self._abandon, waiting)

    def _abandon(self, waiting: Waiting) -> None:
        """Costs one step for each request that waits for the same partitions; closing connections are rare."""
        stale, waiting.pending = waiting.pending, {}
        for partition in stale:
            self._forget_settled(partition)
        self._forget_answered()

    def _forget_settled(self, partition: Partition) -> None:
        heap = self._heap_of(partition)
        heap[:] = [entry for entry in heap if _is_waiting(entry)]
        heapify(heap)

    def reached(self, partition: Partition, heap: Heap, offset: int, error: Error) -> None:
        """The watermark is now ``offset``. All requests that this completes get ``error``."""
        while heap and heap[0][0] <= offset:
            waiting = heappop(heap)[2]
            assert isinstance(waiting, Waiting), "only this class fills the heap"
            waiting.settle(partition, error)

    def fail(self, partition: Partition, heap: Heap, error: Error) -> None:
        """Ends all waiting for this partition with ``error``."""
        self.reached(partition, heap, 1 << 63, error)

    def _forget_answered(self) -> None:
        """Drops answered requests from the deadlines.

        Those at the front go at once. Those behind a request that still waits go once they are the majority.
        """
        deadlines = self._deadlines
        while deadlines and not deadlines[0][2].pending:
            heappop(deadlines)
        if len(deadlines) >= self._compact_at:
            self._deadlines = [entry for entry in deadlines if entry[2].pending]
            heapify(self._deadlines)
            self._compact_at = 2 * len(self._deadlines) + _COMPACT_FROM

    def _arm(self, deadline_us: int) -> None:
        if self._timer is not None:
            self._ports.cancel_timer(self._timer)
        self._timer_us = deadline_us
        self._timer = self._ports.set_timer(deadline_us, self._time_passed)

    def _time_passed(self) -> None:
        self._timer = None
        now_us = self._ports.now().mono_us
        deadlines = self._deadlines
        stale: dict[Partition, None] = {}
        while deadlines and (deadlines[0][0] <= now_us or not deadlines[0][2].pending):
            waiting = heappop(deadlines)[2]
            for partition in list(waiting.pending):
                stale[partition] = None
                waiting.settle(partition, ErrorCode.request_timed_out)
        for partition in stale:
            self._forget_settled(partition)
        if deadlines:
            self._arm(deadlines[0][0])


def acks_of(partition: Partition) -> Heap:
    """The heap is empty for a partition that is no longer led here, since resigning has settled all requests."""
    return [] if partition.followers is None else partition.followers.acks


def deletions_of(partition: Partition) -> Heap:
    return [] if partition.followers is None else partition.followers.deletions


def _is_waiting(entry: tuple[int, int, object]) -> bool:
    return isinstance(entry[2], Waiting) and bool(entry[2].pending)
