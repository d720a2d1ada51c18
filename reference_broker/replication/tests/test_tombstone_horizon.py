"""A follower obeys its leader's tombstone horizon marker (H-2, H-4 to H-7)."""

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.slicing import run_to_end
from reference_broker.replication.tests.follower_world import FollowerWorld, one_record
from reference_broker.replication.tests.test_first_revision import versions
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest, PartitionData


def heeding(records: int) -> tuple[FollowerWorld, UnifiedLog]:
    world = FollowerWorld({"crucible.tombstone.horizon.enable": "true"})
    log = world.follow(0, records=records)
    world.only_request(ApiKey.API_VERSIONS).replied(versions("crucible.Fetch.1001"))
    return world, log


def horizon_data(horizon: int, *offsets: int, start: int = 0, high_watermark: int = 0) -> PartitionData:
    records = b"".join(one_record(offset) for offset in offsets)
    return PartitionData(0, 0, high_watermark, log_start_offset=start, records=records, tombstone_horizon=horizon)


def position(request: FetchRequest) -> int:
    return request.topics[0].partitions[0].fetch_offset


def respond(world: FollowerWorld, data: PartitionData) -> None:
    world.respond(world.fetch()[0], data)


@pytest.mark.clause("H-4", "H-5")
def test_follower_below_marker_empties_log_and_starts_at_leaders_start() -> None:
    world, log = heeding(records=3)
    sent, request = world.fetch()
    assert (sent.api_version, position(request)) == (1001, 3)
    world.respond(sent, horizon_data(5, 6, start=1))
    assert (log.log_start_offset, log.log_end_offset) == (1, 1)
    assert world.notes_of("unsafe_bootstrap") == [{"partition": "t-0", "position": 3, "horizon": 5}]
    sent, request = world.fetch()
    assert position(request) == 1
    world.respond(sent, horizon_data(5, 1, 2, 6, start=1))
    assert log.log_end_offset == 7
    assert len(world.notes_of("unsafe_bootstrap")) == 1, "no loop (H-5)"
    assert log.horizon.offset == 5, "what it copied lacks these tombstones, too"
    respond(world, horizon_data(5, 7, start=1))
    assert log.horizon.remembered == 0, "H-7"


@pytest.mark.clause("H-6")
def test_marker_moving_during_refill_empties_log_again() -> None:
    world, log = heeding(records=3)
    respond(world, horizon_data(5))
    respond(world, horizon_data(5, 0, 1))
    respond(world, horizon_data(6, 2, 3))
    assert log.log_end_offset == 0
    assert [note["horizon"] for note in world.notes_of("unsafe_bootstrap")] == [5, 6]


@pytest.mark.clause("H-2")
def test_follower_beyond_marker_keeps_log_and_may_remove_tombstones() -> None:
    world, log = heeding(records=3)
    assert log.horizon.limit == 0, "nothing goes before the leader has sent its marker"
    respond(world, horizon_data(3, 3))
    assert (log.log_end_offset, log.horizon.limit, log.horizon.offset) == (4, 3, 0)
    assert not world.notes_of("unsafe_bootstrap")


@pytest.mark.clause("H-1", "H-6")
@pytest.mark.parametrize("is_killed", [False, True])
def test_earlier_marker_after_other_leaders_marker_empties_log(is_killed: bool) -> None:
    """Records copied from the other leader may need tombstones that the first one lacks."""
    world, log = heeding(records=3)
    respond(world, horizon_data(5))
    respond(world, horizon_data(5, 0, 1))
    respond(world, horizon_data(0, 2))
    assert log.log_end_offset == 3, "the other one has all tombstones"
    if is_killed:
        log = run_to_end(open_log(world.disk, "t-0", LogConfig(), world.now(), False))
    assert log.horizon.must_empty(log.log_end_offset, 5)


@pytest.mark.clause("H-5")
@pytest.mark.parametrize("filled", [0, 2, 6])
def test_killed_follower_does_not_restart_refill_for_same_marker(filled: int) -> None:
    world, _ = heeding(records=3)
    respond(world, horizon_data(5))
    respond(world, horizon_data(5, *range(filled)))
    log = run_to_end(open_log(world.disk, "t-0", LogConfig(), world.now(), False))
    assert not log.horizon.must_empty(log.log_end_offset, 5)
    assert log.horizon.offset == 5


@pytest.mark.clause("H-4")
def test_follower_killed_before_marker_is_stored_restarts_refill() -> None:
    world, log = heeding(records=3)
    log.truncate_fully_and_start_at(0, world.now())
    again = run_to_end(open_log(world.disk, "t-0", LogConfig(), world.now(), False))
    assert again.horizon.must_empty(again.log_end_offset, 5)


def test_leader_without_draft_is_followed_normally() -> None:
    world = FollowerWorld({"crucible.tombstone.horizon.enable": "true"})
    log = world.follow(0, records=3)
    world.only_request(ApiKey.API_VERSIONS).replied(versions())
    sent, _ = world.fetch()
    assert sent.api_version == 18
    world.respond(sent, PartitionData(0, 0, 3, log_start_offset=0, records=one_record(3)))
    assert (log.log_end_offset, log.horizon.limit) == (4, 0)
