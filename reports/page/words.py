"""Format numbers for people. A missing number is an en dash, never a zero."""

from collections.abc import Sequence
from statistics import median

NONE = "–"
MIN_MEDIAN_SAMPLES = 5
"""A median needs several values. A table lists fewer one by one."""


def micros(value_us: float | None) -> str:
    """870 µs, 1.24 ms, 12.4 s: three significant digits."""
    if value_us is None:
        return NONE
    if value_us < 1_000:
        return f"{value_us:.0f} µs"
    if value_us < 999_500:
        return f"{_three(value_us / 1e3)} ms"
    return f"{_three(value_us / 1e6)} s"


def brief(value_us: float) -> str:
    """86 ms, 2.1 s, 18 s: two significant digits, for a sentence."""
    if value_us < 9_950:
        return micros(value_us) if value_us < 1_000 else f"{value_us / 1e3:.1f} ms"
    if value_us < 995_000:
        return f"{value_us / 1e3:.0f} ms"
    return f"{value_us / 1e6:.1f} s" if value_us < 9_950_000 else f"{value_us / 1e6:,.0f} s"


def clock(value_us: float) -> str:
    """0:34, 1:05: minutes and seconds since the run's start."""
    return f"{int(value_us // 60e6)}:{int(value_us // 1e6 % 60):02}"


def _three(value: float) -> str:
    digits = 2 if value < 9.995 else 1 if value < 99.95 else 0
    return f"{value:.{digits}f}"


def count(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def seconds(value_us: float | None) -> str:
    return NONE if value_us is None else f"{value_us / 1e6:,.3f} s"


def median_and_worst(times_us: Sequence[int]) -> str:
    middle, worst = median(times_us) / 1e6, max(times_us) / 1e6
    return f"The median of {len(times_us)} is {middle:.3f} s, and the worst is {worst:.3f} s."


def size(value: float) -> str:
    for limit, unit in ((1e9, "GB"), (1e6, "MB"), (1e3, "kB")):
        if value >= limit:
            return f"{value / limit:.1f} {unit}"
    return f"{value:.0f} B"
