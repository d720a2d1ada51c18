"""Groups: the first join, rebalances and commits.

- ``group-join``: a new consumer of a new group, from first request to first record, with Kafka's default delay and
  without.
- ``rebalance``: many members all join again at once and sync at once, until all are assigned.
- ``commits``: 8 connections to one coordinator, each with 8 requests in flight, the same bytes for both brokers.
"""

import time
from contextlib import ExitStack
from dataclasses import dataclass

from bench.peers.clients import FETCH_VERSION, RetryingClient, batch_of, connect
from bench.peers.cluster import PeerCluster
from bench.peers.group_clients import (
    RawMember,
    await_coordinator,
    check_committed,
    encoded_commit,
    learn_ids,
    rebalance,
    subscription_of,
)
from bench.peers.node import PeerError
from bench.rows.context import LIMIT_S, BenchRun, make_topic, row
from bench.rows.results import Samples, alternate
from reference_broker.blocking.transport import Connection, EncodedRequest
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic

DELAY = "group.initial.rebalance.delay.ms"
DELAYS_MS = (3000, 0)
"""The default of both brokers, and none."""
JOINED_TOPIC = "joined"


@row("group-join")
def measure_group_join(bench: BenchRun) -> None:
    names = bench.names
    for delay_ms in DELAYS_MS:
        taken = Samples(names, "ms")
        with bench.all_up(f"join-{delay_ms}", 1, {DELAY: str(delay_ms)}) as clusters:
            for cluster in clusters:
                _prepare_join(cluster)
            for pair, cluster in alternate(clusters, bench.options.sizes.join_pairs):
                taken_ms = _first_record_ms(cluster, f"group-{pair}")
                taken.add(cluster.name, taken_ms)
                bench.progress(f"group join, delay {delay_ms} ms: {cluster.name} gave a record after {taken_ms:.0f} ms")
        bench.results.beside(f"group join to first record, {DELAY}={delay_ms}", taken.figures(), less_is_better=True)


def _prepare_join(cluster: PeerCluster) -> None:
    """Write a record to a new topic, then join twice, so that the offsets topic exists and the broker has loaded its
    code. Raise PeerError."""
    make_topic(cluster, JOINED_TOPIC)
    with RetryingClient(cluster.ports) as client:
        client.acknowledged(JOINED_TOPIC, 0, batch_of(100), LIMIT_S)
    for number in range(2):
        _first_record_ms(cluster, f"warm-{number}")


def _first_record_ms(cluster: PeerCluster, group: str) -> float:
    """Raise PeerError."""
    with connect(cluster.ports[0]) as connection:
        began = time.perf_counter()
        await_coordinator(connection, group, LIMIT_S)
        member = RawMember(connection, group)
        error: Error | int = ErrorCode.member_id_required
        while error == ErrorCode.member_id_required:
            member.begin_join(subscription_of(JOINED_TOPIC))
            error = member.end_join()
        member.begin_sync({member.member_id: JOINED_TOPIC.encode()})
        assigned = member.end_sync().decode()
        wanted = FetchTopic(assigned, NO_TOPIC_ID, [FetchPartition(0, 0, 1 << 20)])
        body = FetchRequest(max_wait_ms=1000, topics=[wanted])
        response = connection.call(ApiKey.FETCH, FETCH_VERSION, body)
        taken_ms = (time.perf_counter() - began) * 1000
    if not response.responses[0].partitions[0].records:
        raise PeerError(f"{cluster.name} gave a new member no record")
    return taken_ms


REBALANCE_CONFIG = {"group.initial.rebalance.delay.ms": "2000"}
"""Long enough for all to come into the first generation."""
WARM_REBALANCES = 5
SHARED_TOPIC = "shared"


