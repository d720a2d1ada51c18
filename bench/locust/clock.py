"""The clock of a load worker, compared with the master's.

End-to-end times compare a record's timestamp with the time at which it was read, and both may be of different machines.
So workers set their records' timestamps, and read them, by the master's clock, as far as they know it.

A worker sends its own time, and the master returns it with its own (RFC 5905 with one timestamp of the server). The
offset is right to within half of the time that this took, whatever part of it the way there had. Of many such rounds
the shortest is kept. Processes of one machine have one clock, so they need no correction and have no error.
"""

import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

SHIFT_VARIABLE: Final = "CRUCIBLE_CLOCK_SHIFT_S"
"""Environment variable for tests: seconds that this process's clock is ahead of the machine's."""
UNCORRECTED_VARIABLE: Final = "CRUCIBLE_CLOCK_UNCORRECTED"
"""For tests: offsets are measured and not used."""
ROUNDS: Final = 20
_BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class Round(NamedTuple):
    """A request to the master for its time."""

    sent_us: int  # time of the worker's clock
    master_us: int
    received_us: int  # time of the worker's clock

    @property
    def offset_us(self) -> int:
        """Offset of the master's clock from the local one."""
        return self.master_us - (self.sent_us + self.received_us) // 2

    @property
    def error_us(self) -> int:
        """The offset is right to within this."""
        return (self.received_us - self.sent_us + 1) // 2


class ClockOffset(msgspec.Struct, frozen=True):
    """The offset of a worker's clock."""

    offset_us: int = 0  # that was used: how far the master's clock is ahead
    error_us: int = 0  # limit of the error of the worker's end-to-end times


SAME_CLOCK: Final = ClockOffset()


def best(rounds: Iterable[Round]) -> Round:
    return min(rounds, key=lambda each: each.error_us)


def offset_of(before: Round, after: Round) -> ClockOffset:
    """Return the offset of a run that was corrected by the round ``before`` it. Until the round ``after`` it the clocks
    may have drifted apart, and the error includes that."""
    drifted_us = abs(after.offset_us - before.offset_us)
    return ClockOffset(before.offset_us, max(before.error_us, drifted_us + after.error_us))


class WallClock:
    """The time of day, by the master's clock once ``correct`` was called."""

    def __init__(self, now_ns: Callable[[], int] = time.time_ns, shift_s: float = 0.0) -> None:
        self._now_ns = now_ns
        self._shift_ns = int(shift_s * 1e9)
        self._correction_ns = 0

    def own_us(self) -> int:
        return (self._now_ns() + self._shift_ns) // 1000

    def now_ns(self) -> int:
        return self._now_ns() + self._shift_ns + self._correction_ns

    def correct(self, offset_us: int) -> None:
        self._correction_ns = offset_us * 1000


WALL: Final = WallClock(shift_s=float(os.environ.get(SHIFT_VARIABLE, "0")))
"""The one of this process."""


def clock_id() -> str:
    """Return what processes with the same clock have in common. Empty where that is not known."""
    try:
        boot = _BOOT_ID.read_text().strip()
    except OSError:
        return ""
    return f"{boot}{os.environ.get(SHIFT_VARIABLE, '')}"
