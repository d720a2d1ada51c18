"""Fetchers and producers whose partitions are led by several nodes: a connection and a session each, and failover."""

from random import Random
from typing import Any

import pytest

from bench.fleet.batch_reader import BatchReader
from bench.fleet.behaviours.final_reads import FinalReader, FinalReadPlan
from bench.fleet.behaviours.producers import KeyedProducer, ProducerPlan
from bench.fleet.behaviours.protocol import Address, ClientSettings, Request, TopicPartition
from bench.fleet.behaviours.session_fetcher import REVISIONS, VARIANTS, FetcherPlan, SessionFetcher
from bench.fleet.tests.conftest import FakeBroker, FleetWorld, read_offsets
from reference_broker.wire.apis import ApiKey
from reports.rows import OperationRow

HOT = tuple(TopicPartition("hot", number) for number in range(4))
IDLE = TopicPartition("idle", 0)
NODES = {IDLE: 0, HOT[0]: 0, HOT[1]: 1, HOT[2]: 1, HOT[3]: 2}


@pytest.fixture
def settings() -> ClientSettings:
    return ClientSettings(tuple(Address(f"node-{number}", 9092) for number in range(3)))


@pytest.fixture
def spread(broker: FakeBroker) -> FakeBroker:
    broker.leaders |= NODES
    broker.nodes = {0, 1, 2}
    return broker


def fetcher(variant: str, settings: ClientSettings, process: str = "", **changes: Any) -> SessionFetcher:
    plan = FetcherPlan(process or f"fetcher-{variant}", variant, (IDLE, *HOT), poll_interval_us=20_000, **changes)
    return SessionFetcher(plan, settings, Random(3), BatchReader())


def producer(settings: ClientSettings, **changes: Any) -> KeyedProducer:
    plan = ProducerPlan("producer-0", HOT, interval_us=10_000, records_per_request=3, **changes)
    return KeyedProducer(plan, settings, Random(4))


def operations(world: FleetWorld, f: str) -> list[OperationRow]:
    return [row for row in world.rows("operations") if row.f == f]


def finish(world: FleetWorld, load: KeyedProducer, subject: SessionFetcher) -> None:
    world.stop(load)
    world.run(2)
    world.stop(subject)
    world.run(20)
    assert {load.process, subject.process} <= world.finished, "somebody never finished"


def assert_all_read_once_in_order(world: FleetWorld, spread: FakeBroker, process: str, seeks: bool = False) -> None:
    for partition, offsets in read_offsets(world, process).items():
        assert set(offsets) == set(range(spread.logs[partition].end)), partition
        if not seeks:
            assert offsets == sorted(set(offsets)), f"repeated or out of order in {partition}"
    assert set(HOT) <= set(read_offsets(world, process))


@pytest.mark.thorough
@pytest.mark.parametrize("variant", VARIANTS)
def test_fetcher_has_one_connection_and_one_session_for_each_leader(
    world: FleetWorld, spread: FakeBroker, settings: ClientSettings, variant: str
) -> None:
    load, subject = producer(settings), fetcher(variant, settings)
    world.start(load, subject)
    world.run(2)
    finish(world, load, subject)
    for process in (load.process, subject.process):
        connects = [operation for operation in operations(world, "connect") if operation.process == process]
        assert len(connects) == 3, f"{process} connected {len(connects)} times"
    assert {operation.node for operation in operations(world, "fetch")} == {0, 1, 2}
    assert_all_read_once_in_order(world, spread, subject.process, seeks=variant == "rotating")
    created = {
        operation.response_session_id for operation in operations(world, "fetch") if operation.response_session_id > 0
    }
    assert len(created) == (0 if variant == "full" else 3)


def test_node_that_hangs_delays_only_its_own_partitions(
    world: FleetWorld, spread: FakeBroker, settings: ClientSettings
) -> None:
    load, subject = producer(settings), fetcher("incremental", settings)
    world.start(load, subject)
    world.run(1)
    since_us = world.now_us
    world.fault = lambda request: (
        "lose_request" if world.at_node.get((subject.process, request.channel)) == 1 and request.api_key == 1 else None
    )
    world.run(2)
    since = [
        operation
        for operation in operations(world, "fetch")
        if operation.invoke_us > since_us and operation.type == "ok"
    ]
    assert {operation.node for operation in since} == {0, 2}
    assert len(since) > 100
    world.fault = lambda _: None
    finish(world, load, subject)
    assert_all_read_once_in_order(world, spread, subject.process)


