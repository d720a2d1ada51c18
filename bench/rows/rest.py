"""Measures the processor time of a cluster at rest: three nodes, many partitions with three replicas, no client."""

import time
from collections.abc import Sequence
from pathlib import Path

from bench.alternation import Samples
from bench.options import Options
from bench.peers.cluster import Cluster, System
from bench.results import Results
from bench.rows.context import Progress, all_up, make_topic, row

NODES = 3
GOAL = 1.0
PARTITIONS_PER_TOPIC = 2_500
"""Kafka creates a topic in one request only if its metadata records fit into one batch."""


@row("rest")
def measure_rest(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    """All clusters rest at the same time, so that each window is the same for all of them."""
    if NODES not in options.nodes:
        return
    sizes = options.sizes
    spent = Samples([system.name for system in systems], "ms of processor time a second, all nodes")
    memory = Samples([system.name for system in systems], "MiB, all nodes")
    with all_up(systems, folder / "rest", NODES, {}) as clusters:
        for cluster in clusters:
            progress(f"at rest: {sizes.rest_partitions:,} partitions with {NODES} replicas on {cluster.name}")
            _create(cluster, sizes.rest_partitions)
        progress(f"at rest: {sizes.rest_settle_s:g} s to settle")
        time.sleep(sizes.rest_settle_s)
        for window in range(sizes.rest_windows):
            progress(f"at rest: window {window + 1} of {sizes.rest_windows}")
            _window(clusters, sizes.rest_window_s, spent)
        for cluster in clusters:
            memory.add(cluster.name, cluster.rss_bytes() / 2**20)
    what = f"{NODES} nodes, {sizes.rest_partitions:,} partitions with {NODES} replicas"
    results.beside(f"processor time at rest, {what}", spent.figures(), less_is_better=True, at_least=GOAL, nodes=NODES)
    results.beside(f"memory at rest, {what}", memory.figures(), less_is_better=True, nodes=NODES)


def _create(cluster: Cluster, partitions: int) -> None:
    for first in range(0, partitions, PARTITIONS_PER_TOPIC):
        make_topic(cluster, f"rest-{first}", min(PARTITIONS_PER_TOPIC, partitions - first), NODES)


def _window(clusters: Sequence[Cluster], window_s: float, spent: Samples) -> None:
    began_s = time.perf_counter()
    before = [cluster.cpu_s() for cluster in clusters]
    time.sleep(window_s)
    taken_s = time.perf_counter() - began_s
    for cluster, used_s in zip(clusters, before, strict=True):
        spent.add(cluster.name, (cluster.cpu_s() - used_s) / taken_s * 1000)
