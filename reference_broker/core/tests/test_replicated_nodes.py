"""Three whole nodes: replication through failovers, divergences and restarts."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.core.tests.node_world import delete_request
from reference_broker.ports.node_ports import Channel
from reference_broker.quorum.node_files import CLEAN_SHUTDOWN_FILE
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

REVISIONS = ("final", "first")


def cluster(revision: str = "final", **config: str) -> ClusterWorld:
    world = ClusterWorld(3, fetch_session_revision=revision, replica_lag_time_max_ms="2000", **config)
    world.ready()
    return world


def ends(world: ClusterWorld, topic: str = "t") -> list[tuple[int, int]]:
    logs = [world.log(number, topic) for number in world.members]
    return [(log.log_end_offset, log.high_watermark) for log in logs]


def is_known_leader(world: ClusterWorld, other_than: int) -> bool:
    """Return whether a new leader knows its role."""
    leader = world.leader("t")
    return leader not in (-1, other_than) and ("t", 0) in world.members[leader].node.broker.partitions.by_name


def isolate(world: ClusterWorld, number: int) -> None:
    for member in world.members:
        if member != number:
            world.sever(number, member)


@pytest.mark.parametrize("revision", REVISIONS)
def test_acknowledged_records_are_on_all_replicas(revision: str) -> None:
    world = cluster(revision)
    world.create("t", min_insync_replicas="2")
    for number in range(5):
        response = world.produce("t", b"value %d" % number)
        assert (response.error_code, response.base_offset) == (ErrorCode.none, number)
        caught_up = [n for n in world.members if world.log(n, "t").log_end_offset == number + 1]
        assert len(caught_up) == 3
    world.run(600)
    assert ends(world) == [(5, 5)] * 3
    assert len({world.bytes_of(number, "t") for number in world.members}) == 1
    fetches = [send for _, send in world.sends if send.channel is Channel.REPLICA and send.api_key == ApiKey.FETCH]
    assert {send.api_version for send in fetches} == {18 if revision == "final" else 1002}


@pytest.mark.parametrize("revision", REVISIONS)
def test_records_survive_leader_and_it_catches_up_after_restart(revision: str) -> None:
    world = cluster(revision)
    world.create("t")
    for _ in range(3):
        world.produce("t")
    dead = world.leader("t")
    world.kill(dead)
    world.run_until(lambda: is_known_leader(world, dead))
    assert world.produce("t", b"after").base_offset == 3
    world.start(dead)
    world.run_until(lambda: len(world.state("t").isr) == 3)
    world.run(600)
    assert ends(world) == [(4, 4)] * 3
    assert len({world.bytes_of(number, "t") for number in world.members}) == 1
    assert not world.notes("truncated_below_high_watermark")


@pytest.mark.parametrize("revision", REVISIONS)
def test_acks_all_after_failover_does_not_wait_for_long_poll(revision: str) -> None:
    """The others lead partitions, too, so that each has a parked fetch of the other when it becomes a leader."""
    world = cluster(revision)
    world.create("t", partitions=12, min_insync_replicas="2")
    world.run(3_000)
    world.produce("t")
    world.run(250)
    dead = world.leader("t")
    world.kill(dead)
    world.run_until(lambda: is_known_leader(world, dead))
    known_us = world.mono_us
    assert world.produce("t").error_code == ErrorCode.none
    assert world.mono_us - known_us < 10_000


@pytest.mark.parametrize("revision", REVISIONS)
def test_isolated_leader_truncates_unreplicated_records(revision: str) -> None:
    world = cluster(revision)
    world.create("t")
    for _ in range(3):
        world.produce("t")
    old = world.leader("t")
    isolate(world, old)
    for number in range(4):
        world.produce_at(old, "t", b"lost %d" % number, acks=1)
    world.run_until(lambda: is_known_leader(world, old))
    assert [world.produce("t", b"kept").base_offset for _ in range(2)] == [3, 4]
    world.heal()
    world.run_until(lambda: len(world.state("t").isr) == 3)
    world.run(600)
    assert ends(world) == [(5, 5)] * 3
    assert len({world.bytes_of(number, "t") for number in world.members}) == 1
    assert world.notes("truncated") == [{"partition": "t-0", "offset": 3}]
    assert not world.notes("truncated_below_high_watermark")


def test_follower_below_leaders_log_start_restarts_there() -> None:
    world = cluster()
    world.create("t", segment_bytes="100")
    world.produce("t")
    leader = world.leader("t")
    away = next(number for number in world.members if number not in (leader, world.controller))
    world.kill(away)
    world.run_until(lambda: away not in world.state("t").isr)
    for _ in range(6):
        world.produce("t")
    one = DeleteRecordsPartition(partition_index=i32(0), offset=i64(5))
    topic = DeleteRecordsTopic(name=TopicName("t"), partitions=(one,))
    timeout = i32Timedelta.parse(timedelta(seconds=1))
    world.request(leader, ApiKey.DELETE_RECORDS, 2, DeleteRecordsRequest(topics=(topic,), timeout=timeout))
    world.start(away)
    world.run_until(lambda: len(world.state("t").isr) == 3)
    world.run(600)
    log = world.log(away, "t")
    assert (log.log_start_offset, log.log_end_offset, log.high_watermark) == (5, 7, 7)
    assert world.notes("truncated_fully") == [{"partition": "t-0", "offset": 5}]


def test_idle_fetches_name_no_partitions_and_followers_stay_in_sync() -> None:
    world = cluster()
    world.create("t", partitions=30)
    world.run(2_000)
    world.sends.clear()
    world.run(10_000)
    fetches: list[Any] = [send.body for _, send in world.sends if send.channel is Channel.REPLICA]
    assert 6 * 15 <= len(fetches) <= 6 * 25
    assert not any(body.topics or body.forgotten for body in fetches)
    assert all(len(world.state("t", index).isr) == 3 for index in range(30))


def test_clean_stop_keeps_broker_epoch_for_next_start() -> None:
    world = cluster()
    world.create("t")
    world.produce("t")
    world.run(600)  # A follower gets the high watermark with its next fetch.
    number = next(n for n in world.members if n != world.controller)
    epoch = world.members[number].node.broker.quorum_node.lifecycle.registered_epoch
    world.shut_down(number)
    disk = world.disks[number]
    assert bytes(disk.files[CLEAN_SHUTDOWN_FILE]) == b'{"version":0,"brokerEpoch":%d}\n' % epoch
    assert b"t 0 1\n" in bytes(disk.files["replication-offset-checkpoint"])
    world.start(number)
    world.ready()
    lifecycle = world.members[number].node.broker.quorum_node.lifecycle
    assert lifecycle.previous_broker_epoch == epoch
    assert world.log(number, "t").high_watermark == 1
    assert not disk.exists(CLEAN_SHUTDOWN_FILE)


def test_controlled_shutdown_moves_leadership_without_failed_write() -> None:
    world = cluster()
    world.create("t", min_insync_replicas="2")
    world.produce("t")
    leaving = world.leader("t")
    waiting = world.send_produce("t", b"on its way")
    member = world.members[leaving]
    world._take(member, member.node.shutdown(world.now))
    assert world.replies_of(waiting).error_code in (ErrorCode.none, ErrorCode.not_leader_or_follower)
    world.run_until(lambda: is_known_leader(world, leaving))
    assert world.produce("t").error_code == ErrorCode.none


def test_followed_logs_are_deleted_with_topic() -> None:
    world = cluster()
    world.create("t", partitions=3)
    world.produce("t")
    world.run(600)
    world.request(world.controller, ApiKey.DELETE_TOPICS, 6, delete_request("t"))
    world.run(2000)
    for number, member in world.members.items():
        assert not [path for path in world.disks[number].files if path.startswith("t-")]
        assert member.node.broker.replication.fetchers.followed == 0
