"""Rate of copies to a remote tier, and of reads of records that are only there.

The tier is a local folder, and its files are in the page cache. The first run on each broker is not counted.
"""

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from bench.peers.clients import connect
from bench.peers.cluster import PeerCluster, until
from bench.peers.stock_clients import librdkafka_s, producer_perf
from bench.peers.systems import EARLIEST_LOCAL, LATEST_TIERED, closed_segments, make_tiered, offsets, tiered
from bench.rows.context import LIMIT_S, BenchRun, make_topic, row
from bench.rows.results import alternate

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
def measure_tier_upload(bench: BenchRun) -> None:
    """A full log becomes a tiered one."""
    sizes, home = bench.options.sizes, bench.folder / "tier-upload"
    with bench.all_up("tier-upload", 1, COPY_OFTEN, [tiered(system) for system in bench.systems]) as clusters:
        work = f"upload of closed segments to the remote tier, a folder, {UPLOAD_PARTITIONS} partitions"

        def run(cluster: PeerCluster, pair: int) -> tuple[float, float]:
            return _upload(cluster, _home_of(home, cluster), f"upload-{pair}", sizes.tier_bytes)

        _measure(bench, clusters, run, _TierRow("upload to the tier", work, "GiB"))


@row("cold-read")
def measure_cold_read(bench: BenchRun) -> None:
    """librdkafka reads a log whose closed segments are only in the tier."""
    sizes, home = bench.options.sizes, bench.folder / "cold-read"
    config = {**COPY_OFTEN, "log.retention.check.interval.ms": "500"}
    with bench.all_up("cold-read", 1, config, [tiered(system) for system in bench.systems]) as clusters:
        ends = {}
        for cluster in clusters:
            bench.progress(
                f"cold read: {cluster.name} gets {sizes.tier_bytes / 1e6:,.0f} MB and moves them to its tier"
            )
            ends[cluster.name] = _fill(cluster, _home_of(home, cluster), sizes.tier_bytes)

        def run(cluster: PeerCluster, _: int) -> tuple[float, float]:
            records, before_s = ends[cluster.name], cluster.cpu_s()
            megabytes = records * RECORD_BYTES / 1e6
            rate = megabytes / librdkafka_s(cluster.bootstrap, COLD_TOPIC, records, bench.folder)
            return rate, (cluster.cpu_s() - before_s) * 1000 / megabytes

        work = f"fetch of records that are only in the remote tier, a folder, {RECORD_BYTES} bytes, librdkafka"
        _measure(bench, clusters, run, _TierRow("cold read", work, "GB"))


def _home_of(home: Path, cluster: PeerCluster) -> Path:
    return home / cluster.name.replace(" ", "-")


class _TierRow(NamedTuple):
    title: str
    work: str
    unit: str  # of the processor time


def _measure(bench: BenchRun, clusters: Sequence[PeerCluster], run: Run, what: _TierRow) -> None:
    pairs, unit = bench.options.sizes.tier_pairs, what.unit
    rates, costs = bench.samples("MB/s"), bench.samples(f"s of processor time for a {unit}")
    for pair, cluster in alternate(clusters, pairs + 1):
        rate, cost_s = run(cluster, pair)
        done = f"{cluster.name} {rate:.0f} MB/s, {cost_s:.2f} s for a {unit}"
        bench.progress(f"{what.title}, {pair} of {pairs}: {done}")
        if pair:
            rates.add(cluster.name, rate)
            costs.add(cluster.name, cost_s)
    bench.results.beside(what.work, rates.figures(), less_is_better=False, at_least=GOAL)
    bench.results.beside(f"{what.work}: processor time", costs.figures(), less_is_better=True)


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
