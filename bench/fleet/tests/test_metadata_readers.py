"""Rows of metadata readers: only news of each node, and everything once at the end."""

from typing import Any

import pytest

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.admin import FIRST_VALUE
from bench.fleet.fleet import Fleet, make_fleet
from bench.fleet.spec import FleetSpec
from bench.fleet.tests.cluster import ADDRESSES, FakeQuorum, QuorumWorld
from scenarios.load import Load, MetadataReaders

BOOTSTRAP = [f"{address.host}:{address.port}" for address in ADDRESSES]
SET = {f"made.admin-0.1.{number}of2.p3": 3 for number in range(2)}


@pytest.fixture
def quorum() -> FakeQuorum:
    return FakeQuorum()


@pytest.fixture
def world(quorum: FakeQuorum) -> QuorumWorld:
    return QuorumWorld(quorum)


def fleet(count: int = 1, **more: Any) -> Fleet:
    readers = MetadataReaders(count=count, poll_interval_ms=100)
    return make_fleet(FleetSpec(BOOTSTRAP, Load(seconds=1, metadata_readers=(readers,)), **more))


def create(quorum: FakeQuorum, topics: dict[str, int]) -> None:
    quorum.create(bodies.create_topics_request([bodies.new_topic(*each, 1, {}) for each in topics.items()], 1000), None)


def test_only_news_is_written_down(world: QuorumWorld, quorum: FakeQuorum) -> None:
    (reader,) = fleet().metadata_readers
    create(quorum, {"hot": 5})
    world.start(reader)
    world.run(1)
    assert world.rows("metadata_reads") == []
    create(quorum, SET)
    world.run(1)
    quorum.delete(bodies.delete_topics_request(tuple(SET), 1000), None)
    world.run(1)
    polls = [row for row in world.rows("operations") if row.f == "metadata_read"]
    assert len(polls) >= 25
    home = [row for row in world.rows("metadata_reads") if row.node == polls[0].node]
    assert [(row.topic, row.partitions_seen, row.present) for row in home[:2]] == [(name, 3, True) for name in SET]
    assert {(row.topic_set, row.topics_wanted, row.partitions_wanted) for row in home} == {("made.admin-0.1", 2, 3)}


def test_part_of_a_topic_is_seen_as_such(world: QuorumWorld, quorum: FakeQuorum) -> None:
    (reader,) = fleet().metadata_readers
    create(quorum, SET)
    quorum.hidden[0, next(iter(SET))] = 1
    world.start(reader)
    world.run(1)
    rows = [row for row in world.rows("metadata_reads") if row.node == 0]
    assert [row.partitions_seen for row in rows] == [2, 3]


def test_reader_goes_through_the_nodes_and_past_a_dead_one(world: QuorumWorld, quorum: FakeQuorum) -> None:
    readers = fleet(3).metadata_readers
    create(quorum, SET)
    world.down.add(1)
    world.start(*readers)
    world.run(6)
    world.stop(*readers)
    world.run(1)
    assert {reader.process for reader in readers} <= world.finished
    by_reader = {(row.process, row.node) for row in world.rows("metadata_reads")}
    assert by_reader == {(reader.process, node) for reader in readers for node in (0, 2)}


def test_final_description_waits_until_all_nodes_say_the_same(world: QuorumWorld, quorum: FakeQuorum) -> None:
    describer = fleet().final_describer
    assert describer is not None
    create(quorum, SET)
    first, second = SET
    quorum.alter(bodies.set_topic_configs_request((first,), {"retention.ms": str(FIRST_VALUE + 7)}), None)
    quorum.alter(bodies.set_topic_configs_request((second,), {"retention.ms": "604800000"}), None)
    quorum.behind[2] = {}
    world.start(describer)
    world.run(2)
    assert world.rows("metadata_reads") == []
    del quorum.behind[2]
    world.run(5)
    assert describer.process in world.finished
    assert describer.agreed
    rows = world.rows("metadata_reads")
    assert sorted((row.node, row.topic, row.value) for row in rows) == [
        (node, name, value) for node in range(3) for name, value in ((first, FIRST_VALUE + 7), (second, -1))
    ]
    assert all(row.final for row in rows)


def test_final_description_ends_with_partial_result(world: QuorumWorld, quorum: FakeQuorum) -> None:
    describer = fleet(final_read_ms=5_000).final_describer
    assert describer is not None
    create(quorum, SET)
    world.down.add(2)
    world.start(describer)
    world.run(10)
    assert describer.process in world.finished
    assert not describer.agreed
    assert describer.undescribed == 1
    assert {row.node for row in world.rows("metadata_reads")} == {0, 1}
