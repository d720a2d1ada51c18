"""A node of an external target over all its incarnations: a process that we start, or a node that shell commands reach.

A process of a target sends us nothing, so its whole output goes to its log. Shell commands reach a container, a service
or a process elsewhere.
"""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from bench.children import ends_with_me
from bench.fleet.negotiation import UnreachableError, negotiate
from bench.fleet.spec import address_of
from bench.targets.layout import NodeLayout, last_lines, name_of
from bench.targets.model import Chosen, Commands, NodeFile, TargetError, filled
from chaos.live.errors import NodeDied, SetupError, TargetDied
from chaos.live.processes import MAX_WORDS, Child

LAST_LINES = 3


class TargetProcess(Child):
    """Signals strike the whole process group, because the command may be a script that starts the broker.

    Raises SetupError if there is no such program. ``check`` raises TargetDied.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], stop_limit_s: float
    ) -> None:
        self._stop_limit_s = stop_limit_s
        self._environment = {**os.environ, **environment}
        try:
            super().__init__(name, command, log)
        except OSError as error:
            raise SetupError(f"{name}: {command[0]} cannot be started: {error.strerror}.") from error

    def _started(self, command: Sequence[str], log: Path, pass_fds: Sequence[int]) -> "subprocess.Popen[bytes]":
        with log.open("ab") as output:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
                env=self._environment,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
                preexec_fn=ends_with_me(),
            )

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def terminate(self, limit_s: float | None = None) -> str:
        """Sends SIGTERM, and SIGKILL after the target's own limit. Returns how the process ended."""
        super().ask_to_end()  # Without the timer, which could win the race and would hide why the process was killed.
        return self._awaited(signal.SIGTERM, self._stop_limit_s if limit_s is None else limit_s)

    def ask_to_end(self) -> None:
        """Sends SIGTERM without waiting, and SIGKILL after the target's own limit."""
        super().ask_to_end()
        limit = threading.Timer(self._stop_limit_s, self._no_longer)
        limit.daemon = True
        limit.start()

    def _no_longer(self) -> None:
        if self.exit_status is None:
            self.send(signal.SIGKILL)

    def last_words(self) -> str:
        """Returns the last lines of the log."""
        try:
            return last_lines(self.log.read_text(errors="replace"), LAST_LINES)[-MAX_WORDS:]
        except OSError:
            return f"no log at {self.log}"

    def _death(self, when: str) -> NodeDied:
        return TargetDied(f"{self.name} {self.how_it_ended()}{when}, and no fault had struck it: {self.last_words()}")


COMMAND_LIMIT_S = 60.0
ALIVE_LIMIT_S = 10.0
LOOK_EVERY_S = 0.5


class ShellNode:
    """Does what ``chaos.live.processes.Child`` does for a process. It cannot see the process itself: ``alive`` tells
    whether there is one, and without that command it counts as alive until somebody has ended it.

    Raises SetupError for a command that fails.
    """

    def __init__(self, name: str, number: int, address: str, commands: Commands, log: Path) -> None:
        self.name = name
        self.log = log
        self.expected_end = False
        self.who = name
        self._words = {"id": str(number), "address": address}
        self._commands = commands
        self._ended = ""
        self._paused = False
        self._looked_s = 0.0
        self._runs = True

    def start(self) -> None:
        self._must("start")
        self._ended, self._runs, self._paused, self.expected_end = "", True, False, False

    def kill(self) -> str:
        return self._end("kill")

    def terminate(self, _: float | None = None) -> str:
        return self._end("stop")

    def ask_to_end(self) -> None:
        self.terminate()

    def pause(self) -> str:
        """Returns the state as a process would show it: T for stopped."""
        self._must("pause")
        self._paused = True
        return self.state()

    def resume(self) -> None:
        if self._paused:
            self._must("resume")
            self._paused = False

    def state(self) -> str:
        return "T" if self._paused else "S"

    @property
    def exit_status(self) -> int | None:
        """None while the node runs, and 0 when it does not: nobody knows how it ended."""
        if self._ended:
            return 0
        if self._commands.alive and not self._paused and time.monotonic() - self._looked_s > LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self._runs = self._is_alive()
        return None if self._runs else 0

    def check(self) -> None:
        """Raises TargetDied if the node ended and nobody asked for that."""
        if self.exit_status is not None and not self.expected_end:
            raise TargetDied(f"{self.name} {self.how_it_ended()}, and no fault had struck it: {self.last_words()}")

    def wait(self, limit_s: float | None = None) -> bool:
        """Looks whether the node has ended. Raises SetupError if the command that should have killed it did not."""
        deadline = time.monotonic() + (limit_s or 0.0)
        while self._ended and self._commands.alive and self._is_alive():
            if time.monotonic() > deadline:
                raise SetupError(f"{self.name} still runs after commands.kill: {self._filled(self._ended)}")
            time.sleep(LOOK_EVERY_S)
        return self.exit_status is not None

    def _is_alive(self) -> bool:
        """Asks ``alive``. Without an answer in time it counts as alive."""
        with suppress(SetupError):
            return self._run(self._commands.alive, ALIVE_LIMIT_S).returncode == 0
        return True

    def struck_elsewhere(self, kind: str) -> None:
        """Notes what the frame proxy has done by one of the commands."""
        if kind == "node_killed":
            self.expected_end, self._ended = True, self._commands.kill
        else:
            self._paused = True

    def how_it_ended(self) -> str:
        if self.exit_status is None:
            return "runs"
        return f"was ended: {self._filled(self._ended)}" if self._ended else "ended"

    def last_words(self) -> str:
        if not self._commands.log:
            return "it has no command for its log"
        try:
            return self._run(self._commands.log).stdout.strip()
        except SetupError as failure:
            return str(failure)

    def command(self, which: str) -> str:
        """Returns the text of a command for this node."""
        return self._filled(str(getattr(self._commands, which)))

    def close(self) -> None:
        """A node elsewhere stays, but not paused and not ended by us."""
        self.resume()
        if self._ended:
            self.start()

    def _end(self, which: str) -> str:
        self.expected_end = True
        if not self._ended:
            self._must(which)
            self._ended = str(getattr(self._commands, which))
        return f"{self.who} was ended: {self.command(which)}{' (SIGKILL)' if which == 'kill' else ''}"

    def _must(self, which: str) -> None:
        done = self._run(str(getattr(self._commands, which)))
        if done.returncode != 0:
            told = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["it said nothing"]
            raise SetupError(f"{self.name}: commands.{which} failed with {done.returncode}: {told[0]}")

    def _run(self, text: str, limit_s: float = COMMAND_LIMIT_S) -> "subprocess.CompletedProcess[str]":
        words = self._filled(text)
        try:
            return subprocess.run(
                ["sh", "-c", words],
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired as expired:
            raise SetupError(f"{self.name}: {words!r} did not end within {limit_s:g} s.") from expired

    def _filled(self, text: str) -> str:
        return filled(text, self._words)


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
