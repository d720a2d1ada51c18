"""The live driver's two clocks."""

import time
from dataclasses import dataclass

from reference_broker.ports.now import Now


@dataclass(slots=True)
class Clock:
    """``wall_offset_ms`` moves the wall clock that the node sees (a fault); 0 is the machine's own."""

    wall_offset_ms: int = 0

    def now(self) -> Now:
        return Now(time.monotonic_ns() // 1000, time.time_ns() // 1_000_000 + self.wall_offset_ms)
