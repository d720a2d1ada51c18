"""Requests parked at a leader: acks=all, DeleteRecords, and the fetches of followers (Kafka's DelayedProduce,
DelayedDeleteRecords, and their purgatories).

Requests that wait for a partition's high watermark (acks=all) or low watermark (DeleteRecords) are in a heap by offset
for each partition, so the cost of completing is proportional to what completes. One timer serves all requests. It is
set to the earliest deadline, which a second heap finds; completed requests drop out of that heap.

A follower can name a newly followed partition only after the response to its fetch in flight. If the leader has nothing
to send, that takes ``replica.fetch.wait.max.ms``, and acks=all takes as long. So a leader that takes up partitions
responds to the parked fetches of their replicas at once. Until a replica has named all of them it parks that replica's
fetches only shortly, since a replica may learn of its new leader later than that leader does.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush
from typing import Protocol, TypeAlias

from reference_broker.ports.node_ports import Ports
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode

Offsets: TypeAlias = list[tuple[Partition, int]]
"""Pairs of (partition, the watermark that it must reach)."""

Completed: TypeAlias = Callable[[dict[Partition, Error]], None]
"""Called with the partitions that failed and their errors. All others have reached their offset."""

Abandon: TypeAlias = Callable[[], None]
"""Drops the request, because its response is not wanted any more."""

Heap: TypeAlias = list[tuple[int, int, object]]

LONGEST_TIMEOUT_MS = 0x7FFFFFFF
_COMPACT_FROM = 64


@dataclass(slots=True, eq=False)
class DelayedOperation:
    """One parked Produce or DeleteRecords request (Kafka's DelayedProduce, DelayedDeleteRecords)."""

    pending: dict[Partition, int]
    """The partitions below their offset. It is empty once the request is completed."""
    completed: Completed
    errors: dict[Partition, Error] = field(default_factory=dict)

    def complete_partition(self, partition: Partition, error: Error) -> None:
        """Complete one partition. The last one completes the request. A completed request ignores the call."""
        pending = self.pending
        if pending.pop(partition, None) is None:
            return
        if error:
            self.errors[partition] = error
        if not pending:
            self.completed(self.errors)


@dataclass(slots=True)
class DelayedOperationPurgatory:
    """Requests that are parked until the watermarks of all their partitions have reached an offset."""

    _ports: Ports
    _heap_of: Callable[[Partition], Heap]
    """Returns the heap of the requests that wait for a partition."""
    _deadlines: list[tuple[int, int, DelayedOperation]] = field(default_factory=list)
    _compact_at: int = _COMPACT_FROM
    _last: int = 0
    _timer: int | None = None
    _timer_us: int = 0

    def wait(self, offsets: Offsets, timeout_ms: int, completed: Completed) -> Abandon:
        """Wait for ``offsets``, none of which is reached yet.

        Partitions that do not reach theirs within ``timeout_ms`` fail with REQUEST_TIMED_OUT.
        """
        pending = dict(offsets)
        if len(pending) < len(offsets):
            for partition, offset in offsets:
                pending[partition] = max(pending[partition], offset)
        operation = DelayedOperation(pending, completed)
        for partition, offset in pending.items():
            self._last += 1
            heappush(self._heap_of(partition), (offset, self._last, operation))
        deadline_us = self._ports.now().mono_us + min(max(timeout_ms, 0), LONGEST_TIMEOUT_MS) * 1000
        self._drop_completed()
        heappush(self._deadlines, (deadline_us, self._last, operation))
        if self._timer is None or deadline_us < self._timer_us:
            self._arm(deadline_us)
        return partial(self._abandon, operation)

    def _abandon(self, operation: DelayedOperation) -> None:
        """Costs one step for each request that waits for the same partitions; closing connections are rare."""
        stale, operation.pending = operation.pending, {}
        for partition in stale:
            self._forget_settled(partition)
        self._drop_completed()

    def _forget_settled(self, partition: Partition) -> None:
        heap = self._heap_of(partition)
        heap[:] = [entry for entry in heap if _is_waiting(entry)]
        heapify(heap)

    def reached(self, partition: Partition, heap: Heap, offset: int, error: Error) -> None:
        """Settle the partition, with ``error``, in all requests that wait for ``offset`` or a smaller one."""
        while heap and heap[0][0] <= offset:
            operation = heappop(heap)[2]
            assert isinstance(operation, DelayedOperation), "only this class fills the heap"
            operation.complete_partition(partition, error)

    def fail(self, partition: Partition, heap: Heap, error: Error) -> None:
        """Fail all requests that wait for this partition with ``error``."""
        self.reached(partition, heap, 1 << 63, error)

    def _drop_completed(self) -> None:
        """Drop completed requests from the deadlines.

        Those at the front go at once. Those behind a pending request go once they are the majority.
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
            operation = heappop(deadlines)[2]
            for partition in list(operation.pending):
                stale[partition] = None
                operation.complete_partition(partition, ErrorCode.request_timed_out)
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
    return isinstance(entry[2], DelayedOperation) and bool(entry[2].pending)


GATHER_US = 1000
"""Partitions are usually taken up many at a time. The leader waits this long, so that one response serves all."""
EXPECTED_MS = 1000
"""For this long after a partition was taken up, fetches of a replica that does not name it wait shortly."""
SHORT_WAIT_MS = 20


class DelayedFetch(Protocol):
    """A fetch that waits for records, of a follower or a consumer (Kafka's DelayedFetch)."""

    def respond(self) -> None:
        """Respond now, with the data that there is."""
        ...


@dataclass(slots=True)
class FollowerWaits:
    """The latest parked fetch of each follower, which has only one in flight."""

    _ports: Ports
    _waiting: dict[int, DelayedFetch] = field(default_factory=dict)
    _unnamed: dict[int, dict[Partition, None]] = field(default_factory=dict)
    """By replica: the partitions that it has yet to name. A dead replica never names them. Its entry is dropped after
    its deadline, at its next fetch or when the leader takes up the next partition."""
    _expected_until_us: dict[int, int] = field(default_factory=dict)
    """By replica: the time until which it is expected to name them."""
    _is_planned: bool = False

    def begin(self, replica_id: int, fetch: DelayedFetch, max_wait_ms: int) -> int:
        """Register a parked fetch. Return how long it may wait at most, in ms."""
        self._waiting[replica_id] = fetch
        # Decision follower-fetch-wait
        return min(max_wait_ms, SHORT_WAIT_MS) if self._is_expected(replica_id) else max_wait_ms

    def end(self, replica_id: int, fetch: DelayedFetch) -> None:
        """Unregister a fetch that is no longer parked."""
        if self._waiting.get(replica_id) is fetch:
            del self._waiting[replica_id]

    def expect(self, partition: Partition, replica_ids: Iterable[int]) -> None:
        """Expect these replicas to name the partition, which this node now leads, in their next fetches."""
        now_us = self._ports.now().mono_us
        for replica_id in replica_ids:
            if not self._is_expected(replica_id):
                self._unnamed[replica_id] = {}
            self._expected_until_us[replica_id] = now_us + EXPECTED_MS * 1000
            self._unnamed[replica_id][partition] = None
        if self._waiting and not self._is_planned:
            self._is_planned = True
            self._ports.set_timer(now_us + GATHER_US, self._respond_to_expected)

    def named(self, partition: Partition, replica_id: int) -> None:
        """Note that the replica fetches the partition from this leader."""
        unnamed = self._unnamed.get(replica_id)
        if unnamed is not None and partition in unnamed:
            del unnamed[partition]
            if not unnamed:
                self._forget(replica_id)

    def _forget(self, replica_id: int) -> None:
        del self._unnamed[replica_id], self._expected_until_us[replica_id]

    def _is_expected(self, replica_id: int) -> bool:
        until_us = self._expected_until_us.get(replica_id)
        if until_us is None:
            return False
        if self._ports.now().mono_us < until_us:
            return True
        self._forget(replica_id)
        return False

    def _respond_to_expected(self) -> None:
        """Complete the parked fetches of the replicas that have to name a partition in their next one."""
        self._is_planned = False
        for replica_id, fetch in list(self._waiting.items()):
            if self._waiting.get(replica_id) is fetch and self._is_expected(replica_id):
                fetch.respond()
