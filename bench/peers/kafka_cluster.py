"""Combined nodes of Apache Kafka in KRaft mode. They can be killed and started again, and are always ended."""

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from bench.peers.cluster import Cluster, settings_of
from bench.peers.java import java_command
from bench.peers.kafka import HEAP, SETTINGS, format_storage, new_cluster_id, write_properties
from bench.peers.node import BrokerNode, end
from bench.ports import free_ports

NAME = "Apache Kafka"
READY_LIMIT_S = 90.0


@contextmanager
def kafka_cluster(folder: Path, nodes: int, config: Mapping[str, str]) -> Iterator[Cluster]:
    """Makes new nodes below ``folder``, which are formatted and not launched. Raises PeerError when that fails.

    They end by SIGKILL. Nobody reads their files again, and nodes that end in order all at once would wait for a
    controller that has gone.
    """
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
        write_properties(properties, {**SETTINGS, **settings_of(config, node), **own})
        format_storage(cluster_id, properties)
        command = java_command("kafka.Kafka", [str(properties)], HEAP)
        members.append(BrokerNode(NAME, node, ports[node], command, properties.with_suffix(".log"), READY_LIMIT_S))
    try:
        yield Cluster(NAME, members)
    finally:
        end(members, signal.SIGKILL)
