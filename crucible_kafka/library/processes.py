"""A node in a process of its own: it can be killed, and ends with the process that started it."""

import json
import os
import select
import signal
import subprocess
import sys
import sysconfig
import threading
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from crucible_kafka.library.carrier import COMMAND_LIMIT_S, NodeSpec, does_not_run
from crucible_kafka.library.errors import CrucibleError, CrucibleTimeout, NodeDead, NotPossible, StartFailed
from crucible_kafka.library.plain_values import Plain

PROGRAM: Final = "; ".join(
    [
        "import sys",
        "from reference_broker.serve.start_up import collect_nothing, leave_out",
        "leave_out()",
        "collect_nothing()",
        "from crucible_kafka.library.node_process import main",
        "sys.exit(main())",
    ]
)
"""The program of a node's process. Most of a start is imports, so the first lines come before them."""
ANSWER_EXTRA_S: Final = 2.0
"""The node keeps the limit of a command itself. This much later it does not respond at all."""
END_LIMIT_S: Final = 10.0


class ProcessNode:
    """Implements ``carrier.Carrier``."""

    def __init__(self, node_id: int, log_path: Path) -> None:
        self.node_id = node_id
        self._log_path = log_path
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        """Only one thread at a time uses the pipes."""
        self._rest = bytearray()
        self._searched = 0
        """Bytes at the beginning of ``_rest`` without an end of a line."""
        self._last_id = 0
        self._is_ready = False
        """Whether the ready line was read, perhaps by a command of another thread."""

    @property
    def pid(self) -> int:
        process = self._process
        return -1 if process is None else process.pid

    @property
    def is_running(self) -> bool:
        process = self._process  # Another thread may end the node at any moment.
        return process is not None and process.poll() is None

    def start(self, spec: NodeSpec) -> None:
        self._close()
        words = {
            "node_id": spec.node_id,
            "data": str(spec.data),
            "folder": str(spec.data.parent),
            "config": dict(spec.config),
            "listen": spec.listen,
            "standing": [list(each) for each in spec.standing],
        }
        self._rest, self._searched, self._is_ready = bytearray(), 0, False
        try:
            with self._log_path.open("ab") as log:
                self._process = subprocess.Popen(
                    [sys.executable, "-P", "-c", PROGRAM, json.dumps(words)],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=log,
                    env=_environment(),
                    bufsize=0,
                    start_new_session=True,  # Ctrl-C in a terminal is for the tests.
                )
        except OSError as failure:
            raise StartFailed(f"Node {self.node_id} could not be started as a process: {failure}.") from failure

    def wait_ready(self, limit_s: float) -> None:
        try:
            with self._lock:
                if not self._is_ready:
                    self._read_until("ready", True, time.monotonic() + limit_s)
        except NodeDead:
            raise StartFailed(f"Node {self.node_id} did not start: {self._last_words()}") from None
        except TimeoutError:
            self.kill()
            raise StartFailed(f"Node {self.node_id} was not ready within {limit_s:g} s: {self._last_words()}") from None

    def command(self, name: str, arguments: Mapping[str, Plain], limit_s: float = COMMAND_LIMIT_S) -> Plain:
        what = name.replace("_", " ")
        if not self.is_running:
            raise NodeDead(does_not_run(self, what))
        try:
            with self._lock:
                self._last_id += 1
                self._send({"id": self._last_id, "command": name, "arguments": arguments, "limit_s": limit_s})
                deadline = time.monotonic() + limit_s + ANSWER_EXTRA_S
                response = self._read_until("id", self._last_id, deadline)
        except TimeoutError:
            response = {"error": "late"}
        error = response.get("error")
        if error == "late":
            raise CrucibleTimeout(
                f"Node {self.node_id} did not {what} within {limit_s:g} s: if it is paused, call resume()."
            )
        if error == "failed":
            raise NotPossible(response["message"])
        if error is not None:
            raise CrucibleError(f"Node {self.node_id} failed to {what}: {response['message']}.")
        return response["result"]

    def kill(self) -> None:
        if self._process is not None:
            with suppress(OSError):
                self._process.kill()
        self._close()

    def stop(self, limit_s: float) -> None:
        process = self._process
        if process is not None and process.poll() is None:
            process.send_signal(signal.SIGTERM)
            with suppress(subprocess.TimeoutExpired):
                process.wait(limit_s)
        self.kill()

    @property
    def why_ended(self) -> str:
        process = self._process
        status = None if process is None else process.poll()
        return f"it ended with status {status}: {self._last_words()}" if status else ""

    @property
    def has_crashed(self) -> bool:
        status = None if self._process is None else self._process.poll()
        return self._is_ready and bool(status) and status not in (-signal.SIGKILL, -signal.SIGTERM)

    def log_lines(self) -> list[str]:
        try:
            return self._log_path.read_text(errors="replace").splitlines()
        except OSError:
            return []

    def _close(self) -> None:
        """Wait for a process that ends, and close its pipes."""
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.wait(END_LIMIT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(END_LIMIT_S)
        with self._lock:
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()

    def _send(self, command: dict[str, Any]) -> None:
        process = self._process
        if process is None or process.stdin is None:
            raise self._ended()
        data = memoryview(json.dumps(command).encode() + b"\n")
        try:
            while data:
                data = data[process.stdin.write(data) :]
        except (OSError, ValueError):
            raise self._ended() from None

    def _read_until(self, key: str, value: object, deadline: float) -> dict[str, Any]:
        """Return the next line with this value. Others are results that came too late. Raise TimeoutError, NodeDead."""
        process = self._process
        if process is None or process.stdout is None:
            raise self._ended()
        readiness = select.poll()  # select() refuses descriptors from 1024 on.
        readiness.register(process.stdout, select.POLLIN)
        while True:
            while (end := self._rest.find(b"\n", self._searched)) >= 0:
                found: dict[str, Any] = json.loads(self._rest[:end])
                del self._rest[: end + 1]
                self._searched = 0
                self._is_ready = self._is_ready or "ready" in found
                if found.get(key) == value:
                    return found
            self._searched = len(self._rest)
            left_s = deadline - time.monotonic()
            if not readiness.poll(max(left_s, 0) * 1000):
                raise TimeoutError
            data = os.read(process.stdout.fileno(), 1 << 20)
            if not data:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(END_LIMIT_S)
                raise self._ended()
            self._rest += data

    def _ended(self) -> NodeDead:
        return NodeDead(f"Node {self.node_id} ended during the call: {self._last_words()}")

    def _last_words(self) -> str:
        lines = self.log_lines()
        return lines[-1].removeprefix("crucible broker: ") if lines else "it said nothing."


def _environment() -> dict[str, str]:
    """Return an environment in which a process finds this package, wherever this process has it from."""
    root = str(Path(__file__).resolve().parents[2])
    if root in (sysconfig.get_paths()["purelib"], sysconfig.get_paths()["platlib"]):
        return dict(os.environ)
    known = os.environ.get("PYTHONPATH")
    return {**os.environ, "PYTHONPATH": os.pathsep.join([root, known] if known else [root])}
