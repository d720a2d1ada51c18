"""WriteTxnMarkers and DescribeProducers of a node that leads replicated partitions."""

from typing import Any

import pytest
from kio.schema.describe_producers.v0.request import DescribeProducersRequest, TopicRequest
from kio.schema.describe_producers.v0.response import PartitionResponse
from kio.schema.types import ProducerId, TopicName
from kio.schema.write_txn_markers.v2.request import WritableTxnMarker, WritableTxnMarkerTopic, WriteTxnMarkersRequest
from kio.static.primitive import i8, i16, i32

from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.apis.tests.replicated_world import ReplicatedWorld
from reference_broker.apis.transactions import k27_write_txn_markers, k61_describe_producers
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE
from reference_broker.records.record import Record, build
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.wire.errors import Error, ErrorCode

OK, UNKNOWN = ErrorCode.none, ErrorCode.unknown_topic_or_partition


def marker(
    *partitions: int, producer: int = 7, epoch: int = 0, coordinator: int = 0, version: int = 0, topic: str = "events"
) -> WritableTxnMarker:
    return WritableTxnMarker(
        producer_id=ProducerId(producer),
        producer_epoch=i16(epoch),
        transaction_result=True,
        topics=(WritableTxnMarkerTopic(name=TopicName(topic), partition_indexes=tuple(map(i32, partitions))),),
        coordinator_epoch=i32(coordinator),
        transaction_version=i8(version),
    )


def write(world: ReplicatedWorld, *markers: WritableTxnMarker) -> FakeCall:
    call = FakeCall(9, "coordinator", 2)
    response = k27_write_txn_markers.handle(world.broker, call, WriteTxnMarkersRequest(markers=markers))
    if response is not None:
        call.respond(response)
    return call


def replicate(world: ReplicatedWorld) -> None:
    for partition in world.led:
        for follower in (2, 3):
            world.fetch(follower, partition, partition.log.log_end_offset)


def errors_of(call: FakeCall) -> dict[tuple[int, str, int], Error]:
    response: Any = call.response
    return {
        (int(each.producer_id), topic.name, int(partition.partition_index)): partition.error_code
        for each in response.markers
        for topic in each.topics
        for partition in topic.partitions
    }


def open_transaction(world: ReplicatedWorld, index: int = 0, producer: int = 7, epoch: int = 0) -> None:
    records = [Record(timestamp_ms=START_MS, key=None, value=b"v")] * 3
    batch = build(records, producer_id=producer, producer_epoch=epoch, base_sequence=0, is_transactional=True)
    world.led[index].log.append(world.now(), batch, 0)


def test_response_is_sent_when_all_markers_are_replicated() -> None:
    world = ReplicatedWorld(partitions=2)
    call = write(world, marker(0), marker(1, producer=8))
    world.fetch(2, world.led[0], 1)
    world.fetch(3, world.led[0], 1)
    assert not call.closed
    replicate(world)
    assert errors_of(call) == {(7, "events", 0): OK, (8, "events", 1): OK}


def test_each_partition_of_each_marker_has_error() -> None:
    world = ReplicatedWorld(partitions=2)
    call = write(world, marker(0, 5), marker(1, 0, producer=8), marker(0, topic="nowhere"))
    replicate(world)
    assert errors_of(call) == {
        (7, "events", 0): OK,
        (7, "events", 5): UNKNOWN,
        (7, "nowhere", 0): UNKNOWN,
        (8, "events", 1): OK,
        (8, "events", 0): OK,
    }
    response: Any = call.response
    assert [int(each.producer_id) for each in response.markers] == [7, 8]


def test_rejected_marker_gets_response_at_once() -> None:
    world = ReplicatedWorld()
    assert errors_of(write(world, marker(5))) == {(7, "events", 5): UNKNOWN}


def test_request_without_markers_returns_empty_response() -> None:
    world = ReplicatedWorld()
    assert errors_of(write(world)) == {}
    assert errors_of(write(world, marker(), marker(5, producer=8))) == {(8, "events", 5): UNKNOWN}


def test_marker_without_partitions_does_not_block_response() -> None:
    """In Kafka such a marker beside one that must be replicated leaves the request without a response."""
    world = ReplicatedWorld()
    call = write(world, marker(0), marker(producer=8))
    replicate(world)
    assert errors_of(call) == {(7, "events", 0): OK}


def test_stale_coordinator_epoch_is_fenced() -> None:
    world = ReplicatedWorld()
    write(world, marker(0, coordinator=3))
    assert errors_of(write(world, marker(0, coordinator=2))) == {
        (7, "events", 0): ErrorCode.transaction_coordinator_fenced
    }
    assert world.partition.log.log_end_offset == 1


@pytest.mark.parametrize(("version", "error"), [(0, OK), (1, OK), (2, ErrorCode.invalid_producer_epoch)])
def test_transaction_version_decides_epoch_bump(version: int, error: Error) -> None:
    world = ReplicatedWorld()
    open_transaction(world, epoch=4)
    call = write(world, marker(0, epoch=4, version=version))
    replicate(world)
    assert errors_of(call) == {(7, "events", 0): error}


def test_many_markers_are_written_in_slices() -> None:
    world = ReplicatedWorld()
    many = LOOKUP_US_PER_SLICE // 50
    call = write(world, *[marker(0, producer=number) for number in range(many)])
    assert 0 < world.partition.log.log_end_offset < many
    world.pass_ms(0)
    assert world.partition.log.log_end_offset == many
    replicate(world)
    world.pass_ms(0)
    assert len(errors_of(call)) == many


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
    write(world, marker(0, producer=8, epoch=2, coordinator=6))
    open_transaction(world, producer=7, epoch=1)
    states = describe(world)
    assert states.error_code == OK
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
    world.elsewhere()
    assert describe(world).error_code is ErrorCode.not_leader_or_follower
    world.broker.partitions.follow("events", world.partition.topic_id, 0, world.partition.log, 2, 1)
    states = describe(world)
    assert [int(producer.current_txn_start_offset) for producer in states.active_producers] == [0]


def test_describe_producers_of_unknown_partition_returns_error() -> None:
    world = ReplicatedWorld()
    for topic, index in (("events", 9), ("nowhere", 0)):
        states = describe(world, topic, index)
        assert (states.error_code, states.active_producers) == (UNKNOWN, ())
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
