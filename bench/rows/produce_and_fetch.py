"""Produce and fetch.

- ``produce``: Kafka's perf test with acks=all, 8 partitions, records of 100 bytes and 1 KiB, one and 3 nodes.
- ``fetch``: Kafka's own consumer and librdkafka read a log, whose partition is assigned by hand.
- ``records``: a produce and a fetch of one record, by the record's size, with one request in flight at a time.
"""

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.peers.clients import (
    FETCH_VERSION,
    PRODUCE_VERSION,
    RetryingClient,
    base_offset,
    batch_of,
    connect,
    produce_request,
)
from bench.peers.cluster import PeerCluster
from bench.peers.node import PeerError
from bench.peers.stock_clients import java_consumer_s, librdkafka_s, producer_perf
from bench.rows.context import LIMIT_S, BenchRun, make_topic, place, row
from bench.rows.results import Curve, Samples, Series, alternate
from reference_broker.blocking.transport import Connection
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic

PARTITIONS = 8
PRODUCED_BYTES = (100, 1_024)
PRODUCE_GOALS: Mapping[tuple[int, int], float] = {(100, 1): 1.3, (100, 3): 1.0, (1_024, 1): 1.0, (1_024, 3): 1.0}
"""By record size in bytes and number of nodes."""


@row("produce")
def measure_produce(bench: BenchRun) -> None:
    """All brokers stay up, and one is loaded at a time. The first run on each is not counted."""
    for nodes in bench.options.nodes:
        with bench.all_up(f"produce-{nodes}", nodes, {}) as clusters:
            for record_bytes in PRODUCED_BYTES:
                _produce(bench, clusters, record_bytes)


