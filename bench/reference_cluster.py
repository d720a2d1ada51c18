"""Several combined nodes of the reference broker as processes, for measurements and peers' tools: started, struck,
started again."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from bench.peers.errors import PeerError
from bench.peers.node import free_ports

LAUNCHER = Path(__file__).resolve().parents[1] / "crucible.py"
CLUSTER_ID = "crucible-bench-cluster"
READY_LIMIT_S = 60.0


class ClusterNode:
    """One node over all its incarnations: same port, same data. ``config``: Kafka's names."""

    def __init__(self, node_id: int, port: int, folder: Path, config: Mapping[str, str]) -> None:
        self.node_id = node_id
        self.port = port
        self.data = folder / f"node-{node_id}"
        self._folder = folder
        self._config = config
        self._ready: SimpleQueue[bool] = SimpleQueue()
        self.process: subprocess.Popen[bytes] | None = None

    @property
    def bootstrap(self) -> str:
        return f"127.0.0.1:{self.port}"

    def launch(self) -> None:
        words = [word for key, value in self._config.items() for word in ("--config", f"{key}={value}")]
        command = [
            sys.executable,
            str(LAUNCHER),
            "broker",
            "--listen",
            self.bootstrap,
            "--data",
            str(self.data),
            "--node-id",
            str(self.node_id),
            *words,
        ]
        with (self._folder / f"node-{self.node_id}.log").open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=log)
        self._ready = SimpleQueue()
        assert self.process.stdout is not None
        threading.Thread(target=_read, args=(self.process.stdout, self._ready), daemon=True).start()

    def await_ready(self) -> None:
        """Raises PeerError."""
        try:
            is_ready = self._ready.get(timeout=READY_LIMIT_S)
        except Empty:
            is_ready = False
        if not is_ready:
            raise PeerError(f"node {self.node_id} was not ready in time; its log is in {self._folder}")

    def strike(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def reap(self) -> None:
        """After a SIGKILL."""
        assert self.process is not None
        self.process.wait(20)

    def end(self) -> None:
        if self.process is None or self.process.poll() is not None:
            return
        self.process.send_signal(signal.SIGTERM)
        self.process.send_signal(signal.SIGCONT)

    def wait(self) -> None:
        """After ``end``."""
        if self.process is None:
            return
        try:
            self.process.wait(40)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


@contextmanager
def reference_cluster(
    folder: Path, nodes: int = 3, config: Mapping[str, str] | None = None
) -> Iterator[list[ClusterNode]]:
    """All ready, with default settings or ``config`` beside them. Raises PeerError."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(nodes)
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(ports))
    told = {"controller.quorum.voters": voters, "crucible.cluster.id": CLUSTER_ID, **(config or {})}
    members = [ClusterNode(node, port, folder, told) for node, port in enumerate(ports)]
    try:
        for member in members:
            member.launch()
        for member in members:
            member.await_ready()
        yield members
    finally:
        for member in members:
            member.end()
        for member in members:
            member.wait()


def _read(stdout: IO[bytes], ready: "SimpleQueue[bool]") -> None:
    for line in stdout:
        if json.loads(line).get("ready"):
            ready.put(True)
    ready.put(False)
    stdout.close()


def until(condition: Callable[[], bool], limit_s: float, what: str) -> None:
    """Looks every 20 ms. Raises PeerError after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise PeerError(f"{what} did not happen within {limit_s:g} s")
        time.sleep(0.02)
