"""Log-linear buckets of a latency histogram. No bucket is wider than 1 % of its lower bound.

Each power of two has 128 buckets. Below 256 us each microsecond has a bucket of its own. A histogram is a Counter of
bucket numbers, so the histograms of seconds, workers and runs add up without loss.
"""

from typing import Final

_STEPS_LOG2: Final = 7
_STEPS: Final = 1 << _STEPS_LOG2


def bucket_of(value_us: int) -> int:
    """Returns the number of a latency's bucket. Negative latencies, after a step of a clock, count as 0."""
    if value_us < 2 * _STEPS:
        return max(value_us, 0)
    shift = value_us.bit_length() - 1 - _STEPS_LOG2
    return (shift << _STEPS_LOG2) + (value_us >> shift)


def bounds_us(bucket: int) -> tuple[int, int]:
    """Returns the lower bound of a bucket, which belongs to it, and the upper bound, which does not."""
    if bucket < 2 * _STEPS:
        return bucket, bucket + 1
    shift = (bucket >> _STEPS_LOG2) - 1
    step = bucket - (shift << _STEPS_LOG2)
    return step << shift, (step + 1) << shift
