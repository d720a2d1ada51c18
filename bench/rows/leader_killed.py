"""Measures the time from the kill of a partition's leader to the next acknowledged record, with equal timeouts."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from bench.options import Options
from bench.peers.clients import RetryingClient, batch_of
from bench.peers.cluster import Cluster, System
from bench.peers.node import PeerError
from bench.results import Results, Samples
from bench.rows.context import LIMIT_S, Progress, all_up, make_topic, row

NODES = 3
GOAL = 1.0
TIMEOUTS = {
    "broker.session.timeout.ms": "2000",
    "broker.heartbeat.interval.ms": "500",
    "controller.quorum.fetch.timeout.ms": "2000",
    "controller.quorum.election.timeout.ms": "1000",
    "replica.lag.time.max.ms": "10000",
}
TOPIC_CONFIG = {"min.insync.replicas": "2"}
KINDS = ("another node is the controller", "it is the controller too")


@row("leader-killed")
def measure_leader_killed(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    if NODES not in options.nodes:
        return
    names, kills = [system.name for system in systems], options.sizes.kills
    taken = {kind: Samples(names, "s") for kind in KINDS}
    results.settings |= TIMEOUTS
    with all_up(systems, folder / "killed", NODES, TIMEOUTS) as clusters:
        for number, kind in ((number, kind) for number in range(kills) for kind in KINDS):
            for cluster in clusters if number % 2 == 0 else reversed(clusters):
                topic = f"killed-{number}-{KINDS.index(kind)}"
                taken_s = _again_acknowledged_s(cluster, topic, controller_too=kind == KINDS[1])
                taken[kind].add(cluster.name, taken_s)
                progress(f"leader killed, {kind}: {cluster.name} acknowledges after {taken_s:.2f} s")
    for kind in KINDS:
        work = f"leader killed to first acknowledged record, {kind}"
        results.beside(work, taken[kind].figures(), less_is_better=True, at_least=GOAL, nodes=NODES)


def _again_acknowledged_s(cluster: Cluster, topic: str, controller_too: bool) -> float:
    """Returns the seconds until a record is acknowledged again, on a new topic with a partition for each node to lead.

    The node is back and in sync when this returns. Raises PeerError.
    """
    batch = batch_of(100)
    with RetryingClient(cluster.ports) as client:
        led = make_topic(cluster, topic, NODES, NODES, TOPIC_CONFIG)
        for partition in led:
            client.acknowledged(topic, partition, batch, LIMIT_S)
        controller = client.active_controller(LIMIT_S)
        chosen = [each for each, at in led.items() if (at.leader == controller) == controller_too]
        if not chosen:
            raise PeerError(f"{cluster.name} spread {NODES} partitions over fewer nodes")
        member = cluster.member(led[chosen[0]].leader)
        began = time.perf_counter()
        member.strike(signal.SIGKILL)
        client.acknowledged(topic, chosen[0], batch, LIMIT_S)
        taken_s = time.perf_counter() - began
        member.back()
        client.await_replicas(topic, NODES, NODES, LIMIT_S)
    return taken_s
