"""A node of a target over all its incarnations: same ports, same data, one process after another."""

import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from bench.fleet.negotiation import UnreachableError, negotiate
from bench.fleet.spec import address_of
from bench.targets.layout import NodeLayout, name_of
from bench.targets.model import Chosen, Commands, NodeFile, TargetError
from chaos.live.errors import NodeDied, SetupError, TargetDied
from chaos.live.outside.process import TargetProcess
from chaos.live.outside.shell import ShellNode

ASK_EVERY_S = 0.1
READY_COMMAND_LIMIT_S = 30.0


class TargetNode:
    """One node. ``make`` starts its next incarnation and returns what stands for its process. ``is_there`` says whether
    it serves; it may take its time, because a thread asks it.

    ``listen`` is HOST:PORT for clients. ``layout`` is what we start its process with, if we do.
    """

    def __init__(
        self,
        number: int,
        listen: str,
        make: Callable[[], TargetProcess | ShellNode],
        is_there: Callable[[], bool],
        ready_limit_s: float,
        layout: NodeLayout | None = None,
    ) -> None:
        self.number = number
        self.listen = listen
        self.layout = layout
        self.child: TargetProcess | ShellNode | None = None
        self._make = make
        self._is_there = is_there
        self._ready_limit_s = ready_limit_s
        self._ready = threading.Event()
        self._deadline = 0.0
        self._starts = 0

    @property
    def name(self) -> str:
        return name_of(self.number)

    @property
    def advertised(self) -> str:
        """The same: proxies stand in front of a target without its knowledge."""
        return self.listen

    @property
    def data(self) -> Path:
        """Returns its data folder, or an empty path if nobody knows it."""
        return Path() if self.layout is None else self.layout.data

    def make_anew(self) -> None:
        """Prepares it once more if its data folder is empty. Raises TargetDied."""
        if self.layout is None or not self.data.is_dir() or any(self.data.iterdir()):
            return
        try:
            self.layout.make()
        except TargetError as failure:
            raise TargetDied(str(failure)) from failure

    def launch(self) -> None:
        """Starts the next incarnation. Raises SetupError."""
        assert not self.running, f"{self.name} runs already"
        if isinstance(self.child, TargetProcess):
            self.child.close()
        self._starts += 1
        self._ready = threading.Event()
        self._deadline = time.monotonic() + self._ready_limit_s
        self.child = self._make()
        threading.Thread(
            target=self._ask, args=(self.child, self._ready), name=f"{self.name}-ready", daemon=True
        ).start()

    def _ask(self, child: TargetProcess | ShellNode, ready: threading.Event) -> None:
        """Asks until this incarnation serves or has ended."""
        while child.exit_status is None and child is self.child:
            if self._is_there():
                ready.set()
                return
            time.sleep(ASK_EVERY_S)

    @property
    def is_ready(self) -> bool:
        return self._ready.is_set()

    @property
    def running(self) -> bool:
        return self.child is not None and self.child.exit_status is None

    def look_for_ready(self) -> None:
        """Raises SetupError for a node that does not get ready at its first start, and TargetDied at a later one."""
        assert self.child is not None
        if self.is_ready or self.child.expected_end:
            return
        if self.child.exit_status is not None:
            again = " again" if self._starts > 1 else ""
            raise self._failed(f"{self.child.how_it_ended()} before it was ready{again}")
        if self.child.state() == "T":
            self._deadline = time.monotonic() + self._ready_limit_s  # It cannot get ready while a fault has stopped it.
        elif time.monotonic() > self._deadline:
            within = f"within {self._ready_limit_s:g} s"
            raise self._failed(f"did not come back {within}" if self._starts > 1 else f"was not ready {within}")

    def await_ready(self) -> None:
        """Raises as ``look_for_ready``."""
        while not self.is_ready:
            self.look_for_ready()
            time.sleep(ASK_EVERY_S)

    def _failed(self, how: str) -> SetupError | NodeDied:
        assert self.child is not None
        story = f"{self.name} {how}: {self.child.last_words()}"
        return SetupError(story) if self._starts == 1 else TargetDied(story)

    def load_starts(self, at_us: int) -> None:
        """Nobody inside the node knows of a load."""

    def disarm(self) -> None:
        """Nobody inside the node has rules."""

    def evidence(self) -> Iterator[dict[str, Any]]:
        """Nobody inside the node tells anything."""
        return iter(())

    def close(self) -> None:
        """Ends it at once, in whatever state it is: nobody reads its files again."""
        if self.child is not None:
            if isinstance(self.child, TargetProcess):
                self.child.kill()
            self.child.close()


def of_process(layout: NodeLayout, file: NodeFile, log: Path) -> TargetNode:
    listen = f"127.0.0.1:{layout.port}"

    def make() -> TargetProcess:
        now = node.layout
        assert now is not None
        return TargetProcess(node.name, now.command, log, now.environment, file.stop_limit_s)

    node = TargetNode(layout.number, listen, make, _asker(layout.ready, listen), file.ready_limit_s, layout)
    return node


def of_commands(number: int, chosen: Chosen, commands: Commands, log: Path) -> TargetNode:
    """A node that runs already, or that its command starts."""
    listen = chosen.file.addresses[number]
    node = ShellNode(name_of(number), number, listen, commands, log)

    def make() -> ShellNode:
        if commands.start:
            node.start()
        return node

    ready = node.command("ready")
    return TargetNode(number, listen, make, _asker(ready, listen), commands.ready_limit_s)


def _asker(command: str, listen: str) -> Callable[[], bool]:
    return (lambda: _succeeds(command)) if command else (lambda: answers(listen))


def answers(listen: str) -> bool:
    """Returns whether a node answers ApiVersions there."""
    try:
        negotiate([address_of(listen)], 0.0)
    except UnreachableError:
        return False
    return True


def _succeeds(command: str) -> bool:
    try:
        done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=READY_COMMAND_LIMIT_S, check=False)
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0
