"""How long a case waited for its machine: a starved one lets clients and the suite itself miss their bounds.

A thread sleeps in short naps, and counts by how much each is too long. The kernel counts the time that each thread of
the clients was ready and did not run (Linux; elsewhere only the naps count).
"""

import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Final

NAP_S: Final = 0.02
TOLERATED_S: Final = 0.05
"""A nap that is too long by less is no sign: threads of one Python process take turns."""
STARVED_S: Final = 3.0
"""The total wait from which on a red verdict says nothing. It is half of the slack that each bound has."""
TIMES_ITS_RUN: Final = 2.0
"""A client that waited for less than this many times its own processor time kept the processors busy itself."""
NANOSECONDS: Final = 1e9


class MachineWait:
    """Measures from its start on."""

    def __init__(self, proc: Path = Path("/proc")) -> None:
        self.suite_s = 0.0
        """The sum by which naps were too long, in seconds."""
        self._proc = proc
        self._clients: dict[int, tuple[float, float]] = {}
        """What each client's process had run and waited when it was added, in seconds."""
        self._over = threading.Event()
        threading.Thread(target=self._nap, name="machine-wait", daemon=True).start()

    def _nap(self) -> None:
        while True:
            began = time.monotonic()
            if self._over.wait(NAP_S):
                return
            late_s = time.monotonic() - began - NAP_S
            self.suite_s += late_s if late_s > TOLERATED_S else 0.0

    def end(self) -> None:
        self._over.set()

    def add(self, pid: int) -> None:
        """Count what a client's process waits from now on: no bound is about its start."""
        self._clients[pid] = _run_and_wait_s(pid, self._proc)

    def starved(self) -> str:
        """Return how long this process or a client have waited if that is too long, or an empty string."""
        client_s = max(map(self._client_wait_s, self._clients), default=0.0)
        waits = {"the suite": self.suite_s, "a client": client_s}
        return " and ".join(f"{who} waited for {wait_s:.1f} s" for who, wait_s in waits.items() if wait_s >= STARVED_S)

    def _client_wait_s(self, pid: int) -> float:
        """Return 0 if the process has ended, or kept the processors busy itself."""
        run_s, wait_s = _run_and_wait_s(pid, self._proc)
        run_before_s, wait_before_s = self._clients[pid]
        waited_s = wait_s - wait_before_s
        return waited_s if waited_s >= TIMES_ITS_RUN * (run_s - run_before_s) else 0.0


def _run_and_wait_s(pid: int, proc: Path) -> tuple[float, float]:
    """Return the processor time of a process, and the longest time for which one of its threads was ready and did not
    run, in seconds. Both are 0 for a process that has ended."""
    run_s, wait_s = 0.0, 0.0
    for path in (proc / f"{pid}" / "task").glob("*/schedstat"):
        with suppress(OSError, ValueError):
            run, wait, _ = path.read_text().split()
            run_s += int(run) / NANOSECONDS
            wait_s = max(wait_s, int(wait) / NANOSECONDS)
    return run_s, wait_s
