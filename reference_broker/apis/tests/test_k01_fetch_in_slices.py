"""What happens between the slices of a fetch leaves its session right."""

from collections.abc import Iterator

import pytest

from reference_broker.apis.tests.fetch_world import FakeCall, World, names, told
from reference_broker.apis.tests.sliced_fetches import slices_of_one
from reference_broker.wire.errors import ErrorCode

ALL = {("a", index): 0 for index in range(6)}


@pytest.fixture
def world() -> Iterator[World]:
    with slices_of_one():
        world = World()
        world.create("a", 6)
        yield world


def step(world: World) -> None:
    """One slice."""
    number = min(world.outside.timers)
    world.outside.timers.pop(number)[1]()


def finish(world: World, call: FakeCall) -> None:
    world.pass_ms(0)
    assert call.answers


@pytest.mark.parametrize("slices", range(40))
def test_what_is_appended_between_two_slices_is_told_in_this_answer_or_the_next(world: World, slices: int) -> None:
    call = world.fetch(0, 0, ALL)
    for _ in range(slices):
        if world.outside.timers:
            step(world)
    for index in range(6):
        world.append("a", index)
    finish(world, call)
    sent = {name for name, data in told(call.answer).items() if data.records}
    following = world.fetch(call.answer.session_id, 1, {("a", index): 1 for _, index in sent})
    finish(world, following)
    assert sent | {name for name, data in told(following.answer).items() if data.records} == set(ALL)


@pytest.mark.parametrize("slices", range(40))
def test_what_is_deleted_between_two_slices_is_told_at_last(world: World, slices: int) -> None:
    for index in range(6):
        world.append("a", index)
    call = world.fetch(0, 0, ALL)
    for _ in range(slices):
        if world.outside.timers:
            step(world)
    world.delete("a")
    finish(world, call)
    following = world.fetch(call.answer.session_id, 1)
    finish(world, following)
    errors = {data.error_code for data in told(following.answer).values()}
    assert (len(told(following.answer)), errors) == (6, {int(ErrorCode.unknown_topic_or_partition)})


def test_the_sessions_next_request_waits_for_the_end_of_the_work(world: World) -> None:
    session_id = world.open_session(ALL)
    first = world.fetch(session_id, 1, dict.fromkeys(ALL, 0))
    second = world.fetch(session_id, 2)
    assert not first.answers
    assert not second.answers
    finish(world, second)
    assert (first.answer.error_code, second.answer.error_code) == (0, 0)
    assert names(second.answer) == []


@pytest.mark.parametrize("slices", range(40))
def test_a_session_that_is_closed_between_two_slices_refuses_its_fetch_or_had_answered_it(
    world: World, slices: int
) -> None:
    session_id = world.open_session(ALL)
    call = world.fetch(session_id, 1, dict.fromkeys(ALL, 0))
    for _ in range(slices):
        if world.outside.timers:
            step(world)
    world.sessions.close(session_id, "test")
    world.pass_ms(0)
    assert call.answer.error_code in (0, int(ErrorCode.fetch_session_id_not_found))
    assert not any(world.partition("a", index).watchers for index in range(6))
    assert (world.sessions.partitions_cached, len(world.outside.timers)) == (0, 0)


@pytest.mark.parametrize("slices", range(40))
def test_a_connection_that_closes_between_two_slices_loses_no_records(world: World, slices: int) -> None:
    session_id = world.open_session(ALL)
    for index in range(6):
        world.append("a", index)
    call = world.fetch(session_id, 1, ALL)
    for _ in range(slices):
        if world.outside.timers:
            step(world)
    call.hang_up()
    world.pass_ms(0)
    if not call.answers:
        following = world.fetch(session_id, 2)
        finish(world, following)
        assert {name for name, data in told(following.answer).items() if data.records} == set(ALL)
