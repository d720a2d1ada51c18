"""Events between the slices of a fetch leave its session consistent."""

from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch
from weakref import ref

import pytest

from reference_broker.apis.records import k01_fetch
from reference_broker.apis.records.fetch import COMPLETED, Fetch
from reference_broker.apis.records.tests.sliced_fetches import slices_of_one
from reference_broker.apis.tests.fetch_world import FakeCall, FetchWorld, names, partitions_of
from reference_broker.wire.errors import DraftError, ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchRequest, FetchTopic

ALL = {("a", index): 0 for index in range(6)}


@pytest.fixture
def world() -> Iterator[FetchWorld]:
    with slices_of_one():
        world = FetchWorld()
        world.create("a", 6)
        yield world


def step(world: FetchWorld) -> None:
    """Run one slice."""
    number = min(world.ports.timers)
    world.ports.timers.pop(number)[1]()


def finish(world: FetchWorld, call: FakeCall) -> None:
    world.pass_ms(0)
    assert call.responses


@pytest.mark.parametrize("slices", range(40))
def test_append_between_slices_is_in_this_response_or_next(world: FetchWorld, slices: int) -> None:
    call = world.fetch(0, 0, ALL)
    for _ in range(slices):
        if world.ports.timers:
            step(world)
    for index in range(6):
        world.append("a", index)
    finish(world, call)
    sent = {name for name, data in partitions_of(call.response).items() if data.records}
    following = world.fetch(call.response.session_id, 1, {("a", index): 1 for _, index in sent})
    finish(world, following)
    assert sent | {name for name, data in partitions_of(following.response).items() if data.records} == set(ALL)


@pytest.mark.parametrize("slices", range(40))
def test_deletion_between_slices_is_reported(world: FetchWorld, slices: int) -> None:
    for index in range(6):
        world.append("a", index)
    call = world.fetch(0, 0, ALL)
    for _ in range(slices):
        if world.ports.timers:
            step(world)
    world.delete("a")
    finish(world, call)
    following = world.fetch(call.response.session_id, 1)
    finish(world, following)
    errors = {data.error_code for data in partitions_of(following.response).values()}
    assert (len(partitions_of(following.response)), errors) == (6, {int(ErrorCode.unknown_topic_or_partition)})


def test_next_request_of_session_waits_for_all_slices(world: FetchWorld) -> None:
    session_id = world.open_session(ALL)
    first = world.fetch(session_id, 1, dict.fromkeys(ALL, 0))
    second = world.fetch(session_id, 2)
    assert not first.responses
    assert not second.responses
    finish(world, second)
    assert (first.response.error_code, second.response.error_code) == (ErrorCode.none, ErrorCode.none)
    assert names(second.response) == []


@pytest.mark.parametrize("slices", range(40))
def test_session_closed_between_slices_returns_not_found_or_response(world: FetchWorld, slices: int) -> None:
    session_id = world.open_session(ALL)
    call = world.fetch(session_id, 1, dict.fromkeys(ALL, 0))
    for _ in range(slices):
        if world.ports.timers:
            step(world)
    world.sessions.close(session_id, "test")
    world.pass_ms(0)
    assert call.response.error_code in (ErrorCode.none, int(ErrorCode.fetch_session_id_not_found))
    assert not any(world.partition("a", index).watchers for index in range(6))
    assert (world.sessions.partitions_cached, len(world.ports.timers)) == (0, 0)


@pytest.mark.parametrize("slices", range(40))
def test_connection_closed_between_slices_loses_no_records(world: FetchWorld, slices: int) -> None:
    session_id = world.open_session(ALL)
    for index in range(6):
        world.append("a", index)
    call = world.fetch(session_id, 1, ALL)
    for _ in range(slices):
        if world.ports.timers:
            step(world)
    call.hang_up()
    world.pass_ms(0)
    if not call.responses:
        following = world.fetch(session_id, 2)
        finish(world, following)
        assert {name for name, data in partitions_of(following.response).items() if data.records} == set(ALL)


