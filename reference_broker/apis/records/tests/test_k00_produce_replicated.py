"""Produce to partitions with several replicas, as their leader serves it."""

from typing import Any

import pytest

from reference_broker.apis.tests.replicated_world import (
    ReplicatedWorld,
    errors_of,
    fetch_partition,
    idempotent,
    produced_partitions,
)
from reference_broker.log.config import LogConfig
from reference_broker.wire.errors import ErrorCode


def replicate(world: ReplicatedWorld, sessions: dict[int, int], epochs: dict[int, int], offset: int) -> None:
    """Make both followers name partition 0 at ``offset``."""
    for follower, session_id in sessions.items():
        epochs[follower] += 1
        world.follow(follower, session_id, epochs[follower], [fetch_partition(offset)], max_wait_ms=0)


@pytest.fixture
def world() -> ReplicatedWorld:
    return ReplicatedWorld(2)


def test_acks_all_completes_when_both_followers_have_fetched_beyond(world: ReplicatedWorld) -> None:
    sessions, epochs = {each: world.open_follower_session(each) for each in (2, 3)}, {2: 0, 3: 0}
    call = world.send_produce()
    assert call.waiting
    epochs[2] = 1
    world.follow(2, sessions[2], 1, [fetch_partition(1)], max_wait_ms=0)
    assert call.waiting
    world.follow(3, sessions[3], 1, [fetch_partition(1)], max_wait_ms=0)
    assert [(each.error_code, each.base_offset) for each in produced_partitions(call)] == [(ErrorCode.none, 0)]


def test_acks_one_completes_at_once_and_acks_none_gets_no_response(world: ReplicatedWorld) -> None:
    assert errors_of(world.send_produce(acks=1)) == [ErrorCode.none]
    call = world.send_produce(acks=0)
    assert call.responses == [None]
    assert (world.partition.log.log_end_offset, world.partition.log.high_watermark) == (2, 0)


def test_acks_all_below_min_insync_replicas_writes_nothing() -> None:
    world = ReplicatedWorld(min_isr=2, isr=(1,))
    (response,) = produced_partitions(world.send_produce())
    assert (response.error_code, response.log_start_offset) == (ErrorCode.not_enough_replicas, 0)
    assert world.partition.log.log_end_offset == 0
    assert errors_of(world.send_produce(acks=1)) == [ErrorCode.none]


def test_partitions_not_replicated_in_time_get_request_timed_out(world: ReplicatedWorld) -> None:
    for follower in (2, 3):
        world.follow(follower, 0, 0, [fetch_partition(0, 0), fetch_partition(0, 1)], max_wait_ms=0)
    call = world.send_produce(0, 1, timeout_ms=200)
    for follower in (2, 3):
        world.follow(follower, 0, -1, [fetch_partition(1, 1)], max_wait_ms=0)
    world.pass_ms(200)
    assert errors_of(call) == [ErrorCode.request_timed_out, ErrorCode.none]
    assert [each.base_offset for each in produced_partitions(call)] == [0, 0]


@pytest.mark.parametrize("version", [9, 12, 13])
def test_lost_leadership_returns_new_leader_from_version_10(world: ReplicatedWorld, version: int) -> None:
    call = world.send_produce(version=version)
    world.move_leader()
    assert errors_of(call) == [ErrorCode.not_leader_or_follower]
    leader = produced_partitions(call)[0].current_leader
    response: Any = call.response
    if version < 10:
        assert leader is None
    else:
        assert leader is not None
        assert (leader.leader_id, leader.leader_epoch) == (2, 1)
        assert [node_endpoint.node_id for node_endpoint in response.node_endpoints] == [2]


def test_duplicate_batch_is_acknowledged_once_original_is_replicated(world: ReplicatedWorld) -> None:
    sessions, epochs = {each: world.open_follower_session(each) for each in (2, 3)}, {2: 0, 3: 0}
    world.send_produce(data=idempotent(0), timeout_ms=1)
    world.pass_ms(1)
    later = world.send_produce()
    retry = world.send_produce(data=idempotent(0))
    assert retry.waiting
    assert world.partition.log.log_end_offset == 2
    replicate(world, sessions, epochs, 1)
    assert [(each.error_code, each.base_offset) for each in produced_partitions(retry)] == [(ErrorCode.none, 0)]
    assert later.waiting


def test_flush_policy_and_replicas_must_both_be_satisfied(world: ReplicatedWorld) -> None:
    sessions, epochs = {each: world.open_follower_session(each) for each in (2, 3)}, {2: 0, 3: 0}
    world.partition.log.config = LogConfig(flush_messages=1)
    call = world.send_produce()
    replicate(world, sessions, epochs, 1)
    assert call.waiting
    for done in world.syncs:
        done()
    assert errors_of(call) == [ErrorCode.none]


def test_leadership_lost_during_sync_returns_not_leader(world: ReplicatedWorld) -> None:
    """By the time of the sync the log may have the new leader's records and high watermark."""
    world.partition.log.config = LogConfig(flush_messages=1)
    call = world.send_produce()
    world.move_leader()
    world.partition.log.advance_high_watermark(1)
    for done in world.syncs:
        done()
    assert errors_of(call) == [ErrorCode.not_leader_or_follower]


def test_closed_connection_of_producer_leaves_nothing_pending(world: ReplicatedWorld) -> None:
    call, other = world.send_produce(timeout_ms=1 << 30), world.send_produce(timeout_ms=1 << 30)
    call.hang_up()
    assert len(world.followers(world.partition).acks) == 1
    other.hang_up()
    assert world.followers(world.partition).acks == []


@pytest.mark.parametrize("leader_epoch", [-1, 0])
def test_recreated_topic_does_not_inherit_follower_offsets(world: ReplicatedWorld, leader_epoch: int) -> None:
    """A session by names, whose fetches have no leader epochs, still caches its offset in the deleted topic."""
    for _ in range(2):
        world.send_produce(acks=1)
    sessions = {
        each: world.follow(each, 0, 0, [fetch_partition(2, leader_epoch=leader_epoch)], max_wait_ms=0)
        for each in (2, 3)
    }
    world.move_leader()
    again = world.led[0] = world.lead(5, leader_epoch=0)
    again.index = 0
    world.broker.partitions.add(again)
    for _ in range(2):
        world.send_produce(acks=1)
    for follower, joined in sessions.items():
        world.follow(follower, joined.response.session_id, 1, max_wait_ms=0)
    assert again.log.high_watermark == (0 if leader_epoch < 0 else 2)
    for follower, joined in sessions.items():
        world.follow(
            follower, joined.response.session_id, 2, [fetch_partition(2, leader_epoch=leader_epoch)], max_wait_ms=0
        )
    assert again.log.high_watermark == 2


def test_single_replica_completes_without_replication() -> None:
    world = ReplicatedWorld(replicas=(1,), isr=(1,), min_isr=3)
    assert errors_of(world.send_produce()) == [ErrorCode.none]
    assert world.partition.log.high_watermark == 1
