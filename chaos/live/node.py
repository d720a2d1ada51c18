"""One node of a cluster over all its incarnations, whatever starts its process."""

import time
from collections.abc import Collection, Mapping, Sequence
from math import inf, isfinite, isinf
from pathlib import Path
from typing import Any, Final

from chaos.live.processes import READY_LIMIT_S, NodeProcess

ABILITIES: Final = frozenset(("start", "stop", "kill", "pause", "resume", "files", "settings", "disk"))
"""What can be done to a node: to its process, to the files of a stopped node, to the settings of its next incarnation,
and to the disk of a running node."""
LOOK_EVERY_S = 0.05


class Launcher:
    """How one node is started, and what can be done to it. Its implementations are in ``launchers``."""

    abilities: Collection[str] = ABILITIES
    data = Path()  # the data folder, empty if it is not known
    start_limit_s = inf  # for a node to serve after its start; infinite if it may have to wait for a majority
    late_report_s = 0.0  # how long after a node's end a frame proxy may report that it has killed the node
    process: NodeProcess | None = None  # the latest incarnation

    def start(self) -> None:
        """Start the next incarnation. Raises SetupError, NodeDied."""
        raise NotImplementedError

    def is_serving(self) -> bool:
        raise NotImplementedError

    def failure(self, is_first: bool) -> Exception:
        """Return the error of a start that failed."""
        raise NotImplementedError

    def reconfigure(self, config: Mapping[str, str]) -> None:
        """Give these settings to the next incarnations, beside or instead of what they had."""

    def load_starts(self, at_us: int) -> None:
        """Note that the load starts."""

    def disarm(self) -> None:
        """Note that the load is over."""

    def evidence(self) -> Sequence[dict[str, Any]]:
        """Return the lines that the node has reported since the last call."""
        return ()

    def close(self) -> None:
        """Close the pipes of a process that has ended."""
        if self.process is not None:
            self.process.close()


class Node:
    """``listen`` is HOST:PORT without a proxy before it, and ``advertised`` is HOST:PORT where clients reach it."""

    def __init__(self, number: int, listen: str, launcher: Launcher, advertised: str = "") -> None:
        self.number = number
        self.listen = listen
        self.advertised = advertised or listen
        self.launcher = launcher
        self.is_ready = False
        """Whether the latest incarnation has served."""
        self._starts = 0
        self._deadline = 0.0
        self._dead_since: float | None = None

    @property
    def name(self) -> str:
        return f"node-{self.number}"

    @property
    def process(self) -> NodeProcess | None:
        return self.launcher.process

    @property
    def data(self) -> Path:
        return self.launcher.data

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.exit_status is None

    def launch(self) -> None:
        """Start the next incarnation."""
        assert not self.running, f"{self.name} runs already"
        self.is_ready, self._dead_since = False, None
        self._starts += 1
        self.launcher.close()
        self.launcher.start()
        self._deadline = time.monotonic() + self.launcher.start_limit_s

    def look(self) -> None:
        """Note whether the node serves. Raise NodeDied for an unexpected end, and what ``look_for_ready`` raises."""
        process = self.process
        if process is None:
            return
        if process.exit_status is not None and not process.expected_end:
            self._dead_since = self._dead_since or time.monotonic()
            if time.monotonic() - self._dead_since < self.launcher.late_report_s:
                return
        self.look_for_ready()
        if self.is_ready:  # If it ends just now, before it is ready, the next look says so.
            process.check()

    def look_for_ready(self) -> None:
        """Note whether the node serves, without waiting. Raise the launcher's ``failure`` if it ended before that or
        takes too long."""
        process = self.process
        assert process is not None
        has_ended = process.exit_status is not None
        if self.is_ready or (has_ended and process.expected_end):
            return
        self.is_ready = self.launcher.is_serving()
        if self.is_ready or process.expected_end:
            return
        limit_s = self.launcher.start_limit_s
        if isfinite(limit_s) and process.state() == "T":  # It cannot get ready while a fault has stopped it.
            self._deadline = time.monotonic() + limit_s
        if has_ended or time.monotonic() > self._deadline:
            raise self.launcher.failure(self._starts == 1)

    def await_ready(self) -> None:
        """Wait until the node serves. Raises as ``look_for_ready``."""
        if isinf(self._deadline):
            self._deadline = time.monotonic() + READY_LIMIT_S
        while not self.is_ready:
            self.look_for_ready()
            if not self.is_ready and time.monotonic() > self._deadline:
                raise self.launcher.failure(self._starts == 1)
            time.sleep(LOOK_EVERY_S)

    def end(self) -> None:
        """End the process in whatever state it is."""
        if self.process is not None:
            self.process.end()
