"""The time from the kill of a leader or coordinator until its clients continue, on three nodes with equal timeouts."""

import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from bench.peers.clients import RetryingClient, batch_of
from bench.peers.cluster import PeerCluster
from bench.peers.group_clients import RetryingGroups
from bench.peers.node import BrokerNode, PeerError
from bench.peers.transaction_clients import RetryingTransactions
from bench.rows.context import LIMIT_S, BenchRun, make_topic, row
from bench.rows.results import Samples, alternate
from reference_broker.client.partitions import TopicPartition

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
LEADERS = ("another node is the controller", "it is the controller too")
INTERNAL_PARTITIONS = 6  # of the internal topic of each kind of coordinator


# -- the leader of a partition: until the next acknowledged record ---------------------------------------------------


@row("leader-killed")
def measure_leader_killed(bench: BenchRun) -> None:
    if NODES not in bench.options.nodes:
        return
    names, kills = bench.names, bench.options.sizes.kills
    taken = {kind: Samples(names, "s") for kind in LEADERS}
    bench.results.settings |= TIMEOUTS
    with bench.all_up("killed", NODES, TIMEOUTS) as clusters:
        for number, kind in ((number, kind) for number in range(kills) for kind in LEADERS):
            for cluster in clusters if number % 2 == 0 else reversed(clusters):
                topic = f"killed-{number}-{LEADERS.index(kind)}"
                taken_s = _again_acknowledged_s(cluster, topic, controller_too=kind == LEADERS[1])
                taken[kind].add(cluster.name, taken_s)
                bench.progress(f"leader killed, {kind}: {cluster.name} acknowledges after {taken_s:.2f} s")
    for kind in LEADERS:
        work = f"leader killed to first acknowledged record, {kind}"
        bench.results.beside(work, taken[kind].figures(), less_is_better=True, at_least=GOAL, nodes=NODES)


def _again_acknowledged_s(cluster: PeerCluster, topic: str, controller_too: bool) -> float:
    """Return the seconds until a record is acknowledged again, on a new topic with a partition for each node to lead.

    The node is back and in sync when this returns. Raise PeerError.
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
        leader = cluster.member(led[chosen[0]].leader)
        taken_s = _kill_s(leader, lambda: client.acknowledged(topic, chosen[0], batch, LIMIT_S))
        client.await_replicas(topic, NODES, NODES, LIMIT_S)
    return taken_s


def _kill_s(member: BrokerNode, until: Callable[[], object]) -> float:
    """Kill the node, and return the seconds until ``until`` has returned. The node is back when this returns."""
    began = time.perf_counter()
    member.send_signal(signal.SIGKILL)
    until()
    taken_s = time.perf_counter() - began
    member.back()
    return taken_s


# -- the coordinators of groups and transactions: until the next accepted commit --------------------------------------


@dataclass(frozen=True, slots=True)
class _Coordinator:
    """A kind of coordinator, and what its clients do."""

    title: str
    commit: str  # what it accepts in the end, as the progress says it
    work: str
    folder: str
    config: Mapping[str, str]
    prepare: Callable[[PeerCluster], None]  # makes the topic, and has the internal topic created; raises PeerError
    again_committed_s: Callable[[PeerCluster, int], float]  # kills it; by the number of the kill; raises PeerError


def _measure(bench: BenchRun, kind: _Coordinator) -> None:
    if NODES not in bench.options.nodes:
        return
    taken = bench.samples("s")
    bench.results.settings |= kind.config
    with bench.all_up(kind.folder, NODES, kind.config) as clusters:
        for cluster in clusters:
            kind.prepare(cluster)
        for number, cluster in alternate(clusters, bench.options.sizes.coordinator_kills):
            taken_s = kind.again_committed_s(cluster, number)
            taken.add(cluster.name, taken_s)
            bench.progress(f"{kind.title} killed: {cluster.name} accepts {kind.commit} after {taken_s:.2f} s")
    bench.results.beside(kind.work, taken.figures(), less_is_better=True, nodes=NODES)


@row("coordinator-killed")
def measure_coordinator_killed(bench: BenchRun) -> None:
    _measure(bench, _GROUPS)


def _prepare_group(cluster: PeerCluster) -> None:
    make_topic(cluster, "committed", 1, NODES)
    with RetryingGroups(cluster.ports) as client:
        client.committed("first", "committed", 0, LIMIT_S)


def _offset_again_committed_s(cluster: PeerCluster, number: int) -> float:
    group = f"group-{number}"
    with RetryingGroups(cluster.ports) as client:
        client.await_replicas("__consumer_offsets", INTERNAL_PARTITIONS, NODES, LIMIT_S)
        client.committed(group, "committed", number, LIMIT_S)
        coordinator = cluster.member(client.coordinator(group, LIMIT_S))
        return _kill_s(coordinator, lambda: client.committed(group, "committed", number + 1, LIMIT_S))


_GROUPS = _Coordinator(
    "coordinator",
    "a commit",
    "coordinator killed to first accepted commit",
    "coordinator",
    {
        **TIMEOUTS,
        "offsets.topic.replication.factor": str(NODES),
        "offsets.topic.num.partitions": str(INTERNAL_PARTITIONS),
        "default.replication.factor": str(NODES),
        "min.insync.replicas": "2",
    },
    _prepare_group,
    _offset_again_committed_s,
)


@row("transaction-coordinator-killed")
def measure_transaction_coordinator_killed(bench: BenchRun) -> None:
    _measure(bench, _TRANSACTIONS)


def _prepare_transactions(cluster: PeerCluster) -> None:
    make_topic(cluster, "written", 1, NODES, TOPIC_CONFIG)
    with RetryingTransactions(cluster.ports) as client:
        client.taken("first", LIMIT_S)


def _transaction_committed_s(cluster: PeerCluster, number: int) -> float:
    own_id = f"id-{number}"
    with RetryingTransactions(cluster.ports) as client:
        client.await_replicas("__transaction_state", INTERNAL_PARTITIONS, NODES, LIMIT_S)
        owner = client.taken(own_id, LIMIT_S)
        client.begun(own_id, owner, TopicPartition("written", 0), LIMIT_S)
        coordinator = cluster.member(client.coordinator(own_id, LIMIT_S))
        return _kill_s(coordinator, lambda: client.committed(own_id, owner, LIMIT_S))


_TRANSACTIONS = _Coordinator(
    "transaction coordinator",
    "the commit",
    "transaction coordinator killed to accepted commit",
    "transactions",
    {
        **TIMEOUTS,
        "transaction.state.log.replication.factor": str(NODES),
        "transaction.state.log.num.partitions": str(INTERNAL_PARTITIONS),
        "transaction.state.log.min.isr": "2",
    },
    _prepare_transactions,
    _transaction_committed_s,
)
