"""Nodes for tests: three whose leaders are killed under clients and brought back, and one of the reference broker."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.clients import LedPartition, RetryingClient
from bench.peers.cluster import PeerCluster, System
from bench.peers.node import BrokerNode, end
from bench.peers.reference import ReferenceNode
from bench.peers.systems import REFERENCE
from bench.ports import free_port

NODES = 3
LIMIT_S = 60.0
TIMEOUTS = {"broker.session.timeout.ms": "2000", "broker.heartbeat.interval.ms": "500"}
SAFE = {"min.insync.replicas": "2"}


@dataclass(frozen=True, slots=True)
class ThreeNodes:
    """Every method raises PeerError when it takes longer than a minute."""

    cluster: PeerCluster
    client: RetryingClient

    @property
    def bootstrap(self) -> str:
        return self.cluster.bootstrap

    def create(self, topic: str, partitions: int, config: Mapping[str, str] = SAFE) -> dict[int, LedPartition]:
        """Create a topic with three replicas, which are all in sync when this returns."""
        self.client.create_topic(topic, partitions, NODES, LIMIT_S, config)
        return self.whole(topic, partitions)

    def whole(self, topic: str, partitions: int) -> dict[int, LedPartition]:
        """Once all replicas of all partitions are in sync."""
        return self.client.await_replicas(topic, partitions, NODES, LIMIT_S)

    def leader_of(self, topic: str, partition: int) -> int:
        return self.client.led(topic, partition, LIMIT_S).leader

    def kill_leader(self, topic: str, partition: int) -> int:
        """The node killed; another leads when this returns."""
        killed = self.leader_of(topic, partition)
        member = self.cluster.members[killed]
        member.send_signal(signal.SIGKILL)
        member.reap()
        self.client.led(topic, partition, LIMIT_S, other_than=killed)
        return killed

    def bring_back(self, node_id: int) -> None:
        member = self.cluster.members[node_id]
        member.launch()
        member.await_ready()


@contextmanager
def three_nodes(
    folder: Path, config: Mapping[str, str] | None = None, system: System = REFERENCE
) -> Iterator[ThreeNodes]:
    settings = {**TIMEOUTS, **(config or {})}
    with system.launched(folder, NODES, settings) as cluster, RetryingClient(cluster.ports) as client:
        yield ThreeNodes(cluster, client)


@contextmanager
def reference_node(
    folder: Path, config: Mapping[str, str] | None = None, metrics_port: int | None = None
) -> Iterator[BrokerNode]:
    """A node that is ready, on ``folder``/data (fresh, or as one left it), with default settings or ``config`` beside
    them; ``metrics_port``: serves Prometheus metrics on 127.0.0.1 there. Raise PeerError."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = ["--metrics", f"127.0.0.1:{metrics_port}"] if metrics_port is not None else []
    node = ReferenceNode(0, free_port(), folder / "data", config or {}, *metrics)
    try:
        node.launch()
        node.await_ready()
        yield node
    finally:
        end([node])