@pytest.mark.thorough
@pytest.mark.parametrize("redirects", [True, False])
@pytest.mark.parametrize("variant", VARIANTS)
def test_leaders_that_move_are_followed_and_nothing_is_lost_or_read_twice(
    world: FleetWorld, spread: FakeBroker, settings: ClientSettings, variant: str, redirects: bool
) -> None:
    spread.redirects = redirects
    load, subject = producer(settings), fetcher(variant, settings)
    world.start(load, subject)
    for turn in range(8):
        world.run(0.25)
        for number, where in enumerate(HOT):
            spread.move(where, (number + turn) % 3)
    finish(world, load, subject)
    assert_all_read_once_in_order(world, spread, subject.process, seeks=variant == "rotating")
    sent = [operation for operation in operations(world, "produce") if operation.type == "ok"]
    assert sum(spread.logs[partition].end for partition in HOT) == 3 * len(sent), "a record was written twice or lost"
    assert {operation.type for operation in operations(world, "produce")} == {"ok"}
    if redirects:
        requests = [operation for operation in operations(world, "metadata") if operation.process == subject.process]
        assert len(requests) <= 3, "it requested metadata although each response named the leader"


@pytest.mark.thorough
@pytest.mark.parametrize("proxied", [False, True])
@pytest.mark.parametrize("variant", VARIANTS)
def test_client_leaves_dead_leader_once_metadata_names_another(
    world: FleetWorld, spread: FakeBroker, settings: ClientSettings, variant: str, proxied: bool
) -> None:
    load, subject = producer(settings), fetcher(variant, settings)
    world.start(load, subject)
    world.run(1)
    world.proxied = proxied
    world.down.add(1)
    world.run(1)
    moved = world.now_us
    for partition in (HOT[1], HOT[2]):
        spread.move(partition, 2)
    world.run(3)
    first = min(
        operation.complete_us
        for operation in operations(world, "produce")
        if operation.complete_us > moved and operation.type == "ok"
    )
    assert first - moved < 1_500_000
    elsewhere = [
        operation
        for operation in operations(world, "fetch")
        if operation.node == 1 and operation.invoke_us > moved + 1_500_000
    ]
    assert not elsewhere, "it continued to send to the dead node"
    assert subject.reading.consumer.positions[HOT[1]].offset > 0
    finish(world, load, subject)
    assert_all_read_once_in_order(world, spread, subject.process, seeks=variant == "rotating")


def test_producer_without_an_id_leaves_a_node_that_is_dead_behind_a_proxy(
    world: FleetWorld, spread: FakeBroker, settings: ClientSettings
) -> None:
    load = producer(settings)
    world.proxied = True
    world.down.add(0)
    world.start(load)
    world.run(0.5)
    spread.move(HOT[0], 2)
    world.run(4)
    assert [operation for operation in operations(world, "produce") if operation.type == "ok"], (
        "it never left the dead node"
    )


@pytest.mark.thorough
@pytest.mark.parametrize("attended_before", [False, True])
def test_nothing_was_due_at_a_node_that_led_nothing(
    world: FleetWorld, spread: FakeBroker, settings: ClientSettings, attended_before: bool
) -> None:
    if not attended_before:
        spread.move(HOT[3], 0)
    load, subject = producer(settings), fetcher("incremental", settings)
    world.start(load, subject)
    world.run(1)
    spread.move(HOT[3], 0)
    world.run(5)
    spread.move(HOT[3], 2)
    world.run(1)
    fetches = operations(world, "fetch")
    assert any(fetch.node == 2 and fetch.type == "ok" and fetch.invoke_us > 7_000_000 for fetch in fetches)
    assert max(fetch.invoke_us - fetch.intended_us for fetch in fetches) < 1_500_000, "overdue since before it was led"
    finish(world, load, subject)


def test_out_of_range_offset_is_looked_up_at_partition_leader(
    world: FleetWorld, spread: FakeBroker, settings: ClientSettings
) -> None:
    log = spread.logs[HOT[1]]
    subject = fetcher("incremental", settings)
    world.start(subject)
    world.run(0.2)
    log.start = log.end = 6
    spread.sessions.clear()
    world.run(1)
    world.stop(subject)
    world.run(20)
    assert subject.process in world.finished, "the fetcher never finished"
    lookups = operations(world, "list_offsets")
    assert [lookup.type for lookup in lookups] == ["ok"]
    assert subject.reading.consumer.positions[HOT[1]].offset == 6


@pytest.mark.usefixtures("spread")
def test_after_the_load_a_fetcher_polls_every_leader_before_it_ends(
    world: FleetWorld, settings: ClientSettings
) -> None:
    subject = fetcher("incremental", settings)
    world.start(subject)
    world.run(0.5)
    before = subject.reading.polls
    world.stop(subject)
    world.run(20)
    assert subject.process in world.finished, "the fetcher never finished"
    assert {operation.node for operation in operations(world, "fetch")[before:]} == {0, 1, 2}


