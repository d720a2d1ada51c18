"""Failovers of a coordinator: reads before all is replicated, loads of lost partitions, deletions whose write fails."""

from itertools import pairwise

import pytest

from reference_broker.coordination.coordinator_shards import CHUNK_BYTES
from reference_broker.groups.group import Group, GroupState
from reference_broker.groups.offset_metadata_manager import FetchedOffset
from reference_broker.groups.tests.coordinator_world import CoordinatorWorld, offset_of
from reference_broker.groups.tests.test_group_coordinator import stable_group
from reference_broker.records.batch import iterate
from reference_broker.wire.errors import DraftError, Error, ErrorCode

OK = [[ErrorCode.none]]


class Reading:
    """An OffsetFetch of all offsets of a group. ``responses`` has its response."""

    def __init__(self, world: CoordinatorWorld, group: str, *, requires_stable: bool = False) -> None:
        self.responses: list[tuple[Error, list[int]]] = []
        world.groups.offset_manager.fetch_offsets(group, None, self._responded, requires_stable=requires_stable)

    def _responded(self, error: Error, found: list[FetchedOffset]) -> None:
        self.responses.append((error, [offset_of(each) for each in found]))


def half_replicated() -> tuple[CoordinatorWorld, str]:
    """Return a new coordinator whose log has a commit that the former one may have acknowledged, above the high
    watermark."""
    world = CoordinatorWorld((1, 2, 3), offsets_commit_timeout_ms="700")
    world.lead_offsets(0)
    group = world.group_in(0)
    world.commit(group, 5)
    world.replicate(0)
    world.commit(group, 6)
    world.lead_offsets(0, world.lose(0), epoch=1)
    world.pass_ms(0)
    return world, group


def test_offset_fetch_completes_once_loaded_records_are_replicated() -> None:
    world, group = half_replicated()
    reading = Reading(world, group)
    assert reading.responses == []
    world.replicate(0)
    assert reading.responses == [(ErrorCode.none, [6])]


def test_offset_fetch_times_out_while_loaded_records_are_unreplicated() -> None:
    world, group = half_replicated()
    reading = Reading(world, group)
    world.pass_ms(700)
    assert reading.responses == [(ErrorCode.coordinator_not_available, [])]


def test_pending_offset_fetch_fails_when_coordinator_changes() -> None:
    world, group = half_replicated()
    reading = Reading(world, group)
    world.lose(0)
    assert reading.responses == [(ErrorCode.not_coordinator, [])]


@pytest.mark.parametrize("requires_stable", [False, True])
def test_require_stable_waits_for_pending_commits(requires_stable: bool) -> None:
    world = CoordinatorWorld((1, 2, 3))
    world.lead_offsets(0)
    group = world.group_in(0)
    world.commit(group, 5)
    world.replicate(0)
    world.commit(group, 6)
    reading = Reading(world, group, requires_stable=requires_stable)
    assert reading.responses == ([] if requires_stable else [(ErrorCode.none, [5])])
    world.replicate(0)
    assert reading.responses == [(ErrorCode.none, [6 if requires_stable else 5])]


def fire_next(world: CoordinatorWorld) -> None:
    """Fire one timer that is due."""
    due = [number for number, (deadline_us, _) in world.timers.items() if deadline_us <= world.mono_us]
    if due:
        world.timers.pop(min(due))[1]()


