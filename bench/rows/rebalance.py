"""Measures a rebalance of many members, which all join again at once and sync at once, until all are assigned."""

import time
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from bench.alternation import Samples, alternate
from bench.options import Options
from bench.peers.clients import RawConnection
from bench.peers.cluster import Cluster, System
from bench.peers.group_clients import RawMember, await_coordinator, learn_ids, rebalance, subscription_of
from bench.results import Results
from bench.rows.context import LIMIT_S, Progress, all_up, row

CONFIG = {"group.initial.rebalance.delay.ms": "2000"}
"""Long enough for all to come into the first generation."""
WARM = 5
TOPIC = "shared"


@row("rebalance")
def measure_rebalance(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    count = options.sizes.rebalance_members
    taken = Samples([system.name for system in systems], "ms")
    with all_up(systems, folder / "rebalance", 1, CONFIG) as clusters, ExitStack() as stack:
        groups = [(cluster.name, _formed(cluster, count, stack)) for cluster in clusters]
        for _, members in groups:
            for number in range(WARM):
                rebalance(members, subscription_of(TOPIC, b"warm %d" % number))
        for pair, (name, members) in alternate(groups, options.sizes.rebalance_pairs):
            began = time.perf_counter()
            rebalance(members, subscription_of(TOPIC, b"round %d" % pair))
            taken_ms = (time.perf_counter() - began) * 1000
            taken.add(name, taken_ms)
            progress(f"rebalance of {count} members: {taken_ms:.1f} ms on {name}")
    results.beside(f"rebalance of {count} members, all joining at once", taken.figures(), less_is_better=True)


def _formed(cluster: Cluster, count: int, stack: ExitStack) -> list[RawMember]:
    """Raises PeerError."""
    connections = [stack.enter_context(RawConnection(cluster.ports[0])) for _ in range(count)]
    await_coordinator(connections[0], "many", LIMIT_S)
    members = [RawMember(connection, "many") for connection in connections]
    learn_ids(members, subscription_of(TOPIC))
    rebalance(members, subscription_of(TOPIC))
    return members
