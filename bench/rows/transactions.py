"""Transactions.

- ``transactions``: Kafka's perf test in transactions of 100 ms, transactions of one record, commits without records,
  and committed reads.
- ``transform``: consume, transform, produce. What is read, what is written and the read position are one transaction.
"""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from statistics import median

import confluent_kafka

from bench.peers.clients import RetryingClient, connect
from bench.peers.cluster import PeerCluster
from bench.peers.stock_clients import librdkafka_s, producer_perf, transformed_s
from bench.peers.transaction_clients import RawTransactions, commit_all
from bench.rows.context import LIMIT_S, BenchRun, make_topic, place, row
from bench.rows.results import Samples, alternate
from reference_broker.client.partitions import TopicPartition

PARTITIONS = 8
RECORD_BYTES = 1_024
TRANSACTION_MS = 100
AT_ONCE = 32
"""Transactional IDs that commit at once."""
GOAL = 1.0
EMPTY, READ, ONE = "empty", "read", "one"
BLOCKS = 20
"""Parts of ``sizes.transactions`` that a block of transactions of one record has."""


@row("transactions")
def measure_transactions(bench: BenchRun) -> None:
    """The first run of each is not counted."""
    for nodes in bench.options.nodes:
        with bench.all_up(f"transactions-{nodes}", nodes, _config(nodes)) as clusters:
            _produce(bench, clusters)
            _one_record(bench, clusters)
            if nodes == 1:
                _commit(bench, clusters)
                _read(bench, clusters)


def _config(nodes: int) -> dict[str, str]:
    if nodes == 1:
        return {}
    return {"transaction.state.log.replication.factor": str(nodes), "transaction.state.log.min.isr": "2"}


def _produce(bench: BenchRun, clusters: Sequence[PeerCluster]) -> None:
    names, nodes, pairs = (
        [peer_cluster.name for peer_cluster in clusters],
        len(clusters[0].members),
        bench.options.sizes.produce_pairs,
    )
    rates, costs = Samples(names, "thousand records/s"), Samples(names, "s of processor time for a million, all nodes")
    records = bench.options.sizes.produce_bytes // RECORD_BYTES // nodes
    for pair, cluster in alternate(clusters, pairs + 1):
        topic = f"perf-{pair}"
        make_topic(cluster, topic, PARTITIONS, nodes)
        before_s = cluster.cpu_s()
        rate = producer_perf(cluster.bootstrap, topic, records, RECORD_BYTES, TRANSACTION_MS) / 1000
        bench.progress(
            f"transactional produce: {pair} of {pairs}, {place(nodes)}: {cluster.name} {rate:.0f} thousand/s"
        )
        if pair:
            rates.add(cluster.name, rate)
            costs.add(cluster.name, (cluster.cpu_s() - before_s) * 1e6 / records)
        with RetryingClient(cluster.ports) as client:
            client.delete_topic(topic, LIMIT_S)
    work = f"produce in transactions of {TRANSACTION_MS} ms, {RECORD_BYTES}-byte records, {place(nodes)}"
    bench.results.beside(work, rates.figures(), less_is_better=False, at_least=GOAL, nodes=nodes)
    bench.results.beside(f"{work}: processor time", costs.figures(), less_is_better=True, nodes=nodes)


