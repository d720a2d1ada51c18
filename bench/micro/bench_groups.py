"""Measures a heartbeat and a commit through the node, and what the check of the metadata epoch adds to a commit."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.micro.node import MemoryNode
from reference_broker.client import group_requests as requests
from reference_broker.client.consumer_protocol import Subscription, encode_subscription
from reference_broker.client.group_requests import DRAFT_VERSION, MemberIdentity
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import OffsetToCommit, commit_errors, commit_request
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

GROUP = "micro"
TOPIC = "t"
VERSIONS = requests.GroupVersions()
COMMITS = {
    "version 9": (VERSIONS.offset_commit, "0"),
    "the draft": (DRAFT_VERSION, "0"),
    "the draft, feature on": (DRAFT_VERSION, "1"),
}


@pytest.fixture
def node() -> MemoryNode:
    return _ready({})


def _ready(config: dict[str, str]) -> MemoryNode:
    """Make a node with a topic and a coordinator that has loaded."""
    node = MemoryNode(config={"group.initial.rebalance.delay.ms": "0", "offsets.topic.num.partitions": "1"} | config)
    node.create_topic(TOPIC, 1)
    body = requests.find_coordinator(GROUP)
    for _ in range(10):
        found = node.call(ApiKey.FIND_COORDINATOR, VERSIONS.find_coordinator, body)
        if isinstance(requests.coordinator_of(found, GROUP), NodeAddress):
            return node
    raise AssertionError("the group has no coordinator")


def _member(node: MemoryNode) -> MemberIdentity:
    """Join a group as its only member."""
    subscription = {"range": encode_subscription(Subscription((TOPIC,)))}
    member_id = ""
    for _ in range(2):
        body = requests.join(MemberIdentity(GROUP, member_id=member_id), subscription, 45_000_000, 45_000_000)
        joined = requests.joined(node.call(ApiKey.JOIN_GROUP, VERSIONS.join_group, body))
        member_id = joined.member_id
    identity = MemberIdentity(GROUP, joined.generation_id, member_id)
    body_of_sync = requests.sync(identity, "range", {member_id: b""})
    response = node.call(ApiKey.SYNC_GROUP, VERSIONS.sync_group, body_of_sync)
    assert requests.error_of(response.error_code) == ErrorCode.none  # type: ignore[attr-defined]
    return identity


@pytest.mark.benchmark(group="groups")
def bench_heartbeat(benchmark: BenchmarkFixture, node: MemoryNode) -> None:
    body = requests.heartbeat(_member(node))
    response = benchmark(node.call, ApiKey.HEARTBEAT, VERSIONS.heartbeat, body)
    assert requests.error_of(response.error_code) == ErrorCode.none


@pytest.mark.benchmark(group="groups")
@pytest.mark.parametrize(("version", "feature"), COMMITS.values(), ids=COMMITS)
def bench_commit(benchmark: BenchmarkFixture, version: int, feature: str) -> None:
    """Measure a member's commit of one partition. It is judged, written and acknowledged."""
    node = _ready({"crucible.bootstrap.metadata.epoch": feature})
    offsets = {TopicPartition(TOPIC, 0): OffsetToCommit(42, metadata_epoch=7)}
    body = commit_request(offsets, _member(node), version)
    response = benchmark(node.call, ApiKey.OFFSET_COMMIT, version, body)
    assert list(commit_errors(response).values()) == [ErrorCode.none]