@pytest.mark.parametrize("max_wait_ms", [0, 500])
def test_fetch_is_completed_when_it_has_responded_and_prepared_its_session(
    world: FetchWorld, monkeypatch: pytest.MonkeyPatch, max_wait_ms: int
) -> None:
    fetches: list[Fetch] = []

    def remembered(*args: Any, **fields: Any) -> Fetch:
        fetches.append(Fetch(*args, **fields))
        return fetches[-1]

    monkeypatch.setattr(k01_fetch, "Fetch", remembered)
    session_id = world.open_session(dict.fromkeys(ALL, 0))
    world.fetch(session_id, 1, {("a", 0): 0}, max_wait_ms=max_wait_ms, min_bytes=1 << 20)
    world.pass_ms(500)
    assert [fetch.stage for fetch in fetches] == [COMPLETED, COMPLETED]


def test_retransmission_during_slices_is_handled_once(world: FetchWorld) -> None:
    """The first request is retransmitted during its slices, so it is completed when it parks. The copy stays parked."""
    opened = world.fetch_first(0, 0, ALL)
    world.pass_ms(0)
    session_id = opened.response.session_id
    first = world.fetch_first(session_id, 1, dict.fromkeys(ALL, 0), max_wait_ms=500, min_bytes=1)
    retransmitted = world.fetch_first(session_id, 1, dict.fromkeys(ALL, 0), max_wait_ms=500, min_bytes=1)
    world.pass_ms(0)
    assert first.response.error_code == ErrorCode.none
    assert retransmitted.waiting
    world.pass_ms(500)
    assert retransmitted.response.error_code == ErrorCode.none
    assert not world.ports.timers


@pytest.mark.parametrize("named", [("a", 0), ("missing", 0)])
@pytest.mark.parametrize("slices", range(40))
def test_connection_closed_while_partitions_are_forgotten_leaves_no_state(
    world: FetchWorld, slices: int, named: tuple[str, int]
) -> None:
    places = [*ALL, ("missing", 0)]
    session_id = world.open_session(dict.fromkeys(places, 0))
    call = world.fetch(session_id, 1, {named: 0}, forget=places, max_wait_ms=500)
    for _ in range(slices):
        if world.ports.timers:
            step(world)
    call.hang_up()
    world.pass_ms(0)
    assert not any(world.partition("a", index).watchers for index in range(6))
    assert not world.sessions.arrivals.keys
    assert (world.sessions.sessions, world.ports.timers) == ({}, {})


class BugError(Exception):
    pass


def run_failing(_: FakeCall, work: Callable[[], object]) -> bool:
    try:
        work()
    except BugError:
        return False
    return True


@pytest.mark.parametrize("number", [0, 1])
def test_retransmission_after_bug_returns_session_error(number: int) -> None:
    world = FetchWorld()
    world.create("a", 6)
    session_id = world.fetch_first(0, 0, ALL).response.session_id
    limits = {"max_wait_ms": 500, "min_bytes": 1}
    first = world.fetch_first(session_id, number, ALL, **limits)
    assert first.waiting
    with patch.object(FakeCall, "run", run_failing), patch.object(Fetch, "_unpark", side_effect=BugError):
        retransmitted = world.fetch_first(session_id, number, ALL, **limits)
    assert retransmitted.response.error_code == DraftError.INVALID_FETCH_SESSION
    assert not any(world.partition("a", index).watchers for index in range(6))
    assert world.sessions.partitions_cached == 0


@pytest.mark.parametrize("slices", range(20))
def test_close_session_is_applied_although_connection_closed(world: FetchWorld, slices: int) -> None:
    session_id = world.open_session(ALL)
    world.fetch(session_id, 1, dict.fromkeys(ALL, 0))
    for _ in range(slices):
        if world.ports.timers:
            step(world)
    world.fetch(session_id, -1).hang_up()
    world.pass_ms(0)
    assert not world.sessions.sessions


