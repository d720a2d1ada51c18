"""Measurements of a worker by the second, and their sums.

Latencies are lossless histograms (``bench/fleet/recorder.py``): counts of records by bucket, whose sums lose nothing.
Times are microseconds, seconds count from the start of the load.

- publish latency: from the time at which a batch was sent to its acknowledgement,
- publish delay: from the time at which it was due to the time at which it was sent,
- response latency: both together, from the time at which it was due,
- commit latency: of EndTxn, for each transaction that was committed or aborted,
- connect latency: of a new connection in a storm, from the time at which it was due to its second response,
- end-to-end latency: from the batch's timestamp to the time at which its values were verified. Timestamps have
  milliseconds, and so has this latency.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable
from typing import Final

import msgspec

from bench.fleet.recorder import bounds_us, bucket_of

MEASURES: Final = ("publish", "delay", "response", "commit", "connect", "end_to_end")


class LoadSecond(msgspec.Struct):
    """Counts of records."""

    offered: int = 0  # due in this second
    sent: int = 0
    acknowledged: int = 0
    failed: int = 0
    read: int = 0
    max_slip_us: int = 0
    cpu_permille: int = 0  # of one worker
    wanted_permille: int = 0
    lag_us: int = 0
    aborted: int = 0  # records in transactions that are aborted by the plan
    transactions: int = 0  # that were committed
    connections: int = 0  # of a storm, which had their responses
    waits_for_responses: int = 0  # partitions that had something to send, with all requests in flight, at worst
    waits_for_leaders: int = 0  # partitions without a connected leader, or with something to send again, at worst


class Measures(msgspec.Struct):
    """Measurements of one worker, or the sum of several."""

    seconds: dict[int, LoadSecond] = msgspec.field(default_factory=dict)
    latencies: dict[str, dict[int, dict[int, int]]] = msgspec.field(default_factory=dict)
    """by measure, second, bucket"""
    batches: dict[str, dict[int, int]] = msgspec.field(default_factory=dict)
    """Batches by measure and second. The records of a batch share one latency, so batches are the samples."""

    def second(self, at: int) -> LoadSecond:
        found = self.seconds.get(at)
        if found is None:
            found = self.seconds[at] = LoadSecond()
        return found

    def latency(self, measure: str, second: int, latency_us: int, records: int) -> None:
        buckets = self.latencies.setdefault(measure, {}).setdefault(second, {})
        bucket = bucket_of(latency_us)
        buckets[bucket] = buckets.get(bucket, 0) + records
        batches = self.batches.setdefault(measure, {})
        batches[second] = batches.get(second, 0) + 1

    def histogram(self, measure: str, first: int, end: int) -> Counter[int]:
        """Return the sum of the seconds from ``first`` to before ``end``."""
        total: Counter[int] = Counter()
        for second, buckets in self.latencies.get(measure, {}).items():
            if first <= second < end:
                total.update(buckets)
        return total

    def samples(self, measure: str, first: int, end: int) -> int:
        """Return the number of batches from the second ``first`` to before ``end``."""
        return sum(count for second, count in self.batches.get(measure, {}).items() if first <= second < end)


def merged(parts: Iterable[Measures]) -> Measures:
    """Add workers' measures. Slips, lags and processor times are those of the worst worker."""
    total = Measures()
    latencies: dict[str, dict[int, Counter[int]]] = defaultdict(lambda: defaultdict(Counter))
    for part in parts:
        for at, each in part.seconds.items():
            second = total.second(at)
            for name in ("offered", "sent", "acknowledged", "failed", "aborted", "read", "transactions", "connections"):
                setattr(second, name, getattr(second, name) + getattr(each, name))
            for name in ("waits_for_responses", "waits_for_leaders"):
                setattr(second, name, getattr(second, name) + getattr(each, name))
            for name in ("max_slip_us", "cpu_permille", "wanted_permille", "lag_us"):
                setattr(second, name, max(getattr(second, name), getattr(each, name)))
        for measure, by_second in part.latencies.items():
            for at, buckets in by_second.items():
                latencies[measure][at].update(buckets)
        for measure, counts in part.batches.items():
            own = total.batches.setdefault(measure, {})
            for at, count in counts.items():
                own[at] = own.get(at, 0) + count
    total.latencies = {
        measure: {at: dict(each) for at, each in latency.items()} for measure, latency in latencies.items()
    }
    return total


def quantile_us(histogram: Counter[int], share: float) -> float:
    """Return a latency that this share of the records does not exceed: the middle of its bucket. 0 without records."""
    total = sum(histogram.values())
    if not total:
        return 0.0
    rank, seen = share * total, 0
    for bucket in sorted(histogram):
        seen += histogram[bucket]
        if seen >= rank:
            break
    low, high = bounds_us(bucket)
    return low if high - low <= 1 else (low + high) / 2


def mean_us(histogram: Counter[int]) -> float:
    total = sum(histogram.values())
    return sum(sum(bounds_us(bucket)) / 2 * records for bucket, records in histogram.items()) / total if total else 0.0


def max_us(histogram: Counter[int]) -> float:
    return float(bounds_us(max(histogram))[1] - 1) if histogram else 0.0
