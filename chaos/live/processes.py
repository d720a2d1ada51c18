"""The processes of a run. Most are child processes; nodes in containers, services or on other machines are controlled
by shell commands.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, TypeAlias

from bench.children import ends_with_me
from bench.targets.layout import last_lines, name_of
from bench.targets.model import Commands, filled
from chaos.live.errors import EndedItself, NodeDied, SetupError, TargetDied

READY_LIMIT_S = 30.0
STOP_LIMIT_S = 35.0
MAX_WORDS = 4000
"""Limits the last line of a log in messages and in the manifest, in characters."""
DAMAGED = "The metadata log is damaged"
"""A node that ends because its metadata log is damaged has this in its last words."""


def require_psutil(wanted_by: str) -> None:
    """Raise SetupError where psutil is not installed, as beside a wheel without extras."""
    if find_spec("psutil") is None:
        raise SetupError(f"{wanted_by} needs psutil: pip install 'crucible-kafka[processes]'.")


class Child:
    """One process that prints JSON lines on stdout and logs to a file. Messages call it ``name``.

    It ends with the thread that started it (``bench.children``), in any state. ``on_line`` gets each line, in a thread
    of its own; without it the lines wait for ``line_with``. With ``logs_all`` its stdout goes to the log, too.
    ``expected_end`` is true if the process may end, because of a fault or a signal that the suite sent.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        pass_fds: Sequence[int] = (),
        on_line: Callable[[dict[str, Any]], None] | None = None,
        environment: Mapping[str, str] | None = None,
        logs_all: bool = False,
    ) -> None:
        self.name = name
        self.log = log
        self.expected_end = False
        self._is_ending = False
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._on_line = on_line or self._lines.put
        with log.open("ab") as output:
            self._process = subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=output if logs_all else subprocess.PIPE,
                stderr=output,
                env=None if environment is None else {**os.environ, **environment},
                pass_fds=tuple(pass_fds),
                start_new_session=True,
                preexec_fn=ends_with_me(),
            )
        self._reader: threading.Thread | None = None
        if self._process.stdout is not None:
            self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
            self._reader.start()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def label(self) -> str:
        """The name of the process in evidence."""
        return f"pid {self.pid}"

    @property
    def exit_status(self) -> int | None:
        """None while the process runs. Negative if a signal with that number ended it."""
        return self._process.poll()

    def line_with(self, key: str, within_s: float) -> dict[str, Any] | None:
        """Return the next JSON line that has ``key``, or None if it does not come within the time or the process has
        closed its stdout."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if line is None:
                self._lines.put(None)
                return None
            if key in line:
                return line

    def kill(self) -> str:
        """Send SIGKILL. Return how the process ended, as evidence."""
        self.expected_end = True
        self.send(signal.SIGKILL)
        return self._awaited(signal.SIGKILL, 10.0)

    def terminate(self, limit_s: float = STOP_LIMIT_S) -> str:
        """Send SIGTERM, and SIGKILL after ``limit_s``. Return how the process ended."""
        self.request_end()
        return self._awaited(signal.SIGTERM, limit_s)

    def request_end(self) -> None:
        """Send SIGTERM, without waiting."""
        if self._is_ending:
            return  # A second signal could kill a process that has removed its handlers because it is ending.
        self.expected_end = self._is_ending = True
        self.send(signal.SIGTERM)
        self.resume()  # A stopped process does not see SIGTERM.

    def pause(self) -> str:
        """Send SIGSTOP. Return the state that the system reports."""
        self.send(signal.SIGSTOP)
        deadline = time.monotonic() + 2.0
        while self.state() != "T" and time.monotonic() < deadline:
            time.sleep(0.002)
        return self.state()

    def resume(self) -> None:
        self.send(signal.SIGCONT)

    def send(self, number: signal.Signals) -> None:
        if self._process.poll() is None:
            self._process.send_signal(number)

    def state(self) -> str:
        """Return Linux's letter for the state of the process (T: stopped, S: sleeping, ...), or ? elsewhere."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return "?"
        return stat.rpartition(")")[2].split()[0]

    def send_command(self, **command: object) -> None:
        """Write one JSON line to the stdin of the process, unless it has just died or is closed."""
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return  # The last hits of a run are read after its proxies were closed.
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(command).encode() + b"\n")
            self._process.stdin.flush()

    def end(self) -> None:
        """End the process in any state, and close its pipes."""
        self.terminate()
        self.close()

    def close(self) -> None:
        """Close the pipes, once the process has ended."""
        if self._reader is not None:
            self._reader.join(2)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def check(self) -> None:
        """Raise NodeDied if the process ended unexpectedly."""
        if self.exit_status is not None and not self.expected_end:
            raise self.death("")

    def death(self, when: str) -> NodeDied:
        """Return the error of an unexpected end."""
        explanation = f"{self.name} {self.how_it_ended()}{when}: {self.last_words()}"
        return EndedItself(explanation) if DAMAGED in explanation else NodeDied(explanation)

    def wait(self, limit_s: float | None = None) -> bool:
        """Return whether the process has ended within ``limit_s``. None means no limit."""
        try:
            self._process.wait(limit_s)
        except subprocess.TimeoutExpired:
            return False
        return True

    def how_it_ended(self) -> str:
        status = self.exit_status
        if status is None:
            return "runs"
        return f"ended by {signal.Signals(-status).name}" if status < 0 else f"exited with {status}"

    def last_words(self) -> str:
        """Return the last line of the log."""
        try:
            lines = self.log.read_text(errors="replace").strip().splitlines()
        except OSError:
            return f"no log at {self.log}"
        return lines[-1][:MAX_WORDS] if lines else "it said nothing"

    def _awaited(self, number: signal.Signals, limit_s: float) -> str:
        if not self.wait(limit_s):
            self.send(signal.SIGKILL)
            self._process.wait()
            return f"pid {self.pid} ignored {number.name} for {limit_s:g} s and was killed"
        return f"pid {self.pid} {self.how_it_ended()}"

    def _read(self, stream: IO[bytes]) -> None:
        for line in stream:
            try:
                value = json.loads(line)
            except ValueError:
                continue
            if isinstance(value, dict):
                self._on_line(value)
        self._lines.put(None)
        stream.close()


