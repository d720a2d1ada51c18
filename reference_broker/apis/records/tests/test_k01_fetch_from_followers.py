"""Consumers read from a follower (KIP-392): from Fetch 11 on, up to the high watermark that the follower knows."""

import pytest

from reference_broker.apis.tests.fetch_world import FakeCall, FetchWorld, id_of, named, names, partitions_of
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition, LeaderIdAndEpoch, PartitionData

A0 = ("a", 0)
EPOCH = 4
LEADER = 8
VERSIONS = [11, 12, 17]
LARGE = 1 << 20


@pytest.fixture
def world() -> FetchWorld:
    """Node 7 follows partition a-0, which node 8 leads. It has ten records, of which it knows six to be committed."""
    world = FetchWorld()
    world.publish("a", 1, b"a" * 16, leader=LEADER, replicas=(LEADER, 7), epoch=EPOCH)
    log = world.log_of()
    for _ in range(5):
        log.append(2, 100, EPOCH)
    log.high_watermark = 6
    world.partitions.follow("a", b"a" * 16, 0, log, LEADER, EPOCH)
    return world


def followed(world: FetchWorld) -> Partition:
    return world.partitions.followed[b"a" * 16, 0]


def commit(world: FetchWorld, offset: int) -> None:
    """Raise the follower's high watermark."""
    followed(world).log.high_watermark = offset
    followed(world).changed()


def lead(world: FetchWorld) -> Partition:
    """Elect node 7."""
    old = followed(world)
    new = Partition("a", b"a" * 16, 0, EPOCH + 1, old.log)
    world.partitions.add(new)
    world.partitions.unfollow(b"a" * 16, 0)
    return new


def data_of(world: FetchWorld, call: FakeCall, version: int) -> PartitionData:
    [data] = partitions_of(call.response).values()
    assert names(call.response) == [(topic or topic_id, 0) for topic, topic_id in [named("a", _ids(world), version)]]
    return data


def _ids(world: FetchWorld) -> dict[str, bytes]:
    return {"a": id_of(world, "a")}


@pytest.mark.clause("ReplicaManagerTest.testFetchFollowerNotAllowedForOlderClients")
@pytest.mark.parametrize("version", VERSIONS)
def test_consumer_reads_follower_up_to_high_watermark(world: FetchWorld, version: int) -> None:
    data = data_of(world, world.fetch(0, -1, {A0: 2}, version=version), version)
    assert (data.error_code, data.high_watermark, data.log_start_offset) == (ErrorCode.none, 6, 0)
    assert bytes(data.records or b"").count(b"2@4.") > 0
    assert b"4@4." in bytes(data.records or b"")
    assert b"6@4." not in bytes(data.records or b"")


@pytest.mark.clause("ReplicaManagerTest.testFetchFollowerNotAllowedForOlderClients")
@pytest.mark.parametrize("version", [4, 10, 1000])
def test_fetch_version_without_follower_reads_returns_not_leader(world: FetchWorld, version: int) -> None:
    call = world.fetch_first(0, 0, {A0: 2}) if version == 1000 else world.fetch(0, -1, {A0: 2}, version=version)
    assert data_of(world, call, version).error_code == ErrorCode.not_leader_or_follower


@pytest.mark.clause(
    "ReplicaManagerTest.testPreferredReplicaAsFollower",
    "ReplicaManagerTest.testFetchFromFollowerShouldNotRunPreferLeaderSelect",
)
def test_follower_selects_no_preferred_read_replica(world: FetchWorld) -> None:
    world.broker.config.replica_selector_class = "rack-aware"  # type: ignore[misc]
    data = data_of(world, world.fetch(0, -1, {A0: 2}, version=17, rack_id="far"), 17)
    assert data.error_code == ErrorCode.none
    assert data.preferred_read_replica == -1
    assert data.records


def test_fetch_of_other_replica_returns_not_leader(world: FetchWorld) -> None:
    call = world.fetch(0, -1, {A0: 2}, version=17, replica_id=9)
    data = data_of(world, call, 17)
    assert data.error_code == ErrorCode.not_leader_or_follower
    assert data.current_leader == LeaderIdAndEpoch(LEADER, EPOCH)


@pytest.mark.parametrize(
    ("offset", "error"),
    [
        (6, ErrorCode.none),
        (9, ErrorCode.none),
        (10, ErrorCode.none),
        (11, ErrorCode.offset_out_of_range),
        (-1, ErrorCode.offset_out_of_range),
    ],
)
def test_only_offset_outside_log_returns_out_of_range(world: FetchWorld, offset: int, error: int) -> None:
    """A record that is not known to be committed is no error: the consumer waits for it."""
    data = data_of(world, world.fetch(0, -1, {A0: FetchPartition(0, offset, LARGE, EPOCH)}), 12)
    assert (data.error_code, bytes(data.records or b"")) == (error, b"")


@pytest.mark.clause("M-15")
def test_offset_beyond_log_without_leader_epoch_returns_not_leader(
    world: FetchWorld,
) -> None:
    """The fetcher may believe that this node still leads, while it follows with a shorter log after a power loss."""
    assert data_of(world, world.fetch(0, -1, {A0: 11}), 12).error_code == ErrorCode.not_leader_or_follower
    assert data_of(world, world.fetch(0, -1, {A0: 10}), 12).error_code == ErrorCode.none


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (EPOCH, ErrorCode.none),
        (EPOCH - 1, ErrorCode.fenced_leader_epoch),
        (EPOCH + 1, ErrorCode.unknown_leader_epoch),
        (-1, ErrorCode.none),
    ],
)
def test_follower_checks_leader_epoch(world: FetchWorld, epoch: int, error: int) -> None:
    data = data_of(world, world.fetch(0, -1, {A0: FetchPartition(0, 2, LARGE, epoch)}, version=17), 17)
    assert data.error_code == error
    is_fenced = error == ErrorCode.fenced_leader_epoch
    assert data.current_leader == (LeaderIdAndEpoch(LEADER, EPOCH) if is_fenced else None)


