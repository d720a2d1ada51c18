"""Mergeable latency histogram with log-linear buckets: plain ints, no bucket wider than 1 % of its lower bound.

128 buckets for each power of two; below 256 us each microsecond has a bucket of its own. Merging is adding, so
histograms of seconds, workers and runs add up without loss.
"""

from collections.abc import Iterator, Mapping
from typing import Final

_STEPS_LOG2: Final = 7
_STEPS: Final = 1 << _STEPS_LOG2


def bucket_of(value_us: int) -> int:
    """Bucket number of a latency; negative ones (a clock's step) count as 0."""
    if value_us < 2 * _STEPS:
        return max(value_us, 0)
    shift = value_us.bit_length() - 1 - _STEPS_LOG2
    return (shift << _STEPS_LOG2) + (value_us >> shift)


def bounds_us(bucket: int) -> tuple[int, int]:
    """(lower, inclusive; upper, exclusive) of a bucket."""
    if bucket < 2 * _STEPS:
        return bucket, bucket + 1
    shift = (bucket >> _STEPS_LOG2) - 1
    step = bucket - (shift << _STEPS_LOG2)
    return step << shift, (step + 1) << shift


class Histogram:
    __slots__ = ("counts",)

    def __init__(self, counts: Mapping[int, int] | None = None) -> None:
        self.counts: dict[int, int] = dict(counts or {})

    def record(self, value_us: int, count: int = 1) -> None:
        bucket = bucket_of(value_us)
        self.counts[bucket] = self.counts.get(bucket, 0) + count

    def sorted(self) -> Iterator[tuple[int, int]]:
        """(bucket, count), ascending."""
        yield from sorted(self.counts.items())
