"""A broker process under measurement: start it, know its address and process, end it."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.peers.errors import PeerError


@dataclass(frozen=True, slots=True)
class RunningNode:
    """``port``: of the client listener on 127.0.0.1; ``ready_s``: from exec to the first answered request."""

    name: str
    port: int
    process: "subprocess.Popen[bytes]"
    ready_s: float

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def rss_bytes(self) -> int:
        return int(psutil.Process(self.process.pid).memory_info().rss)

    def cpu_s(self) -> float:
        times = psutil.Process(self.process.pid).cpu_times()
        return float(times.user + times.system)


def free_ports(count: int) -> list[int]:
    """Loopback ports that were free a moment ago; all different."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [int(each.getsockname()[1]) for each in sockets]
    for each in sockets:
        each.close()
    return ports


@contextmanager
def running(name: str, command: list[str], port: int, log: Path, deadline_s: float = 60.0) -> Iterator[RunningNode]:
    """Runs ``command`` until the block ends; ready when it answers an ApiVersions request on ``port``."""
    started = time.perf_counter()
    with log.open("wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, stdin=subprocess.DEVNULL)
    try:
        wait_until_it_answers(name, process, port, log, deadline_s)
        yield RunningNode(name, port, process, time.perf_counter() - started)
    finally:
        end(process)


_API_VERSIONS_V0 = bytes.fromhex("0000000e 0012 0000 00000001 0004 70726f62")
"""Length, key 18, version 0, correlation 1, client ID ``prob``."""


def wait_until_it_answers(name: str, process: "subprocess.Popen[bytes]", port: int, log: Path, limit_s: float) -> None:
    """Until an ApiVersions request is answered on ``port``. Raises PeerError."""
    deadline = time.perf_counter() + limit_s
    while time.perf_counter() < deadline:
        if process.poll() is not None:
            tail = " / ".join(log.read_text(errors="replace").strip().splitlines()[-3:])
            raise PeerError(f"{name} ended with status {process.returncode} before it was ready: {tail}")
        if _answers(port):
            return
        time.sleep(0.01)
    raise PeerError(f"{name} was not ready in time; its log is {log}")


def _answers(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(_API_VERSIONS_V0)
            return bool(connection.recv(4))
    except OSError:
        return False


def end(process: "subprocess.Popen[bytes] | subprocess.Popen[str]", limit_s: float = 20) -> None:
    """SIGTERM, then SIGKILL after ``limit_s``."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout=limit_s)
        except subprocess.TimeoutExpired:
            os.kill(process.pid, signal.SIGKILL)
            process.wait()
