"""Fetcher behaviours against a small correct broker with faults."""

from collections.abc import Callable
from random import Random
from typing import Any

import pytest

from bench.fleet.batch_reader import BatchReader
from bench.fleet.behaviours.producers import KeyedProducer, ProducerPlan
from bench.fleet.behaviours.protocol import ClientSettings, Leaving, Request, Stopping, TopicPartition
from bench.fleet.behaviours.session_fetcher import VARIANTS, FetcherPlan, SessionFetcher
from bench.fleet.tests.conftest import FakeBroker, FleetWorld, read_offsets
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reports.rows import END_OF_RUN_US, OperationRow

HOT = tuple(TopicPartition("hot", number) for number in range(4))
IDLE = TopicPartition("idle", 0)


def fetcher(variant: str, settings: ClientSettings, **changes: Any) -> SessionFetcher:
    plan = FetcherPlan(f"fetcher-{variant}", variant, (IDLE, *HOT), poll_interval_us=20_000, **changes)
    return SessionFetcher(plan, settings, Random(3), BatchReader())


def producer(settings: ClientSettings, partitions: tuple[TopicPartition, ...] = HOT, **changes: Any) -> KeyedProducer:
    plan = ProducerPlan("producer-0", partitions, interval_us=10_000, records_per_request=3, **changes)
    return KeyedProducer(plan, settings, Random(4))


def nth_fetch(number: int, fate: str | None) -> Callable[[Request], str | None]:
    seen = []

    def fault(request: Request) -> str | None:
        if request.api_key == ApiKey.FETCH:
            seen.append(request)
            if len(seen) == number:
                return fate
        return None

    return fault


def fetches(world: FleetWorld) -> list[OperationRow]:
    return [row for row in world.rows("operations") if row.f == "fetch"]


def live(world: FleetWorld, settings: ClientSettings, fetcher: SessionFetcher, seconds: float = 2.0) -> None:
    """Idle partition filled once, load, stop, drain."""
    once = KeyedProducer(ProducerPlan("seeder", (IDLE,), 0, 3, max_slots=1), settings, Random(1))
    load = producer(settings)
    world.start(once, load, fetcher)
    world.run(seconds)
    world.stop(load)
    world.run(1)
    world.stop(fetcher)
    world.run(20)
    assert fetcher.process in world.finished, "the fetcher never finished"


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("fate", [None, "lose_request", "lose_response", "cut"])
def test_every_variant_reads_everything_through_any_lost_frame(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings, variant: str, fate: str | None
) -> None:
    world.fault = nth_fetch(4, fate)
    subject = fetcher(variant, settings)
    live(world, settings, subject)
    for partition, offsets in read_offsets(world, subject.process).items():
        assert set(offsets) == set(range(broker.logs[partition].end)), partition
        if variant != "rotating":
            assert offsets == sorted(set(offsets)), f"repeated or out of order in {partition}"
    assert set(read_offsets(world, subject.process)) == {IDLE, *HOT}
    infos = [fetch for fetch in fetches(world) if fetch.type == "info"]
    assert len(infos) == (0 if fate is None else 1)


@pytest.mark.clause("F-4")
def test_full_variant_never_uses_a_session(world: FleetWorld, broker: FakeBroker, settings: ClientSettings) -> None:
    live(world, settings, fetcher("full", settings))
    assert {(fetch.session_id, fetch.session_epoch) for fetch in fetches(world)} == {(0, -1)}
    assert not broker.sessions


@pytest.mark.clause("F-8")
@pytest.mark.parametrize("end", [Stopping(), Leaving()])
def test_fetcher_closes_its_session_when_it_leaves(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings, end: Stopping | Leaving
) -> None:
    subject = fetcher("incremental", settings)
    load = producer(settings)
    world.start(load, subject)
    world.run(1)
    world.stop(load)
    world.run(1)
    world.at(world.now_us, subject, end)
    world.run(5)
    last: Any = [request.body for request in broker.requests if request.api_key == ApiKey.FETCH][-1]
    assert (last.session_id, last.session_epoch, last.topics) == (fetches(world)[-1].session_id, -1, [])
    assert not broker.sessions


