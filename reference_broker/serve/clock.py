"""The two clocks of the live driver: monotonic time and wall-clock time."""

import time
from dataclasses import dataclass

from reference_broker.ports.now import Now


@dataclass(slots=True)
class Clock:
    """``wall_offset_ms`` is added to the wall clock that the node sees. Faults set it."""

    wall_offset_ms: int = 0

    def now(self) -> Now:
        return Now(time.monotonic_ns() // 1000, time.time_ns() // 1_000_000 + self.wall_offset_ms)
