"""One broker process of either system. It can be killed and launched again, and it always ends with its cluster."""

import os
import re
import signal
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.children import ends_with_me
from bench.ports import API_VERSIONS_0
from reference_broker.blocking.transport import Connection, TransportError


class PeerError(Exception):
    """A broker or tool is missing, refused a request or took too long. The message is one sentence."""


END_LIMIT_S = 40.0
_CRASH = re.compile(r"^panic:|^fatal error:|^thread '.*' panicked|^Traceback|^# A fatal error")
"""The beginning of a crash report of Go, Rust, Python and Java. Many lines of stack follow it."""


class BrokerNode:
    """One node, which keeps its port and its data when it is launched again. ``port`` is that of its client listener on
    127.0.0.1. ``command`` starts it with more variables in its ``environment``, and ``log`` gets its output."""

    def __init__(
        self,
        name: str,
        node_id: int,
        port: int,
        command: Sequence[str],
        log: Path,
        ready_limit_s: float = 60.0,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        self.name = name
        self.node_id = node_id
        self.port = port
        self.process: subprocess.Popen[bytes] | None = None
        self._command = list(command)
        self._environment = {**os.environ, **(environment or {})}
        self._log = log
        self._ready_limit_s = ready_limit_s

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        """Start the process and return at once. Raise PeerError if there is no such program."""
        with self._log.open("ab") as log:
            try:
                self.process = subprocess.Popen(
                    self._command,
                    stdin=subprocess.DEVNULL,
                    stdout=log,
                    stderr=log,
                    env=self._environment,
                    preexec_fn=ends_with_me(),
                )
            except OSError as error:
                raise PeerError(f"{self.name}: {self._command[0]} cannot be run: {error.strerror}.") from error

    def await_ready(self) -> None:
        """Wait until an ApiVersions request gets its response. Raise PeerError."""
        assert self.process is not None
        deadline = time.perf_counter() + self._ready_limit_s
        while time.perf_counter() < deadline:
            if self.process.poll() is not None:
                raise self._not_ready(f"ended with status {self.process.returncode} before it was ready")
            if responds(self.port):
                return
            time.sleep(0.01)
        raise self._not_ready("was not ready in time")

    def ended(self) -> str:
        """Return with which status the process ended, and its last log lines; empty while it runs."""
        if self.process is None or (status := self.process.poll()) is None:
            return ""
        return f"the broker ended with status {status}: {self.last_log_lines()}"

    def _not_ready(self, why: str) -> PeerError:
        # The log itself is in a folder of its starter, which is often deleted before anybody reads this.
        return PeerError(f"{self.name} node {self.node_id} {why}; its log ends with: {self.last_log_lines()}")

    def last_log_lines(self) -> str:
        """Return the last three lines of the log, or those from where a runtime begins to report its own crash."""
        lines = self._log.read_text(errors="replace").strip().splitlines()
        crash = next((place for place in reversed(range(len(lines))) if _CRASH.search(lines[place])), None)
        shown = lines[-3:] if crash is None else lines[crash : crash + 3]
        return " / ".join(line.strip() for line in shown if line.strip()) or "the log is empty"

    def send_signal(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def reap(self) -> None:
        """Wait for the end of the process after a SIGKILL."""
        assert self.process is not None
        self.process.wait(20)

    def back(self) -> None:
        """Launch the node again after a SIGKILL, and wait until it is ready. Raise PeerError."""
        self.reap()
        self.launch()
        self.await_ready()


def end(nodes: Sequence[BrokerNode], number: signal.Signals = signal.SIGTERM) -> None:
    """Signals all nodes, then waits for each. A node that does not end in time is killed."""
    running = [node.process for node in nodes if node.process is not None]
    for process in running:
        if process.poll() is None:
            process.send_signal(number)
            process.send_signal(signal.SIGCONT)
    for process in running:
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def responds(port: int, timeout_s: float = 2.0) -> bool:
    """Return whether a broker on this machine accepts a connection and responds to ApiVersions."""
    try:
        with Connection.open("127.0.0.1", port, int(timeout_s * 1e6)) as connection:
            connection.exchange(API_VERSIONS_0)
    except TransportError:
        return False
    return True
