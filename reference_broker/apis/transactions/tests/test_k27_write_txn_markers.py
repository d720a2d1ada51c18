"""WriteTxnMarkers of a node that leads replicated partitions."""

from typing import Any

import pytest

from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.apis.tests.replicated_world import ReplicatedWorld
from reference_broker.apis.transactions.tests.marker_requests import (
    NONE,
    UNKNOWN_TOPIC_OR_PARTITION,
    marker,
    open_transaction,
    write_markers,
)
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE
from reference_broker.wire.errors import Error, ErrorCode


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


def test_response_is_sent_when_all_markers_are_replicated() -> None:
    world = ReplicatedWorld(partitions=2)
    call = write_markers(world, marker(0), marker(1, producer=8))
    world.fetch(2, world.led[0], 1)
    world.fetch(3, world.led[0], 1)
    assert not call.closed
    replicate(world)
    assert errors_of(call) == {(7, "events", 0): NONE, (8, "events", 1): NONE}


def test_each_partition_of_each_marker_has_error() -> None:
    world = ReplicatedWorld(partitions=2)
    call = write_markers(world, marker(0, 5), marker(1, 0, producer=8), marker(0, topic="nowhere"))
    replicate(world)
    assert errors_of(call) == {
        (7, "events", 0): NONE,
        (7, "events", 5): UNKNOWN_TOPIC_OR_PARTITION,
        (7, "nowhere", 0): UNKNOWN_TOPIC_OR_PARTITION,
        (8, "events", 1): NONE,
        (8, "events", 0): NONE,
    }
    response: Any = call.response
    assert [int(each.producer_id) for each in response.markers] == [7, 8]


def test_rejected_marker_gets_response_at_once() -> None:
    world = ReplicatedWorld()
    assert errors_of(write_markers(world, marker(5))) == {(7, "events", 5): UNKNOWN_TOPIC_OR_PARTITION}


def test_request_without_markers_returns_empty_response() -> None:
    world = ReplicatedWorld()
    assert errors_of(write_markers(world)) == {}
    assert errors_of(write_markers(world, marker(), marker(5, producer=8))) == {
        (8, "events", 5): UNKNOWN_TOPIC_OR_PARTITION
    }


def test_marker_without_partitions_does_not_block_response() -> None:
    """In Kafka such a marker beside one that must be replicated leaves the request without a response."""
    world = ReplicatedWorld()
    call = write_markers(world, marker(0), marker(producer=8))
    replicate(world)
    assert errors_of(call) == {(7, "events", 0): NONE}


def test_stale_coordinator_epoch_is_fenced() -> None:
    world = ReplicatedWorld()
    write_markers(world, marker(0, coordinator=3))
    assert errors_of(write_markers(world, marker(0, coordinator=2))) == {
        (7, "events", 0): ErrorCode.transaction_coordinator_fenced
    }
    assert world.partition.log.log_end_offset == 1


@pytest.mark.parametrize(("version", "error"), [(0, NONE), (1, NONE), (2, ErrorCode.invalid_producer_epoch)])
def test_transaction_version_decides_epoch_bump(version: int, error: Error) -> None:
    world = ReplicatedWorld()
    open_transaction(world, epoch=4)
    call = write_markers(world, marker(0, epoch=4, version=version))
    replicate(world)
    assert errors_of(call) == {(7, "events", 0): error}


def test_many_markers_are_written_in_slices() -> None:
    world = ReplicatedWorld()
    many = LOOKUP_US_PER_SLICE // 50
    call = write_markers(world, *[marker(0, producer=number) for number in range(many)])
    assert 0 < world.partition.log.log_end_offset < many
    world.pass_ms(0)
    assert world.partition.log.log_end_offset == many
    replicate(world)
    world.pass_ms(0)
    assert len(errors_of(call)) == many
