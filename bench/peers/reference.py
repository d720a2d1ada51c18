"""The reference broker in processes of its own, one node or several."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from bench.children import ends_with_me
from bench.peers.cluster import Cluster, settings_of
from bench.peers.node import BrokerNode, end
from bench.ports import free_ports

NAME = "reference broker"
LAUNCHER = Path(__file__).resolve().parents[2] / "crucible.py"
CLUSTER_ID = "crucible-bench-cluster"


class ReferenceNode(BrokerNode):
    """A node that prints a line when it is ready. ``config`` holds settings by Kafka's names."""

    def __init__(self, node_id: int, port: int, data: Path, config: Mapping[str, str], *words: str) -> None:
        settings = [word for key, value in config.items() for word in ("--config", f"{key}={value}")]
        where = ["--listen", f"127.0.0.1:{port}", "--data", str(data), "--node-id", str(node_id)]
        command = [sys.executable, str(LAUNCHER), "broker", *where, *words, *settings]
        super().__init__(NAME, node_id, port, command, data.with_name(f"{data.name}.log"))
        self.data = data
        self._ready: SimpleQueue[bool] = SimpleQueue()

    def launch(self) -> None:
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                preexec_fn=ends_with_me(),
            )
        self._ready = SimpleQueue()
        assert self.process.stdout is not None
        threading.Thread(target=_read, args=(self.process.stdout, self._ready), daemon=True).start()

    def await_ready(self) -> None:
        try:
            is_ready = self._ready.get(timeout=self._ready_limit_s)
        except Empty:
            is_ready = False
        if not is_ready:
            raise self._not_ready("was not ready in time")


def _read(stdout: IO[bytes], ready: "SimpleQueue[bool]") -> None:
    for line in stdout:
        if json.loads(line).get("ready"):
            ready.put(True)
    ready.put(False)
    stdout.close()


@contextmanager
def reference_cluster(folder: Path, nodes: int, config: Mapping[str, str]) -> Iterator[Cluster]:
    """Makes new nodes below ``folder``, which are not launched. A single node is told of no other voters."""
    folder.mkdir(parents=True, exist_ok=True)
    ports, told = free_ports(nodes), dict(config)
    if nodes > 1:
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(ports))
        told |= {"controller.quorum.voters": voters, "crucible.cluster.id": CLUSTER_ID}
    members = [
        ReferenceNode(node, port, folder / f"node-{node}", settings_of(told, node)) for node, port in enumerate(ports)
    ]
    try:
        yield Cluster(NAME, members)
    finally:
        end(members)
