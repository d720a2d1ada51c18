"""How fast segments are copied to a remote tier, and how fast records are read that are only there.

The tier is a local folder, and its files are in the page cache. The first run on each broker is not counted.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path

from bench.options import Options
from bench.peers.clients import connect
from bench.peers.cluster import PeerCluster, System, until
from bench.peers.stock_clients import librdkafka_s, producer_perf
from bench.peers.systems import EARLIEST_LOCAL, LATEST_TIERED, closed_segments, make_tiered, offsets, tiered
from bench.results import Results, Samples, alternate
from bench.rows.context import LIMIT_S, Progress, all_up, make_topic, row

UPLOAD_PARTITIONS = 4
UPLOAD_SEGMENTS = 8
"""In each partition, at about equal shares."""
COLD_TOPIC = "cold"
COLD_SEGMENTS = 16
RECORD_BYTES = 1_024
COPY_OFTEN = {"remote.log.manager.task.interval.ms": "100"}
GOAL = 1.0
Run = Callable[[PeerCluster, int], tuple[float, float]]
"""Of a cluster and the number of the pair: megabytes per second, and seconds of processor time for ``unit``."""


@row("tier-upload")
def measure_tier_upload(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    """A full log becomes a tiered one."""
    sizes, home = options.sizes, folder / "tier-upload"
    with all_up([tiered(each) for each in systems], home, 1, COPY_OFTEN) as clusters:
        work = f"upload of closed segments to the remote tier, a folder, {UPLOAD_PARTITIONS} partitions"

        def run(cluster: PeerCluster, pair: int) -> tuple[float, float]:
            return _upload(cluster, _home_of(home, cluster), f"upload-{pair}", sizes.tier_bytes)

        _measure(results, clusters, run, work, "GiB", "upload to the tier", sizes.tier_pairs, progress)


@row("cold-read")
def measure_cold_read(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    """librdkafka reads a log whose closed segments are only in the tier."""
    sizes, home = options.sizes, folder / "cold-read"
    config = {**COPY_OFTEN, "log.retention.check.interval.ms": "500"}
    with all_up([tiered(each) for each in systems], home, 1, config) as clusters:
        ends = {}
        for cluster in clusters:
            progress(f"cold read: {cluster.name} gets {sizes.tier_bytes / 1e6:,.0f} MB and moves them to its tier")
            ends[cluster.name] = _fill(cluster, _home_of(home, cluster), sizes.tier_bytes)

        def run(cluster: PeerCluster, _: int) -> tuple[float, float]:
            records, before_s = ends[cluster.name], cluster.cpu_s()
            megabytes = records * RECORD_BYTES / 1e6
            rate = megabytes / librdkafka_s(cluster.bootstrap, COLD_TOPIC, records, folder)
            return rate, (cluster.cpu_s() - before_s) * 1000 / megabytes

        work = f"fetch of records that are only in the remote tier, a folder, {RECORD_BYTES} bytes, librdkafka"
        _measure(results, clusters, run, work, "GB", "cold read", sizes.tier_pairs, progress)


def _home_of(home: Path, cluster: PeerCluster) -> Path:
    return home / cluster.name.replace(" ", "-")


def _measure(
    results: Results,
    clusters: Sequence[PeerCluster],
    run: Run,
    work: str,
    unit: str,
    title: str,
    pairs: int,
    progress: Progress,
) -> None:
    names = [cluster.name for cluster in clusters]
    rates, costs = Samples(names, "MB/s"), Samples(names, f"s of processor time for a {unit}")
    for pair, cluster in alternate(clusters, pairs + 1):
        rate, cost_s = run(cluster, pair)
        progress(f"{title}, {pair} of {pairs}: {cluster.name} {rate:.0f} MB/s, {cost_s:.2f} s for a {unit}")
        if pair:
            rates.add(cluster.name, rate)
            costs.add(cluster.name, cost_s)
    results.beside(work, rates.figures(), less_is_better=False, at_least=GOAL)
    results.beside(f"{work}: processor time", costs.figures(), less_is_better=True)


def _upload(cluster: PeerCluster, home: Path, topic: str, total_bytes: int) -> tuple[float, float]:
    """Return megabytes per second, from the moment when the topic becomes tiered until the last closed segment is
    listed, and seconds of processor time for a GiB in that time. Raise PeerError."""
    segment_bytes = max(total_bytes // UPLOAD_PARTITIONS // UPLOAD_SEGMENTS, 1 << 20)
    make_topic(cluster, topic, UPLOAD_PARTITIONS, config={"segment.bytes": str(segment_bytes)})
    producer_perf(cluster.bootstrap, topic, total_bytes // RECORD_BYTES, RECORD_BYTES)
    closed = closed_segments(home, topic, UPLOAD_PARTITIONS)
    size_bytes = sum(size for _, size in closed)
    with connect(cluster.ports[0]) as connection:
        began, cpu_s = time.perf_counter(), cluster.cpu_s()
        make_tiered(cluster, topic)

        def is_listed() -> bool:
            listed = offsets(connection, topic, UPLOAD_PARTITIONS, LATEST_TIERED)
            return all(last >= end - 1 for last, (end, _) in zip(listed, closed, strict=True))

        until(is_listed, LIMIT_S, f"the upload of {topic} on {cluster.name}")
        taken_s = time.perf_counter() - began
    return size_bytes / 1e6 / taken_s, (cluster.cpu_s() - cpu_s) * 2**30 / size_bytes


def _fill(cluster: PeerCluster, home: Path, total_bytes: int) -> int:
    """Write a log and wait until its closed segments are only in the tier. Return the offset where they end. Raise
    PeerError."""
    segment_bytes = max(total_bytes // COLD_SEGMENTS, 1 << 20)
    config = {"segment.bytes": str(segment_bytes), "remote.storage.enable": "true", "local.retention.bytes": "1"}
    make_topic(cluster, COLD_TOPIC, config=config)
    producer_perf(cluster.bootstrap, COLD_TOPIC, total_bytes // RECORD_BYTES, RECORD_BYTES)
    with connect(cluster.ports[0]) as connection:

        def is_cold() -> bool:
            ((end, _),) = closed_segments(home, COLD_TOPIC, 1)
            return offsets(connection, COLD_TOPIC, 1, EARLIEST_LOCAL) == [end]

        until(is_cold, LIMIT_S, f"the end of local records of {COLD_TOPIC} on {cluster.name}", every_s=0.2)
        return offsets(connection, COLD_TOPIC, 1, EARLIEST_LOCAL)[0]