LAST_LINES = 3


class TargetProcess(Child):
    """Signals go to the whole process group, because the command may be a script that starts the broker.

    Making one raises SetupError if there is no such program. ``check`` raises TargetDied.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, environment: Mapping[str, str], stop_limit_s: float
    ) -> None:
        self._stop_limit_s = stop_limit_s
        try:
            super().__init__(name, command, log, environment=environment, logs_all=True)
        except OSError as error:
            raise SetupError(f"{name}: {command[0]} cannot be started: {error.strerror}.") from error

    @property
    def killed_by(self) -> int:
        """The process group as a negative number, with which a frame proxy kills it."""
        return -self.pid

    def send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, number)

    def terminate(self, limit_s: float | None = None) -> str:
        """Send SIGTERM, and SIGKILL after the target's own limit. Return how the process ended."""
        super().request_end()  # Without the timer, which could win the race and would hide why the process was killed.
        return self._awaited(signal.SIGTERM, self._stop_limit_s if limit_s is None else limit_s)

    def request_end(self) -> None:
        """Send SIGTERM without waiting, and SIGKILL after the target's own limit."""
        super().request_end()
        limit = threading.Timer(self._stop_limit_s, self._kill_if_running)
        limit.daemon = True
        limit.start()

    def end(self) -> None:
        """Kill it: its files are not read again."""
        self.kill()
        self.close()

    def _kill_if_running(self) -> None:
        if self.exit_status is None:
            self.send(signal.SIGKILL)

    def last_words(self) -> str:
        """Return the last lines of the log."""
        try:
            return last_lines(self.log.read_text(errors="replace"), LAST_LINES)[-MAX_WORDS:]
        except OSError:
            return f"no log at {self.log}"

    def death(self, when: str) -> NodeDied:
        return _died(self, when)


COMMAND_LIMIT_S = 60.0
ALIVE_LIMIT_S = 10.0
LOOK_EVERY_S = 0.5


