"""Fetch sessions as their fetchers see them, one test for each behaviour."""

import pytest

from reference_broker.apis.records import k01_fetch
from reference_broker.apis.tests.fetch_world import FetchWorld, names, partitions_of, two_topics
from reference_broker.core.call_admission import ActiveCall
from reference_broker.core.events import Effect, Reply, Request
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest
from reference_broker.wire.tags import Tag

A0, A1, A2, B0 = ("a", 0), ("a", 1), ("a", 2), ("b", 0)
LARGEST = 0x7FFFFFFF


@pytest.fixture
def world() -> FetchWorld:
    return two_topics()


@pytest.mark.clause("F-1", "F-13", "F-19")
def test_session_fields(world: FetchWorld) -> None:
    wanted = FetchPartition(0, 0, 77, current_leader_epoch=0, last_fetched_epoch=-1, log_start_offset=5)
    session_id = world.open_session({A0: wanted}, client_id="me")
    session = world.sessions.sessions[session_id]
    assert (session.session_id, session.epoch, session.privileged) == (session_id, 1, False)
    assert session.last_used_ms == session.created_ms == world.broker.now.wall_ms
    assert session.made_by == "consumer 'me'"
    cached = session.partitions[A0]
    assert cached.topic == "a"
    assert cached.index == 0
    assert cached.max_bytes == 77
    assert cached.fetch_offset == 0
    assert (cached.current_leader_epoch, cached.last_fetched_epoch, cached.log_start_offset) == (0, -1, 5)
    assert (cached.sent_high_watermark, cached.sent_log_start_offset) == (0, 0)


@pytest.mark.clause("F-19")
def test_follower_session_is_privileged(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0}, replica_id=8)
    session = world.sessions.sessions[session_id]
    assert session.privileged
    assert session.made_by == "follower 8"


