"""What a thread has had of the processors, as Linux tells it. It tells a slow node from a busy machine."""

import os
import threading
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Used:
    """``worked_s``: it ran. ``starved_s``: it could have run, and others had the processors."""

    worked_s: float = 0.0
    starved_s: float = 0.0

    def __add__(self, other: "Used") -> "Used":
        return Used(self.worked_s + other.worked_s, self.starved_s + other.starved_s)

    def __sub__(self, other: "Used") -> "Used":
        return Used(self.worked_s - other.worked_s, self.starved_s - other.starved_s)


def used_by(pid: int, thread_id: int) -> Used:
    """Since the thread's start. Nothing if it is gone, or if the system does not tell."""
    with suppress(OSError, ValueError):
        worked_ns, starved_ns, _ = Path(f"/proc/{pid}/task/{thread_id}/schedstat").read_text().split()
        return Used(int(worked_ns) / NS_PER_S, int(starved_ns) / NS_PER_S)
    return Used()


def used_by_this_thread() -> Used:
    return used_by(os.getpid(), threading.get_native_id())


def used_by_event_loops(pids: Iterable[int]) -> Used:
    """The sum over nodes. A node's event loop runs in the first thread of its process."""
    return sum((used_by(pid, pid) for pid in pids), Used())
