"""Measures the time from exec to the first acknowledged record (acks=all) on fresh nodes. It includes a new topic."""

import compileall
import time
from collections.abc import Sequence
from pathlib import Path

from bench.alternation import Samples, alternate
from bench.options import Options
from bench.peers.clients import RetryingClient, batch_of
from bench.peers.cluster import Cluster, System
from bench.results import Results, Row
from bench.rows.context import LIMIT_S, Progress, row

GOAL = 8.0
READY_GOAL_S = 0.6
TOPIC = "first"
BROKER = Path(__file__).resolve().parents[2] / "reference_broker"


@row("start")
def measure_start(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    names = [system.name for system in systems]
    compileall.compile_dir(BROKER, quiet=2)  # So that no start compiles the broker, as after an installation.
    for nodes in options.nodes:
        pairs = options.sizes.starts if nodes == 1 else options.sizes.cluster_starts
        ready, acknowledged = Samples(names[:1], "s"), Samples(names, "s")
        for pair, system in alternate(systems, pairs):
            progress(f"start: {nodes} node(s) of {system.name}, {pair + 1} of {pairs}")
            with system.prepare(folder / f"start-{nodes}-{pair}-{names.index(system.name)}", nodes, {}) as cluster:
                acknowledged.add(system.name, _first_acknowledged_s(cluster, nodes))
            if nodes == 1 and system is systems[0]:
                with system.prepare(folder / f"ready-{pair}", 1, {}) as cluster:
                    ready.add(system.name, _ready_s(cluster))
        if nodes == 1:
            first, _ = ready.figures()
            goal = f"within {READY_GOAL_S} s"
            results.rows.append(Row("exec to ready", first, goal=goal, reached=first.median <= READY_GOAL_S))
        work = f"start to first acknowledged record, {nodes} node{'s' * (nodes > 1)}"
        results.beside(work, acknowledged.figures(), less_is_better=True, at_least=GOAL, nodes=nodes)


def _ready_s(cluster: Cluster) -> float:
    began = time.perf_counter()
    cluster.launch()
    cluster.await_ready()
    return time.perf_counter() - began


def _first_acknowledged_s(cluster: Cluster, replicas: int) -> float:
    batch = batch_of(100)
    began = time.perf_counter()
    cluster.launch()
    with RetryingClient(cluster.ports) as client:
        client.create_topic(TOPIC, 1, replicas, LIMIT_S)
        client.acknowledged(TOPIC, 0, batch, LIMIT_S)
    return time.perf_counter() - began
