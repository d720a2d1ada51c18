"""Measures the time from the kill of a group's coordinator to the next accepted commit, with equal timeouts."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from bench.options import Options
from bench.peers.cluster import Cluster, System
from bench.peers.group_clients import RetryingGroups
from bench.results import Results, Samples, alternate
from bench.rows.context import LIMIT_S, Progress, all_up, make_topic, row
from bench.rows.leader_killed import NODES, TIMEOUTS

TOPIC = "committed"
OFFSETS_TOPIC = "__consumer_offsets"
OFFSETS_PARTITIONS = 6
CONFIG = {
    **TIMEOUTS,
    "offsets.topic.replication.factor": str(NODES),
    "offsets.topic.num.partitions": str(OFFSETS_PARTITIONS),
    "default.replication.factor": str(NODES),
    "min.insync.replicas": "2",
}


@row("coordinator-killed")
def measure_coordinator_killed(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    if NODES not in options.nodes:
        return
    taken = Samples([system.name for system in systems], "s")
    results.settings |= CONFIG
    with all_up(systems, folder / "coordinator", NODES, CONFIG) as clusters:
        for cluster in clusters:
            _prepare(cluster)
        for number, cluster in alternate(clusters, options.sizes.coordinator_kills):
            taken_s = _again_committed_s(cluster, f"group-{number}", number)
            taken.add(cluster.name, taken_s)
            progress(f"coordinator killed: {cluster.name} accepts a commit after {taken_s:.2f} s")
    results.beside("coordinator killed to first accepted commit", taken.figures(), less_is_better=True, nodes=NODES)


def _prepare(cluster: Cluster) -> None:
    """Raises PeerError."""
    make_topic(cluster, TOPIC, 1, NODES)
    with RetryingGroups(cluster.ports) as client:
        client.committed("first", TOPIC, 0, LIMIT_S)


def _again_committed_s(cluster: Cluster, group: str, offset: int) -> float:
    """Returns the seconds until a commit is accepted again. The node is back when this returns. Raises PeerError."""
    with RetryingGroups(cluster.ports) as client:
        client.await_replicas(OFFSETS_TOPIC, OFFSETS_PARTITIONS, NODES, LIMIT_S)
        client.committed(group, TOPIC, offset, LIMIT_S)
        coordinator = client.coordinator(group, LIMIT_S)
        member = cluster.member(coordinator)
        began = time.perf_counter()
        member.strike(signal.SIGKILL)
        client.committed(group, TOPIC, offset + 1, LIMIT_S)
        taken_s = time.perf_counter() - began
        member.back()
    return taken_s
