"""The live driver's two clocks."""

import time

from reference_broker.ports.now import Now


class Clock:
    """``wall_offset_ms`` moves the wall clock that the node sees (a fault); 0 is the machine's own."""

    __slots__ = ("wall_offset_ms",)

    def __init__(self, wall_offset_ms: int = 0) -> None:
        self.wall_offset_ms = wall_offset_ms

    def now(self) -> Now:
        return Now(time.monotonic_ns() // 1000, time.time_ns() // 1_000_000 + self.wall_offset_ms)
