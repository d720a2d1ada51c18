"""Messages between the runner and a node's process: the node's spec, commands to it, and evidence from it.

The spec is an argument of the process. Commands come as JSON lines through its stdin, and evidence goes as JSON lines
through an inherited pipe, before the action that it is about, so that it outlives a SIGKILL.
"""

import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

NOT_YET = 2**62
"""The value of ``load_from_us`` until the load starts. Until then only faults with ``boot`` fire."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSpec:
    """The specification of a node's process. Addresses are HOST:PORT."""

    node_id: int
    listen: str
    advertised: str
    metrics_listen: str
    data: str
    """The node's folder."""
    spools: str
    """The folder for the traces of all nodes."""
    hit_counts: str
    """The folder in which all nodes count the hits of a rule."""
    config: Mapping[str, str]
    is_voter: bool
    scenario: str
    """The file with the pickled Scenario of the run, whose faults the run's seed has drawn."""
    seed: int
    mutant: str
    origin_us: int
    """The run's start, on the machine's monotonic clock."""

    # These differ at each start.
    incarnation: int = -1
    evidence_fd: int = -1
    """The inherited pipe."""
    load_from_us: int = NOT_YET
    """The load's start, from which the faults' own times count."""

    @property
    def spool(self) -> Path:
        """The trace of this incarnation."""
        return Path(self.spools) / f"node-{self.node_id}-{self.incarnation}.jsonl"

    def now_us(self) -> int:
        """Return the time since the run's start."""
        return time.monotonic_ns() // 1000 - self.origin_us


class CommandReader(threading.Thread):
    """Read the runner's commands from stdin: ``{"load_from_us": N}`` when the load starts, ``{"disarm": true}`` when it
    ends, ``{"disk": {...}}`` for a fault of the disk. At the end of stdin the runner is gone, so the node ends too."""

    def __init__(self, handle: Callable[[dict[str, object]], None]) -> None:
        super().__init__(name="commands", daemon=True)
        self._handle = handle

    def run(self) -> None:
        for line in sys.stdin:
            self._handle(json.loads(line))
        os.kill(os.getpid(), signal.SIGTERM)


# The keys of a line of evidence.

FAULT = "fault"
"""A fault fired: its row of the faults table."""
MUTANT_REACHED = "mutant_reached"
"""A mutant's replacement was called for the first time: the mutant's name."""
ROLE = "role"
"""The node has a new role (``chaos.interceptor.roles.role_of``)."""
DISK = "disk"
"""A fault of the disk fired: [kind, the affected file or operation]."""
LOST_BY_PROXY = "lost_by_proxy"
"""Responses that were sent while a toxic was on, and whose connections were closed: [fault, hit, client ID] of each."""
BROKEN = "broken"
"""A check inside the node found a violation: [guarantee, at_us, explanation]."""
LOOKED = "looked"
"""The number of Fetch responses that the checks inside the node have checked: [incarnation, number]."""


class Evidence:
    """Writes whole lines to the pipe. A line is shorter than PIPE_BUF, so it goes out whole or not at all."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def report(self, key: str, value: object) -> None:
        os.write(self._descriptor, json.dumps({key: value}).encode() + b"\n")
