"""``crucible bench``: the broker's figures, and beside a peer's in the same run, in alternation."""

import statistics
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.peers.fetch_ladder import LadderSession
from bench.peers.kafka import SETTINGS, kafka_node
from bench.peers.node import RunningNode
from bench.peers.perf_tools import producer_perf
from bench.peers.raw_client import RawConnection, create_topic
from bench.peers.reference import reference_node
from bench.results import Figure, Results, Row, better_higher, better_lower

Progress = Callable[[str], None]

LADDER = (100, 1_000, 5_000, 10_000)
BLOCKS = 7
ROUNDS_PER_BLOCK = 100
STARTS = 5
PERF_RUNS = 3
PERF_RECORDS = 5_000_000
PERF_RECORD_BYTES = 100
PERF_PARTITIONS = 8
READY_GOAL_S = 0.6
IDLE_MEMORY_GOAL_MIB = 110
FLATNESS_GOAL = 1.3
PRODUCE_GOAL = 1.3


def run(peer: str | None, progress: Progress) -> Results:
    """All figures; ``peer``: None or ``kafka``. Raises bench.peers.errors.PeerError when a broker cannot be had."""
    results = Results(peer, settings=dict(SETTINGS) if peer else {})
    with tempfile.TemporaryDirectory(prefix="crucible-bench-") as scratch:
        folder = Path(scratch)
        _start_up(results, folder, progress)
        with _nodes(folder / "ladder", peer) as nodes:
            _fetch_ladder(results, nodes, progress)
        if peer:
            _produce(results, folder, progress)
    return results


@contextmanager
def _nodes(folder: Path, peer: str | None) -> Iterator[list[RunningNode]]:
    """The reference, then the peer if there is one; both stay up for the whole block."""
    with ExitStack() as stack:
        nodes = [stack.enter_context(reference_node(folder / "reference"))]
        if peer:
            nodes.append(stack.enter_context(kafka_node(folder / "peer")))
        yield nodes


def _start_up(results: Results, folder: Path, progress: Progress) -> None:
    ready_s, idle_mib = [], []
    for number in range(STARTS):
        progress(f"start {number + 1} of {STARTS}")
        with reference_node(folder / f"start-{number}") as node:
            ready_s.append(node.ready_s)
            idle_mib.append(node.rss_bytes() / 2**20)
    ready, idle = Figure(tuple(ready_s), "s"), Figure(tuple(idle_mib), "MiB")
    results.rows.append(
        Row("exec to first answer", ready, goal=f"within {READY_GOAL_S} s", reached=ready.median <= READY_GOAL_S)
    )
    results.rows.append(
        Row("memory, idle", idle, goal=f"under {IDLE_MEMORY_GOAL_MIB} MiB", reached=idle.median < IDLE_MEMORY_GOAL_MIB)
    )


def _fetch_ladder(results: Results, nodes: list[RunningNode], progress: Progress) -> None:
    """Blocks of fetches, one broker after the other, one ladder step after the other, so that drift hits all alike."""
    sessions: dict[tuple[int, str], LadderSession] = {}
    try:
        for partitions in LADDER:
            for node in nodes:
                progress(f"fetch ladder: {partitions:,} partitions on {node.name}")
                sessions[partitions, node.name] = LadderSession(node, partitions)
        for label, changed_of in _CHANGES.items():
            medians: dict[tuple[int, str], list[float]] = {key: [] for key in sessions}
            for block in range(-1, BLOCKS):  # Block -1 warms up and is not counted.
                progress(f"fetch ladder: {label} changed, block {max(block, 0) + 1} of {BLOCKS}")
                for (partitions, name), session in sessions.items():
                    times_us = session.block_us(ROUNDS_PER_BLOCK, changed_of(partitions))
                    if block >= 0:
                        medians[partitions, name].append(statistics.median(times_us) / 1000)
            _ladder_rows(results, nodes, label, medians)
    finally:
        for session in sessions.values():
            session.close()


_CHANGES: dict[str, Callable[[int], int]] = {
    "none": lambda _: 0,
    "one": lambda _: 1,
    "1 %": lambda partitions: partitions // 100,
}


def _ladder_rows(
    results: Results, nodes: list[RunningNode], label: str, medians: dict[tuple[int, str], list[float]]
) -> None:
    for partitions in LADDER:
        figures = [Figure(tuple(medians[partitions, node.name]), "ms") for node in nodes]
        peer = figures[1] if len(figures) > 1 else None
        ratio = better_lower(figures[0], peer) if peer else None
        results.rows.append(Row(f"incremental fetch, {partitions:,} cached, {label} changed", figures[0], peer, ratio))
    if label != "1 %":
        name = nodes[0].name
        flat = Figure(
            tuple(big / small for big, small in zip(medians[10_000, name], medians[100, name], strict=True)), "x"
        )
        results.rows.append(
            Row(
                f"incremental fetch, 10,000 against 100 cached, {label} changed",
                flat,
                goal=f"at most {FLATNESS_GOAL} x",
                reached=flat.median <= FLATNESS_GOAL,
            )
        )


def _produce(results: Results, folder: Path, progress: Progress) -> None:
    """Kafka's own producer against each broker in turn; nothing else runs meanwhile."""
    starters = {"reference broker": reference_node, "Apache Kafka": kafka_node}
    rates: dict[str, list[float]] = {name: [] for name in starters}
    for number in range(PERF_RUNS):
        for name, start in starters.items():
            progress(f"produce: run {number + 1} of {PERF_RUNS} on {name}")
            with start(folder / f"produce-{number}-{name.split()[-1]}") as node:
                with RawConnection(node.port) as connection:
                    create_topic(connection, "perf", PERF_PARTITIONS)
                perf = producer_perf(node.bootstrap, "perf", PERF_RECORDS, PERF_RECORD_BYTES)
                rates[name].append(perf.records_per_s / 1000)
    reference, other = (Figure(tuple(values), "thousand records/s") for values in rates.values())
    ratio = better_higher(reference, other)
    results.rows.append(
        Row(
            f"produce, {PERF_RECORD_BYTES}-byte records, acks=all, {PERF_PARTITIONS} partitions",
            reference,
            other,
            ratio,
            f"at least {PRODUCE_GOAL} x",
            ratio.median >= PRODUCE_GOAL,
        )
    )