class Topics(list[FetchTopic]):
    """A list that can be referred to weakly."""


def test_queued_request_of_closed_connection_is_released(world: FetchWorld) -> None:
    session_id = world.open_session(ALL)
    world.fetch(session_id, 1, dict.fromkeys(ALL, 0))
    topics = Topics([FetchTopic("a", NO_TOPIC_ID, [])])
    held = ref(topics)
    call = world.send(FetchRequest(session_id=session_id, session_epoch=2, topics=topics))
    del topics
    assert held() is not None
    call.hang_up()
    assert held() is None
    world.pass_ms(0)
    assert world.fetch(session_id, 2).response.error_code == ErrorCode.none


@pytest.mark.parametrize("slices", range(40))
def test_change_before_connection_closes_is_in_next_response(world: FetchWorld, slices: int) -> None:
    """Some partitions changed before the response was started, the others after it took its marks."""
    session_id = world.open_session(ALL)
    for index in range(3):
        world.append("a", index)
    call = world.fetch(session_id, 1)
    for _ in range(slices):
        if world.ports.timers:
            step(world)
    for index in range(3, 6):
        world.append("a", index)
    call.hang_up()
    world.pass_ms(0)
    if not call.responses:
        following = world.fetch(session_id, 2)
        finish(world, following)
        assert {name for name, data in partitions_of(following.response).items() if data.records} == set(ALL)


@pytest.mark.parametrize("slices", range(60))
def test_first_revision_sends_log_start_moved_between_slices(world: FetchWorld, slices: int) -> None:
    """A partition without records is sent only if it changed for the response at hand."""
    for index in range(6):
        world.append("a", index, records=3)
    opening = world.fetch_first(0, 0, dict.fromkeys(ALL, 3))
    finish(world, opening)
    for index in range(3):
        delete_before(world, index, 1)
    call = world.fetch_first(opening.response.session_id, 1)
    for _ in range(slices):
        if world.ports.timers:
            step(world)
    for index in range(6):
        delete_before(world, index, 2)
    finish(world, call)
    following = world.fetch_first(opening.response.session_id, 2)
    finish(world, following)
    starts = {
        name: data.log_start_offset for each in (call, following) for name, data in partitions_of(each.response).items()
    }
    assert starts == dict.fromkeys(ALL, 2)


@pytest.mark.parametrize("slices", range(60))
def test_first_revision_sends_log_start_moved_during_full_response(world: FetchWorld, slices: int) -> None:
    for index in range(6):
        world.append("a", index, records=3)
    call = world.fetch_first(0, 0, dict.fromkeys(ALL, 3))
    for _ in range(slices):
        if world.ports.timers:
            step(world)
    for index in range(6):
        delete_before(world, index, 2)
    finish(world, call)
    following = world.fetch_first(call.response.session_id, 1)
    finish(world, following)
    starts = {
        name: data.log_start_offset for each in (call, following) for name, data in partitions_of(each.response).items()
    }
    assert starts == dict.fromkeys(ALL, 2)


def delete_before(world: FetchWorld, index: int, offset: int) -> None:
    world.log("a", index).delete_records_before(offset)
    world.partition("a", index).changed()


@pytest.mark.parametrize("slices", range(40))
def test_truncation_between_slices_returns_old_or_new_state(world: FetchWorld, slices: int) -> None:
    for index in range(6):
        world.append("a", index)
        world.append("a", index)
    call = world.fetch(0, 0, ALL)
    for _ in range(slices):
        if world.ports.timers:
            step(world)
    for index in range(6):
        world.log("a", index).truncate_to(1)
        world.partition("a", index).changed()
    finish(world, call)
    sent_states = {(data.high_watermark, len(data.records or b"")) for data in partitions_of(call.response).values()}
    assert sent_states <= {(2, 200), (1, 100)}
