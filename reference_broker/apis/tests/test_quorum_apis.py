"""Vote, BeginQuorumEpoch, EndQuorumEpoch and DescribeQuorum: which node responds, and with what."""

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.describe_quorum.v2.request import DescribeQuorumRequest, PartitionData, TopicData

from reference_broker.apis.metadata import k18_api_versions
from reference_broker.apis.quorum import k52_vote, k53_begin_quorum_epoch, k54_end_quorum_epoch
from reference_broker.apis.quorum import k55_describe_quorum as k55
from reference_broker.apis.registry import serves
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.metadata.identifiers import client_id_of
from reference_broker.metadata.image import EMPTY_IMAGE, BrokerImage
from reference_broker.ports.node_ports import Channel
from reference_broker.quorum.values import QuorumDescription, ReplicaDescription
from reference_broker.wire.apis import DRAFTS, VERSIONS, ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import body_class, decode_response, encode_response
from reference_broker.wire.schema import schema_fields

LEADER = ReplicaDescription(1, 50, 9_000, 9_000)
FOLLOWER = ReplicaDescription(2, 45, 8_000, 7_000)
SILENT = ReplicaDescription(3, -1, -1, -1)
OBSERVER = ReplicaDescription(7, 50, 8_500, 8_400)
DESCRIPTION = QuorumDescription(1, 6, 44, (LEADER, FOLLOWER, SILENT), (OBSERVER,))


@dataclass
class Sent:
    peer: int
    channel: Channel
    api_key: int
    api_version: int
    body: object
    timeout_ms: int
    replied: Callable[[object], None]
    failed: Callable[[], None]


@dataclass
class Quorum:
    is_leader: bool = False
    leader_id: int = -1

    def describe(self) -> QuorumDescription:
        assert self.is_leader, "only the leader knows"
        return DESCRIPTION


@dataclass
class Call:
    client_id: str = "admin"
    listener: str = ""
    api_version: int = 2
    responses: list[Any] = field(default_factory=list)

    def respond(self, body: object) -> None:
        self.responses.append(body)

    def run(self, work: Callable[[], object]) -> bool:
        work()
        return True


class QuorumApiWorld:
    def __init__(self, *, is_leader: bool = False, leader_id: int = -1) -> None:
        self.quorum = Quorum(is_leader, leader_id)
        self.sent: list[Sent] = []
        brokers = {each: BrokerImage(each, 1, bytes(16), f"h{each}", 9000 + each, fenced=False) for each in (1, 2, 7)}
        loader = SimpleNamespace(image=SimpleNamespace(brokers=brokers))
        self.broker: Any = SimpleNamespace(
            node_id=1,
            quorum=self.quorum,
            config=BrokerConfig.parse({}),
            loader=loader,
            ports=SimpleNamespace(send=lambda *words: self.sent.append(Sent(*words))),
        )
        self.call = Call()

    def describe(self, body: DescribeQuorumRequest | None = None, client_id: str = "admin") -> Any:
        """Return the immediate response, or None."""
        self.call = Call(client_id)
        response = k55.handle(self.broker, self.call, body or describe_request(("__cluster_metadata", [0])))  # type: ignore[arg-type]
        if response is not None:
            frame = b"".join(encode_response(ApiKey.DESCRIBE_QUORUM, 2, 1, response))
            assert decode_response(ApiKey.DESCRIBE_QUORUM, 2, frame[4:]) == (1, response)
        return response


def describe_request(*topics: tuple[str, list[int]]) -> DescribeQuorumRequest:
    return DescribeQuorumRequest(
        topics=tuple(
            TopicData(topic_name=name, partitions=tuple(PartitionData(partition_index=index) for index in indexes))  # type: ignore[arg-type]
            for name, indexes in topics
        )
    )


def only_partition(response: Any) -> Any:
    ((partition,),) = (topic.partitions for topic in response.topics)
    return partition


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


def replica_fields(replica: Any) -> tuple[int, int, int, int]:
    return (
        replica.replica_id,
        replica.log_end_offset,
        replica.last_fetch_timestamp,
        replica.last_caught_up_timestamp,
    )


@pytest.mark.clause("KRaftClusterTest.testDescribeQuorumRequestToBrokers")
@pytest.mark.parametrize(
    "client_id", ["admin", "node-2", client_id_of(2, bytes(range(16))), client_id_of(9, bytes(16))]
)
def test_other_node_forwards_describe_quorum_to_leader(client_id: str) -> None:
    """Also for a client with a node's client ID, but not that of any registered node."""
    world = QuorumApiWorld(leader_id=3)
    assert world.describe(client_id=client_id) is None
    (request,) = world.sent
    assert (request.peer, request.channel, request.api_key, request.api_version) == (3, Channel.CONTROLLER, 55, 2)
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


@pytest.mark.parametrize(
    ("module", "handler", "key"),
    [
        (k52_vote, "handle_vote", ApiKey.VOTE),
        (k53_begin_quorum_epoch, "handle_begin_quorum_epoch", ApiKey.BEGIN_QUORUM_EPOCH),
        (k54_end_quorum_epoch, "handle_end_quorum_epoch", ApiKey.END_QUORUM_EPOCH),
    ],
)
def test_quorum_request_is_handled_by_quorum(
    monkeypatch: pytest.MonkeyPatch, module: Any, handler: str, key: ApiKey
) -> None:
    world = QuorumApiWorld()
    monkeypatch.setattr(module, handler, lambda *request: request[2](request[:2]))
    request = body_class(key, "request")
    body = request(**{each.name: each.default for each in schema_fields(request)})
    assert module.handle(world.broker, world.call, body) is None
    assert world.call.responses == [(world.quorum, body)]


@pytest.mark.clause("D-3")
def test_drafts_are_announced_as_features_of_nodes_that_serve_them(monkeypatch: pytest.MonkeyPatch) -> None:
    def announced(*keys: ApiKey) -> tuple[dict[str, tuple[int, int]], dict[int, int]]:
        monkeypatch.setattr(k18_api_versions, "SERVED", {key: VERSIONS[key][:2] for key in keys})
        broker: Any = SimpleNamespace(loader=SimpleNamespace(image=EMPTY_IMAGE), config=BrokerConfig.parse({}))
        request = body_class(ApiKey.API_VERSIONS, "request")
        body = request(client_software_name="a", client_software_version="1")
        response: Any = k18_api_versions.handle(broker, Call(api_version=4), body)  # type: ignore[arg-type]
        features = {feature.name: (feature.min_version, feature.max_version) for feature in response.supported_features}
        finalized = {feature.name: feature.max_version_level for feature in response.finalized_features}
        assert finalized == {name: 1 for name in features if name in DRAFTS.values()}, "nothing is left to upgrade"
        return features, {key.api_key: key.max_version for key in response.api_keys}

    levels = {
        "metadata.version": (7, 27),
        "eligible.leader.replicas.version": (0, 1),
        "transaction.version": (0, 2),
        "group.version": (0, 1),
        "kraft.version": (0, 1),
        "crucible.metadata.epoch": (0, 1),
    }
    features, ranges = announced(ApiKey.FETCH_SNAPSHOT, ApiKey.VOTE)
    assert features == {**levels, "crucible.FetchSnapshot.1000": (1, 1)}
    assert ranges == {ApiKey.FETCH_SNAPSHOT: 1, ApiKey.VOTE: 2}
    assert announced(ApiKey.VOTE)[0] == levels
    assert serves(ApiKey.FETCH_SNAPSHOT, 1000)
    assert not any(serves(ApiKey.VOTE, version) for _, version in DRAFTS)