@pytest.mark.thorough
def test_fetcher_waits_for_a_leader_and_then_reads_on(
    world: FleetWorld, spread: FakeBroker, settings: ClientSettings
) -> None:
    load, subject = producer(settings), fetcher("incremental", settings)
    world.start(load, subject)
    world.run(1)
    spread.move(HOT[3], -1)
    world.run(2)
    spread.move(HOT[3], 0)
    world.run(2)
    finish(world, load, subject)
    assert_all_read_once_in_order(world, spread, subject.process)


@pytest.mark.usefixtures("spread")
def test_final_reader_opens_one_connection_to_each_leader(world: FleetWorld, settings: ClientSettings) -> None:
    load = producer(settings)
    world.start(load)
    world.run(1)
    world.stop(load)
    world.run(1)
    subject = FinalReader(FinalReadPlan("final-reader", (IDLE, *HOT)), settings, Random(5), BatchReader())
    world.start(subject)
    world.run(10)
    assert subject.process in world.finished
    assert not subject.unread
    connects = [operation for operation in operations(world, "connect") if operation.process == "final-reader"]
    assert len(connects) == 3


@pytest.mark.usefixtures("spread")
def test_final_reader_from_offsets_records_no_end(world: FleetWorld, settings: ClientSettings) -> None:
    load = producer(settings)
    world.start(load)
    world.run(1)
    world.stop(load)
    world.run(1)
    whole = FinalReader(FinalReadPlan("final-reader", HOT), settings, Random(5), BatchReader())
    world.start(whole)
    world.run(10)
    subject = whole.from_offsets("second", {HOT[0]: 2, HOT[2]: 0})
    world.start(subject)
    world.run(10)
    assert not subject.unread
    assert len(world.rows("ends")) == len(HOT)
    assert {partition: offsets[0] for partition, offsets in read_offsets(world, "second").items()} == {
        HOT[0]: 2,
        HOT[2]: 0,
    }


@pytest.mark.parametrize("first", [IDLE, HOT[0]])
def test_partition_that_stays_in_error_keeps_the_final_reader_from_no_other_leader(
    world: FleetWorld, spread: FakeBroker, settings: ClientSettings, first: TopicPartition
) -> None:
    spread.errors[first] = 1
    others = tuple(each for each in (IDLE, *HOT) if each != first)
    subject = FinalReader(
        FinalReadPlan("final-reader", (first, *others), limit_us=5_000_000), settings, Random(5), BatchReader()
    )
    world.start(subject)
    world.run(10)
    assert subject.process in world.finished
    assert list(subject.unread) == [first]
    assert {TopicPartition(row.topic, row.partition) for row in world.rows("ends")} == set(others)


def test_final_read_counts_despite_error_of_other_partition(
    world: FleetWorld, spread: FakeBroker, settings: ClientSettings
) -> None:
    load = producer(settings)
    world.start(load)
    world.run(1)
    world.stop(load)
    world.run(1)
    spread.errors[IDLE] = 1
    plan = FinalReadPlan("final-reader", (IDLE, HOT[0]), limit_us=3_000_000)
    world.start(FinalReader(plan, settings, Random(5), BatchReader()))
    world.run(5)
    reads = [operation for operation in operations(world, "final_read") if operation.process == "final-reader"]
    with_values = {row.index for row in world.rows("runs") if row.process == "final-reader"}
    assert with_values
    assert {read.type for read in reads if read.index in with_values} == {"ok"}
    assert {read.type for read in reads if read.index not in with_values} == {"fail"}


@pytest.mark.usefixtures("spread")
@pytest.mark.parametrize("revision", REVISIONS)
def test_first_request_of_each_revision(world: FleetWorld, settings: ClientSettings, revision: str) -> None:
    subject = fetcher("incremental", settings, revision=revision)
    sent = []

    def keep(request: Request) -> str | None:
        if request.api_key == ApiKey.FETCH:
            sent.append(request)
            return "lose_request"
        return None

    world.fault = keep
    world.start(subject)
    world.run(0.1)
    assert {each.api_version for each in sent} == {1000 if revision == "first" else settings.versions.fetch}
    bodies: list[Any] = [each.body for each in sent]
    assert {(body.session_id, body.session_epoch) for body in bodies} == {(0, -1 if revision == "none" else 0)}
    assert len(sent) == 3, "a request to each leader, at the same time"
