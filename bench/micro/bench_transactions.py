"""Measures a transaction without records through the node: a partition is added, the commit is decided, the marker is
written and the end is recorded."""

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.micro.node import MemoryNode
from reference_broker.client import group_requests
from reference_broker.client import transaction_requests as requests
from reference_broker.client.group_requests import GroupVersions
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.transaction_requests import ProducerIdentity
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

ID = "micro"
TOPIC = "t"
INIT_VERSION, ADD_VERSION, END_VERSION = 4, 3, 4
"""The newest before KIP-890. The epoch stays, so that the same requests can be sent again."""


@pytest.fixture
def node() -> MemoryNode:
    """A node with a topic and a coordinator that has loaded."""
    made = MemoryNode(config={"transaction.state.log.num.partitions": "1"})
    made.create_topic(TOPIC, 1)
    body = group_requests.find_coordinator(ID, requests.TRANSACTION_KEY_TYPE)
    for _ in range(10):
        found = made.call(ApiKey.FIND_COORDINATOR, GroupVersions().find_coordinator, body)
        if isinstance(group_requests.coordinator_of(found, ID), NodeAddress):
            return made
    raise AssertionError("the transactional ID has no coordinator")


@pytest.mark.benchmark(group="transactions")
def bench_empty_transaction(benchmark: BenchmarkFixture, node: MemoryNode) -> None:
    init = requests.init_request(ID, 60_000_000, ProducerIdentity())
    owner = requests.initialized(node.call(ApiKey.INIT_PRODUCER_ID, INIT_VERSION, init))
    assert isinstance(owner, ProducerIdentity)
    add = requests.add_partitions_request(ID, owner, [TopicPartition(TOPIC, 0)])
    end = requests.end_request(ID, owner, True)

    def transaction() -> tuple[object, object]:
        return node.call(ApiKey.ADD_PARTITIONS_TO_TXN, ADD_VERSION, add), node.call(ApiKey.END_TXN, END_VERSION, end)

    added, ended = benchmark(transaction)
    assert set(requests.added(added).values()) == {ErrorCode.none}
    assert isinstance(requests.ended(ended), ProducerIdentity)
