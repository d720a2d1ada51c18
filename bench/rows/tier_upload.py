"""Measures how fast closed segments are copied to a remote tier in a local folder, and what that costs the broker."""

import time
from collections.abc import Sequence
from pathlib import Path

from bench.options import Options
from bench.peers.clients import RawConnection
from bench.peers.cluster import Cluster, System, until
from bench.peers.stock_clients import producer_perf
from bench.peers.systems import LATEST_TIERED, closed_segments, make_tiered, offsets, tiered
from bench.results import Results, Samples, alternate
from bench.rows.context import LIMIT_S, Progress, all_up, make_topic, row

PARTITIONS = 4
SEGMENTS = 8
"""In each partition, at about equal shares."""
RECORD_BYTES = 1_024
CONFIG = {"remote.log.manager.task.interval.ms": "100"}
GOAL = 1.0


@row("tier-upload")
def measure_tier_upload(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    """A full log becomes a tiered one. It is in the page cache. The first run on each is not counted."""
    names, sizes = [system.name for system in systems], options.sizes
    rates, costs = Samples(names, "MB/s"), Samples(names, "s of processor time for a GiB")
    home = folder / "tier-upload"
    with all_up([tiered(system) for system in systems], home, 1, CONFIG) as clusters:
        for pair, cluster in alternate(clusters, sizes.tier_pairs + 1):
            here = home / cluster.name.replace(" ", "-")
            rate, cost_s = _upload(cluster, here, f"upload-{pair}", sizes.tier_bytes)
            told = f"{cluster.name} {rate:.0f} MB/s, {cost_s:.2f} s for a GiB"
            progress(f"upload to the tier, {pair} of {sizes.tier_pairs}: {told}")
            if pair:
                rates.add(cluster.name, rate)
                costs.add(cluster.name, cost_s)
    work = f"upload of closed segments to the remote tier, a folder, {PARTITIONS} partitions"
    results.beside(work, rates.figures(), less_is_better=False, at_least=GOAL)
    results.beside(f"{work}: processor time", costs.figures(), less_is_better=True)


def _upload(cluster: Cluster, home: Path, topic: str, total_bytes: int) -> tuple[float, float]:
    """Returns megabytes per second, from the moment when the topic becomes tiered until the last closed segment is
    listed, and seconds of processor time for a GiB in that time. Raises PeerError."""
    segment_bytes = max(total_bytes // PARTITIONS // SEGMENTS, 1 << 20)
    make_topic(cluster, topic, PARTITIONS, config={"segment.bytes": str(segment_bytes)})
    producer_perf(cluster.bootstrap, topic, total_bytes // RECORD_BYTES, RECORD_BYTES)
    closed = closed_segments(home, topic, PARTITIONS)
    size_bytes = sum(size for _, size in closed)
    with RawConnection(cluster.ports[0]) as connection:
        began, cpu_s = time.perf_counter(), cluster.cpu_s()
        make_tiered(cluster, topic)

        def is_listed() -> bool:
            told = offsets(connection, topic, PARTITIONS, LATEST_TIERED)
            return all(last >= end - 1 for last, (end, _) in zip(told, closed, strict=True))

        until(is_listed, LIMIT_S, f"the upload of {topic} on {cluster.name}")
        taken_s = time.perf_counter() - began
    return size_bytes / 1e6 / taken_s, (cluster.cpu_s() - cpu_s) * 2**30 / size_bytes
