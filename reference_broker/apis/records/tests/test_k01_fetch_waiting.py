"""Parked fetches: what completes them, what else their responses include, and how they are discarded."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest

from reference_broker.apis.records import fetch
from reference_broker.apis.records.fetch_partition import look_up
from reference_broker.apis.tests.fetch_world import FakeCall, FakeLog, FetchWorld, names, partitions_of
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition

A0, A1, A2, X0 = ("a", 0), ("a", 1), ("a", 2), ("x", 0)


@pytest.fixture
def world() -> FetchWorld:
    world = FetchWorld()
    world.create("a", 3)
    return world


@dataclass
class Waiting:
    start: Callable[..., FakeCall]
    in_session: bool

    def __call__(self, **fields: int) -> FakeCall:
        return self.start(**fields)


@pytest.fixture(params=["session", "sessionless"])
def waiting(request: pytest.FixtureRequest, world: FetchWorld) -> Waiting:
    """Start a fetch of all three partitions from their ends that has nothing to return at once."""

    def start(**fields: Any) -> FakeCall:
        wanted = {key: world.partition(*key).log.log_end_offset for key in (A0, A1, A2)}
        if request.param == "sessionless":
            return world.fetch(0, -1, wanted, **{"max_wait_ms": 500, **fields})
        session_id = world.open_session(wanted)
        return world.fetch(session_id, 1, **{"max_wait_ms": 500, **fields})

    return Waiting(start, request.param == "session")


def no_watchers(world: FetchWorld) -> bool:
    return not any(partition.watchers for partition in world.partitions.by_name.values())


def test_parked_fetch_completes_after_max_wait(world: FetchWorld, waiting: Waiting) -> None:
    call = waiting()
    world.pass_ms(499)
    assert call.waiting
    world.pass_ms(1)
    assert call.response.error_code == ErrorCode.none
    assert names(call.response) == ([] if waiting.in_session else [A0, A1, A2])


def test_parked_fetch_completes_when_data_arrives(world: FetchWorld, waiting: Waiting) -> None:
    call = waiting()
    world.append("a", 1)
    assert partitions_of(call.response)[A1].records
    assert not world.ports.timers
    assert waiting.in_session or no_watchers(world)


def test_min_bytes_are_summed_over_partitions_and_appends(world: FetchWorld, waiting: Waiting) -> None:
    call = waiting(min_bytes=300)
    world.append("a", 0)
    world.append("a", 1)
    assert call.waiting
    world.append("a", 1)
    assert [len(data.records or b"") for data in partitions_of(call.response).values() if data.records] == [100, 200]


def test_partition_limit_caps_its_share_of_min_bytes(world: FetchWorld) -> None:
    call = world.fetch(0, -1, {A0: FetchPartition(0, 0, 50)}, min_bytes=60, max_wait_ms=500)
    world.append("a", size_bytes=1000)
    assert call.waiting


def test_min_bytes_are_capped_at_max_bytes(world: FetchWorld) -> None:
    call = world.fetch(0, -1, {A0: 0}, min_bytes=10_000, max_bytes=100, max_wait_ms=500)
    world.append("a")
    assert partitions_of(call.response)[A0].records


@pytest.mark.parametrize("fields", [{"max_wait_ms": 0}, {"max_wait_ms": -1}, {"min_bytes": 0, "max_wait_ms": 500}])
def test_fetch_without_wait_completes_at_once(world: FetchWorld, fields: dict[str, Any]) -> None:
    session_id = world.open_session({A0: 0})
    assert world.fetch(session_id, 1, **fields).response.session_id == session_id


def test_uncommitted_data_completes_follower_fetch_only(world: FetchWorld) -> None:
    consumer = world.fetch(0, -1, {A0: 0}, max_wait_ms=500)
    follower = world.fetch(0, -1, {A0: 0}, max_wait_ms=500, replica_id=8)
    world.append("a", commit=False)
    assert consumer.waiting
    assert partitions_of(follower.response)[A0].records
    log = world.partition("a").log
    log.high_watermark = log.log_end_offset
    world.partition("a").changed()
    assert partitions_of(consumer.response)[A0].records


@pytest.mark.clause("F-14")
def test_moved_watermarks_are_sent_with_next_completed_response(world: FetchWorld) -> None:
    world.append("a", 0, records=4)
    world.append("a", 1, commit=False)
    session_id = world.open_session({A0: 4, A1: 1, A2: 0})
    call = world.fetch(session_id, 1, max_wait_ms=500)
    world.partition(*A0).log.delete_records_before(4)
    world.partition(*A0).changed()
    world.partition(*A1).log.high_watermark = 1
    world.partition(*A1).changed()
    assert call.waiting
    world.append("a", 2)
    response = partitions_of(call.response)
    assert {key: (data.high_watermark, data.log_start_offset) for key, data in response.items()} == {
        A0: (4, 4),
        A1: (1, 0),
        A2: (1, 0),
    }
    assert world.fetch(session_id, 2, {A2: 1}).response.responses == []


@pytest.mark.clause("DelayedFetchTest.testDelayedFetchWithMessageOnlyHighWatermark")
def test_new_error_completes_parked_fetch(world: FetchWorld, waiting: Waiting) -> None:
    world.append("a", records=3)
    call = waiting()
    world.partition("a").log.truncate_to(0)
    world.partition("a").changed()
    assert partitions_of(call.response)[A0].error_code == ErrorCode.offset_out_of_range


def test_topic_deletion_completes_parked_fetch(world: FetchWorld, waiting: Waiting) -> None:
    call = waiting()
    world.delete("a")
    assert ErrorCode.unknown_topic_or_partition in [data.error_code for data in partitions_of(call.response).values()]


@pytest.mark.clause("F-14")
def test_lasting_error_does_not_complete_parked_fetch(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 99, A1: 0})
    call = world.fetch(session_id, 1, max_wait_ms=500)
    assert call.waiting
    world.pass_ms(500)
    assert partitions_of(call.response)[A0].error_code == ErrorCode.offset_out_of_range


def test_session_of_unknown_topics_waits_for_max_wait(world: FetchWorld) -> None:
    session_id = world.open_session({X0: 0})
    call = world.fetch(session_id, 1, max_wait_ms=500)
    assert call.waiting
    world.pass_ms(500)
    assert partitions_of(call.response)[X0].error_code == ErrorCode.unknown_topic_or_partition


@pytest.mark.parametrize("wanted", [{A0: 99}, {X0: 0}])
def test_error_of_named_partition_is_sent_at_once(world: FetchWorld, wanted: dict[tuple[str, int], int]) -> None:
    session_id = world.open_session({**wanted, A1: 0})
    assert not world.fetch(session_id, 1, wanted, max_wait_ms=500).waiting
    assert not world.fetch(0, -1, wanted, max_wait_ms=500).waiting


def test_changed_error_completes_parked_fetch(world: FetchWorld) -> None:
    session_id = world.open_session({A0: FetchPartition(0, 99, 100)})
    call = world.fetch(session_id, 1, max_wait_ms=500)
    world.delete("a")
    assert partitions_of(call.response)[A0].error_code == ErrorCode.unknown_topic_or_partition


def test_added_partition_without_data_waits(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    call = world.fetch(session_id, 1, {A1: 0}, max_wait_ms=500)
    assert call.waiting
    world.pass_ms(500)
    assert names(call.response) == [A1]


def test_created_topic_with_data_completes_parked_fetch(world: FetchWorld) -> None:
    session_id = world.open_session({X0: 0, A0: 0})
    call = world.fetch(session_id, 1, max_wait_ms=500)
    world.create("unrelated")
    world.create("x")
    assert call.waiting
    world.append("x")
    assert partitions_of(call.response)[X0].records
    assert not world.sessions.arrivals.keys


def test_created_topic_without_leader_is_sent_after_max_wait(world: FetchWorld) -> None:
    session_id = world.open_session({X0: 0})
    call = world.fetch(session_id, 1, max_wait_ms=500, version=12)
    world.create("x", led_here=False)
    world.pass_ms(500)
    assert partitions_of(call.response)[X0].error_code == ErrorCode.not_leader_or_follower


@pytest.mark.clause("F-20")
def test_newer_request_supersedes_parked_one(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    old = world.fetch(session_id, 1, max_wait_ms=500)
    new = world.fetch(session_id, 2, max_wait_ms=500)
    assert (old.response.error_code, old.response.session_id) == (ErrorCode.invalid_fetch_session_epoch, 0)
    world.append("a")
    assert partitions_of(new.response)[A0].records


@pytest.mark.clause("F-10")
def test_rejected_request_leaves_parked_one_unchanged(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    waits = world.fetch(session_id, 1, max_wait_ms=500)
    world.fetch(session_id, 1)
    world.fetch(session_id, 7)
    world.append("a")
    assert partitions_of(waits.response)[A0].records


@pytest.mark.parametrize("epoch", [0, -1])
def test_closing_session_completes_parked_fetch(world: FetchWorld, epoch: int) -> None:
    session_id = world.open_session({A0: 0})
    waits = world.fetch(session_id, 1, max_wait_ms=500)
    world.fetch(session_id, epoch, {A0: 0})
    assert (waits.response.error_code, waits.response.session_id) == (ErrorCode.fetch_session_id_not_found, 0)
    assert not world.ports.timers


@pytest.mark.clause("F-20")
def test_closed_connection_of_parked_fetch_changes_no_session(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0, A1: 0})
    call = world.fetch(session_id, 1, max_wait_ms=500, min_bytes=1000)
    world.append("a")
    call.hang_up()
    world.append("a", 1)
    assert not world.ports.timers
    assert world.fetch(session_id, 1).response.error_code == ErrorCode.invalid_fetch_session_epoch
    assert names(world.fetch(session_id, 2).response) == [A0, A1]


def test_full_fetch_of_closed_connection_creates_no_session(world: FetchWorld) -> None:
    call = world.fetch(0, 0, {A0: 0, X0: 0}, max_wait_ms=500)
    assert not call.waiting  # because of the error
    call = world.fetch(0, 0, {A1: 0}, max_wait_ms=500)
    before = len(world.sessions.sessions)
    call.hang_up()
    world.append("a", 1)
    world.pass_ms(1000)
    assert len(world.sessions.sessions) == before
    assert not world.partition(*A1).watchers


@pytest.mark.clause("F-5")
def test_parked_full_fetch_creates_session_with_response(world: FetchWorld) -> None:
    call = world.fetch(0, 0, {A0: 0}, max_wait_ms=500)
    assert not world.sessions.sessions
    world.append("a")
    assert list(world.sessions.sessions) == [call.response.session_id]
    world.append("a")
    assert len(partitions_of(world.fetch(call.response.session_id, 1, {A0: 1}).response)[A0].records or b"") == 100


def test_append_completes_parked_fetches_of_both_sessions(world: FetchWorld) -> None:
    waits = [world.fetch(world.open_session({A0: 0}), 1, max_wait_ms=500) for _ in range(2)]
    world.append("a")
    assert all(partitions_of(call.response)[A0].records for call in waits)


def test_changed_isolation_level_in_session_takes_effect(world: FetchWorld) -> None:
    world.log("a").lso_hold = 0
    session_id = world.open_session({A0: 0}, isolation_level=1)
    world.append("a")
    assert not partitions_of(world.fetch(session_id, 1, isolation_level=1).response)[A0].records
    assert partitions_of(world.fetch(session_id, 2, isolation_level=0).response)[A0].records


# Cost


def touches(world: FetchWorld) -> int:
    return sum(world.log(*place).touches for place in world.partitions.by_name)


@pytest.mark.thorough
@pytest.mark.parametrize("cached", [10, 10_000])
@pytest.mark.parametrize("changed", [0, 1])
def test_incremental_fetch_touches_only_changed_partitions(
    monkeypatch: pytest.MonkeyPatch, cached: int, changed: int
) -> None:
    world = FetchWorld()
    world.create("big", cached)
    session_id = world.open_session({("big", index): 0 for index in range(cached)})
    looked: list[int] = []
    watched: list[int] = []
    watch = Partition.watch

    def noted_look(*given: Any) -> Any:
        looked.append(1)
        return look_up(*given)

    def noted_watch(*given: Any) -> None:
        watched.append(1)
        watch(*given)

    monkeypatch.setattr(fetch, "look_up", noted_look)
    monkeypatch.setattr(Partition, "watch", noted_watch)
    for epoch in range(1, 4):
        before, looked[:], watched[:] = touches(world), [], []
        for index in range(changed):
            world.append("big", index)
        response = world.fetch(session_id, epoch, {("big", i): epoch - 1 for i in range(changed)}).response
        assert len(partitions_of(response)) == changed
        assert (len(looked), len(watched)) == (changed, changed)
        assert touches(world) - before == 2 * changed  # one count of bytes, one read


def test_backlog_beyond_limit_is_not_walked() -> None:
    world = FetchWorld()
    world.create("big", 2000)
    session_id = world.open_session({("big", index): 0 for index in range(2000)})
    for index in range(2000):
        world.append("big", index)
    world.fetch(session_id, 1, max_bytes=500)
    for epoch in range(2, 6):
        before = touches(world)
        response = world.fetch(session_id, epoch, max_bytes=500).response
        assert len(partitions_of(response)) == 5
        assert touches(world) - before == 10


def test_parked_fetch_checks_only_changed_partitions() -> None:
    world = FetchWorld()
    world.create("big", 1000)
    session_id = world.open_session({("big", index): 0 for index in range(1000)})
    call = world.fetch(session_id, 1, max_wait_ms=500, min_bytes=250)
    before = touches(world)
    world.append("big", 3)
    world.append("big", 4)
    assert call.waiting
    assert touches(world) - before == 2
    world.append("big", 5)
    assert len(partitions_of(call.response)) == 3


def test_fake_log_reads_whole_batches() -> None:
    log = FakeLog()
    log.append(2, 10, 0)
    log.append(2, 10, 0)
    assert len(log.read(1, 15, 4, False)) == 10
    assert len(log.read(1, 5, 4, False)) == 0
