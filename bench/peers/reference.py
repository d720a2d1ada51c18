"""The reference broker in processes of its own, one node or several."""

import json
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import IO

from bench.children import ends_with_me
from bench.peers.cluster import PeerCluster, System, settings_of
from bench.peers.node import BrokerNode, end
from bench.ports import free_ports

REFERENCE_NAME = "reference broker"
LAUNCHER = Path(__file__).resolve().parents[2] / "crucible_kafka"
CLUSTER_ID = "crucible-bench-cluster"
COMMAND = (sys.executable, str(LAUNCHER))
_PLANT = """
import os.path, runpy, sys
sys.path.insert(0, os.path.dirname(sys.argv[2]))
from chaos.mutants.mutant import apply
from chaos.mutants.registry import by_name
apply(by_name(sys.argv[1]))
sys.argv = sys.argv[2:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class ReferenceNode(BrokerNode):
    """A node that prints a line when it is ready. ``config`` holds settings by Kafka's names. ``program`` is what
    starts Crucible's command line."""

    def __init__(
        self,
        node_id: int,
        port: int,
        data: Path,
        config: Mapping[str, str],
        *words: str,
        program: Sequence[str] = COMMAND,
    ) -> None:
        """Without ``listeners`` in the settings, the node has the one listener at ``port``."""
        settings = [word for key, value in config.items() for word in ("--config", f"{key}={value}")]
        where = [] if "listeners" in config else ["--listen", f"127.0.0.1:{port}"]
        where += ["--data", str(data), "--node-id", str(node_id)]
        command = [*program, "broker", *where, *words, *settings]
        super().__init__(REFERENCE_NAME, node_id, port, command, data.with_name(f"{data.name}.log"))
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
def reference_cluster(
    folder: Path,
    nodes: int,
    config: Mapping[str, str],
    advertised: Sequence[str] = (),
    program: Sequence[str] = COMMAND,
) -> Iterator[PeerCluster]:
    """Make new nodes below ``folder``, which are not launched. A single node has no other voters."""
    folder.mkdir(parents=True, exist_ok=True)
    ports, settings = free_ports(nodes), dict(config)
    broker_ports = free_ports(nodes) if advertised else ports
    if nodes > 1:
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(broker_ports))
        settings |= {"controller.quorum.voters": voters, "crucible.cluster.id": CLUSTER_ID}
    members = []
    for node, port in enumerate(ports):
        own = settings_of(settings, node)
        if advertised:
            own |= _two_listeners(port, broker_ports[node], advertised[node])
        members.append(ReferenceNode(node, port, folder / f"node-{node}", own, program=program))
    try:
        yield PeerCluster(REFERENCE_NAME, members)
    finally:
        end(members)


def reference_with_mutant(mutant: str) -> System:
    """Return the reference broker without the mechanism that ``mutant`` replaces (``./crucible mutants``)."""

    program = (sys.executable, "-c", _PLANT, mutant, str(LAUNCHER))

    def prepare(
        folder: Path, nodes: int, config: Mapping[str, str], advertised: Sequence[str] = ()
    ) -> AbstractContextManager[PeerCluster]:
        return reference_cluster(folder, nodes, config, advertised, program)

    return System(f"{REFERENCE_NAME} with {mutant}", prepare)


def _two_listeners(port: int, broker_port: int, advertised: str) -> dict[str, str]:
    """Return the settings of a node whose clients come through a proxy, and its brokers do not."""
    return {
        "listeners": f"CLIENTS://127.0.0.1:{port},BROKERS://127.0.0.1:{broker_port}",
        "advertised.listeners": f"CLIENTS://{advertised},BROKERS://127.0.0.1:{broker_port}",
        "listener.security.protocol.map": "CLIENTS:PLAINTEXT,BROKERS:PLAINTEXT",
        "inter.broker.listener.name": "BROKERS",
    }