def _one_record(bench: BenchRun, clusters: Sequence[PeerCluster]) -> None:
    """Measure librdkafka's transactions of one record, from the begin of a transaction to its acknowledged commit, one
    after the other."""
    names, nodes = [peer_cluster.name for peer_cluster in clusters], len(clusters[0].members)
    block = max(1, bench.options.sizes.transactions // BLOCKS)
    times, costs = Samples(names, "ms"), Samples(names, "ms of processor time, all nodes")
    loads = [(cluster, _producer(cluster, nodes)) for cluster in clusters]
    for pair, (cluster, producer) in alternate(loads, bench.options.sizes.transaction_pairs + 1):
        cpu_s, taken_ms = cluster.cpu_s(), []
        for _ in range(block):
            began = time.perf_counter()
            producer.begin_transaction()
            producer.produce(ONE, bytes(RECORD_BYTES), partition=0)
            producer.commit_transaction(LIMIT_S)
            taken_ms.append((time.perf_counter() - began) * 1000)
        bench.progress(f"transactions of one record, {place(nodes)}: {cluster.name} {median(taken_ms):.1f} ms")
        if pair:
            times.add(cluster.name, median(taken_ms))
            costs.add(cluster.name, (cluster.cpu_s() - cpu_s) * 1000 / block)
    work = f"a transaction of one record, librdkafka, {place(nodes)}"
    bench.results.beside(work, times.figures(), less_is_better=True, at_least=GOAL, nodes=nodes)
    bench.results.beside(f"{work}: processor time", costs.figures(), less_is_better=True, nodes=nodes)


def _producer(cluster: PeerCluster, nodes: int) -> confluent_kafka.Producer:
    make_topic(cluster, ONE, 1, nodes, {"min.insync.replicas": str(min(nodes, 2))})
    settings = {
        "bootstrap.servers": cluster.bootstrap,
        "transactional.id": "one-record",
        "linger.ms": 0,
        "log_level": 0,
    }
    producer = confluent_kafka.Producer(settings)
    producer.init_transactions(LIMIT_S)
    return producer


def _commit(bench: BenchRun, clusters: Sequence[PeerCluster]) -> None:
    names, block = [peer_cluster.name for peer_cluster in clusters], bench.options.sizes.transactions
    times, rates = Samples(names, "ms"), Samples(names, "transactions/s")
    costs = Samples(names, "us")
    with ExitStack() as stack:
        loads = [(cluster, _producers(cluster, stack)) for cluster in clusters]
        for pair, (cluster, producers) in alternate(loads, bench.options.sizes.transaction_pairs + 1):
            alone_s = _taken_s(producers[:1], block // 4) / (block // 4)
            cpu_s, rounds = cluster.cpu_s(), block // AT_ONCE
            rate = rounds * AT_ONCE / _taken_s(producers, rounds)
            bench.progress(f"empty transactions: {cluster.name} {alone_s * 1000:.2f} ms alone, {rate:,.0f}/s at once")
            if pair:
                times.add(cluster.name, alone_s * 1000)
                rates.add(cluster.name, rate)
                costs.add(cluster.name, (cluster.cpu_s() - cpu_s) / (rounds * AT_ONCE) * 1e6)
    bench.results.beside("a transaction without records, one after the other", times.figures(), True, GOAL)
    work = f"transactions without records on one coordinator, {AT_ONCE} at once"
    bench.results.beside(work, rates.figures(), False, GOAL)
    bench.results.beside(f"{work}: processor time of the broker for each", costs.figures(), less_is_better=True)


def _producers(cluster: PeerCluster, stack: ExitStack) -> list[RawTransactions]:
    make_topic(cluster, EMPTY, PARTITIONS)
    return [
        RawTransactions.of(
            stack.enter_context(connect(cluster.ports[0])),
            f"id-{number}",
            TopicPartition(EMPTY, number % PARTITIONS),
            LIMIT_S,
        )
        for number in range(AT_ONCE)
    ]


def _taken_s(producers: Sequence[RawTransactions], rounds: int) -> float:
    began = time.perf_counter()
    for _ in range(rounds):
        commit_all(producers)
    return time.perf_counter() - began


def _read(bench: BenchRun, clusters: Sequence[PeerCluster]) -> None:
    names, records = [peer_cluster.name for peer_cluster in clusters], bench.options.sizes.fetch_bytes // RECORD_BYTES
    for cluster in clusters:
        make_topic(cluster, READ)
        producer_perf(cluster.bootstrap, READ, records, RECORD_BYTES, TRANSACTION_MS)
    for isolation in ("read_uncommitted", "read_committed"):
        rates = Samples(names, "MB/s")
        for pair, cluster in alternate(clusters, bench.options.sizes.fetch_pairs + 1):
            taken_s = librdkafka_s(cluster.bootstrap, READ, records, bench.folder, isolation)
            rate = records * RECORD_BYTES / 1e6 / taken_s
            bench.progress(f"fetch of transactions, {isolation}: {cluster.name} {rate:.0f} MB/s")
            if pair:
                rates.add(cluster.name, rate)
        work = f"fetch of transactions of {TRANSACTION_MS} ms, librdkafka, {isolation}"
        bench.results.beside(work, rates.figures(), less_is_better=False, at_least=GOAL)


SOURCE, TARGET = "source", "target"
COPIED_BYTES = 1_024
COPIED_AT_ONCE = (100, 1_000)
"""Records in one transaction."""
COPIED_PARTITIONS = 4
"""Of the target."""
TRANSFORM_GOAL = 1.0


@row("transform")
def measure_transform(bench: BenchRun) -> None:
    """The first run of each is not counted."""
    names, records = bench.names, bench.options.sizes.transform_records
    with bench.all_up("transform", 1, {}) as clusters:
        for cluster in clusters:
            make_topic(cluster, SOURCE)
            make_topic(cluster, TARGET, COPIED_PARTITIONS)
            producer_perf(cluster.bootstrap, SOURCE, records, COPIED_BYTES)
        for at_once in COPIED_AT_ONCE:
            rates = Samples(names, "thousand records/s")
            costs = Samples(names, "s of processor time for a million")
            for pair, cluster in alternate(clusters, bench.options.sizes.transform_pairs + 1):
                cpu_s = cluster.cpu_s()
                taken_s = transformed_s(cluster.bootstrap, SOURCE, TARGET, f"mover-{at_once}-{pair}", records, at_once)
                bench.progress(
                    f"transform, {at_once} at once: {cluster.name} {records / taken_s / 1000:.1f} thousand/s"
                )
                if pair:
                    rates.add(cluster.name, records / taken_s / 1000)
                    costs.add(cluster.name, (cluster.cpu_s() - cpu_s) * 1e6 / records)
            work = f"consume, transform, produce, {at_once} records of {COPIED_BYTES} bytes in a transaction"
            bench.results.beside(work, rates.figures(), less_is_better=False, at_least=TRANSFORM_GOAL)
            bench.results.beside(f"{work}: processor time of the broker", costs.figures(), less_is_better=True)
