"""Consumers that read from followers (KIP-392), with near misses."""

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from chaos.checks.check import FetchCheck
from chaos.checks.replication.tests.replicated import KEY, TOPIC_ID, Cluster, batch, in_order
from chaos.checks.sessions.fetch_model import (
    CompletedFetch,
    PartitionName,
    PendingFetch,
    Session,
    WantedPartition,
    WantedPartitions,
)
from chaos.checks.sessions.fetch_responses import (
    IncrementalExact,
    NoUncommittedRead,
    ReadReplicaEligible,
    StaleLeaderEpochFenced,
)
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import (
    StubBroker,
    StubImages,
    StubLog,
    StubNode,
    broker_image,
    image_of,
    node_partitions,
)
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.replication.leader.replicas import Followers, Replica
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import PartitionData

if TYPE_CHECKING:
    from reference_broker.core.node import Node

NAMED: PartitionName = (TOPIC_ID, 0)
LEADER, FOLLOWER = 0, 1
RACKS = {0: "a", 1: "b", 2: "c"}


def make_node(
    number: int = LEADER, high_watermark: int = 3, isr: tuple[int, ...] = (0, 1, 2), **changes: int
) -> "Node":
    """Return a node with five records. The leader knows that followers have those from ``starts`` to ``ends``."""
    log = StubLog(topic_id=TOPIC_ID, high_watermark=high_watermark, log_end_offset=5, last_stable_offset=3)
    starts, ends = changes.get("starts", 0), changes.get("ends", 5)
    states = {each: Replica(each, 0, log_start_offset=starts, log_end_offset=ends) for each in (1, 2)}
    partition = Partition("t", TOPIC_ID, 0, 4, log.as_log())
    if number == LEADER:
        partition.followers = Followers(LEADER, 4, 0, 5, isr=isr, states=states)
    else:
        partition.followed_leader = LEADER
    brokers = [broker_image(node, rack=rack, fenced=changes.get("fenced") == node) for node, rack in RACKS.items()]
    broker = StubBroker(
        number,
        config=replace(BrokerConfig(), replica_selector_class="" if changes.get("off") else "rack-aware"),
        partitions=node_partitions(partition),
        controller=StubImages(image_of(brokers=brokers)),
    )
    return StubNode(broker).as_node()


def make_fetch(
    node: "Node",
    offset: int = 2,
    rack: str = "b",
    may_follow: bool = True,
    epoch: int = -1,
    **data: Any,
) -> CompletedFetch:
    partitions: WantedPartitions = {NAMED: WantedPartition(offset, 1 << 20, epoch)}
    request = PendingFetch(partitions, 7, 1, True, False, 1 << 20, False, partitions, may_follow, rack)
    line = PartitionData(0, 0, 3, 3, 0, **data)
    return CompletedFetch(node, "c", 7, Session(), request, False, {NAMED: line})


def is_red(check: FetchCheck, *fetches: CompletedFetch) -> bool:
    for fetch in fetches:
        check.fetched(0, fetch)
    return bool(check.violations)


@pytest.mark.parametrize("number", [LEADER, FOLLOWER])
@pytest.mark.parametrize(("last", "red"), [(2, False), (3, True)])
def test_records_may_be_sent_only_below_the_servers_high_watermark(number: int, last: int, red: bool) -> None:
    records = b"".join(batch(each, 4) for each in range(2, last + 1))
    assert is_red(NoUncommittedRead(check_context()), make_fetch(make_node(number), records=records)) is red


@pytest.mark.parametrize(("epoch", "red"), [(4, False), (-1, False), (3, True), (5, True)])
def test_follower_may_serve_only_fetches_of_its_leader_epoch(epoch: int, red: bool) -> None:
    assert is_red(StaleLeaderEpochFenced(check_context()), make_fetch(make_node(FOLLOWER), epoch=epoch)) is red


def eligible(cluster: Cluster) -> ReadReplicaEligible:
    return ReadReplicaEligible(cluster.context)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("changes", "rack", "replica", "red"),
    [
        ({}, "b", 1, False),
        ({}, "b", 2, True),
        ({}, "", 1, True),
        ({}, "a", 1, True),
        ({"off": 1}, "b", 1, True),
        ({"isr": (0, 2)}, "b", 1, True),
        ({"fenced": 1}, "b", 1, True),
        ({"fenced": 2}, "b", 1, False),
    ],
)
def test_which_replicas_may_be_preferred(changes: dict[str, Any], rack: str, replica: int, red: bool) -> None:
    check = eligible(in_order())
    assert is_red(check, make_fetch(make_node(**changes), rack=rack, preferred_read_replica=replica)) is red


def test_preferred_read_replica_together_with_records_is_a_violation() -> None:
    check = eligible(in_order())
    assert is_red(check, make_fetch(make_node(), preferred_read_replica=1, records=batch(2, 4)))


@pytest.mark.parametrize(("offset", "red"), [(2, False), (3, True), (4, True)])
def test_preferred_replica_that_lacks_what_is_committed(offset: int, red: bool) -> None:
    cluster = in_order()
    del cluster.logs[1].held[2:]
    cluster.observe(1)
    check = eligible(cluster)
    assert is_red(check, make_fetch(make_node(), offset=offset, preferred_read_replica=1)) is red


def test_preferred_replica_may_lack_what_is_not_committed() -> None:
    assert not is_red(eligible(in_order()), make_fetch(make_node(), offset=5, preferred_read_replica=1))


def test_preferred_replica_that_lost_its_power_may_lack_anything() -> None:
    cluster = in_order()
    cluster.view.power_lost(1)
    del cluster.logs[1].held[2:]
    cluster.observe(1)
    assert not is_red(eligible(cluster), make_fetch(make_node(), offset=3, preferred_read_replica=1))


@pytest.mark.clause("F-14")
@pytest.mark.parametrize(
    ("changes", "rack", "red"),
    [
        ({}, "b", True),
        ({}, "a", False),
        ({}, "", False),
        ({"off": 1}, "b", False),
        ({"isr": (0, 2)}, "b", False),
        ({"ends": 2}, "b", False),
        ({"starts": 4}, "b", False),
    ],
)
def test_response_that_leaves_out_a_preferred_read_replica(changes: dict[str, Any], rack: str, red: bool) -> None:
    first = make_fetch(make_node(**changes), offset=3, rack=rack, preferred_read_replica=1)
    assert is_red(IncrementalExact(check_context()), first, left_out(first)) is red


@pytest.mark.clause("F-14")
@pytest.mark.parametrize(("may_follow", "explanation"), [(True, "has changed"), (False, "has an error")])
def test_response_of_a_follower_that_leaves_out_what_is_due(may_follow: bool, explanation: str) -> None:
    """An older fetch is not served by a follower, so an error is due."""
    node, check = make_node(FOLLOWER), IncrementalExact(check_context())
    first = make_fetch(node, offset=5, rack="", may_follow=may_follow)
    assert not is_red(check, first)
    node.broker.partitions.followed[KEY].log.high_watermark = 4
    assert is_red(check, left_out(first), left_out(first))
    assert all(explanation in violation.explanation for violation in check.violations)


def left_out(before: CompletedFetch) -> CompletedFetch:
    """The next response of the session, without the partition."""
    return replace(before, data={})
