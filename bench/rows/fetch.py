"""Measures how fast Kafka's own consumer and librdkafka read a log. Its partition is assigned by hand."""

from collections.abc import Callable, Sequence
from pathlib import Path

from bench.alternation import Samples, alternate
from bench.options import Options
from bench.peers.cluster import Cluster, System
from bench.peers.stock_clients import java_consumer_s, librdkafka_s, producer_perf
from bench.results import Results
from bench.rows.context import Progress, all_up, make_topic, row

RECORD_BYTES = 1_024
GOAL = 1.0
TOPIC = "read"
Reads = Callable[[str, str, int, Path], float]
CONSUMERS: Sequence[tuple[str, Reads]] = (("Kafka's consumer", java_consumer_s), ("librdkafka", librdkafka_s))


@row("fetch")
def measure_fetch(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    """Reads on one node, from the page cache. The first run of each reader is not counted."""
    records = options.sizes.fetch_bytes // RECORD_BYTES
    with all_up(systems, folder / "fetch", 1, {}) as clusters:
        for cluster in clusters:
            progress(f"fetch: {records:,} records of {RECORD_BYTES} bytes are written to {cluster.name}")
            _fill(cluster, records)
        for name, reads in CONSUMERS:
            _measure(results, clusters, name, reads, records, folder, options, progress)


def _fill(cluster: Cluster, records: int) -> None:
    make_topic(cluster, TOPIC)
    producer_perf(cluster.bootstrap, TOPIC, records, RECORD_BYTES)


def _measure(
    results: Results,
    clusters: Sequence[Cluster],
    name: str,
    reads: Reads,
    records: int,
    folder: Path,
    options: Options,
    progress: Progress,
) -> None:
    names = [cluster.name for cluster in clusters]
    rates, costs = Samples(names, "MB/s"), Samples(names, "s of processor time for a GB")
    megabytes = records * RECORD_BYTES / 1e6
    for pair, cluster in alternate(clusters, options.sizes.fetch_pairs + 1):
        before_s = cluster.cpu_s()
        rate = megabytes / reads(cluster.bootstrap, TOPIC, records, folder)
        progress(f"fetch: {name}, {pair} of {options.sizes.fetch_pairs}: {cluster.name} {rate:.0f} MB/s")
        if pair:
            rates.add(cluster.name, rate)
            costs.add(cluster.name, (cluster.cpu_s() - before_s) * 1000 / megabytes)
    work = f"fetch, {RECORD_BYTES}-byte records, {name}, assigned"
    results.beside(work, rates.figures(), less_is_better=False, at_least=GOAL)
    results.beside(f"{work}: processor time", costs.figures(), less_is_better=True)
