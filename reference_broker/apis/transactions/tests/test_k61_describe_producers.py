"""DescribeProducers of a node that leads replicated partitions."""

from typing import Any

import pytest
from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.describe_producers.v0.response import PartitionResponse
from kio.schema.types import TopicName
from kio.static.primitive import i32

from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.apis.tests.replicated_world import ReplicatedWorld
from reference_broker.apis.transactions import k61_describe_producers
from reference_broker.apis.transactions.tests.marker_requests import (
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
    marker,
    open_transaction,
    write_markers,
)
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.wire.errors import ErrorCode


def describe(world: ReplicatedWorld, topic: str = "events", index: int = 0) -> PartitionResponse:
    call = FakeCall(9, "admin", 0)
    topic_request = TopicRequest(name=TopicName(topic), partition_indexes=(i32(index),))
    k61_describe_producers.handle(world.broker, call, DescribeProducersRequest(topics=(topic_request,)))
    if not call.responses:
        world.pass_ms(0)
    response: Any = call.response
    assert response.topics[0].name == topic
    partition: PartitionResponse = response.topics[0].partitions[0]
    assert partition.partition_index == index
    return partition


@pytest.mark.clause("X-12")
def test_describe_producers_returns_open_transactions() -> None:
    world = ReplicatedWorld()
    write_markers(world, marker(0, producer=8, epoch=2, coordinator=6))
    open_transaction(world, producer=7, epoch=1)
    states = describe(world)
    assert states.error_code == NONE
    assert [
        (
            int(producer.producer_id),
            int(producer.producer_epoch),
            int(producer.last_sequence),
            int(producer.last_timestamp),
            int(producer.coordinator_epoch),
            int(producer.current_txn_start_offset),
        )
        for producer in states.active_producers
    ] == [(8, 2, -1, START_MS, 6, -1), (7, 1, 2, START_MS, -1, 1)]


def test_describe_producers_on_follower() -> None:
    world = ReplicatedWorld()
    open_transaction(world)
    world.move_leader()
    assert describe(world).error_code is ErrorCode.not_leader_or_follower
    world.broker.partitions.follow("events", world.partition.topic_id, 0, world.partition.log, 2, 1)
    states = describe(world)
    assert [int(producer.current_txn_start_offset) for producer in states.active_producers] == [0]


def test_describe_producers_of_unknown_partition_returns_error() -> None:
    world = ReplicatedWorld()
    for topic, index in (("events", 9), ("nowhere", 0)):
        states = describe(world, topic, index)
        assert (states.error_code, states.active_producers) == (UNKNOWN_TOPIC_OR_PARTITION, ())
    states = describe(world, "a/b")
    assert states.error_code is ErrorCode.invalid_topic_exception
    assert "a/b" in (states.error_message or "")


def test_describe_producers_with_many_producers_takes_slices() -> None:
    world = ReplicatedWorld()
    for producer in range(LOOKUP_US_PER_SLICE // k61_describe_producers.UNITS_PER_PRODUCER + 1):
        open_transaction(world, producer=producer)
    call = FakeCall(9, "admin", 0)
    topic_request = TopicRequest(name=TopicName("events"), partition_indexes=(i32(0),))
    k61_describe_producers.handle(world.broker, call, DescribeProducersRequest(topics=(topic_request,)))
    assert not call.responses
    world.pass_ms(0)
    response: Any = call.response
    assert len(response.topics[0].partitions[0].active_producers) == len(world.partition.log.producers.by_id)
