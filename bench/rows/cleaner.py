"""Measures how fast one pass of the log cleaner is, and which dirty share it holds under a steady load."""

import statistics
import time
from pathlib import Path

from bench.fleet.behaviours.bodies import set_topic_configs_request
from bench.peers.clients import PRODUCE_VERSION, base_offset, connect, produce_request
from bench.peers.cluster import PeerCluster, until
from bench.peers.node import PeerError
from bench.rows.context import LIMIT_S, BenchRun, make_topic, row
from bench.rows.results import Samples, alternate
from reference_broker.blocking.transport import Connection
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey

CONFIG = {"log.cleaner.backoff.ms": "100"}
SEGMENT_BYTES = 5_000_000
TOPIC_CONFIG = {"segment.bytes": str(SEGMENT_BYTES)}
KEYS = 20_000
VALUE_BYTES = 100
RECORDS = 500
"""In a batch."""
LOAD_BYTES_PER_S = 2_000_000
CHECKPOINT = "cleaner-offset-checkpoint"


@row("cleaner")
def measure_cleaner(bench: BenchRun) -> None:
    names, sizes = bench.names, bench.options.sizes
    rates, costs = Samples(names, "MB/s"), Samples(names, "s")
    shares = Samples(names, "%")
    with bench.all_up("cleaner", 1, CONFIG) as clusters:
        for pair, cluster in alternate(clusters, sizes.cleaner_pairs):
            home = bench.folder / "cleaner" / cluster.name.replace(" ", "-")
            rate, cost_s = _pass(cluster, home, f"once-{pair}", sizes.cleaner_bytes)
            rates.add(cluster.name, rate)
            costs.add(cluster.name, cost_s)
            share = statistics.median(_held(cluster, home, f"steady-{pair}", sizes.cleaner_load_s))
            shares.add(cluster.name, share)
            bench.progress(f"log cleaner: {rate:.1f} MB/s, dirty share {share:.0f} % on {cluster.name}")
    bench.results.beside(f"log cleaner, one pass over {sizes.cleaner_bytes / 1e6:g} MB", rates.figures(), False)
    bench.results.beside("processor time of the broker for that pass", costs.figures(), less_is_better=True)
    work = f"dirty share held under {LOAD_BYTES_PER_S / 1e6:g} MB/s, cleaned above 50 %"
    bench.results.beside(work, shares.figures(), less_is_better=True)


def _pass(cluster: PeerCluster, home: Path, topic: str, total_bytes: int) -> tuple[float, float]:
    """Return megabytes per second and seconds of processor time, both from the moment when the full log becomes a
    compacted one. Raise PeerError."""
    make_topic(cluster, topic, config=TOPIC_CONFIG | {"cleanup.policy": "delete"})
    with connect(cluster.ports[0]) as connection:
        produced = 0
        for number in range(total_bytes // (RECORDS * VALUE_BYTES) + 1):
            produced += _produce(connection, topic, number)
        began, cpu_s = time.perf_counter(), cluster.cpu_s()
        _compact(connection, topic)
    until(lambda: _dirty_share(home, topic) == 0.0, LIMIT_S, f"cleaning of {topic} on {cluster.name}", every_s=0.01)
    return produced / 1e6 / (time.perf_counter() - began), cluster.cpu_s() - cpu_s


def _held(cluster: PeerCluster, home: Path, topic: str, load_s: float) -> list[float]:
    """Return the dirty share in percent, read after each batch in the second half of a steady load.

    Raise PeerError.
    """
    make_topic(cluster, topic, config={"cleanup.policy": "compact", "segment.bytes": "1048576"})
    shares: list[float] = []
    number = sent = 0
    began = time.perf_counter()
    with connect(cluster.ports[0]) as connection:
        while (passed_s := time.perf_counter() - began) < load_s:
            if sent > passed_s * LOAD_BYTES_PER_S:
                time.sleep(0.005)
                continue
            sent += _produce(connection, topic, number)
            number += 1
            if passed_s > load_s / 2:
                shares.append(_dirty_share(home, topic) * 100)
    return shares


def _produce(connection: Connection, topic: str, number: int) -> int:
    """Send one batch, whose keys recur, and return its size in bytes."""
    now_ms = int(time.time() * 1000)
    first = number * RECORDS * 7
    value = bytes(range(VALUE_BYTES))
    batch = build(
        [Record(timestamp_ms=now_ms, key=b"key-%06d" % ((first + at * 7) % KEYS), value=value) for at in range(RECORDS)]
    )
    response = connection.call(ApiKey.PRODUCE, PRODUCE_VERSION, produce_request(topic, 0, batch))
    base_offset(response, "the broker")
    return len(batch)


def _compact(connection: Connection, topic: str) -> None:
    body = set_topic_configs_request([topic], {"cleanup.policy": "compact"})
    response = connection.call(ApiKey.INCREMENTAL_ALTER_CONFIGS, 1, body)
    error = int(response.responses[0].error_code)
    if error:
        raise PeerError(f"{topic} did not become compacted: error {error}")


def _dirty_share(home: Path, topic: str) -> float:
    """Return the share of the closed segments' bytes that no pass has seen. It is read from the files, in the same way
    for both brokers."""
    segments = []
    for path in home.rglob(f"{topic}-0/*.log"):
        try:
            segments.append((int(path.stem), path.stat().st_size))
        except FileNotFoundError:
            continue  # A cleaned segment has replaced it meanwhile.
    closed = sorted(segments)[:-1]
    cleaned = _checkpoint(home, topic)
    total = sum(size for _, size in closed)
    return sum(size for base, size in closed if base >= cleaned) / total if total else 0.0


def _checkpoint(home: Path, topic: str) -> int:
    """Return the offset up to which the log is cleaned. Kafka keeps one file in a log directory, the reference broker
    one beside each log; their rows look alike."""
    for path in home.rglob(CHECKPOINT):
        try:
            rows = path.read_text().splitlines()[2:]
        except FileNotFoundError:
            continue
        for line in rows:
            name, _, offset = line.rpartition(" ")
            if name == f"{topic} 0":
                return int(offset)
    return 0
