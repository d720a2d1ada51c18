"""What a node's process reports to its runner through an inherited pipe. Each line is a JSON object with one of these
keys."""

import json
import os

FAULT = "fault"
"""A fault fired: its row of the faults table."""
MUTANT_REACHED = "mutant_reached"
"""A mutant's replacement was called for the first time: the mutant's name."""
ROLE = "role"
"""The node has a new role (``chaos.interceptor.roles.role_of``)."""
DISK = "disk"
"""A fault of the disk fired: [kind, what it hit]."""
LOST_BY_PROXY = "lost_by_proxy"
"""Responses that were sent while a toxic was on, and whose connections were closed: [fault, hit, client ID] of each."""
BROKEN = "broken"
"""A check inside the node saw that a guarantee is broken: [guarantee, at_us, story]."""
LOOKED = "looked"
"""The number of Fetch responses that the checks inside the node have checked: [incarnation, number]."""


class Evidence:
    """Writes whole lines to the pipe. A line is shorter than PIPE_BUF, so it goes out whole or not at all."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def report(self, key: str, value: object) -> None:
        os.write(self._descriptor, json.dumps({key: value}).encode() + b"\n")