@pytest.mark.clause("FetchFromFollowerIntegrationTest.testFollowerCompleteDelayedFetchesOnReplication")
def test_parked_fetch_completes_when_high_watermark_rises(world: FetchWorld) -> None:
    call = world.fetch(0, -1, {A0: 6}, max_wait_ms=500)
    world.log_of().append(2, 100, EPOCH)
    followed(world).changed()
    assert call.waiting
    commit(world, 8)
    assert b"6@4." in bytes(data_of(world, call, 12).records or b"")


@pytest.mark.parametrize("version", VERSIONS)
def test_session_sends_new_high_watermark(world: FetchWorld, version: int) -> None:
    session_id = world.open_session({A0: 6}, version=version)
    assert names(world.fetch(session_id, 1, version=version).response) == []
    commit(world, 8)
    data = data_of(world, world.fetch(session_id, 2, version=version), version)
    assert (data.high_watermark, bool(data.records)) == (8, True)
    assert names(world.fetch(session_id, 3, {A0: 8}, version=version).response) == []
    assert names(world.fetch(session_id, 4, version=version).response) == []


@pytest.mark.parametrize("version", VERSIONS)
def test_session_continues_after_follower_becomes_leader(world: FetchWorld, version: int) -> None:
    session_id = world.open_session({A0: 6}, version=version)
    new = lead(world)
    new.log.high_watermark = new.log.log_end_offset
    new.changed()
    data = data_of(world, world.fetch(session_id, 1, version=version), version)
    assert data.error_code == ErrorCode.none
    assert data.high_watermark == 10
    assert data.records


@pytest.mark.parametrize("version", VERSIONS)
def test_session_continues_after_leader_becomes_follower(world: FetchWorld, version: int) -> None:
    new = lead(world)
    session_id = world.open_session({A0: 6}, version=version)
    world.publish("a", 1, b"a" * 16, leader=LEADER, replicas=(LEADER, 7), epoch=EPOCH + 2)
    world.partitions.follow("a", b"a" * 16, 0, new.log, LEADER, EPOCH + 2)
    world.partitions.remove(new)
    assert names(world.fetch(session_id, 1, version=version).response) == []
    commit(world, 8)
    assert data_of(world, world.fetch(session_id, 2, version=version), version).error_code == ErrorCode.none


def test_parked_fetch_completes_when_its_leader_epoch_ends(world: FetchWorld) -> None:
    call = world.fetch(0, -1, {A0: FetchPartition(0, 6, LARGE, EPOCH)}, version=17, max_wait_ms=500)
    world.partitions.follow("a", b"a" * 16, 0, followed(world).log, -1, EPOCH + 1)
    data = data_of(world, call, 17)
    assert (data.error_code, data.current_leader) == (ErrorCode.fenced_leader_epoch, LeaderIdAndEpoch(-1, EPOCH + 1))


@pytest.mark.clause(
    "ReplicaManagerTest.testBecomeFollowerWhileOldClientFetchInPurgatory",
    "ReplicaManagerTest.testBecomeFollowerWhileNewClientFetchInPurgatory",
)
@pytest.mark.parametrize(
    ("version", "epoch", "error"),
    [(10, -1, ErrorCode.not_leader_or_follower), (11, EPOCH + 1, ErrorCode.fenced_leader_epoch)],
)
def test_parked_fetch_completes_when_leadership_is_lost(
    world: FetchWorld, version: int, epoch: int, error: ErrorCode
) -> None:
    new = lead(world)
    call = world.fetch(0, -1, {A0: FetchPartition(0, 6, LARGE, epoch)}, version=version, max_wait_ms=500)
    assert call.waiting
    world.publish("a", 1, b"a" * 16, leader=LEADER, replicas=(LEADER, 7), epoch=EPOCH + 2)
    world.partitions.follow("a", b"a" * 16, 0, new.log, LEADER, EPOCH + 2)
    world.partitions.remove(new)
    assert data_of(world, call, version).error_code == error


def test_session_with_older_version_returns_not_leader(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 6}, version=11)
    assert data_of(world, world.fetch(session_id, 1, version=9), 9).error_code == ErrorCode.not_leader_or_follower
    assert data_of(world, world.fetch(session_id, 2, version=11), 11).error_code == ErrorCode.none


def test_session_sends_partition_that_becomes_followed(world: FetchWorld) -> None:
    log = followed(world).log
    world.partitions.unfollow(b"a" * 16, 0)
    session_id = world.open_session({A0: 2})
    assert data_of(world, world.fetch(session_id, 1), 12).error_code == ErrorCode.not_leader_or_follower
    call = world.fetch(session_id, 2, max_wait_ms=500)
    world.partitions.follow("a", b"a" * 16, 0, log, LEADER, EPOCH)
    data = data_of(world, call, 12)
    assert (data.error_code, bool(data.records)) == (ErrorCode.none, True)


def test_quarantined_replica_serves_no_reads(world: FetchWorld) -> None:
    world.partitions.offline[b"a" * 16, 0] = None
    world.partitions.unfollow(b"a" * 16, 0)
    assert data_of(world, world.fetch(0, -1, {A0: 2}), 12).error_code == ErrorCode.kafka_storage_error
