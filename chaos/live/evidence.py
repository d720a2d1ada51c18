"""What a node's process tells its runner through an inherited pipe: one JSON object a line, by one of these keys."""

import json
import os

FAULT = "fault"
"""A row of the faults table."""
MUTANT_REACHED = "mutant_reached"
"""A mutant's replacement was called."""
ROLE = "role"
"""What the node is from now on: leader, follower or observer."""
DISK = "disk"
"""A fault of the disk has struck: [kind, what it struck]."""
BROKEN = "broken"
"""A check inside the node saw a guarantee broken: [guarantee, at_us, story]."""
LOOKED = "looked"
"""At how many answers to fetches its checks have looked: [incarnation, number]."""


class Evidence:
    """Writes whole lines to the pipe. A line is shorter than PIPE_BUF, so it goes out at once or not at all."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def tell(self, key: str, value: object) -> None:
        os.write(self._descriptor, json.dumps({key: value}).encode() + b"\n")
