"""How hard a load worker works, measured where it would hurt: its own thread's need for a processor, and its own timer.

A worker is one thread with many greenlets. It is the limit of a run when that thread never sleeps *and* its timers come
late: what it sends is then late by its own fault, and so is what it times.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SCHEDSTAT: Final = Path("/proc/self/schedstat")
"""Of the process's first thread: nanoseconds on a processor, nanoseconds of waiting for one, slices."""
TICK_S: Final = 0.05


@dataclass(frozen=True, slots=True)
class Sample:
    """``cpu_permille``: the process's processor time, all threads, 1000 = one core. ``wanted_permille``: the first
    thread's processor time and its waiting for a processor, 1000 = it never slept; the same as ``cpu_permille`` where
    the kernel does not tell. ``lag_us``: how late the timer was at worst."""

    cpu_permille: int
    wanted_permille: int
    lag_us: int


class GeneratorMeter:
    """``ticked`` is called after each sleep of TICK_S; ``sample`` gives what was since the last sample."""

    def __init__(self, mono_s: float, process_s: float) -> None:
        self._mono_s = mono_s
        self._process_s = process_s
        self._wanted_ns = wanted_ns()
        self._worst_lag_us = 0

    def ticked(self, slept_s: float) -> None:
        self._worst_lag_us = max(self._worst_lag_us, int((slept_s - TICK_S) * 1e6))

    def sample(self, mono_s: float, process_s: float) -> Sample:
        """``mono_s``, ``process_s``: the monotonic clock and the process's processor time."""
        passed_s = max(1e-6, mono_s - self._mono_s)
        cpu = int(1000 * (process_s - self._process_s) / passed_s)
        wanted, wanted_now_ns = cpu, wanted_ns()
        if wanted_now_ns is not None and self._wanted_ns is not None:
            wanted = int((wanted_now_ns - self._wanted_ns) / passed_s / 1e6)
        taken = Sample(cpu, min(1000, wanted), self._worst_lag_us)
        self._mono_s, self._process_s, self._wanted_ns, self._worst_lag_us = mono_s, process_s, wanted_now_ns, 0
        return taken


def wanted_ns() -> int | None:
    """None where the kernel keeps no such statistics."""
    try:
        on_processor, waiting, _ = SCHEDSTAT.read_text().split()
    except (OSError, ValueError):
        return None
    return int(on_processor) + int(waiting)
