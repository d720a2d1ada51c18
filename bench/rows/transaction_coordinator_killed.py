"""Measures the time from the kill of a transaction's coordinator to its accepted commit, with equal timeouts."""

import signal
import time
from collections.abc import Sequence
from pathlib import Path

from bench.options import Options
from bench.peers.cluster import Cluster, System
from bench.peers.transaction_clients import RetryingTransactions
from bench.results import Results, Samples, alternate
from bench.rows.context import LIMIT_S, Progress, all_up, make_topic, row
from bench.rows.leader_killed import NODES, TIMEOUTS
from reference_broker.client.partitions import TopicPartition

TOPIC = "written"
STATE_TOPIC = "__transaction_state"
STATE_PARTITIONS = 6
CONFIG = {
    **TIMEOUTS,
    "transaction.state.log.replication.factor": str(NODES),
    "transaction.state.log.num.partitions": str(STATE_PARTITIONS),
    "transaction.state.log.min.isr": "2",
}


@row("transaction-coordinator-killed")
def measure_transaction_coordinator_killed(
    results: Results, systems: Sequence[System], folder: Path, options: Options, progress: Progress
) -> None:
    if NODES not in options.nodes:
        return
    taken = Samples([system.name for system in systems], "s")
    results.settings |= CONFIG
    with all_up(systems, folder / "transactions", NODES, CONFIG) as clusters:
        for cluster in clusters:
            make_topic(cluster, TOPIC, 1, NODES, {"min.insync.replicas": "2"})
            with RetryingTransactions(cluster.ports) as client:
                client.taken("first", LIMIT_S)
        for number, cluster in alternate(clusters, options.sizes.coordinator_kills):
            taken_s = _again_committed_s(cluster, f"id-{number}")
            taken.add(cluster.name, taken_s)
            progress(f"transaction coordinator killed: {cluster.name} accepts the commit after {taken_s:.2f} s")
    results.beside(
        "transaction coordinator killed to accepted commit", taken.figures(), less_is_better=True, nodes=NODES
    )


def _again_committed_s(cluster: Cluster, own_id: str) -> float:
    """Returns the seconds until an open transaction is committed. The node is back when this returns. Raises
    PeerError."""
    with RetryingTransactions(cluster.ports) as client:
        client.await_replicas(STATE_TOPIC, STATE_PARTITIONS, NODES, LIMIT_S)
        owner = client.taken(own_id, LIMIT_S)
        client.begun(own_id, owner, TopicPartition(TOPIC, 0), LIMIT_S)
        member = cluster.member(client.coordinator(own_id, LIMIT_S))
        began = time.perf_counter()
        member.strike(signal.SIGKILL)
        client.committed(own_id, owner, LIMIT_S)
        taken_s = time.perf_counter() - began
        member.back()
    return taken_s
