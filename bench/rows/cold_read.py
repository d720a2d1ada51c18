"""Measures how fast librdkafka reads records that lie only in a remote tier, which is a local folder."""

from collections.abc import Sequence
from pathlib import Path

from bench.options import Options
from bench.peers.clients import RawConnection
from bench.peers.cluster import Cluster, System, until
from bench.peers.stock_clients import librdkafka_s, producer_perf
from bench.peers.systems import EARLIEST_LOCAL, closed_segments, offsets, tiered
from bench.results import Results, Samples, alternate
from bench.rows.context import LIMIT_S, Progress, all_up, make_topic, row

TOPIC = "cold"
SEGMENTS = 16
RECORD_BYTES = 1_024
CONFIG = {"remote.log.manager.task.interval.ms": "100", "log.retention.check.interval.ms": "500"}
GOAL = 1.0


@row("cold-read")
def measure_cold_read(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    """The tier's files are in the page cache. The first run on each is not counted."""
    names, sizes = [system.name for system in systems], options.sizes
    rates, costs = Samples(names, "MB/s"), Samples(names, "s of processor time for a GB")
    home = folder / "cold-read"
    with all_up([tiered(system) for system in systems], home, 1, CONFIG) as clusters:
        ends = {}
        for cluster in clusters:
            progress(f"cold read: {cluster.name} gets {sizes.tier_bytes / 1e6:,.0f} MB and moves them to its tier")
            ends[cluster.name] = _fill(cluster, home / cluster.name.replace(" ", "-"), sizes.tier_bytes)
        for pair, cluster in alternate(clusters, sizes.tier_pairs + 1):
            records, before_s = ends[cluster.name], cluster.cpu_s()
            megabytes = records * RECORD_BYTES / 1e6
            rate = megabytes / librdkafka_s(cluster.bootstrap, TOPIC, records, folder)
            cost_s = (cluster.cpu_s() - before_s) * 1000 / megabytes
            told = f"{cluster.name} {rate:.0f} MB/s, {cost_s:.2f} s for a GB"
            progress(f"cold read, {pair} of {sizes.tier_pairs}: {told}")
            if pair:
                rates.add(cluster.name, rate)
                costs.add(cluster.name, cost_s)
    work = f"fetch of records that are only in the remote tier, a folder, {RECORD_BYTES} bytes, librdkafka"
    results.beside(work, rates.figures(), less_is_better=False, at_least=GOAL)
    results.beside(f"{work}: processor time", costs.figures(), less_is_better=True)


def _fill(cluster: Cluster, home: Path, total_bytes: int) -> int:
    """Writes a log and waits until its closed segments are only in the tier. Returns the offset where they end. Raises
    PeerError."""
    segment_bytes = max(total_bytes // SEGMENTS, 1 << 20)
    config = {"segment.bytes": str(segment_bytes), "remote.storage.enable": "true", "local.retention.bytes": "1"}
    make_topic(cluster, TOPIC, config=config)
    producer_perf(cluster.bootstrap, TOPIC, total_bytes // RECORD_BYTES, RECORD_BYTES)
    with RawConnection(cluster.ports[0]) as connection:

        def is_cold() -> bool:
            ((end, _),) = closed_segments(home, TOPIC, 1)
            return offsets(connection, TOPIC, 1, EARLIEST_LOCAL) == [end]

        until(is_cold, LIMIT_S, f"the end of local records of {TOPIC} on {cluster.name}", every_s=0.2)
        return offsets(connection, TOPIC, 1, EARLIEST_LOCAL)[0]
