"""The child processes of a run. They are started, signalled, awaited with deadlines, and reaped."""

import contextlib
import json
import os
import queue
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, Any

from bench.children import ends_with_me
from chaos.live.errors import EndedItself, NodeDied, SetupError

READY_LIMIT_S = 30.0
STOP_LIMIT_S = 35.0
MAX_WORDS = 4000
"""A log's last line is cut to so many characters in messages and in the manifest."""
DAMAGED = "The metadata log is damaged"
"""A node that ends because its metadata log is damaged says this in its last words."""


class Child:
    """One process that prints JSON lines on stdout and logs to a file. ``name`` stands in messages.

    It ends with the thread that started it (``bench.children``), in whatever state it is.
    ``heard`` gets each line, in a thread of its own. Without it the lines wait for ``said``. ``expected_end`` is true
    if the process may end, because a fault was announced or somebody asked for it.
    """

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        log: Path,
        pass_fds: Sequence[int] = (),
        heard: Callable[[dict[str, Any]], None] | None = None,
    ) -> None:
        self.name = name
        self.log = log
        self.expected_end = False
        self._asked_to_end = False
        self._lines: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
        self._heard = heard or self._lines.put
        self._process = self._started(command, log, pass_fds)
        self._reader: threading.Thread | None = None
        if self._process.stdout is not None:
            self._reader = threading.Thread(target=self._read, args=(self._process.stdout,), daemon=True)
            self._reader.start()

    def _started(self, command: Sequence[str], log: Path, pass_fds: Sequence[int]) -> "subprocess.Popen[bytes]":
        with log.open("ab") as errors:
            return subprocess.Popen(
                list(command),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                pass_fds=tuple(pass_fds),
                start_new_session=True,
                preexec_fn=ends_with_me(),
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def who(self) -> str:
        """Returns what evidence calls the process."""
        return f"pid {self.pid}"

    @property
    def exit_status(self) -> int | None:
        """None while the process runs. Negative if a signal with that number ended it."""
        return self._process.poll()

    def await_line(self, key: str, limit_s: float = READY_LIMIT_S) -> dict[str, Any]:
        """Returns the first JSON line that has ``key``. Raises NodeDied, or SetupError if the process said why it
        cannot start."""
        line = self.said(key, limit_s)
        if line is None:
            raise NodeDied(f"{self.name} was not ready within {limit_s:g} s; its log: {self.log}")
        return line

    def said(self, key: str, within_s: float) -> dict[str, Any] | None:
        """Does the same as ``await_line``, but returns None if the line does not come within that time."""
        deadline = time.monotonic() + within_s
        while True:
            try:
                line = self._lines.get(timeout=max(0.0, deadline - time.monotonic()))
            except queue.Empty:
                return None
            if line is None:
                self._process.wait(5)
                if self.exit_status == 2:
                    raise SetupError(self.last_words().removeprefix("crucible broker: "))
                raise self._death(" before it was ready")
            if key in line:
                return line

    def kill(self) -> str:
        """Sends SIGKILL. Returns how the process ended, as evidence."""
        self.expected_end = True
        self.send(signal.SIGKILL)
        return self._awaited(signal.SIGKILL, 10.0)

    def terminate(self, limit_s: float = STOP_LIMIT_S) -> str:
        """Sends SIGTERM, and SIGKILL after ``limit_s``. Returns how the process ended."""
        self.ask_to_end()
        return self._awaited(signal.SIGTERM, limit_s)

    def ask_to_end(self) -> None:
        """Sends SIGTERM, without waiting."""
        if self._asked_to_end:
            return  # A second signal could kill a process that has removed its handlers because it is ending.
        self.expected_end = self._asked_to_end = True
        self.send(signal.SIGTERM)
        self.resume()  # A stopped process does not see SIGTERM.

    def pause(self) -> str:
        """Sends SIGSTOP. Returns the state that the system reports."""
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
        """Returns Linux's letter for the state of the process (T: stopped, S: sleeping, ...), or ? elsewhere."""
        try:
            stat = Path(f"/proc/{self.pid}/stat").read_text()
        except OSError:
            return "?"
        return stat.rpartition(")")[2].split()[0]

    def order(self, **order: object) -> None:
        """Writes one JSON line to the stdin of the process. A process that has just died, or is closed, takes none."""
        assert self._process.stdin is not None
        if self._process.stdin.closed:
            return  # The last hits of a run are read after its proxies were closed.
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(order).encode() + b"\n")
            self._process.stdin.flush()

    def close(self) -> None:
        """Closes the pipes, once the process has ended."""
        if self._reader is not None:
            self._reader.join(2)
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    def check(self) -> None:
        """Raises NodeDied if the process ended and nobody asked for that."""
        if self.exit_status is not None and not self.expected_end:
            raise self._death("")

    def _death(self, when: str) -> NodeDied:
        story = f"{self.name} {self.how_it_ended()}{when}: {self.last_words()}"
        return EndedItself(story) if DAMAGED in story else NodeDied(story)

    def wait(self, limit_s: float | None = None) -> bool:
        """Returns true if the process has ended within ``limit_s``. None means no limit."""
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
        """Returns the last line of the log, or of what the process said before it could log."""
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
                self._heard(value)
        self._lines.put(None)
        stream.close()


class EvidencePipe:
    """A pipe that a child inherits and writes JSON lines to. The lines survive the child's death by any signal."""

    def __init__(self) -> None:
        self._read_end, self.write_end = os.pipe()
        os.set_blocking(self._read_end, False)
        self._tail = b""

    def close_write_end(self) -> None:
        """Closes our copy of the write end, once the child has its own."""
        if self.write_end >= 0:
            os.close(self.write_end)
            self.write_end = -1

    def lines(self) -> list[dict[str, Any]]:
        """Returns what came since the last call. It never blocks."""
        with contextlib.suppress(BlockingIOError):
            while data := os.read(self._read_end, 65_536):
                self._tail += data
        *whole, self._tail = self._tail.split(b"\n")
        return [json.loads(line) for line in whole if line]

    def close(self) -> None:
        self.close_write_end()
        os.close(self._read_end)
