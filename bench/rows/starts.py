"""Starts and restarts.

- ``start``: fresh nodes, from exec to the first acknowledged record (acks=all). It includes a new topic.
- ``restart``: with a log of many producers, with its snapshots of producers and without.
"""

import compileall
import time
from collections import deque
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter

from bench.peers.clients import PRODUCE_VERSION, RetryingClient, base_offset, batch_of, connect, produce_request
from bench.peers.cluster import PeerCluster, System
from bench.peers.node import end
from bench.rows.context import LIMIT_S, BenchRun, make_topic, row
from bench.rows.results import ResultRow, Samples, alternate
from reference_broker.blocking.transport import EncodedRequest
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey

GOAL = 8.0
READY_GOAL_S = 0.6
TOPIC = "first"
BROKER = Path(__file__).resolve().parents[2] / "reference_broker"


@row("start")
def measure_start(bench: BenchRun) -> None:
    names = bench.names
    compileall.compile_dir(BROKER, quiet=2)  # So that no start compiles the broker, as after an installation.
    for nodes in bench.options.nodes:
        pairs = bench.options.sizes.starts if nodes == 1 else bench.options.sizes.cluster_starts
        ready, acknowledged = Samples(names[:1], "s"), Samples(names, "s")
        for pair, system in alternate(bench.systems, pairs):
            bench.progress(f"start: {nodes} node(s) of {system.name}, {pair + 1} of {pairs}")
            with system.prepare(
                bench.folder / f"start-{nodes}-{pair}-{names.index(system.name)}", nodes, {}
            ) as cluster:
                acknowledged.add(system.name, _first_acknowledged_s(cluster, nodes))
            if nodes == 1 and system is bench.systems[0]:
                with system.prepare(bench.folder / f"ready-{pair}", 1, {}) as cluster:
                    ready.add(system.name, _ready_s(cluster))
        if nodes == 1:
            first, _ = ready.figures()
            goal = f"within {READY_GOAL_S} s"
            bench.results.rows.append(
                ResultRow("exec to ready", first, goal=goal, reached=first.median <= READY_GOAL_S)
            )
        work = f"start to first acknowledged record, {nodes} node{'s' * (nodes > 1)}"
        bench.results.beside(work, acknowledged.figures(), less_is_better=True, at_least=GOAL, nodes=nodes)


def _ready_s(cluster: PeerCluster) -> float:
    began = time.perf_counter()
    cluster.launch()
    cluster.await_ready()
    return time.perf_counter() - began


def _first_acknowledged_s(cluster: PeerCluster, replicas: int) -> float:
    batch = batch_of(100)
    began = time.perf_counter()
    cluster.launch()
    with RetryingClient(cluster.ports) as client:
        client.create_topic(TOPIC, 1, replicas, LIMIT_S)
        client.acknowledged(TOPIC, 0, batch, LIMIT_S)
    return time.perf_counter() - began


CROWDED_TOPIC = "crowded"
BATCH_BYTES = 10_000
IN_FLIGHT = 16
SEGMENTS = 10
KINDS = ("with its snapshots of producers", "without them")


@row("restart")
def measure_restart(bench: BenchRun) -> None:
    """Every stop is a clean one, and the files are in the page cache."""
    sizes, names = bench.options.sizes, bench.names
    taken = {kind: Samples(names, "s") for kind in KINDS}
    with ExitStack() as stack:
        logs = [_Log.of(system, bench.folder / system.name.replace(" ", "-"), stack) for system in bench.systems]
        for log in logs:
            log.fill(sizes.restart_bytes // BATCH_BYTES, sizes.restart_producers)
            bench.progress(f"restart: {log.cluster.name} has {sizes.restart_producers:,} producers")
        for _, log in alternate(logs, sizes.restart_pairs):
            for kind in KINDS:
                taken_s = log.restart_s(keeps_snapshots=kind == KINDS[0])
                taken[kind].add(log.cluster.name, taken_s)
                bench.progress(f"restart {kind}: {log.cluster.name} {taken_s:.2f} s")
    what = f"{sizes.restart_bytes / 1e6:,.0f} MB and {sizes.restart_producers:,} producers"
    for kind, samples in taken.items():
        work = f"clean restart to the next acknowledged record, a log of {what}, {kind}"
        bench.results.beside(work, samples.figures(), less_is_better=True)


@dataclass(slots=True)
class _Log:
    cluster: PeerCluster
    folder: Path

    @classmethod
    def of(cls, system: System, folder: Path, stack: ExitStack) -> "_Log":
        return cls(stack.enter_context(system.launched(folder, 1, {})), folder)

    def fill(self, batches: int, producers: int) -> None:
        """The producers take turns. Raise PeerError."""
        segment_bytes = max(batches * BATCH_BYTES // SEGMENTS, 1_000_000)
        make_topic(self.cluster, CROWDED_TOPIC, config={"segment.bytes": str(segment_bytes)})
        value = bytes(BATCH_BYTES)
        in_flight: deque[EncodedRequest] = deque()
        with connect(self.cluster.ports[0]) as connection:
            for number in range(batches + IN_FLIGHT):
                if number < batches:
                    turn, producer_id = divmod(number, producers)
                    records = [Record(timestamp_ms=0, value=value)]
                    batch = build(records, producer_id=producer_id, producer_epoch=0, base_sequence=turn)
                    request = produce_request(CROWDED_TOPIC, 0, batch)
                    in_flight.append(connection.send(ApiKey.PRODUCE, PRODUCE_VERSION, request))
                if number >= IN_FLIGHT:
                    base_offset(connection.receive(in_flight.popleft()).body, self.cluster.name)

    def restart_s(self, *, keeps_snapshots: bool) -> float:
        """Return the seconds from exec to the next acknowledged record. Raise PeerError."""
        end(self.cluster.members)
        if not keeps_snapshots:
            for path in self.folder.glob(f"**/{CROWDED_TOPIC}-0/*.snapshot"):
                path.unlink()
        began = perf_counter()
        self.cluster.launch()
        with RetryingClient(self.cluster.ports) as client:
            client.acknowledged(CROWDED_TOPIC, 0, batch_of(100), LIMIT_S)
        return perf_counter() - began
