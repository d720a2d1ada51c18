"""Resources of a broker: the processor time of a cluster at rest, and the memory of a node.

- ``rest``: three nodes, many partitions with three replicas, no client.
- ``memory``: one node, first idle, then with fetch sessions of 50 partitions each.
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack

from bench.peers.clients import FETCH_VERSION, connect
from bench.peers.cluster import PeerCluster
from bench.peers.node import PeerError
from bench.rows.context import BenchRun, make_topic, row
from bench.rows.options import Sizes
from bench.rows.results import Curve, ResultRow, Results, Samples, Series, alternate
from reference_broker.blocking.transport import Connection
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchResponse, FetchTopic

NODES = 3
REST_GOAL = 1.0
PARTITIONS_PER_TOPIC = 2_500
"""Kafka creates a topic in one request only if its metadata records fit into one batch."""


@row("rest")
def measure_rest(bench: BenchRun) -> None:
    """All clusters rest at the same time, so that each window is the same for all of them."""
    if NODES not in bench.options.nodes:
        return
    sizes = bench.options.sizes
    spent = bench.samples("ms of processor time a second, all nodes")
    memory = bench.samples("MiB, all nodes")
    with bench.all_up("rest", NODES, {}) as clusters:
        for cluster in clusters:
            bench.progress(f"at rest: {sizes.rest_partitions:,} partitions with {NODES} replicas on {cluster.name}")
            _create_topics(cluster, sizes.rest_partitions)
        bench.progress(f"at rest: {sizes.rest_settle_s:g} s to settle")
        time.sleep(sizes.rest_settle_s)
        for window in range(sizes.rest_windows):
            bench.progress(f"at rest: window {window + 1} of {sizes.rest_windows}")
            _window(clusters, sizes.rest_window_s, spent)
        for cluster in clusters:
            memory.add(cluster.name, cluster.rss_bytes() / 2**20)
    what = f"{NODES} nodes, {sizes.rest_partitions:,} partitions with {NODES} replicas"
    bench.results.beside(
        f"processor time at rest, {what}", spent.figures(), less_is_better=True, at_least=REST_GOAL, nodes=NODES
    )
    bench.results.beside(f"memory at rest, {what}", memory.figures(), less_is_better=True, nodes=NODES)


def _create_topics(cluster: PeerCluster, partitions: int) -> None:
    for first in range(0, partitions, PARTITIONS_PER_TOPIC):
        make_topic(cluster, f"rest-{first}", min(PARTITIONS_PER_TOPIC, partitions - first), NODES)


def _window(clusters: Sequence[PeerCluster], window_s: float, spent: Samples) -> None:
    began_s = time.perf_counter()
    before = [cluster.cpu_s() for cluster in clusters]
    time.sleep(window_s)
    taken_s = time.perf_counter() - began_s
    for cluster, used_s in zip(clusters, before, strict=True):
        spent.add(cluster.name, (cluster.cpu_s() - used_s) / taken_s * 1000)


MEMORY_GOAL = 3.0
IDLE_GOAL_MIB = 110
SESSIONS_TOPIC = "sessions"
WARM_FETCHES = 5
"""The warm-up fetches this many times as often as what is counted."""
QUIET_S = 2.0
"""The wait before memory is read, in which the broker finishes what the start or the sessions left to do."""
PARTITION_MAX_BYTES = 1 << 20


@row("memory")
def measure_memory(bench: BenchRun) -> None:
    names, sizes = bench.names, bench.options.sizes
    idle = Samples(names, "MiB")
    memory = {step: Samples(names, "MiB") for step in sizes.session_steps}
    times = {step: Samples(names, "ms") for step in sizes.session_steps}
    for pair, system in alternate(bench.systems, sizes.memory_pairs):
        bench.progress(f"memory: {system.name}, {pair + 1} of {sizes.memory_pairs}")
        with system.launched(bench.folder / f"memory-{pair}-{names.index(system.name)}", 1, {}) as cluster:
            time.sleep(QUIET_S)
            idle.add(system.name, _mib(cluster))
            _sessions(cluster, sizes, memory, times)
    _rows(bench.results, idle, memory, sizes)
    bench.results.curves.append(_curve("Memory with fetch sessions", "resident memory", names, memory))
    bench.results.curves.append(_curve("Incremental fetch among many sessions", "time of a fetch", names, times))


def _rows(results: Results, idle: Samples, memory: dict[int, Samples], sizes: Sizes) -> None:
    reference, _ = idle.figures()
    goal = f"under {IDLE_GOAL_MIB} MiB"
    results.rows.append(ResultRow("memory, idle", reference, goal=goal, reached=reference.median < IDLE_GOAL_MIB))
    results.beside("memory, idle, beside the peer", idle.figures(), less_is_better=True, at_least=MEMORY_GOAL)
    most = sizes.session_steps[-1]
    work = f"memory, {most:,} sessions of {sizes.session_partitions} partitions"
    results.beside(work, memory[most].figures(), less_is_better=True, at_least=MEMORY_GOAL)


def _curve(title: str, cost: str, names: Sequence[str], measured: dict[int, Samples]) -> Curve:
    series = tuple(
        Series(name, tuple((float(step), samples.figure(name)) for step, samples in measured.items())) for name in names
    )
    return Curve(title, "sessions, 50 partitions each", cost, series)


def _mib(cluster: PeerCluster) -> float:
    return cluster.rss_bytes() / 2**20


def _sessions(cluster: PeerCluster, sizes: Sizes, memory: dict[int, Samples], times: dict[int, Samples]) -> None:
    """Open more and more sessions on connections of their own. A session that is gone raises PeerError."""
    make_topic(cluster, SESSIONS_TOPIC, sizes.session_partitions)
    with ExitStack() as stack:
        sessions: list[_Session] = []
        for step in sizes.session_steps:
            while len(sessions) < step:
                connection = stack.enter_context(connect(cluster.ports[0]))
                sessions.append(_Session(connection, cluster.name, sizes.session_partitions))
            if step == sizes.session_steps[0]:  # Not counted: Java compiles what runs often.
                _fetches_ms(sessions, WARM_FETCHES * sizes.session_fetches)
            taken = _fetches_ms(sessions, max(step, sizes.session_fetches))
            times[step].add(cluster.name, statistics.median(taken))
            time.sleep(QUIET_S)
            memory[step].add(cluster.name, _mib(cluster))


def _fetches_ms(sessions: "Sequence[_Session]", count: int) -> list[float]:
    """Return the milliseconds of each of ``count`` fetches. The sessions take turns."""
    return [sessions[number % len(sessions)].fetch_ms() for number in range(count)]


class _Session:
    """One fetch session on one connection. Its methods raise PeerError when it is refused or gone."""

    def __init__(self, connection: Connection, name: str, partitions: int) -> None:
        self._connection = connection
        self._name = name
        self._epoch = 0
        self._session_id = 0
        wanted = [FetchPartition(number, 0, PARTITION_MAX_BYTES) for number in range(partitions)]
        self._session_id = self._fetch([FetchTopic(SESSIONS_TOPIC, NO_TOPIC_ID, wanted)])
        if not self._session_id:
            raise PeerError(f"{name} opened no fetch session")

    def fetch_ms(self) -> float:
        """Return the milliseconds of an incremental fetch that finds nothing new."""
        began = time.perf_counter()
        self._fetch([])
        return (time.perf_counter() - began) * 1000

    def _fetch(self, topics: list[FetchTopic]) -> int:
        request = FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=50 << 20,
            session_id=self._session_id,
            session_epoch=self._epoch,
            topics=topics,
        )
        response = self._connection.call(ApiKey.FETCH, FETCH_VERSION, request)
        assert isinstance(response, FetchResponse)
        if response.error_code:
            raise PeerError(f"{self._name} refused a fetch with error {response.error_code}")
        self._epoch += 1
        return response.session_id
