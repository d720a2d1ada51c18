"""Apache Kafka's own Java tools on three nodes with replicas, while leaders are killed and come back."""

import threading
from collections.abc import Iterator

import pytest

from bench.peers.cluster import until
from bench.peers.kafka import ToolError
from bench.peers.node import PeerError
from bench.peers.stock_clients import producer_perf
from bench.peers.tests.java_tools import JavaTools
from bench.peers.tests.nodes import NODES, ThreeNodes, three_nodes

pytestmark = [pytest.mark.peer, pytest.mark.timeout(400)]

PARTITIONS = 3
KILLS = 3
EACH = 40
PERF_RECORDS = 300_000
ALL_NODES = set(range(NODES))


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    with three_nodes(tmp_path_factory.mktemp("three")) as running:
        yield running


@pytest.fixture
def tools(nodes: ThreeNodes) -> JavaTools:
    return JavaTools(nodes.bootstrap)


def test_replicas_are_spread_described_and_refused(nodes: ThreeNodes, tools: JavaTools) -> None:
    tools.create_topic("spread", "--partitions", str(PARTITIONS), "--replication-factor", str(NODES))
    nodes.whole("spread", PARTITIONS)
    shown = tools.describe_topic("spread").partitions
    assert {partition.leader for partition in shown.values()} == ALL_NODES
    assert all(set(partition.replicas) == set(partition.isr) == ALL_NODES for partition in shown.values())
    assert all(partition.leader == partition.replicas[0] for partition in shown.values())
    tools.create_topic("by-hand", "--replica-assignment", "2:0:1,1:2:0")
    by_hand = tools.describe_topic("by-hand").partitions
    assert [each.replicas for _, each in sorted(by_hand.items())] == [(2, 0, 1), (1, 2, 0)]
    with pytest.raises(ToolError, match="replication factor"):
        tools.create_topic("too-many", "--replication-factor", str(NODES + 1))
    tools.grow_topic("spread", 5)
    assert all(set(partition.replicas) == ALL_NODES for partition in tools.describe_topic("spread").partitions.values())


def test_in_sync_replicas_shrink_and_grow_with_a_node(nodes: ThreeNodes, tools: JavaTools) -> None:
    nodes.create("isr", PARTITIONS)
    killed = nodes.kill_leader("isr", 0)
    shown = tools.describe_topic("isr").partitions
    assert all(set(partition.isr) == ALL_NODES - {killed} for partition in shown.values())
    assert all(partition.leader in partition.isr for partition in shown.values())
    nodes.bring_back(killed)
    nodes.whole("isr", PARTITIONS)
    shown = tools.describe_topic("isr").partitions
    assert all(set(partition.isr) == ALL_NODES for partition in shown.values())


def test_eligible_leaders_and_the_last_known_one_are_shown(nodes: ThreeNodes, tools: JavaTools) -> None:
    """With a minimum of all three replicas, who is gone stays eligible (KIP-966)."""
    nodes.create("eligible", PARTITIONS, {"min.insync.replicas": str(NODES)})
    tools.create_topic("alone", "--replica-assignment", "0,1,2")
    killed = nodes.kill_leader("eligible", 0)
    shown = tools.describe_topic("eligible").partitions
    assert all(partition.elr == (killed,) and partition.last_known_elr == () for partition in shown.values())
    assert all(set(partition.isr) == ALL_NODES - {killed} for partition in shown.values())
    alone = tools.describe_topic("alone").partitions[killed]
    assert alone.leader == -1
    assert alone.isr == ()
    assert alone.elr == (killed,)
    assert alone.last_known_elr == (killed,)
    nodes.bring_back(killed)
    nodes.whole("eligible", PARTITIONS)
    assert all(partition.elr == () for partition in tools.describe_topic("eligible").partitions.values())
    until(lambda: tools.describe_topic("alone").partitions[killed].leader == killed, 60, "the only replica leads again")
    alone = tools.describe_topic("alone").partitions[killed]
    assert (alone.isr, alone.elr, alone.last_known_elr) == ((killed,), (), ())


def test_console_tools_lose_nothing_when_leaders_are_killed(nodes: ThreeNodes, tools: JavaTools) -> None:
    """Written by key-less batches between kills, read by partition: each partition's records in the order sent."""
    nodes.create("console", PARTITIONS)
    sent: list[str] = []
    for number in range(KILLS):
        killed = nodes.kill_leader("console", number % PARTITIONS)
        values = [f"{number}-{index:04d}" for index in range(EACH)]
        tools.produce("console", values)
        sent += values
        nodes.bring_back(killed)
        nodes.whole("console", PARTITIONS)
    ends = tools.offsets("console", "latest")
    read: list[str] = []
    for partition, end in sorted(ends.items()):
        records = tools.consume("console", partition, "earliest", "--max-messages", str(end)) if end else []
        assert [record.offset for record in records] == list(range(end))
        assert [record.value for record in records] == sorted(record.value for record in records)
        read += [record.value for record in records]
    assert sorted(read) == sorted(sent)


def test_consumer_follows_the_leader(nodes: ThreeNodes, tools: JavaTools) -> None:
    nodes.create("follow", 1)
    tools.produce("follow", ["before"])
    with tools.consuming("follow", 0, "earliest") as consumer:
        assert consumer.next_value() == "before"
        for value in ("first", "second"):
            killed = nodes.kill_leader("follow", 0)
            tools.produce("follow", [value])
            assert consumer.next_value() == value
            nodes.bring_back(killed)
            nodes.whole("follow", 1)


def test_perf_test_ends_with_every_record_once_through_a_kill(nodes: ThreeNodes, tools: JavaTools) -> None:
    nodes.create("perf", PARTITIONS)
    failures: list[PeerError] = []

    def load() -> None:
        try:
            producer_perf(nodes.bootstrap, "perf", PERF_RECORDS, 100)
        except PeerError as failure:
            failures.append(failure)

    thread = threading.Thread(target=load)
    thread.start()
    until(lambda: tools.offsets("perf", "latest").get(0, 0) > 0, 60, "the load's first record")
    killed = nodes.kill_leader("perf", 0)
    assert thread.is_alive(), "the load ended before the leader was killed"
    nodes.bring_back(killed)
    thread.join(200)
    assert not failures
    nodes.whole("perf", PARTITIONS)
    assert sum(tools.offsets("perf", "latest").values()) == PERF_RECORDS
