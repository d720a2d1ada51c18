"""Kafka's MaxLag: how many committed records the followed partition that is furthest behind has not fetched."""

from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush

from reference_broker.metrics.metrics import Gauge
from reference_broker.replication.follower.followed import Followed

_COMPACT_FROM = 64


@dataclass(slots=True)
class FetchLag:
    """Takes the lag from each partition's latest answer.

    Only partitions that are behind are kept. Any other partition costs one look-up per answer.
    """

    _gauge: Gauge
    _lags: dict[Followed, int] = field(default_factory=dict)
    _furthest: list[tuple[int, int, Followed]] = field(default_factory=list)
    """A heap of (-lag, number, partition). An entry with an outdated lag is ignored."""
    _last: int = 0

    def answered(self, one: Followed, high_watermark: int) -> None:
        """Called when the records of an answer are in the log. ``high_watermark`` is the leader's in that answer."""
        self._set(one, max(0, high_watermark - one.log.log_end_offset))

    def drop(self, one: Followed) -> None:
        """The partition is no longer followed."""
        self._set(one, 0)

    def _set(self, one: Followed, lag: int) -> None:
        if lag == self._lags.get(one, 0):
            return
        if lag:
            self._lags[one] = lag
            self._push(one, lag)
        else:
            del self._lags[one]
        heap = self._furthest
        while heap and self._lags.get(heap[0][2]) != -heap[0][0]:
            heappop(heap)
        self._gauge.value = -heap[0][0] if heap else 0

    def _push(self, one: Followed, lag: int) -> None:
        self._last += 1
        if len(self._furthest) >= 2 * len(self._lags) + _COMPACT_FROM:
            self._furthest = [(-each, number, behind) for number, (behind, each) in enumerate(self._lags.items())]
            heapify(self._furthest)
            self._last = max(self._last, len(self._furthest))
        else:
            heappush(self._furthest, (-lag, self._last, one))
