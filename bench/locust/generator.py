"""Measures how hard a load worker works: how much processor time its thread wants, and how late its timer comes.

A worker is one thread with many greenlets. It is the limit of a run when that thread never sleeps *and* its timers come
late. What it sends is then late by its own fault, and its latencies are too long.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCHEDSTAT: Final = Path("/proc/self/schedstat")
"""Linux reports here on the process's first thread: nanoseconds on a processor, nanoseconds of waiting for one, and
time slices."""
TICK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """One worker's processor time since the last sample."""

    cpu_permille: int  # processor time of all threads; 1000 is one core
    wanted_permille: int
    """Time in which the first thread ran or waited for a processor; 1000: it never slept. Where the kernel does not
    report it, it is the same as ``cpu_permille``."""
    lag_us: int  # how late the timer was at worst


class GeneratorMeter:
    """Call ``ticked`` after each sleep of TICK_S. ``sample`` covers the time since the last sample."""

    def __init__(self, mono_s: float, process_s: float) -> None:
        self._mono_s = mono_s
        self._process_s = process_s
        self._wanted_ns = wanted_ns()
        self._worst_lag_us = 0

    def ticked(self, slept_s: float) -> None:
        self._worst_lag_us = max(self._worst_lag_us, int((slept_s - TICK_S) * 1e6))

    def sample(self, mono_s: float, process_s: float) -> Sample:
        """Take a sample. ``mono_s`` is the monotonic clock, and ``process_s`` the process's processor time."""
        passed_s = max(1e-6, mono_s - self._mono_s)
        cpu = int(1000 * (process_s - self._process_s) / passed_s)
        wanted, wanted_now_ns = cpu, wanted_ns()
        if wanted_now_ns is not None and self._wanted_ns is not None:
            wanted = int((wanted_now_ns - self._wanted_ns) / passed_s / 1e6)
        taken = Sample(cpu, min(1000, wanted), self._worst_lag_us)
        self._mono_s, self._process_s, self._wanted_ns, self._worst_lag_us = mono_s, process_s, wanted_now_ns, 0
        return taken


def wanted_ns() -> int | None:
    """Return the time in which the first thread ran or waited for a processor. None if the kernel does not report
    it."""
    try:
        on_processor, waiting, _ = SCHEDSTAT.read_text().split()
    except (OSError, ValueError):
        return None
    return int(on_processor) + int(waiting)
