"""One partition that this node follows, its pauses after errors, and Kafka's MaxLag over all of them."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from heapq import heapify, heappop, heappush

from reference_broker.client.partitions import TopicPartition
from reference_broker.client.session_handler import Wanted
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metrics.metrics import Gauge
from reference_broker.ports.node_ports import Ports

NEVER = 2**63 - 1


@dataclass(slots=True, eq=False)
class FollowedPartition:
    """One followed partition: its log, and the state of its fetches."""

    name: TopicPartition
    topic_id: bytes
    log: UnifiedLog
    leader_id: int
    leader_epoch: int
    requested: Wanted | None = None
    """Its entry in the latest request that named it, or None if none did since it is followed."""
    resumes_us: int = 0
    """The monotonic time until which it is excluded from the session: 0 if it is fetched now, NEVER if it waits for
    newer metadata."""
    errors: int = 0
    """The number of errors in a row."""

    def wanted(self, max_bytes: int) -> Wanted:
        """Its entry in the next fetch. A log without records cannot diverge, so it names no epoch."""
        log = self.log
        return Wanted(
            self.topic_id,
            log.log_end_offset,
            max_bytes,
            self.leader_epoch,
            log.latest_epoch if log.segments else -1,
            log.log_start_offset,
        )

    @property
    def trace_name(self) -> str:
        return f"{self.name.topic}-{self.name.partition}"

    def accepts_response(self) -> bool:
        """Whether a response to its latest request still fits: same leadership, same end of the log."""
        requested = self.requested
        return (
            requested is not None
            and self.resumes_us == 0
            and requested.current_leader_epoch == self.leader_epoch
            and requested.fetch_offset == self.log.log_end_offset
        )


FIRST_BACKOFF_MS = 20
"""Doubled with each further error, up to ``replica.fetch.backoff.ms``.

The first pause is short because after a failover the new leader is ready in a moment.
"""


def backoff_ms(errors: int, longest_ms: int) -> int:
    """``errors`` counts the errors in a row before this one."""
    return min(FIRST_BACKOFF_MS << min(errors, 16), longest_ms)


@dataclass(slots=True)
class Delays:
    """Partitions that pause after an error. All whose pauses end at the same time share one timer."""

    _ports: Ports
    _longest_ms: int
    _back: Callable[[FollowedPartition], None]
    """Gets each partition whose pause is over."""
    _done: Callable[[], None]
    """Is called after the last of them."""
    _groups: dict[int, list[FollowedPartition]] = field(default_factory=dict)
    """By the time from which the partitions are fetched again."""

    def put(self, followed: FollowedPartition) -> None:
        """Pause a partition after an error, longer with each error in a row."""
        followed.resumes_us = self._ports.now().mono_us + backoff_ms(followed.errors, self._longest_ms) * 1000 + 1
        followed.errors += 1
        group = self._groups.get(followed.resumes_us)
        if group is None:
            group = self._groups[followed.resumes_us] = []
            self._ports.set_timer(followed.resumes_us, partial(self._release, followed.resumes_us))
        group.append(followed)

    def shortened(self, wait_ms: int) -> int:
        """Return ``wait_ms``, or less if a pause ends before that."""
        if not self._groups:
            return wait_ms
        return min(wait_ms, max(0, (min(self._groups) - self._ports.now().mono_us) // 1000 + 1))

    def _release(self, resumes_us: int) -> None:
        for followed in self._groups.pop(resumes_us):
            if followed.resumes_us == resumes_us:  # Otherwise its pause ended earlier, or another one began.
                followed.resumes_us = 0
                self._back(followed)
        self._done()


_COMPACT_FROM = 64


@dataclass(slots=True)
class FetchLag:
    """Kafka's MaxLag: the number of committed records that the partition furthest behind has not fetched.

    Only partitions that are behind are kept. Any other partition costs one lookup per response.
    """

    _gauge: Gauge
    _lags: dict[FollowedPartition, int] = field(default_factory=dict)
    _furthest: list[tuple[int, int, FollowedPartition]] = field(default_factory=list)
    """A heap of (-lag, number, partition). An entry with an outdated lag is ignored."""
    _last: int = 0

    def update(self, followed: FollowedPartition, high_watermark: int) -> None:
        """Called when the records of a response are in the log. ``high_watermark`` is the leader's in that response."""
        self._set(followed, max(0, high_watermark - followed.log.log_end_offset))

    def drop(self, followed: FollowedPartition) -> None:
        """The partition is no longer followed."""
        self._set(followed, 0)

    def _set(self, followed: FollowedPartition, lag: int) -> None:
        if lag == self._lags.get(followed, 0):
            return
        if lag:
            self._lags[followed] = lag
            self._push(followed, lag)
        else:
            del self._lags[followed]
        heap = self._furthest
        while heap and self._lags.get(heap[0][2]) != -heap[0][0]:
            heappop(heap)
        self._gauge.value = -heap[0][0] if heap else 0

    def _push(self, followed: FollowedPartition, lag: int) -> None:
        self._last += 1
        if len(self._furthest) >= 2 * len(self._lags) + _COMPACT_FROM:
            self._furthest = [(-each, number, behind) for number, (behind, each) in enumerate(self._lags.items())]
            heapify(self._furthest)
            self._last = max(self._last, len(self._furthest))
        else:
            heappush(self._furthest, (-lag, self._last, followed))
