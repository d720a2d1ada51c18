"""DeleteRecords of partitions with several replicas."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from reference_broker.apis.records import k21_delete_records
from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.apis.tests.replicated_world import (
    ReplicatedWorld,
    fetch_partition,
)
from reference_broker.wire.errors import Error, ErrorCode, known_error


@pytest.fixture
def world() -> ReplicatedWorld:
    return ReplicatedWorld(2)


def deletion(world: ReplicatedWorld, offset: int, timeout_ms: int = 1000) -> FakeCall:
    world.broker.now = world.now()
    one = DeleteRecordsPartition(partition_index=i32(0), offset=i64(offset))
    body = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name=TopicName("events"), partitions=(one,)),),
        timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_ms)),
    )
    call = FakeCall(3, "admin", 2)
    k21_delete_records.handle(world.broker, call, body)
    return call


def deleted(call: FakeCall) -> tuple[Error, int]:
    response: Any = call.response
    partition = response.topics[0].partitions[0]
    return known_error(int(partition.error_code)), int(partition.low_watermark)


def test_closed_connection_of_delete_records_leaves_nothing_pending(world: ReplicatedWorld) -> None:
    world.send_produce(acks=1)
    for follower in (2, 3):
        world.follow(follower, 0, -1, [fetch_partition(1)], max_wait_ms=0)
    call = deletion(world, 1, timeout_ms=1 << 30)
    call.hang_up()
    assert world.followers(world.partition).deletions == []


def test_delete_records_completes_when_all_replicas_have_log_start(world: ReplicatedWorld) -> None:
    for _ in range(3):
        world.send_produce(acks=1)
    for follower in (2, 3):
        world.follow(follower, 0, -1, [fetch_partition(3)], max_wait_ms=0)
    call, late = deletion(world, 2), deletion(world, 1, timeout_ms=100)
    assert call.waiting
    world.follow(2, 0, -1, [fetch_partition(3, log_start=2)], max_wait_ms=0)
    world.pass_ms(100)
    assert deleted(late) == (ErrorCode.request_timed_out, 0)
    world.follow(3, 0, -1, [fetch_partition(3, log_start=2)], max_wait_ms=0)
    assert deleted(call) == (ErrorCode.none, 2)
    assert deleted(deletion(world, 4)) == (ErrorCode.offset_out_of_range, -1)


def test_delete_records_of_partition_led_elsewhere_returns_not_leader(world: ReplicatedWorld) -> None:
    call = deletion(world, 0)
    assert deleted(call)[0] == ErrorCode.none if not call.waiting else True
    world.move_leader()
    assert deleted(deletion(world, 0)) == (ErrorCode.not_leader_or_follower, -1)
