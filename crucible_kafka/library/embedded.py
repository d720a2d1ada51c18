"""A node on a thread of the test's process.

It touches nothing that belongs to the whole process: no signals, limits, allocator settings or garbage collector.
"""

import io
import os
import socket
import threading
import time
import weakref
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Final

from crucible_kafka.library.carrier import COMMAND_LIMIT_S, NodeSpec, does_not_run
from crucible_kafka.library.errors import CrucibleError, CrucibleTimeout, NodeDead, NotPossible, StartFailed
from crucible_kafka.library.inside_node import CommandFailed, InsideNode
from crucible_kafka.library.plain_values import Plain
from reference_broker.serve.log_lines import LogLines
from reference_broker.serve.process import StartError
from reference_broker.serve.server import Options, Server

STOPPED: Final = "it was stopped"
MAX_LOG_LINES: Final = 10_000
END_LIMIT_S: Final = 10.0
"""The longest wait for the thread of a node that ends."""


class LineKeeper(io.StringIO):
    """Keeps the newest lines that are written to it."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: deque[str] = deque(maxlen=MAX_LOG_LINES)

    def write(self, text: str) -> int:
        self.lines.append(text.rstrip("\n"))
        return len(text)


_RUNNING: Final["weakref.WeakSet[EmbeddedNode]"] = weakref.WeakSet()


def _leave_nodes_to_parent() -> None:
    """Let a forked process have no copies of the nodes' sockets and files: ports and locked folders would stay in use
    when the parent's nodes end, and clients would not notice that end."""
    ports = {port for node in _RUNNING for port in node.ports}
    folders = tuple({f"{node.folder}/" for node in _RUNNING})
    if not ports or not os.access("/proc/self/fd", os.R_OK):
        return
    nothing = os.open(os.devnull, os.O_RDWR | os.O_CLOEXEC)
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError):
            place = os.readlink(f"/proc/self/fd/{name}")
            if place.startswith(folders) or (place.startswith("socket:") and _local_port(int(name)) in ports):
                os.dup2(nothing, int(name), inheritable=False)  # The number stays with the object that has it.
    os.close(nothing)


def _local_port(descriptor: int) -> int | None:
    with socket.socket(fileno=os.dup(descriptor)) as copy:
        return int(copy.getsockname()[1]) if copy.family == socket.AF_INET else None


os.register_at_fork(after_in_child=_leave_nodes_to_parent)


class EmbeddedNode:
    """Implements ``carrier.Carrier``."""

    def __init__(self, node_id: int) -> None:
        self.node_id = node_id
        self.pid = os.getpid()
        self._lines = LineKeeper()
        self._inside: InsideNode | None = None
        self._server: Server | None = None
        self._thread: threading.Thread | None = None
        self._changed = threading.Condition()
        self._is_ready = False
        self.ports: frozenset[int] = frozenset()
        """The ports on which it listens."""
        self.folder = ""
        """The folder of its files."""
        self._end = ""
        """The reason why the node has ended; empty while it runs."""

    @property
    def is_running(self) -> bool:
        thread = self._thread  # Another thread may end the node at any moment.
        return thread is not None and thread.is_alive() and not self._end

    def start(self, spec: NodeSpec) -> None:
        from reference_broker.configuration.broker_config import BrokerConfig, ConfigError

        try:
            config = BrokerConfig.parse(dict(spec.config))
        except ConfigError as wrong:
            raise StartFailed(str(wrong)) from wrong
        places = [spec.listen or "", *spec.config.get("listeners", "").split(",")]
        self.ports = frozenset(int(place.rpartition(":")[2]) for place in places if ":" in place)
        self.folder = str(spec.data.parent)
        _RUNNING.add(self)
        options = Options(spec.listen, spec.data, spec.node_id, config)
        self._inside = InsideNode(spec.node_id, spec.standing)
        log = LogLines(spec.node_id, self._lines)
        self._server = Server(options, self._ready, self._inside.wrapper, guest_log=log)
        self._is_ready, self._end = False, ""
        self._thread = threading.Thread(
            target=self._run, args=(self._server, self._inside), name=f"crucible-node-{spec.node_id}", daemon=True
        )
        self._thread.start()

    def _run(self, server: Server, inside: InsideNode) -> None:
        try:
            code = server.run()
            end = STOPPED if code == 0 else f"it crashed: {self._last_error()}"
        except StartError as wrong:
            end = str(wrong)
        except Exception as bug:
            end = f"it failed: {bug!r}"
        with self._changed:
            self._end = end
            self._changed.notify_all()
        inside.ended()

    def _ready(self, _: dict[str, object]) -> None:
        with self._changed:
            self._is_ready = True
            self._changed.notify_all()

    def _last_error(self) -> str:
        return next((line for line in reversed(self._lines.lines) if '"level": "error"' in line), "see its log lines")

    def wait_ready(self, limit_s: float) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_ready or bool(self._end), limit_s)
            end, is_ready = self._end, self._is_ready
        if end:
            raise StartFailed(f"Node {self.node_id} did not start: {end}")
        if not is_ready:
            self.kill()
            raise StartFailed(
                f"Node {self.node_id} was not ready within {limit_s:g} s: {'; '.join(self.log_lines()[-3:])}"
            )

    def command(self, name: str, arguments: Mapping[str, Plain], limit_s: float = COMMAND_LIMIT_S) -> Plain:
        inside = self._inside
        if inside is None or not self.is_running:
            raise NodeDead(does_not_run(self, _words(name)))
        try:
            return inside.command(name, arguments, limit_s)
        except CommandFailed as failure:
            if not self.is_running:
                raise NodeDead(f"Node {self.node_id} ended: {self._end or 'it was killed'}.") from failure
            raise NotPossible(str(failure)) from failure
        except TimeoutError as late:
            raise CrucibleTimeout(
                f"Node {self.node_id} did not {_words(name)} within {limit_s:g} s: if it is paused, call resume()."
            ) from late
        except Exception as bug:
            raise CrucibleError(f"Node {self.node_id} failed to {_words(name)}: {bug!r}.") from bug

    def kill(self) -> None:
        server, inside = self._server, self._inside
        if server is not None:
            server.abandon()
        if inside is not None:
            inside.halt()
            inside.command("resume", {}, 0)
        self._join(END_LIMIT_S)

    def stop(self, limit_s: float) -> None:
        if self._inside is not None and self.is_running:
            self._inside.command("resume", {}, 0)
        if self._server is not None:
            self._server.stop()
        self._join(limit_s)
        if self._thread is not None:
            self.kill()

    def _join(self, limit_s: float) -> None:
        thread = self._thread
        if thread is None or thread is threading.current_thread():  # The collector of garbage may run in this thread.
            return
        deadline = time.monotonic() + limit_s
        while thread.is_alive() and time.monotonic() < deadline:
            thread.join(0.05)
            if thread.is_alive() and self._server is not None and limit_s == END_LIMIT_S:
                self._server.abandon()  # Its loop may not have run yet at the first call.
        if not thread.is_alive():
            self._thread = self._server = self._inside = None
            _RUNNING.discard(self)

    @property
    def why_ended(self) -> str:
        return "" if self._end == STOPPED else self._end

    @property
    def has_crashed(self) -> bool:
        return self._is_ready and bool(self.why_ended)

    def log_lines(self) -> list[str]:
        return list(self._lines.lines)


def _words(name: str) -> str:
    return name.replace("_", " ")