def _produce(bench: BenchRun, clusters: Sequence[PeerCluster], record_bytes: int) -> None:
    nodes, pairs = len(clusters[0].members), bench.options.sizes.produce_pairs
    rates = bench.samples("thousand records/s")
    costs = bench.samples("s of processor time for a million, all nodes")
    records = bench.options.sizes.produce_bytes // record_bytes // nodes
    for cluster in clusters:
        bench.progress(f"produce: {record_bytes} bytes, {place(nodes)}, {cluster.name} warms up")
        _thousand_per_s(cluster, f"warm-{record_bytes}", records // 3, record_bytes)
    for pair, cluster in alternate(clusters, pairs):
        before_s = cluster.cpu_s()
        rate = _thousand_per_s(cluster, f"perf-{record_bytes}-{pair}", records, record_bytes)
        rates.add(cluster.name, rate)
        costs.add(cluster.name, (cluster.cpu_s() - before_s) * 1e6 / records)
        done = f"{pair + 1} of {pairs}: {cluster.name} {rate:.0f} thousand/s"
        bench.progress(f"produce: {record_bytes} bytes, {place(nodes)}, {done}")
    work = f"produce, {record_bytes}-byte records, acks=all, {PARTITIONS} partitions, {place(nodes)}"
    bench.results.beside(
        work, rates.figures(), less_is_better=False, at_least=PRODUCE_GOALS[record_bytes, nodes], nodes=nodes
    )
    bench.results.beside(f"{work}: processor time", costs.figures(), less_is_better=True, nodes=nodes)


def _thousand_per_s(cluster: PeerCluster, topic: str, records: int, record_bytes: int) -> float:
    """Produce to a new topic and delete it again, so that the disk stays as empty as it was."""
    replicas = len(cluster.members)
    make_topic(cluster, topic, PARTITIONS, replicas)
    records_per_s = producer_perf(cluster.bootstrap, topic, records, record_bytes)
    with RetryingClient(cluster.ports) as client:
        client.delete_topic(topic, LIMIT_S)
    return records_per_s / 1000


READ_BYTES = 1_024
READ_GOAL = 1.0
READ_TOPIC = "read"
Reads = Callable[[str, str, int, Path], float]
CONSUMERS: Sequence[tuple[str, Reads]] = (("Kafka's consumer", java_consumer_s), ("librdkafka", librdkafka_s))


@row("fetch")
def measure_fetch(bench: BenchRun) -> None:
    """Read on one node, from the page cache. The first run of each reader is not counted."""
    records = bench.options.sizes.fetch_bytes // READ_BYTES
    with bench.all_up("fetch", 1, {}) as clusters:
        for cluster in clusters:
            bench.progress(f"fetch: {records:,} records of {READ_BYTES} bytes are written to {cluster.name}")
            _fill(cluster, records)
        for name, reads in CONSUMERS:
            _read(bench, clusters, name, reads, records)


def _fill(cluster: PeerCluster, records: int) -> None:
    make_topic(cluster, READ_TOPIC)
    producer_perf(cluster.bootstrap, READ_TOPIC, records, READ_BYTES)


def _read(bench: BenchRun, clusters: Sequence[PeerCluster], name: str, reads: Reads, records: int) -> None:
    rates, costs = bench.samples("MB/s"), bench.samples("s of processor time for a GB")
    megabytes, pairs = records * READ_BYTES / 1e6, bench.options.sizes.fetch_pairs
    for pair, cluster in alternate(clusters, pairs + 1):
        before_s = cluster.cpu_s()
        rate = megabytes / reads(cluster.bootstrap, READ_TOPIC, records, bench.folder)
        bench.progress(f"fetch: {name}, {pair} of {pairs}: {cluster.name} {rate:.0f} MB/s")
        if pair:
            rates.add(cluster.name, rate)
            costs.add(cluster.name, (cluster.cpu_s() - before_s) * 1000 / megabytes)
    work = f"fetch, {READ_BYTES}-byte records, {name}, assigned"
    bench.results.beside(work, rates.figures(), less_is_better=False, at_least=READ_GOAL)
    bench.results.beside(f"{work}: processor time", costs.figures(), less_is_better=True)


RECORDS_TOPIC = "records"
WARM_BLOCKS = 8


@row("records")
def measure_records(bench: BenchRun) -> None:
    sizes, names = bench.options.sizes, bench.names
    produced = {size: Samples(names, "ms") for size in sizes.record_bytes}
    fetched = {size: Samples(names, "ms") for size in sizes.record_bytes}
    with bench.all_up("records", 1, {}) as clusters:
        probes = [_Probe.at(cluster) for cluster in clusters]
        for probe in probes:  # Not counted: Java compiles what runs often.
            bench.progress(f"record sizes: {probe.name} warms up")
            for size in sizes.record_bytes:
                probe.block_ms(size, WARM_BLOCKS * sizes.record_rounds)
        for block, probe in alternate(probes, sizes.record_blocks):
            bench.progress(f"record sizes: block {block + 1} of {sizes.record_blocks} on {probe.name}")
            for size in sizes.record_bytes:
                produce_ms, fetch_ms = probe.block_ms(size, sizes.record_rounds)
                produced[size].add(probe.name, produce_ms)
                fetched[size].add(probe.name, fetch_ms)
        for probe in probes:
            probe.connection.close()
    for what, measured in (("produce", produced), ("fetch", fetched)):
        for size in sizes.record_bytes:
            work = f"{what}, one record of {size:,} bytes in a request"
            bench.results.beside(work, measured[size].figures(), less_is_better=True)
        series = tuple(
            Series(name, tuple((float(size), measured[size].figure(name)) for size in sizes.record_bytes))
            for name in names
        )
        bench.results.curves.append(
            Curve(f"{what.capitalize()}, one record in a request", "bytes of the record", f"time of a {what}", series)
        )


@dataclass(slots=True)
class _Probe:
    """Produces and fetches on one connection and one partition. Each method raises PeerError."""

    name: str
    connection: Connection
    end: int = 0  # offset of the next record

    @classmethod
    def at(cls, cluster: PeerCluster) -> "_Probe":
        make_topic(cluster, RECORDS_TOPIC, config={"max.message.bytes": str(2 << 20)})
        return cls(cluster.name, connect(cluster.ports[0]))

    def block_ms(self, record_bytes: int, rounds: int) -> tuple[float, float]:
        """Return the median milliseconds of a produce, and of a fetch of what it wrote."""
        batch = batch_of(record_bytes)
        taken = [(self._produce_ms(batch), self._fetch_ms(record_bytes)) for _ in range(rounds)]
        produced, fetched = zip(*taken, strict=True)
        return statistics.median(produced), statistics.median(fetched)

    def _produce_ms(self, batch: bytes) -> float:
        response, taken_ms = self._timed(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(RECORDS_TOPIC, 0, batch))
        self.end = base_offset(response, self.name) + 1
        return taken_ms

    def _fetch_ms(self, record_bytes: int) -> float:
        topic = FetchTopic(RECORDS_TOPIC, NO_TOPIC_ID, [FetchPartition(0, self.end - 1, 2 << 20)])
        request = FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=50 << 20, topics=[topic])
        response, taken_ms = self._timed(ApiKey.FETCH, FETCH_VERSION, request)
        records = response.responses[0].partitions[0].records  # type: ignore[attr-defined]
        if records is None or len(records) < record_bytes:
            raise PeerError(f"{self.name} responded to a fetch without the record that it has acknowledged")
        return taken_ms

    def _timed(self, api_key: int, version: int, body: object) -> tuple[object, float]:
        request = self.connection.encode(api_key, version, body)
        began = time.perf_counter()
        frame = self.connection.exchange(request.frame)
        taken_ms = (time.perf_counter() - began) * 1000
        return request.decode(frame), taken_ms