class ShellProcess:
    """Implements the methods of ``Child`` by shell commands. It cannot see the process itself: ``alive`` shows whether
    there is one, and without that command it counts as alive until it was ended.

    Its methods raise SetupError for a command that fails.
    """

    def __init__(self, number: int, address: str, commands: Commands) -> None:
        self.name = self.label = name_of(number)
        self.expected_end = False
        self._words = {"id": str(number), "address": address}
        self._commands = commands
        self._ended = ""
        self._paused = False
        self._looked_s = 0.0
        self._runs = True

    def start(self) -> None:
        self._must("start")
        self._ended, self._runs, self._paused, self.expected_end = "", True, False, False

    @property
    def killed_by(self) -> str:
        """The shell command with which a frame proxy kills it."""
        return self.command("kill")

    def kill(self) -> str:
        return self._end("kill")

    def terminate(self) -> str:
        return self._end("stop")

    def request_end(self) -> None:
        self.terminate()

    def pause(self) -> str:
        self._must("pause")
        self._paused = True
        return self.state()

    def resume(self) -> None:
        if self._paused:
            self._must("resume")
            self._paused = False

    def state(self) -> str:
        """Return the state as a process would show it."""
        return "T" if self._paused else "S"

    @property
    def exit_status(self) -> int | None:
        """None while the node runs, and 0 when it does not: how it ended is unknown."""
        if self._ended:
            return 0
        if self._commands.alive and not self._paused and time.monotonic() - self._looked_s > LOOK_EVERY_S:
            self._looked_s = time.monotonic()
            self._runs = self._is_alive()
        return None if self._runs else 0

    def check(self) -> None:
        """Raise TargetDied if the node ended unexpectedly."""
        if self.exit_status is not None and not self.expected_end:
            raise _died(self)

    def wait(self, limit_s: float | None = None) -> bool:
        """Return whether the node has ended. Raise SetupError if the command that should have killed it did not."""
        deadline = time.monotonic() + (limit_s or 0.0)
        while self._ended and self._commands.alive and self._is_alive():
            if time.monotonic() > deadline:
                raise SetupError(f"{self.name} still runs after commands.kill: {self._filled(self._ended)}")
            time.sleep(LOOK_EVERY_S)
        return self.exit_status is not None

    def _is_alive(self) -> bool:
        """Run ``alive``. A node whose command does not end in time counts as alive."""
        with contextlib.suppress(SetupError):
            return self._run_command(self._commands.alive, ALIVE_LIMIT_S).returncode == 0
        return True

    def note_done_by_proxy(self, kind: str) -> None:
        """Record that the frame proxy has run one of the commands."""
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
            return self._run_command(self._commands.log).stdout.strip()
        except SetupError as failure:
            return str(failure)

    def command(self, which: str) -> str:
        """Return the text of a command for this node."""
        return self._filled(str(getattr(self._commands, which)))

    def close(self) -> None:
        """There are no pipes."""

    def end(self) -> None:
        """A node elsewhere goes on, but not paused and not ended by us."""
        self.resume()
        if self._ended:
            self.start()

    def _end(self, which: str) -> str:
        self.expected_end = True
        if not self._ended:
            self._must(which)
            self._ended = str(getattr(self._commands, which))
        return f"{self.label} was ended: {self.command(which)}{' (SIGKILL)' if which == 'kill' else ''}"

    def _must(self, which: str) -> None:
        done = self._run_command(str(getattr(self._commands, which)))
        if done.returncode != 0:
            words = (done.stdout + done.stderr).strip().splitlines()[-1:] or ["it said nothing"]
            raise SetupError(f"{self.name}: commands.{which} failed with {done.returncode}: {words[0]}")

    def _run_command(self, text: str, limit_s: float = COMMAND_LIMIT_S) -> "subprocess.CompletedProcess[str]":
        words = self._filled(text)
        try:
            return run_shell(words, limit_s)
        except subprocess.TimeoutExpired as expired:
            raise SetupError(f"{self.name}: {words!r} did not end within {limit_s:g} s.") from expired

    def _filled(self, text: str) -> str:
        return filled(text, self._words)


def run_shell(command: str, limit_s: float) -> "subprocess.CompletedProcess[str]":
    words = ["sh", "-c", command]
    return subprocess.run(
        words, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace", timeout=limit_s, check=False
    )


def _died(process: TargetProcess | ShellProcess, when: str = "") -> TargetDied:
    how = process.how_it_ended()
    return TargetDied(f"{process.name} {how}{when}, and no fault had hit it: {process.last_words()}")


NodeProcess: TypeAlias = Child | ShellProcess
"""One incarnation of a node."""


class EvidencePipe:
    """A pipe that a child inherits and writes JSON lines to. The lines survive the child's death by any signal."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._tail = b""

    def close_write_end(self) -> None:
        """Close our copy of the write end, once the child has its own."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def lines(self) -> list[dict[str, Any]]:
        """Return the lines received since the last call, without blocking."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._read_end, 65_536):
                self._tail += data
        *whole, self._tail = self._tail.split(b"\n")
        return [json.loads(line) for line in whole if line]

    def close(self) -> None:
        self.close_write_end()
        os.close(self._read_end)
