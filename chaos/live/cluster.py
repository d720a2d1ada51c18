"""The nodes of a live cluster, and their roles."""

import time
from abc import abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from math import inf, isfinite, isinf
from pathlib import Path
from typing import Any, Final

from chaos.live.errors import NodeDied, SetupError
from chaos.live.node_side.node_protocol import ROLE
from chaos.live.processes import READY_LIMIT_S, NodeProcess
from chaos.live.targets import Roles
from chaos.seeds import random_for

ABILITIES: Final = frozenset(("start", "stop", "kill", "pause", "resume", "files", "settings", "disk"))
"""Abilities of a node's launcher: it can act on the process, the files of a stopped node, the settings of the next
incarnation, and the disk of a running node."""
LOOK_EVERY_S = 0.05


class Launcher:
    """Starts one node, and acts on it. Its implementations are in ``launchers``."""

    abilities: Collection[str] = ABILITIES
    data = Path()  # the data folder, empty if it is not known
    start_limit_s = inf  # for a node to serve after its start; infinite if it may have to wait for a majority
    late_report_s = 0.0  # how long after a node's end a frame proxy may report that it has killed the node
    process: NodeProcess | None = None  # the latest incarnation

    @abstractmethod
    def start(self) -> None:
        """Start the next incarnation. Raise SetupError, NodeDied."""

    @abstractmethod
    def is_serving(self) -> bool:
        """Return whether the latest incarnation serves."""

    @abstractmethod
    def failure(self, is_first: bool) -> Exception:
        """Return the error of a start that failed."""

    def reconfigure(self, config: Mapping[str, str]) -> None:
        """Set these settings for the next incarnations; others are kept."""

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


class LiveNode:
    """``listen`` is the node's own HOST:PORT, and ``advertised`` is the HOST:PORT at which clients reach it, possibly a
    proxy's."""

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

    def poll(self) -> None:
        """Update whether the node serves. Raise NodeDied for an unexpected end, or the errors of ``look_for_ready``."""
        process = self.process
        if process is None:
            return
        if process.exit_status is not None and not process.expected_end:
            self._dead_since = self._dead_since or time.monotonic()
            if time.monotonic() - self._dead_since < self.launcher.late_report_s:
                return
        self.look_for_ready()
        if self.is_ready:  # If it ends just now, before it is ready, the next poll says so.
            process.check()

    def look_for_ready(self) -> None:
        """Update whether the node serves, without waiting. Raise the launcher's ``failure`` if it ended earlier or
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
        """Wait until the node serves. Raise as ``look_for_ready``."""
        if isinf(self._deadline):
            self._deadline = time.monotonic() + READY_LIMIT_S
        while not self.is_ready:
            self.look_for_ready()
            if not self.is_ready and time.monotonic() > self._deadline:
                raise self.launcher.failure(self._starts == 1)
            time.sleep(LOOK_EVERY_S)

    def end(self) -> None:
        """End the process in any state."""
        if self.process is not None:
            self.process.end()


class LiveCluster:
    """The first ``voters`` of the ``total`` nodes are voters. ``nodes`` is empty if only addresses are known.

    Nodes that are ``ours`` must shut down cleanly; the end of other brokers is not judged. ``on_line`` is called with
    each line of evidence and its node's number.
    """

    def __init__(
        self,
        voters: int,
        total: int,
        seed: int = 0,
        ours: bool = False,
        on_line: Callable[[int, dict[str, Any]], None] = lambda number, line: None,  # noqa: ARG005
    ) -> None:
        self.voters = voters
        self.total = total
        self.nodes: Sequence[LiveNode] = ()
        self.roles = Roles(voters, total, random_for(seed, "targets"), self.lives)
        self._ours = ours
        self._on_line = on_line

    def launch(self, nodes: Sequence[LiveNode]) -> None:
        """Start all nodes at once, because none is ready before a majority runs. Call ``poll`` until ``is_ready``."""
        self.nodes = nodes
        for node in nodes:
            node.launch()

    @property
    def addresses(self) -> tuple[str, ...]:
        """HOST:PORT at which clients reach each node."""
        return tuple(node.advertised for node in self.nodes)

    @property
    def is_ready(self) -> bool:
        return all(node.is_ready for node in self.nodes)

    def lives(self, number: int) -> bool:
        """Return whether the node's process exists, even if it is stopped. A node that is only an address counts as
        alive."""
        return number >= len(self.nodes) or self.nodes[number].running

    def restart(self, number: int) -> None:
        """Restart the node if it has ended. Wait until it is ready only if it is the only node; one of several may need
        a majority first."""
        node = self.nodes[number]
        if node.running:
            return
        node.launch()
        if self._ours and len(self.nodes) == 1:
            node.await_ready()

    def poll(self) -> None:
        """Pass on new evidence, then raise NodeDied for an unexpected end, or the error of a start that failed."""
        for number, node in enumerate(self.nodes):
            self.read(number)
            if node.process is not None and node.process.exit_status is not None:
                self.read(number)  # The pipe may hold the announcement of this end.
            node.poll()

    def read(self, number: int) -> None:
        """Pass on new evidence of one node."""
        for line in self.nodes[number].launcher.evidence():
            if ROLE in line:
                self.roles.note(number, line[ROLE])
            self._on_line(number, line)

    def load_starts(self, at_us: int) -> None:
        for node in self.nodes:
            node.launcher.load_starts(at_us)

    def disarm(self) -> None:
        """Disarm the faults at states, because the load is over."""
        for node in self.nodes:
            node.launcher.disarm()

    def heal(self) -> None:
        """Restart or resume all nodes, and wait until they are ready. Raise NodeDied."""
        for node in self.nodes:
            if node.process is not None:
                node.process.resume()
            self.restart(node.number)
        for node in self.nodes:
            node.await_ready()

    def end_cleanly(self) -> None:
        """End our nodes, all at once, because the run is over. Raise NodeDied if one does not shut down cleanly."""
        running = [(node.name, node.process) for node in self.nodes if node.process is not None]
        for _, process in running:
            process.check()
        if not self._ours:
            return
        for _, process in running:
            process.request_end()
        for name, process in running:
            how = process.terminate()
            if process.exit_status != 0:
                raise NodeDied(f"{name} did not shut down cleanly: {how}; {process.last_words()}")

    def close(self) -> None:
        """End every process in any state, and pass on the last evidence. Ours get SIGTERM all at once, so that a leader
        hands over and no node waits for a majority that is ending too. Raise the first SetupError of a command."""
        failures = []
        for node in self.nodes:
            if self._ours and node.process is not None:
                node.process.request_end()
        for number, node in enumerate(self.nodes):
            try:
                node.end()
            except SetupError as failure:
                failures.append(failure)
            self.read(number)
            node.launcher.close()
        if failures:
            raise failures[0]
