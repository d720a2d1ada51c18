"""The tombstone horizon marker on whole nodes: a replica that was down while tombstones were removed (H-1 to H-7)."""

import pytest

from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.log.cleaner.tests.cleaner_world import contents
from reference_broker.log.tombstone_horizon import NO_LIMIT
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

RETENTION_MS = 500


def cluster(enabled: str = "true") -> ClusterWorld:
    world = ClusterWorld(
        3,
        crucible_tombstone_horizon_enable=enabled,
        replica_lag_time_max_ms="2000",
        log_segment_bytes="700",
        log_cleaner_backoff_ms="100",
        log_cleaner_min_cleanable_ratio="0.01",
    )
    world.ready()
    world.create("t", cleanup_policy="compact", delete_retention_ms=str(RETENTION_MS), min_insync_replicas="1")
    return world


def write(world: ClusterWorld, key: str, value: str | None) -> None:
    now_ms = world.now.wall_ms
    record = Record(timestamp_ms=now_ms, key=key.encode(), value=None if value is None else value.encode())
    request = ProduceRequest(1, 5000, [ProduceTopic("t", NO_TOPIC_ID, [ProducePartition(0, build([record]))])])
    response = world.request(world.leader("t"), ApiKey.PRODUCE, 12, request)
    assert response.responses[0].partitions[0].error_code == ErrorCode.none


def fill(world: ClusterWorld, key: str, count: int = 20) -> None:
    for number in range(count):
        write(world, key, f"{key}{number}" * 20)


def state(world: ClusterWorld, number: int) -> dict[bytes, bytes]:
    """Return the values that a reader of this replica's whole log has."""
    held: dict[bytes, bytes] = {}
    for _, record in contents(world.log(number, "t")):
        assert record.key is not None
        if record.value is None:
            held.pop(record.key, None)
        else:
            held[record.key] = record.value
    return held


def converged(world: ClusterWorld) -> bool:
    return len({world.log(number, "t").log_end_offset for number in world.members}) == 1


def away_while_tombstones_go(world: ClusterWorld) -> int:
    """Write "gone", and delete it while a follower is down. Return that follower, which has restarted by then."""
    write(world, "gone", "1")
    world.run_until(lambda: converged(world))
    leader = world.leader("t")
    follower = next(member for member in world.members if member not in (leader, world.controller))
    world.kill(follower)
    write(world, "gone", None)
    fill(world, "k")
    world.run(5000)  # The ISR shrinks, and a first pass gives the tombstone its deletion time.
    fill(world, "k")
    world.run_until(lambda: world.log(leader, "t").horizon.offset == 2)
    assert state(world, world.leader("t")).keys() == {b"k"}
    world.start(follower)
    world.ready()
    world.run_until(lambda: converged(world))
    return follower


@pytest.mark.clause("H-1", "H-4", "H-5", "H-7")
def test_replica_that_missed_tombstone_refills_its_log() -> None:
    world = cluster()
    follower = away_while_tombstones_go(world)
    fill(world, "k", 3)
    world.run_until(lambda: converged(world))
    assert [note["horizon"] for note in world.notes("unsafe_bootstrap")] == [2], "once for this marker"
    assert state(world, follower).keys() == {b"k"}
    horizon = world.log(follower, "t").horizon
    assert horizon.remembered == 0
    assert horizon.offset <= world.log(world.leader("t"), "t").horizon.offset, "H-2"


@pytest.mark.thorough
def test_deleted_key_survives_in_replica_without_mechanism() -> None:
    world = cluster(enabled="false")
    follower = away_while_tombstones_go(world)
    assert not world.notes("unsafe_bootstrap")
    assert state(world, follower).keys() == {b"k", b"gone"}


@pytest.mark.clause("H-1", "D-3")
def test_fetch_response_has_marker_only_if_enabled() -> None:
    world = NodeWorld(crucible_tombstone_horizon_enable="true")
    world.create("t", cleanup_policy="compact")
    world.produce("t", 0, build([Record(key=b"k", value=b"v")]))
    log = world.log("t")
    log.horizon.prepare(7)
    log.horizon.settle()
    topic_id = world.node.broker.partitions.by_name["t", 0].topic_id
    request = FetchRequest(session_epoch=0, topics=[FetchTopic("", topic_id, [FetchPartition(0, 0, 1 << 20)])])
    [topic] = world.request(ApiKey.FETCH, 1001, request).responses
    assert (topic.partitions[0].tombstone_horizon, bool(topic.partitions[0].records)) == (7, True)
    off = NodeWorld()
    off.send(ApiKey.FETCH, 1001, request)
    off.settle()
    assert "is not served" in off.closed[1]


@pytest.mark.clause("H-2")
@pytest.mark.parametrize("enabled", ["true", "false"])
def test_former_leader_keeps_tombstones_until_marker_of_leader(enabled: str) -> None:
    """The former leader has no leader yet, and the next one may have kept them. Without the mechanism no leader sends a
    marker."""
    world = cluster(enabled)
    partition = world.partition("t")
    assert partition.log.horizon.limit == NO_LIMIT
    world.members[world.leader("t")].node.broker.replication.stops_leading(partition)
    assert partition.log.horizon.limit == (0 if enabled == "true" else NO_LIMIT)
