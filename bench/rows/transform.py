"""Measures consume, transform, produce: what is read, what is written and where reading goes on are one transaction."""

from collections.abc import Sequence
from pathlib import Path

from bench.alternation import Samples, alternate
from bench.options import Options
from bench.peers.cluster import System
from bench.peers.stock_clients import producer_perf, transformed_s
from bench.results import Results
from bench.rows.context import Progress, all_up, make_topic, row

SOURCE, TARGET = "source", "target"
RECORD_BYTES = 1_024
AT_ONCE = (100, 1_000)
"""Records in one transaction."""
PARTITIONS = 4
"""Of the target."""
GOAL = 1.0


@row("transform")
def measure_transform(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    """The first run of each is not counted."""
    names, records = [system.name for system in systems], options.sizes.transform_records
    with all_up(systems, folder / "transform", 1, {}) as clusters:
        for cluster in clusters:
            make_topic(cluster, SOURCE)
            make_topic(cluster, TARGET, PARTITIONS)
            producer_perf(cluster.bootstrap, SOURCE, records, RECORD_BYTES)
        for at_once in AT_ONCE:
            rates = Samples(names, "thousand records/s")
            costs = Samples(names, "s of processor time for a million")
            for pair, cluster in alternate(clusters, options.sizes.transform_pairs + 1):
                cpu_s = cluster.cpu_s()
                taken_s = transformed_s(cluster.bootstrap, SOURCE, TARGET, f"mover-{at_once}-{pair}", records, at_once)
                progress(f"transform, {at_once} at once: {cluster.name} {records / taken_s / 1000:.1f} thousand/s")
                if pair:
                    rates.add(cluster.name, records / taken_s / 1000)
                    costs.add(cluster.name, (cluster.cpu_s() - cpu_s) * 1e6 / records)
            work = f"consume, transform, produce, {at_once} records of {RECORD_BYTES} bytes in a transaction"
            results.beside(work, rates.figures(), less_is_better=False, at_least=GOAL)
            results.beside(f"{work}: processor time of the broker", costs.figures(), less_is_better=True)