@pytest.mark.parametrize("events", range(6))
def test_topic_deleted_during_load_is_not_read(events: int) -> None:
    """The topic's files have other names by then."""
    world = CoordinatorWorld()
    world.lead_offsets(0)
    group = world.group_in(0)
    for at in range(3):
        world.commit(group, at, metadata="x" * 4000)
        for _ in range(CHUNK_BYTES // 8000):
            world.commit(group, at, metadata="x" * 4000)
    world.lead_offsets(0, world.lose(0), epoch=1)
    for _ in range(events):
        fire_next(world)
    log = world.lose(0)
    world.disk.rename(log.directory, "gone")
    world.pass_ms(0)
    assert world.groups.find(group) is ErrorCode.not_coordinator


def test_group_stays_if_its_deletion_cannot_be_written() -> None:
    world = CoordinatorWorld((1, 2, 3), min_isr=2)
    world.lead_offsets(0)
    group = world.group_in(0)
    world.commit(group, 5)
    world.replicate(0)
    world.state(world.led[0], (1,), partition_epoch=1)
    responses: list[Error] = []
    world.groups.group_manager.delete_group(group, responses.append)
    assert (responses, world.fetched(group)) == ([ErrorCode.coordinator_not_available], {("t", 0): 5})
    world.state(world.led[0], (1, 2, 3), partition_epoch=2)
    world.groups.group_manager.delete_group(group, responses.append)
    world.replicate(0)
    assert responses[1:] == [ErrorCode.none]
    assert world.fetched(group) == {}
    assert world.active(0).groups == {}


def many_offsets() -> tuple[CoordinatorWorld, str, list[Error]]:
    """Return a group with many offsets that is being deleted: the first slice is written."""
    world = CoordinatorWorld((1, 2, 3), min_isr=2)
    world.lead_offsets(0)
    world.show(t=1200)
    group = world.group_in(0)
    world.commit(group, *range(1200))
    world.pass_ms(0)
    world.replicate(0)
    responses: list[Error] = []
    world.groups.group_manager.delete_group(group, responses.append)
    return world, group, responses


def test_group_with_many_offsets_is_deleted_in_slices() -> None:
    world, group, responses = many_offsets()
    world.replicate(0)
    assert (responses, len(world.fetched(group))) == ([], 700)
    assert world.commit(group, *range(600, 1200)[::-1][:250]) == []
    world.pass_ms(0)
    world.replicate(0)
    assert (responses, len(world.fetched(group))) == ([ErrorCode.none], 250)
    world.lead_offsets(0, world.lose(0), epoch=1)
    world.pass_ms(0)
    world.replicate(0)
    assert len(world.fetched(group)) == 250


def test_interrupted_group_deletion_can_be_retried() -> None:
    world, group, responses = many_offsets()
    world.state(world.led[0], (1,), partition_epoch=1)
    world.pass_ms(0)
    world.state(world.led[0], (1, 2, 3), partition_epoch=2)
    world.replicate(0)
    assert (responses, len(world.fetched(group))) == ([ErrorCode.coordinator_not_available], 700)
    world.groups.group_manager.delete_group(group, responses.append)
    world.pass_ms(0)
    world.replicate(0)
    assert (responses[1:], world.fetched(group)) == ([ErrorCode.none], {})


def test_topic_deletion_removes_pending_offsets() -> None:
    world = CoordinatorWorld((1, 2, 3))
    world.lead_offsets(0)
    group = world.group_in(0)
    world.commit(group, 5)
    world.delete_topic("t")
    world.pass_ms(0)
    world.replicate(0)
    world.pass_ms(0)
    world.replicate(0)
    world.pass_ms(5000)
    world.replicate(0)
    assert world.fetched(group) == {}


def test_large_commit_is_in_log_whole_or_not_at_all() -> None:
    """A coordinator that takes over finds all of it or nothing, since one batch is replicated whole."""
    world = CoordinatorWorld()
    world.lead_offsets(0)
    world.show(t=600)
    log = world.led[0].log
    responses = world.commit(world.group_in(0), *range(600))
    while not responses:
        assert log.log_end_offset == 0
        fire_next(world)
    assert [header.record_count for _, header in iterate(memoryview(log.read(0, 1 << 20, log.log_end_offset)))] == [600]
    assert responses == [[ErrorCode.none] * 600]
    assert len(world.fetched(world.group_in(0))) == 600


def test_large_commit_does_not_replace_newer_metadata_epoch() -> None:
    world = CoordinatorWorld()
    world.lead_offsets(0)
    world.show(level=1, t=600)
    group = world.group_in(0)
    large = world.commit(group, *range(600), epoch=5)
    fire_next(world)
    assert world.commit(group, 9, epoch=6) == [[ErrorCode.none]]
    world.pass_ms(0)
    assert large == [[DraftError.INVALID_METADATA_EPOCH, *[ErrorCode.none] * 599]]
    assert world.fetched(group)["t", 0] == 9


@pytest.mark.parametrize("recreated", [0, 100])
def test_topic_deleted_between_slices_of_commit_keeps_no_offset(recreated: int) -> None:
    """``recreated``: the number of partitions of another topic of that name, 0 if there is none."""
    world = CoordinatorWorld()
    world.lead_offsets(0)
    world.show(t=600, u=1)
    group = world.group_in(0)
    world.commit(group, 7, topic="u")
    responses = world.commit(group, *range(600))
    fire_next(world)
    world.delete_topic("t")
    if recreated:
        world.show(t=recreated, u=1)
    world.pass_ms(0)
    gone = [ErrorCode.unknown_topic_or_partition] * (600 - recreated)
    assert responses == [[ErrorCode.none] * recreated + gone]
    assert world.fetched(group) == {("u", 0): 7, **{("t", index): index for index in range(recreated)}}


def test_topic_created_and_deleted_between_slices_of_commit_keeps_no_offset() -> None:
    world = CoordinatorWorld()
    world.lead_offsets(0)
    world.show(t=1)
    group = world.group_in(0)
    world.commit(group, 7)
    responses = world.commit(group, *range(600), topic="late")
    fire_next(world)
    world.show(t=1, late=600)
    fire_next(world)
    world.delete_topic("late")
    world.pass_ms(0)
    assert responses == [[ErrorCode.unknown_topic_or_partition] * 600]
    assert world.fetched(group) == {("t", 0): 7}


def deletion(world: CoordinatorWorld, group: str, count: int) -> list[tuple[Error, list[Error]]]:
    """Send OffsetDelete for ``count`` partitions of topic ``t``, which has two fewer."""
    responses: list[tuple[Error, list[Error]]] = []
    wanted = [("t", index) for index in range(count)]
    world.groups.offset_manager.delete_offsets(group, wanted, lambda error, errors: responses.append((error, errors)))
    return responses


def many_to_delete(count: int = 1200) -> tuple[CoordinatorWorld, str]:
    world = CoordinatorWorld((1, 2, 3), min_isr=2)
    world.lead_offsets(0)
    world.show(t=count, u=1)
    group = world.group_in(0)
    world.commit(group, *range(count))
    world.commit(group, 9, topic="u")
    world.pass_ms(0)
    world.replicate(0)
    return world, group


def test_offset_delete_with_many_offsets_responds_after_last_slice() -> None:
    world, group = many_to_delete()
    responses = deletion(world, group, 1202)
    log, ends = world.led[0].log, []
    for _ in range(4):
        fire_next(world)
        ends.append(log.log_end_offset)
    assert [after - before for before, after in pairwise(ends)] == [500, 200, 0]
    assert responses == []
    world.replicate(0)
    assert responses == [(ErrorCode.none, [ErrorCode.none] * 1200 + [ErrorCode.unknown_topic_or_partition] * 2)]
    assert world.fetched(group) == {("u", 0): 9}


def test_offset_delete_in_slices_checks_group_again() -> None:
    world, group = many_to_delete()
    responses = deletion(world, group, 1200)
    fire_next(world)
    member = stable_group(group)
    member.protocol_type = "connect"
    world.active(0).groups[group] = member
    world.pass_ms(0)
    world.replicate(0)
    assert [error for error, _ in responses] == [ErrorCode.non_empty_group]
    assert len(world.fetched(group)) == 701


def test_offset_delete_in_slices_stops_when_partition_is_lost() -> None:
    world, group = many_to_delete()
    responses = deletion(world, group, 1200)
    fire_next(world)
    world.lose(0)
    world.pass_ms(0)
    assert [error for error, _ in responses] == [ErrorCode.not_coordinator]


def test_commit_in_slices_stops_when_partition_is_lost() -> None:
    world = CoordinatorWorld()
    world.lead_offsets(0)
    world.show(t=600)
    responses = world.commit(world.group_in(0), *range(600))
    fire_next(world)
    world.lose(0)
    world.pass_ms(0)
    (errors,) = responses
    assert errors == [ErrorCode.not_coordinator] * 600


def test_commit_in_slices_stops_when_group_gets_members() -> None:
    world = CoordinatorWorld()
    world.lead_offsets(0)
    world.show(t=600)
    group = world.group_in(0)
    target = world.active(0)
    target.add_group(Group(group, 0))
    responses = world.commit(group, *range(600))
    fire_next(world)
    target.groups[group].state = GroupState.STABLE
    world.pass_ms(0)
    (errors,) = responses
    assert errors == [ErrorCode.unknown_member_id] * 600