@pytest.mark.clause("F-3")
def test_consecutive_epochs_are_accepted(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    for epoch in (1, 2, 3):
        response = world.fetch(session_id, epoch).response
        assert (response.error_code, response.session_id) == (ErrorCode.none, session_id)


@pytest.mark.clause("F-3")
def test_epoch_wraps_to_one(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    world.sessions.sessions[session_id].epoch = LARGEST
    assert world.fetch(session_id, LARGEST).response.session_id == session_id
    assert world.fetch(session_id, 0x80000000).response.error_code == ErrorCode.fetch_session_id_not_found
    assert world.fetch(session_id, 1).response.session_id == session_id


@pytest.mark.clause("F-4")
def test_sessionless_fetch_returns_all_partitions_and_creates_no_session(world: FetchWorld) -> None:
    world.append("a", 0)
    response = world.fetch(0, -1, {A0: 0, A1: 0}).response
    assert response.session_id == 0
    assert names(response) == [A0, A1]
    assert not world.sessions.sessions
    assert not any(partition.watchers for partition in world.partitions.by_name.values())


@pytest.mark.clause("F-4")
def test_version_without_sessions_creates_none(world: FetchWorld) -> None:
    request = FetchRequest(max_wait_ms=0)
    assert world.send(request, version=6).response.session_id == 0
    assert not world.sessions.sessions


@pytest.mark.clause("F-5")
def test_full_fetch_with_epoch_zero_creates_session(world: FetchWorld) -> None:
    response = world.fetch(0, 0, {A0: 0, A1: 0}).response
    assert names(response) == [A0, A1]
    assert list(world.sessions.sessions) == [response.session_id]
    assert world.ports.noted("session_created") == [
        {
            "session_id": response.session_id,
            "partitions": 2,
            "privileged": 0,
            "client_id": "c",
            "made_by": "consumer 'c'",
            "revision": "final",
        }
    ]


@pytest.mark.clause("F-5", "F-17")
def test_declined_session_returns_data() -> None:
    world = FetchWorld(slots=0)
    world.create("a")
    world.append("a")
    response = world.fetch(0, 0, {A0: 0}).response
    assert response.session_id == 0
    assert partitions_of(response)[A0].records
    assert not world.partition("a").watchers


@pytest.mark.clause("F-5")
def test_full_fetch_without_partitions_creates_empty_session(world: FetchWorld) -> None:
    call = world.fetch(0, 0, {}, max_wait_ms=1000)
    session_id = call.response.session_id
    assert session_id
    assert names(world.fetch(session_id, 1, {A0: 0}).response) == [A0]


@pytest.mark.clause("F-6")
def test_full_fetch_with_session_id_replaces_session(world: FetchWorld) -> None:
    first = world.open_session({A0: 0})
    response = world.fetch(first, 0, {A1: 0}).response
    assert response.session_id not in (0, first)
    assert names(response) == [A1]
    assert list(world.sessions.sessions) == [response.session_id]
    assert world.fetch(first, 1).response.error_code == ErrorCode.fetch_session_id_not_found


@pytest.mark.clause("F-8")
def test_full_fetch_with_final_epoch_closes_session(world: FetchWorld) -> None:
    first = world.open_session({A0: 0})
    response = world.fetch(first, -1, {A0: 0}).response
    assert response.error_code == ErrorCode.none
    assert response.session_id == 0
    assert names(response) == [A0]
    assert not world.sessions.sessions
    assert [note["session_id"] for note in world.ports.noted("session_closed")] == [first]


@pytest.mark.clause("F-6", "F-8")
@pytest.mark.parametrize("epoch", [0, -1])
@pytest.mark.parametrize("unknown", [12345, -7, LARGEST])
def test_closing_unknown_session_returns_no_error(world: FetchWorld, epoch: int, unknown: int) -> None:
    response = world.fetch(unknown, epoch, {A0: 0}).response
    assert response.error_code == ErrorCode.none
    assert bool(response.session_id) == (epoch == 0)


@pytest.mark.clause("F-7", "F-12")
def test_incremental_fetch_without_partitions_returns_session_id(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    response = world.fetch(session_id, 1).response
    assert (response.session_id, response.responses) == (session_id, [])


@pytest.mark.clause("F-7", "FetchSessionTest.testZeroSizeFetchSession", "FetchSessionTest.testToForgetPartitions")
def test_forgetting_last_partition_closes_session(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0, A1: 0})
    response = world.fetch(session_id, 1, forget=[A0, A1], max_wait_ms=500).response
    assert (response.error_code, response.session_id, response.responses) == (ErrorCode.none, 0, [])
    assert world.fetch(session_id, 2).response.error_code == ErrorCode.fetch_session_id_not_found
    assert not any(partition.watchers for partition in world.partitions.by_name.values())


@pytest.mark.clause("F-9")
@pytest.mark.parametrize(("session_id", "epoch"), [(0, 5), (7, 1), (-1, 1), (-7, -7), (LARGEST, 1), (-(2**31), 3)])
def test_unknown_session_id_returns_not_found(world: FetchWorld, session_id: int, epoch: int) -> None:
    response = world.fetch(session_id, epoch, {A0: 0}).response
    assert (response.error_code, response.session_id, response.responses) == (
        ErrorCode.fetch_session_id_not_found,
        0,
        [],
    )
    counter = world.metrics.counter("crucible.server", "FetchSessionCache", "FetchSessionIdNotFoundPerSec")
    assert counter.value == 1


@pytest.mark.clause("F-9", "F-17", "F-21")
def test_session_that_outgrows_the_cache_is_closed_with_the_fetch_that_grew_it(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    world.sessions.max_partitions = 1
    response = world.fetch(session_id, 1, {A1: 0}).response
    assert (response.error_code, response.session_id) == (ErrorCode.fetch_session_id_not_found, 0)
    assert (world.sessions.sessions, world.sessions.partitions_cached) == ({}, 0)
    assert not any(world.partition("a", index).watchers for index in (0, 1))
    assert world.fetch(session_id, 2).response.error_code == ErrorCode.fetch_session_id_not_found
    counter = world.metrics.counter("crucible.server", "FetchSessionCache", "FetchSessionIdNotFoundPerSec")
    assert counter.value == 2


@pytest.mark.clause("F-9")
def test_known_session_id_with_negative_epoch_returns_not_found(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    response = world.fetch(session_id, -2).response
    assert (response.error_code, response.session_id) == (ErrorCode.fetch_session_id_not_found, 0)


@pytest.mark.clause(
    "F-10",
    "F-20",
    "FetchSessionTest.testFetchRequests",
    "FetchSessionTest.testUpdateAndGenerateResponseData",
)
def test_wrong_epoch_is_rejected_and_session_stays_usable(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    world.fetch(session_id, 1)
    for wrong in (1, 3):
        response = world.fetch(session_id, wrong, {A1: 0}, forget=[A0]).response
        assert (response.error_code, response.session_id) == (ErrorCode.invalid_fetch_session_epoch, 0)
        assert response.responses == []
    assert list(world.sessions.sessions[session_id].partitions) == [A0]
    assert world.fetch(session_id, 2).response.session_id == session_id


@pytest.mark.clause("F-11", "F-20")
def test_full_fetch_after_lost_response_returns_all_data_again(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    world.append("a")
    lost = partitions_of(world.fetch(session_id, 1).response)[A0].records
    assert world.fetch(session_id, 1).response.error_code == ErrorCode.invalid_fetch_session_epoch
    again = world.fetch(session_id, 0, {A0: 0}).response
    assert partitions_of(again)[A0].records == lost
    assert again.session_id not in (0, session_id)


@pytest.mark.clause("F-12", "F-13", "FetchSessionTest.testCachedLeaderEpoch", "FetchSessionTest.testLastFetchedEpoch")
def test_named_partition_overwrites_all_cached_fields(world: FetchWorld) -> None:
    session_id = world.open_session({A0: FetchPartition(0, 0, 50, 0, -1, 3)})
    world.fetch(session_id, 1, {A0: FetchPartition(0, 0, 60)})
    cached = world.sessions.sessions[session_id].partitions[A0]
    assert (cached.max_bytes, cached.current_leader_epoch, cached.last_fetched_epoch) == (60, -1, -1)
    assert cached.log_start_offset == -1


@pytest.mark.clause("F-7")
def test_request_that_empties_session_is_served_without_session(world: FetchWorld) -> None:
    """As in Kafka."""
    session_id = world.open_session({A0: 0})
    world.append("a")
    response = world.fetch(session_id, 1, {A0: 0, B0: 0}, forget=[A0, B0]).response
    assert (response.session_id, names(response)) == (0, [A0, B0])
    assert partitions_of(response)[A0].records
    assert world.fetch(session_id, 2).response.error_code == ErrorCode.fetch_session_id_not_found


@pytest.mark.clause("F-12")
def test_request_forgets_and_adds_partitions(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0, A1: 0})
    response = world.fetch(session_id, 1, {B0: 0}, forget=[A0]).response
    assert names(response) == [B0]
    world.append("a", 0)
    world.append("a", 1)
    assert names(world.fetch(session_id, 2).response) == [A1]


@pytest.mark.clause("F-12")
def test_forgetting_wins_over_naming_and_an_unknown_forget_is_ignored(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0, A1: 0})
    assert names(world.fetch(session_id, 1, {A0: 0}, forget=[A0, B0]).response) == []
    world.append("a", 0)
    assert names(world.fetch(session_id, 2).response) == []


@pytest.mark.clause("F-20")
def test_duplicate_request_is_applied_once(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    request = FetchRequest(session_id=session_id, session_epoch=1, max_wait_ms=0)
    assert world.send(request).response.error_code == ErrorCode.none
    assert world.send(request).response.error_code == ErrorCode.invalid_fetch_session_epoch
    assert world.sessions.sessions[session_id].epoch == 2


@pytest.mark.clause("F-20")
def test_late_request_of_old_session_leaves_new_one_unchanged(world: FetchWorld) -> None:
    old = world.open_session({A0: 0})
    new = world.fetch(old, 0, {A1: 0}).response.session_id
    late = world.fetch(old, 1, {B0: 0}, forget=[A1]).response
    assert late.error_code == ErrorCode.fetch_session_id_not_found
    assert list(world.sessions.sessions[new].partitions) == [A1]
    assert world.fetch(new, 1).response.error_code == ErrorCode.none


def test_request_with_too_many_partitions_is_rejected_without_change(
    world: FetchWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(k01_fetch, "MAX_NAMED_PARTITIONS", 1)
    session_id = world.open_session({A0: 0})
    for session, epoch in ((0, -1), (0, 0), (session_id, 0), (session_id, 1)):
        response = world.fetch(session, epoch, {A0: 0, A1: 0}).response
        assert (response.error_code, response.session_id, response.responses) == (ErrorCode.invalid_request, 0, [])
    assert world.fetch(session_id, 1, {A1: 0}).response.session_id == session_id


@pytest.mark.clause("F-21")
def test_added_and_forgotten_partitions_count_towards_request_limit(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    world.fetch(session_id, 1, {A1: 0, A2: 0, B0: 0})
    assert world.sessions.partitions_cached == 4
    world.fetch(session_id, 2, forget=[A1, A2])
    assert world.sessions.partitions_cached == 2


@pytest.mark.clause("F-23")
@pytest.mark.parametrize(("epoch", "error"), [(1, ErrorCode.none), (9, ErrorCode.invalid_fetch_session_epoch)])
def test_trace_line_has_session_id_and_epoch(world: FetchWorld, epoch: int, error: Error) -> None:
    session_id = world.open_session({A0: 0})
    effects: list[Effect] = []
    tag = Tag(1, 12, "c", session_id, epoch)
    body = FetchRequest(session_id=session_id, session_epoch=epoch, max_wait_ms=0)
    call = ActiveCall(Request(1, 5, 1, 12, "c", body, tag), effects, lambda _: None, lambda *_: None)
    call.respond(world.send(body).response)
    (reply,) = effects
    assert isinstance(reply, Reply)
    assert (reply.tag.session_id, reply.tag.session_epoch, reply.tag.error) == (session_id, epoch, error)
