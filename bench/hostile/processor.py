"""What a thread has had of the processors, as Linux tells it. It tells a slow node from a busy machine."""

import os
import threading
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class Used:
    """``worked_s``: it ran. ``starved_s``: it could have run, and others had the processors."""

    worked_s: float = 0.0
    starved_s: float = 0.0

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


def used_by_event_loops(pids: Iterable[int]) -> dict[int, Used]:
    """By process. A node's event loop runs in the first thread."""
    return {pid: used_by(pid, pid) for pid in pids}


@dataclass(slots=True)
class Since:
    """What the nodes and this thread have had of the processors since this was made."""

    nodes: Callable[[], Mapping[int, Used]]
    _nodes_before: Mapping[int, Used] = field(init=False)
    _own_before: Used = field(init=False)

    def __post_init__(self) -> None:
        self._nodes_before, self._own_before = self.nodes(), used_by_this_thread()

    def told(self) -> Used:
        """The sum, except that only the two nodes count as starved that were it longest: a write waits for its leader,
        and then for all followers at once."""
        after = self.nodes()
        each = [after[pid] - before for pid, before in self._nodes_before.items() if pid in after]
        starved_s = sum(sorted(used.starved_s for used in each)[-2:])
        own = used_by_this_thread() - self._own_before
        return Used(sum(used.worked_s for used in each), starved_s + own.starved_s)
