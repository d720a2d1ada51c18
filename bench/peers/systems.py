"""The two makers of brokers that are laid side by side."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.peers.cluster import Cluster, System
from bench.peers.kafka_cluster import kafka_cluster
from bench.peers.node import free_ports
from bench.reference_cluster import CLUSTER_ID, ClusterNode


@contextmanager
def _reference_cluster(folder: Path, nodes: int, config: Mapping[str, str]) -> Iterator[Cluster]:
    """One node forms no quorum with others and is told of none."""
    folder.mkdir(parents=True, exist_ok=True)
    ports = free_ports(nodes)
    told = dict(config)
    if nodes > 1:
        voters = ",".join(f"{node}@127.0.0.1:{port}" for node, port in enumerate(ports))
        told |= {"controller.quorum.voters": voters, "crucible.cluster.id": CLUSTER_ID}
    members = [ClusterNode(node, port, folder, told) for node, port in enumerate(ports)]
    try:
        yield Cluster(REFERENCE.name, members)
    finally:
        for member in members:
            member.end()
        for member in members:
            member.wait()


REFERENCE = System("reference broker", _reference_cluster)
KAFKA = System("Apache Kafka", kafka_cluster)


def systems(peer: str | None) -> list[System]:
    """The reference first. ``peer``: None or ``kafka``."""
    return [REFERENCE, KAFKA] if peer else [REFERENCE]