@pytest.mark.parametrize(("min_bytes", "then"), [(0, 0), (1, 1), (200, 1)])
def test_stopping_fetcher_takes_what_there_is(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings, min_bytes: int, then: int
) -> None:
    subject = fetcher("incremental", settings, min_bytes=min_bytes)
    world.start(subject)
    world.run(1)
    world.stop(subject)
    world.run(20)
    sent: list[Any] = [request.body for request in broker.requests if request.api_key == ApiKey.FETCH]
    polls = [body.min_bytes for body in sent if body.session_epoch >= 0]
    assert list(dict.fromkeys(polls)) == list(dict.fromkeys((min_bytes, then)))


@pytest.mark.clause("F-10", "F-11")
def test_resending_fetcher_sends_the_same_epoch_again_and_after_71_a_full_fetch(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings
) -> None:
    world.fault = nth_fetch(4, "lose_response")
    live(world, settings, fetcher("resending", settings))
    lost, again, full = fetches(world)[3:6]
    assert (again.session_id, again.session_epoch) == (lost.session_id, lost.session_epoch)
    assert (lost.type, lost.error) == ("info", "timeout")
    assert (again.type, again.error, again.response_session_id) == ("fail", "INVALID_FETCH_SESSION_EPOCH", 0)
    assert (full.session_id, full.session_epoch) == (lost.session_id, 0)
    requests = [request.body for request in broker.requests if request.api_key == ApiKey.FETCH]
    assert requests[3] == requests[4], "the resent request differs"
    assert requests[3] is not requests[4]


def test_resent_request_that_had_been_lost_is_simply_accepted(world: FleetWorld, settings: ClientSettings) -> None:
    world.fault = nth_fetch(4, "lose_request")
    live(world, settings, fetcher("resending", settings))
    lost, again, after = fetches(world)[3:6]
    assert again.type == "ok"
    assert (again.session_epoch, after.session_epoch) == (lost.session_epoch, lost.session_epoch + 1)


def test_presuming_fetcher_continues_with_next_epoch_without_partitions(
    world: FleetWorld, settings: ClientSettings
) -> None:
    world.fault = nth_fetch(4, "lose_response")
    live(world, settings, fetcher("presuming", settings))
    lost, presumed = fetches(world)[3:5]
    assert (presumed.session_id, presumed.session_epoch) == (lost.session_id, lost.session_epoch + 1)
    assert (presumed.partitions_sent, presumed.type) == (0, "ok")


def test_presuming_fetcher_falls_back_when_the_request_was_lost(world: FleetWorld, settings: ClientSettings) -> None:
    world.fault = nth_fetch(4, "lose_request")
    live(world, settings, fetcher("presuming", settings))
    lost, presumed, full = fetches(world)[3:6]
    assert (presumed.session_epoch, presumed.error) == (lost.session_epoch + 1, "INVALID_FETCH_SESSION_EPOCH")
    assert full.session_epoch == 0


def test_incremental_fetcher_closes_session_after_lost_response(world: FleetWorld, settings: ClientSettings) -> None:
    world.fault = nth_fetch(4, "cut")
    live(world, settings, fetcher("incremental", settings))
    lost, after = fetches(world)[3:5]
    assert lost.error == "disconnected"
    assert (after.session_id, after.session_epoch) == (lost.session_id, 0)


@pytest.mark.parametrize("revision", ["final", "first"])
def test_refetching_fetcher_names_all_partitions_after_lost_response(
    world: FleetWorld, settings: ClientSettings, revision: str
) -> None:
    world.fault = nth_fetch(4, "lose_response")
    live(world, settings, fetcher("refetching", settings, revision=revision))
    lost, after, later = fetches(world)[3:6]
    assert (after.session_id, after.session_epoch, after.partitions_sent) == (lost.session_id, 0, 1 + len(HOT))
    assert (later.session_id == lost.session_id) is (revision == "first")
    assert later.session_epoch == (lost.session_epoch if revision == "first" else 1)


def test_fetcher_uses_at_most_version_of_plan(world: FleetWorld, settings: ClientSettings, broker: FakeBroker) -> None:
    live(world, settings, fetcher("incremental", settings, newest_version=12))
    assert {request.api_version for request in broker.requests if request.api_key == ApiKey.FETCH} == {12}


