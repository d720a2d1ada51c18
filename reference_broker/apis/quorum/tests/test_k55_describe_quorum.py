"""DescribeQuorum: which node responds, and with what."""

from typing import Any

import pytest

from reference_broker.apis.quorum.tests.quorum_api_world import QuorumApiWorld, describe_request
from reference_broker.metadata.identifiers import client_id_of
from reference_broker.ports.node_ports import Channel
from reference_broker.wire.errors import ErrorCode


def only_partition(response: Any) -> Any:
    ((partition,),) = (topic.partitions for topic in response.topics)
    return partition


def replica_fields(replica: Any) -> tuple[int, int, int, int]:
    return (
        replica.replica_id,
        replica.log_end_offset,
        replica.last_fetch_timestamp,
        replica.last_caught_up_timestamp,
    )


@pytest.mark.clause("KRaftClusterTest.testDescribeQuorumRequestToControllers")
def test_leader_describes_quorum() -> None:
    response = QuorumApiWorld(is_leader=True, leader_id=1).describe()
    partition = only_partition(response)
    assert (response.error_code, partition.error_code, partition.error_message) == (
        ErrorCode.none,
        ErrorCode.none,
        None,
    )
    assert (partition.leader_id, partition.leader_epoch, partition.high_watermark) == (1, 6, 44)
    assert [replica_fields(voter) for voter in partition.current_voters] == [
        (1, 50, 9_000, 9_000),
        (2, 45, 8_000, 7_000),
        (3, -1, -1, -1),
    ]
    assert [replica_fields(observer) for observer in partition.observers] == [(7, 50, 8_500, 8_400)]
    assert [(node.node_id, node.listeners[0].host, node.listeners[0].port) for node in response.nodes] == [
        (1, "h1", 9001),
        (2, "h2", 9002),
    ]


@pytest.mark.clause("KRaftClusterTest.testDescribeQuorumRequestToBrokers")
@pytest.mark.parametrize(
    "client_id", ["admin", "node-2", client_id_of(2, bytes(range(16))), client_id_of(9, bytes(16))]
)
def test_other_node_forwards_describe_quorum_to_leader(client_id: str) -> None:
    """Also for a client with a node's client ID, but not that of any registered node."""
    world = QuorumApiWorld(leader_id=3)
    assert world.describe(client_id=client_id) is None
    (request,) = world.sent
    assert request.peer == 3
    assert request.channel == Channel.CONTROLLER
    assert request.api_key == 55
    assert request.api_version == 2
    assert request.body == describe_request(("__cluster_metadata", [0]))
    assert request.timeout_ms == 2000
    assert world.call.responses == []
    request.replied("the leader's response")
    assert world.call.responses == ["the leader's response"]


def test_failed_forwarding_returns_retriable_error() -> None:
    world = QuorumApiWorld(leader_id=3)
    world.describe()
    world.sent[0].failed()
    (response,) = world.call.responses
    assert only_partition(response).error_code == ErrorCode.not_leader_or_follower


@pytest.mark.parametrize(("leader_id", "client_id"), [(-1, "admin"), (1, "admin"), (3, client_id_of(2, bytes(16)))])
def test_describe_quorum_without_leader_returns_not_leader(leader_id: int, client_id: str) -> None:
    """No leader known; itself until a moment ago; a request of another node that takes this one for the leader."""
    world = QuorumApiWorld(leader_id=leader_id)
    response = world.describe(client_id=client_id)
    assert only_partition(response).error_code == ErrorCode.not_leader_or_follower
    assert world.sent == []


@pytest.mark.parametrize(
    "topics",
    [
        [("t", [0])],
        [("__cluster_metadata", [1])],
        [("__cluster_metadata", [0, 0])],
        [("__cluster_metadata", [0]), ("t", [0])],
        [("__cluster_metadata", [])],
        [],
    ],
)
@pytest.mark.parametrize("is_leader", [True, False])
def test_describe_quorum_of_other_partition_returns_error(topics: list[tuple[str, list[int]]], is_leader: bool) -> None:
    response = QuorumApiWorld(is_leader=is_leader, leader_id=1 if is_leader else 3).describe(describe_request(*topics))
    named = [
        (topic.topic_name, [partition.partition_index for partition in topic.partitions]) for topic in response.topics
    ]
    assert named == topics
    codes = [partition.error_code for topic in response.topics for partition in topic.partitions]
    assert set(codes) <= {ErrorCode.unknown_topic_or_partition}
