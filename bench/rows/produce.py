"""Measures produce with Kafka's perf test: acks=all, 8 partitions, records of 100 bytes and 1 KiB, one and 3 nodes."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from bench.alternation import Samples, alternate
from bench.options import Options
from bench.peers.clients import RetryingClient
from bench.peers.cluster import Cluster, System
from bench.peers.stock_clients import producer_perf
from bench.results import Results
from bench.rows.context import LIMIT_S, Progress, all_up, make_topic, place, row

PARTITIONS = 8
RECORD_BYTES = (100, 1_024)
GOALS: Mapping[tuple[int, int], float] = {(100, 1): 1.3, (100, 3): 1.0, (1_024, 1): 1.0, (1_024, 3): 1.0}
"""By record size in bytes and number of nodes."""


@row("produce")
def measure_produce(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    """All brokers stay up, and one is loaded at a time. The first run on each is not counted."""
    for nodes in options.nodes:
        with all_up(systems, folder / f"produce-{nodes}", nodes, {}) as clusters:
            for record_bytes in RECORD_BYTES:
                _measure(results, clusters, record_bytes, options, progress)


def _measure(
    results: Results, clusters: Sequence[Cluster], record_bytes: int, options: Options, progress: Progress
) -> None:
    nodes, pairs = len(clusters[0].members), options.sizes.produce_pairs
    names = [cluster.name for cluster in clusters]
    rates = Samples(names, "thousand records/s")
    costs = Samples(names, "s of processor time for a million, all nodes")
    records = options.sizes.produce_bytes // record_bytes // nodes
    for cluster in clusters:
        progress(f"produce: {record_bytes} bytes, {place(nodes)}, {cluster.name} warms up")
        _thousand_per_s(cluster, f"warm-{record_bytes}", records // 3, record_bytes)
    for pair, cluster in alternate(clusters, pairs):
        before_s = cluster.cpu_s()
        rate = _thousand_per_s(cluster, f"perf-{record_bytes}-{pair}", records, record_bytes)
        rates.add(cluster.name, rate)
        costs.add(cluster.name, (cluster.cpu_s() - before_s) * 1e6 / records)
        done = f"{pair + 1} of {pairs}: {cluster.name} {rate:.0f} thousand/s"
        progress(f"produce: {record_bytes} bytes, {place(nodes)}, {done}")
    work = f"produce, {record_bytes}-byte records, acks=all, {PARTITIONS} partitions, {place(nodes)}"
    results.beside(work, rates.figures(), less_is_better=False, at_least=GOALS[record_bytes, nodes], nodes=nodes)
    results.beside(f"{work}: processor time", costs.figures(), less_is_better=True, nodes=nodes)


def _thousand_per_s(cluster: Cluster, topic: str, records: int, record_bytes: int) -> float:
    """Produces to a new topic and deletes it again, so that the disk stays as empty as it was."""
    replicas = len(cluster.members)
    make_topic(cluster, topic, PARTITIONS, replicas)
    records_per_s = producer_perf(cluster.bootstrap, topic, records, record_bytes)
    with RetryingClient(cluster.ports) as client:
        client.delete_topic(topic, LIMIT_S)
    return records_per_s / 1000