def test_forgetting_fetcher_resumes_assignments_at_position(world: FleetWorld, settings: ClientSettings) -> None:
    live(world, settings, fetcher("forgetting", settings))
    ended = [each for each in world.rows("assignments") if each.until_us != END_OF_RUN_US]
    assert ended, "nothing was ever forgotten"
    assert all(each.topic == "hot" for each in ended)
    assert any(each.from_offset > 0 for each in world.rows("assignments"))
    last = [each for each in world.rows("assignments") if each.until_us == END_OF_RUN_US]
    assert sorted((each.topic, each.partition) for each in last) == sorted((IDLE, *HOT))
    for row in world.rows("positions"):
        covering = [
            each for each in world.rows("assignments") if (each.topic, each.partition) == (row.topic, row.partition)
        ]
        operation = next(fetch for fetch in fetches(world) if fetch.index == row.index)
        assert any(each.from_us <= operation.invoke_us < each.until_us for each in covering)


def test_emptying_fetcher_drops_and_restores_all_partitions(world: FleetWorld, settings: ClientSettings) -> None:
    live(world, settings, fetcher("emptying", settings))
    ended = {(row.topic, row.partition) for row in world.rows("assignments") if row.until_us != END_OF_RUN_US}
    last = {(row.topic, row.partition) for row in world.rows("assignments") if row.until_us == END_OF_RUN_US}
    assert ended == last == {IDLE, *HOT}


def test_rotating_fetcher_reads_again_from_the_start_under_a_new_assignment(
    world: FleetWorld, settings: ClientSettings
) -> None:
    live(world, settings, fetcher("rotating", settings))
    again = [row for row in world.rows("assignments") if row.from_offset == 0 and row.from_us > 1_500_000]
    assert again, "it never went back"
    assert all(row.topic == "hot" for row in again)


@pytest.mark.parametrize(
    "error", [ErrorCode.unknown_topic_or_partition, ErrorCode.not_leader_or_follower, ErrorCode.fenced_leader_epoch]
)
def test_partition_in_error_slows_the_fetcher_down_instead_of_spinning(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings, error: int
) -> None:
    broker.errors[HOT[1]] = error
    subject = fetcher("incremental", settings)
    world.start(subject)
    world.run(10)
    assert 5 < len(fetches(world)) < 40
    del broker.errors[HOT[1]]
    live_end = len(fetches(world))
    world.run(5)
    assert len(fetches(world)) > live_end + 100, "it did not come back to speed"


def test_refused_connection_is_tried_again_with_a_growing_wait(world: FleetWorld, settings: ClientSettings) -> None:
    world.refuse_until_us = world.now_us + 10_000_000
    subject = fetcher("incremental", settings)
    world.start(subject)
    world.run(10)
    connects = [row for row in world.rows("operations") if row.f == "connect"]
    assert 8 < len(connects) < 25
    assert {connect.error for connect in connects} == {"refused"}
    world.run(3)
    assert fetches(world)


def test_offset_out_of_range_is_reset_to_the_log_start_under_a_new_assignment(
    world: FleetWorld, broker: FakeBroker, settings: ClientSettings
) -> None:
    load = producer(settings)
    world.start(load)
    world.run(1)
    world.stop(load)
    world.run(1)
    broker.logs[HOT[0]].start = 6
    subject = fetcher("incremental", settings)
    world.start(subject)
    world.run(2)
    assert min(read_offsets(world, subject.process)[HOT[0]]) == 6
    starts = [
        row.from_offset
        for row in (*world.rows("assignments"), *subject.close(world.now()))
        if hasattr(row, "until_us") and row.partition == 0 and row.topic == "hot"
    ]
    assert starts == [0, 6]


def test_hard_end_makes_open_operations_info(world: FleetWorld, settings: ClientSettings) -> None:
    world.fault = nth_fetch(1, "lose_response")
    subject = fetcher("incremental", settings)
    world.start(subject)
    world.run(0.1)
    world.recorder.close(world.now(), [subject])
    row = fetches(world)[-1]
    assert (row.type, row.error) == ("info", "unfinished")
    assert {each.until_us for each in world.rows("assignments")} == {END_OF_RUN_US}
