"""OffsetForLeaderEpoch on a real log."""

from typing import Any

import pytest
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32

from reference_broker.apis.records import k23_offset_for_leader_epoch
from reference_broker.apis.tests.fetch_world import FakeCall, FetchWorld, real_log, real_records
from reference_broker.wire.errors import ErrorCode


@pytest.fixture
def world() -> FetchWorld:
    """Epoch 1: offsets 0-1, epoch 4: offset 2."""
    world = FetchWorld(log_of=real_log)
    (partition,) = world.create("a")
    partition.log.append(world.broker.now, real_records([1_000, 1_000]), 1)
    partition.log.append(world.broker.now, real_records([1_000]), 4)
    partition.leader_epoch = 4
    return world


def end_offset(
    world: FetchWorld, epoch: int, current: int = -1, index: int = 0, topic: str = "a"
) -> tuple[int, int, int]:
    wanted = OffsetForLeaderPartition(partition=i32(index), current_leader_epoch=i32(current), leader_epoch=i32(epoch))
    request = OffsetForLeaderEpochRequest(topics=(OffsetForLeaderTopic(topic=TopicName(topic), partitions=(wanted,)),))
    call = FakeCall(1, "c", 4)
    k23_offset_for_leader_epoch.handle(world.broker, call, request)
    response: Any = call.response
    (partition,) = response.topics[0].partitions
    assert (response.topics[0].topic, partition.partition) == (topic, index)
    return (partition.error_code, partition.leader_epoch, partition.end_offset)


@pytest.mark.parametrize(
    ("epoch", "expected"), [(1, (1, 2)), (2, (1, 2)), (3, (1, 2)), (4, (4, 3)), (5, (-1, -1)), (-1, (-1, -1))]
)
def test_epoch_ends_where_next_one_starts(world: FetchWorld, epoch: int, expected: tuple[int, int]) -> None:
    assert end_offset(world, epoch) == (0, *expected)


@pytest.mark.parametrize(
    ("current", "error"), [(4, ErrorCode.none), (3, ErrorCode.fenced_leader_epoch), (5, ErrorCode.unknown_leader_epoch)]
)
def test_current_leader_epoch_is_checked(world: FetchWorld, current: int, error: int) -> None:
    assert end_offset(world, 1, current=current)[0] == error


@pytest.mark.parametrize(
    ("current", "error"),
    [
        (-1, ErrorCode.not_leader_or_follower),
        (3, ErrorCode.not_leader_or_follower),
        (2, ErrorCode.fenced_leader_epoch),
        (4, ErrorCode.unknown_leader_epoch),
    ],
)
def test_follower_checks_leader_epoch_before_not_leader(world: FetchWorld, current: int, error: int) -> None:
    world.publish("b", 1, b"b".rjust(16, b"#"), leader=8, replicas=(7, 8), epoch=3)
    assert end_offset(world, 1, current=current, topic="b")[0] == error


def test_unknown_or_unled_partition_returns_error(world: FetchWorld) -> None:
    world.create("elsewhere", led_here=False)
    assert end_offset(world, 1, topic="x") == (ErrorCode.unknown_topic_or_partition, -1, -1)
    assert end_offset(world, 1, index=3) == (ErrorCode.unknown_topic_or_partition, -1, -1)
    assert end_offset(world, 1, topic="elsewhere") == (ErrorCode.not_leader_or_follower, -1, -1)