@row("rebalance")
def measure_rebalance(bench: BenchRun) -> None:
    count = bench.options.sizes.rebalance_members
    taken = bench.samples("ms")
    with bench.all_up("rebalance", 1, REBALANCE_CONFIG) as clusters, ExitStack() as stack:
        groups = [(cluster.name, _formed(cluster, count, stack)) for cluster in clusters]
        for _, members in groups:
            for number in range(WARM_REBALANCES):
                rebalance(members, subscription_of(SHARED_TOPIC, b"warm %d" % number))
        for pair, (name, members) in alternate(groups, bench.options.sizes.rebalance_pairs):
            began = time.perf_counter()
            rebalance(members, subscription_of(SHARED_TOPIC, b"round %d" % pair))
            taken_ms = (time.perf_counter() - began) * 1000
            taken.add(name, taken_ms)
            bench.progress(f"rebalance of {count} members: {taken_ms:.1f} ms on {name}")
    bench.results.beside(f"rebalance of {count} members, all joining at once", taken.figures(), less_is_better=True)


def _formed(cluster: PeerCluster, count: int, stack: ExitStack) -> list[RawMember]:
    """Raise PeerError."""
    connections = [stack.enter_context(connect(cluster.ports[0])) for _ in range(count)]
    await_coordinator(connections[0], "many", LIMIT_S)
    members = [RawMember(connection, "many") for connection in connections]
    learn_ids(members, subscription_of(SHARED_TOPIC))
    rebalance(members, subscription_of(SHARED_TOPIC))
    return members


CONNECTIONS = 8
IN_FLIGHT = 8
"""On each connection."""
COMMITTED_TOPIC = "committed"


@row("commits")
def measure_commits(bench: BenchRun) -> None:
    names, block = bench.names, bench.options.sizes.commit_block
    rates, costs = Samples(names, "commits/s"), Samples(names, "us")
    with bench.all_up("commits", 1, {}) as clusters, ExitStack() as stack:
        loads = [_CommitLoad.at(cluster, stack) for cluster in clusters]
        for load in loads:
            load.commit(block)  # Not counted: Java compiles what runs often.
        for _, load in alternate(loads, bench.options.sizes.commit_pairs):
            began, cpu_s = time.perf_counter(), load.cluster.cpu_s()
            count = load.commit(block)
            rate = count / (time.perf_counter() - began)
            rates.add(load.cluster.name, rate)
            costs.add(load.cluster.name, (load.cluster.cpu_s() - cpu_s) / count * 1e6)
            bench.progress(f"commits: {rate:,.0f}/s on {load.cluster.name}")
    where = f"{CONNECTIONS} connections, {IN_FLIGHT} on their way on each"
    bench.results.beside(f"offset commits on one coordinator, {where}", rates.figures(), less_is_better=False)
    bench.results.beside("processor time of the broker for an offset commit", costs.figures(), less_is_better=True)


@dataclass(slots=True)
class _CommitLoad:
    """A load of OffsetCommit requests."""

    cluster: PeerCluster
    connections: list[Connection]
    commits: list[EncodedRequest]  # an encoded commit for each connection, each of its own group; sent repeatedly

    @classmethod
    def at(cls, cluster: PeerCluster, stack: ExitStack) -> "_CommitLoad":
        """Raise PeerError."""
        make_topic(cluster, COMMITTED_TOPIC)
        connections = [stack.enter_context(connect(cluster.ports[0])) for _ in range(CONNECTIONS)]
        commits = []
        for number, connection in enumerate(connections):
            await_coordinator(connection, f"group-{number}", LIMIT_S)
            commits.append(encoded_commit(connection, f"group-{number}", COMMITTED_TOPIC, 42))
        return cls(cluster, connections, commits)

    def commit(self, at_least: int) -> int:
        """Send commits and return how many were acknowledged. Raise PeerError for a refusal."""
        done, frames_in_flight = 0, [request.frame * IN_FLIGHT for request in self.commits]
        while done < at_least:
            for connection, frames in zip(self.connections, frames_in_flight, strict=True):
                connection.send_bytes(frames)
            for connection, commit in zip(self.connections, self.commits, strict=True):
                for _ in range(IN_FLIGHT):
                    last = connection.receive_frame()
                check_committed(commit.decode(last))
            done += CONNECTIONS * IN_FLIGHT
        return done
