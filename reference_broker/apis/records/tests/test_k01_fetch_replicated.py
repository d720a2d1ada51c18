"""Fetch and ListOffsets of partitions with several replicas, as their leader serves them."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from reference_broker.apis.records import k02_list_offsets
from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.apis.tests.replicated_world import (
    ReplicatedWorld,
    fetch_partition,
    partitions_of,
)
from reference_broker.metadata.image import PartitionImage
from reference_broker.records.batch import iterate
from reference_broker.replication.tests.leader_world import LAG_MS, broker_epoch_of
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.wire.errors import Error, ErrorCode, known_error
from reference_broker.wire.fetch import EpochEndOffset

LATEST, EARLIEST = -1, -2


@pytest.fixture
def world() -> ReplicatedWorld:
    return ReplicatedWorld(2)


def offsets(world: ReplicatedWorld, timestamp: int, *, version: int = 10, replica: int = -1) -> tuple[Error, int]:
    one = ListOffsetsPartition(partition_index=i32(0), current_leader_epoch=i32(-1), timestamp=i64(timestamp))
    body = ListOffsetsRequest(
        replica_id=BrokerId(replica),
        isolation_level=i8(0),
        timeout=i32Timedelta.parse(timedelta(0)),
        topics=(ListOffsetsTopic(name=TopicName("events"), partitions=(one,)),),
    )
    call = FakeCall(1, "c", version)
    k02_list_offsets.handle(world.broker, call, body)
    response: Any = call.response
    partition = response.topics[0].partitions[0]
    return known_error(int(partition.error_code)), int(partition.offset)


@pytest.mark.clause("F-22")
def test_follower_reads_uncommitted_records_and_consumer_waits(world: ReplicatedWorld) -> None:
    sessions = {each: world.open_follower_session(each) for each in (2, 3)}
    consumer = world.consume(0)
    follower = world.follow(2, sessions[2], 1)
    world.send_produce()
    assert consumer.waiting
    data = partitions_of(follower.response)[0]
    assert (data.high_watermark, len(list(iterate(data.records or b"")))) == (0, 1)
    world.follow(2, sessions[2], 2, [fetch_partition(1)])
    assert consumer.waiting
    world.follow(3, sessions[3], 1, [fetch_partition(1)])
    assert partitions_of(consumer.response)[0].high_watermark == 1
    assert len(partitions_of(consumer.response)[0].records or b"") > 0


def test_high_watermark_is_sent_to_follower_without_completing_its_fetch(world: ReplicatedWorld) -> None:
    sessions = {each: world.open_follower_session(each) for each in (2, 3)}
    world.send_produce()
    first = world.follow(2, sessions[2], 1, [fetch_partition(1)])
    assert first.waiting
    second = world.follow(3, sessions[3], 1, [fetch_partition(1)])
    assert (world.partition.log.high_watermark, first.waiting, second.waiting) == (1, True, True)
    world.pass_ms(500)
    assert [partitions_of(call.response)[0].high_watermark for call in (first, second)] == [1, 1]
    third = world.follow(2, sessions[2], 2, max_wait_ms=0)
    assert partitions_of(third.response) == {}


@pytest.mark.clause("F-22")
@pytest.mark.parametrize("is_closed", [False, True])
def test_followers_with_idle_sessions_stay_in_sync(world: ReplicatedWorld, *, is_closed: bool) -> None:
    """Scenario 31, at the leader: idle partitions, then one append, all through sessions. The requests of a session
    that is evicted count, too."""
    world.leaders.start()
    sessions = {each: world.open_follower_session(each, partitions=2) for each in (2, 3)}
    for epoch in range(1, 3 * LAG_MS // 500):
        for follower, session_id in sessions.items():
            world.follow(follower, session_id, epoch)
        world.pass_ms(500)
    if is_closed:
        world.broker.fetch_sessions.close(sessions[2], "evicted")
    world.send_produce(acks=1)
    world.pass_ms(LAG_MS - 1000)
    assert not world.alter_requests
    world.pass_ms(LAG_MS)
    assert world.proposals() == [(0, (1,), 0)]


def test_parked_follower_fetch_completes_when_leader_takes_partition_up(world: ReplicatedWorld) -> None:
    session_id = world.open_follower_session(2)
    world.pass_ms(2000)
    call = world.follow(2, session_id, 1)
    world.pass_ms(400)
    assert call.waiting
    world.state(world.led[1], (1, 2, 3), leader_epoch=2, partition_epoch=1)
    world.pass_ms(1)
    assert call.response.error_code == ErrorCode.none


def test_follower_fetches_wait_shortly_after_leader_takes_partition_up(world: ReplicatedWorld) -> None:
    session_id = world.open_follower_session(2)
    world.pass_ms(2000)
    world.state(world.led[1], (1, 2, 3), leader_epoch=2, partition_epoch=1)
    for epoch, waits_ms in enumerate([20] * 50 + [500], 1):
        since_us = world.mono_us
        call = world.follow(2, session_id, epoch)
        while call.waiting:
            world.pass_ms(1)
        assert world.mono_us - since_us == waits_ms * 1000


def test_other_fetches_stay_parked_when_leader_takes_partition_up(world: ReplicatedWorld) -> None:
    session_id = world.open_follower_session(2)
    world.pass_ms(2000)
    calls = [world.follow(2, session_id, 1), world.consume(0)]
    world.leaders.leads(world.led[1], PartitionImage((1, 3), (1, 3), 1, 2, 1))
    world.pass_ms(499)
    assert [call.waiting for call in calls] == [True, True]
    world.pass_ms(1)
    assert not any(call.waiting for call in calls)


@pytest.mark.clause("F-22", "ReplicaManagerTest.testFollowerStateNotUpdatedIfLogReadFails")
def test_diverging_or_rejected_fetch_records_no_progress(world: ReplicatedWorld) -> None:
    world.send_produce(acks=1)
    world.state(world.partition, (1, 2, 3), leader_epoch=2, partition_epoch=1)
    world.send_produce(acks=1)
    for follower in (2, 3):
        diverging = world.follow(follower, 0, -1, [fetch_partition(2, leader_epoch=2, last_epoch=1)], max_wait_ms=0)
        assert partitions_of(diverging.response)[0].diverging_epoch == EpochEndOffset(0, 1)
        for refused in (
            fetch_partition(2, leader_epoch=1),
            fetch_partition(2, leader_epoch=3),
            fetch_partition(9, leader_epoch=2),
        ):
            assert partitions_of(world.follow(follower, 0, -1, [refused], max_wait_ms=0).response)[0].error_code
    assert world.partition.log.high_watermark == 0


def test_non_replica_and_stale_broker_epoch_are_rejected(world: ReplicatedWorld) -> None:
    """A follower that sends the leader epoch may know of a newer assignment than this leader: it retries."""
    for follower, epoch, leader_epoch, error in (
        (4, -1, 0, ErrorCode.unknown_leader_epoch),
        (4, -1, -1, ErrorCode.not_leader_or_follower),
        (2, broker_epoch_of(2) - 1, 0, ErrorCode.not_leader_or_follower),
    ):
        response = world.follow(
            follower, 0, 0, [fetch_partition(0, leader_epoch=leader_epoch)], broker_epoch=epoch
        ).response
        assert partitions_of(response)[0].error_code == error


@pytest.mark.clause("F-14", "ReplicaManagerTest.testFetchMessagesWhenNotFollowerForOnePartition")
def test_non_replica_of_one_partition_is_served_others(world: ReplicatedWorld) -> None:
    world.send_produce(0, 1, acks=1)
    world.state(world.led[1], (1, 2), leader_epoch=1, partition_epoch=1, replicas=(1, 2))
    response = partitions_of(
        world.follow(3, 0, 0, [fetch_partition(0, 0), fetch_partition(0, 1, leader_epoch=1)]).response
    )
    assert [(index, data.error_code, bool(data.records)) for index, data in response.items()] == [
        (0, ErrorCode.none, True),
        (1, ErrorCode.unknown_leader_epoch, False),
    ]


def test_fetch_that_commits_returns_new_high_watermark(world: ReplicatedWorld) -> None:
    world.send_produce(acks=1)
    world.send_produce(acks=1)
    world.follow(2, 0, -1, [fetch_partition(1)], max_wait_ms=0)
    response = world.follow(3, 0, -1, [fetch_partition(1)], max_wait_ms=0).response
    assert partitions_of(response)[0].high_watermark == 1


@pytest.mark.clause("ReplicaManagerTest.testFetchBeyondHighWatermark")
def test_offset_beyond_high_watermark_waits_and_beyond_log_is_out_of_range(world: ReplicatedWorld) -> None:
    world.send_produce(acks=1)
    within = world.consume(1)
    assert within.waiting
    assert partitions_of(world.consume(2).response)[0].error_code == ErrorCode.offset_out_of_range


def test_new_leader_returns_offset_not_available_until_high_watermark_is_known() -> None:
    """Another leader may have reported a later offset, and the latest offset must not go back (KIP-207)."""
    world = ReplicatedWorld(records=3, leader_epoch=2)
    assert offsets(world, LATEST) == (ErrorCode.offset_not_available, -1)
    assert offsets(world, LATEST, version=4) == (ErrorCode.leader_not_available, -1)
    assert offsets(world, 0) == (ErrorCode.offset_not_available, -1)
    later = START_MS + 1
    assert offsets(world, later) == (ErrorCode.offset_not_available, -1), "the leader before may have had one"
    assert offsets(world, EARLIEST) == (ErrorCode.none, 0)
    assert offsets(world, LATEST, replica=2) == (ErrorCode.none, 3)
    for follower in (2, 3):
        world.follow(follower, 0, -1, [fetch_partition(3, leader_epoch=2)], max_wait_ms=0)
    assert offsets(world, LATEST) == (ErrorCode.none, 3)
    assert offsets(world, later) == (ErrorCode.none, -1)
