"""Combined nodes of Apache Kafka in KRaft mode: started, struck, started again, always ended."""

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.peers.cluster import Cluster
from bench.peers.jars import kafka_classpath
from bench.peers.kafka import HEAP, SETTINGS, format_storage, new_cluster_id, write_properties
from bench.peers.node import free_ports, wait_until_it_answers

NAME = "Apache Kafka"
READY_LIMIT_S = 90.0
_JAVA_OPTIONS = (*HEAP, "-XX:-UsePerfData")


class KafkaNode:
    """One node over all its incarnations: same ports, same data, formatted once."""

    def __init__(self, node_id: int, port: int, properties: Path, classpath: str) -> None:
        self.node_id = node_id
        self.port = port
        self._properties = properties
        self._classpath = classpath
        self._log = properties.with_suffix(".log")
        self.process: subprocess.Popen[bytes] | None = None

    def launch(self) -> None:
        command = ["java", *_JAVA_OPTIONS, "-cp", self._classpath, "kafka.Kafka", str(self._properties)]
        with self._log.open("ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)

    def await_ready(self) -> None:
        """Raises PeerError."""
        assert self.process is not None
        wait_until_it_answers(f"{NAME} node {self.node_id}", self.process, self.port, self._log, READY_LIMIT_S)

    def strike(self, number: signal.Signals) -> None:
        assert self.process is not None
        os.kill(self.process.pid, number)

    def reap(self) -> None:
        """After a SIGKILL."""
        assert self.process is not None
        self.process.wait(20)


@contextmanager
def kafka_cluster(folder: Path, nodes: int, config: Mapping[str, str]) -> Iterator[Cluster]:
    """Fresh nodes below ``folder``, formatted, not launched. Raises PeerError when they cannot be had.

    They end by SIGKILL: nobody reads their files again, and nodes that all leave at once wait for a controller that
    has gone.
    """
    classpath = kafka_classpath()
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(2 * nodes)
    voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(ports[nodes:]))
    cluster_id = new_cluster_id()
    members = []
    for node in range(nodes):
        listeners = f"PLAINTEXT://127.0.0.1:{ports[node]},CONTROLLER://127.0.0.1:{ports[nodes + node]}"
        own = {
            "node.id": str(node),
            "controller.quorum.voters": voters,
            "listeners": listeners,
            "log.dirs": str(folder / f"node-{node}"),
        }
        properties = folder / f"node-{node}.properties"
        write_properties(properties, {**SETTINGS, **config, **own})
        format_storage(classpath, cluster_id, properties)
        members.append(KafkaNode(node, ports[node], properties, classpath))
    try:
        yield Cluster(NAME, members)
    finally:
        for member in members:
            if member.process is not None and member.process.poll() is None:
                member.process.kill()
        for member in members:
            if member.process is not None:
                member.process.wait()
