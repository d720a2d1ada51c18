"""A mirror: all records once and in order while all is well; again, and late, where its metadata is old."""

from random import Random
from typing import Any

import pytest

from bench.fleet.behaviours.final_reads import target_reader
from bench.fleet.behaviours.group_member import ALTERNATING, MemberPlan
from bench.fleet.behaviours.mirror import Mirror, MirrorPipe, MirrorPlan
from bench.fleet.behaviours.producers import KeyedProducer, ProducerPlan
from bench.fleet.behaviours.protocol import Address, Behaviour, ClientSettings, Request, TopicPartition
from bench.fleet.tests.conftest import FakeBroker
from bench.fleet.tests.groups import GroupsBroker, GroupWorld
from bench.fleet.values import read_value
from reference_broker.client.consumer_partitions import ConsumerRecord
from reference_broker.records.record import read_records

HOT = tuple(TopicPartition("hot", number) for number in range(4))
TARGET = 3


class TwoClusters(GroupWorld):
    """The node 3 is a cluster of its own."""

    def __init__(self, broker: GroupsBroker) -> None:
        super().__init__(broker)
        self.target = FakeBroker({"hot": 4})
        self.target.nodes, self.target.leaders = {TARGET}, dict.fromkeys(HOT, TARGET)

    def send(self, behaviour: Behaviour, request: Request) -> None:
        if self.at_node[behaviour.process, request.channel] == TARGET:
            self.respond(behaviour, self.target.handle_at(TARGET, request), request.channel)
        else:
            super().send(behaviour, request)

    def copied(self, partition: TopicPartition) -> list[tuple[str, int]]:
        """(writer, sequence) of each record in the target."""
        values = [
            read_value(record.value) for batch in self.target.logs[partition].batches for record in read_records(batch)
        ]
        return [(value.writer, value.sequence) for value in values]

    def written(self, partition: TopicPartition) -> list[tuple[str, int]]:
        values = [
            read_value(record.value) for batch in self.broker.logs[partition].batches for record in read_records(batch)
        ]
        return [(value.writer, value.sequence) for value in values]


@pytest.fixture
def settings() -> ClientSettings:
    return ClientSettings(tuple(Address(f"node-{number}", 9092) for number in range(3)))


@pytest.fixture
def world() -> TwoClusters:
    broker = GroupsBroker({"hot": 4})
    for partition in HOT:
        broker.leaders[partition] = partition.partition % 3
    return TwoClusters(broker)


@pytest.fixture
def load(settings: ClientSettings) -> KeyedProducer:
    plan = ProducerPlan("producer-0", HOT, interval_us=10_000, records_per_request=3)
    return KeyedProducer(plan, settings, Random(4))


def mirror(settings: ClientSettings, number: int = 0, **changes: Any) -> Mirror:
    member = MemberPlan(
        f"mirror-{number}",
        "mirror",
        HOT,
        poll_interval_us=20_000,
        commit_interval_us=100_000,
        heartbeat_interval_ms=100,
        metadata_interval_us=200_000,
        metadata_from=ALTERNATING,
        **changes,
    )
    plan = MirrorPlan(member, ClientSettings((Address(f"node-{TARGET}", 9092),)))
    return Mirror(plan, settings, Random(number))


def finish(world: TwoClusters, load: KeyedProducer, *mirrors: Mirror) -> None:
    world.stop(load)
    world.run(1)
    world.stop(*mirrors)
    world.run(10)
    assert {each.process for each in mirrors} <= world.finished, "somebody never finished"


def test_every_record_is_copied_once_in_order_and_then_committed(
    world: TwoClusters, settings: ClientSettings, load: KeyedProducer
) -> None:
    one = mirror(settings)
    world.start(load, one)
    world.run(2)
    finish(world, load, one)
    for partition in HOT:
        assert world.copied(partition) == world.written(partition) != []
        assert world.fake.groups["mirror"].offsets[partition][0] == world.broker.logs[partition].end
    rows = [row for row in world.rows("copies") if row.partition == 0]
    assert sum(row.count for row in rows) == world.broker.logs[HOT[0]].end
    assert all(row.source_offset == row.target_offset for row in rows)
    assert {row.writer for row in rows} == {"producer-0"}
    assert {row.process for row in rows} == {"mirror-0-writer"}


def test_nothing_is_committed_that_the_target_has_not_acknowledged(
    world: TwoClusters, settings: ClientSettings, load: KeyedProducer
) -> None:
    one = mirror(settings)
    world.start(load, one)
    world.run(0.5)
    world.target.errors = dict.fromkeys(HOT, 5)
    world.run(2)
    for partition in HOT:
        assert world.fake.groups["mirror"].offsets[partition][0] <= world.target.logs[partition].end
        assert world.target.logs[partition].end < world.broker.logs[partition].end
    world.target.errors = {}
    finish(world, load, one)
    for partition in HOT:
        assert world.copied(partition) == world.written(partition)


@pytest.mark.thorough
def test_two_mirrors_hand_partitions_over_without_copying_anything_twice(
    world: TwoClusters, settings: ClientSettings, load: KeyedProducer
) -> None:
    first, second = mirror(settings), mirror(settings, 1)
    world.start(load, first)
    world.run(1)
    world.start(second)
    world.run(2)
    finish(world, load, first, second)
    for partition in HOT:
        assert sorted(world.copied(partition)) == sorted(world.written(partition))
    assert {row.process for row in world.rows("copies")} == {"mirror-0-writer", "mirror-1-writer"}


def test_target_is_read_at_end_into_own_table(
    world: TwoClusters, settings: ClientSettings, load: KeyedProducer
) -> None:
    one = mirror(settings)
    world.start(load, one)
    world.run(2)
    finish(world, load, one)
    before = {name: len(world.rows(name)) for name in ("runs", "positions", "ends")}
    reader = target_reader("target-reader", one.plan.target, Random(7), HOT, 60_000_000)
    world.start(reader)
    world.run(5)
    assert reader.unread == {}
    assert {name: len(world.rows(name)) for name in before} == before
    for partition in HOT:
        mine = [row for row in world.rows("target_runs") if row.partition == partition.partition]
        values = [(row.writer, row.first_sequence + step) for row in mine for step in range(row.count)]
        assert values == world.copied(partition)
        assert [row.first_offset for row in mine if not row.count] == [world.target.logs[partition].end]


@pytest.mark.clause("M-15")
@pytest.mark.parametrize("guarded", [True, False])
def test_old_metadata_makes_it_copy_again_unless_it_is_guarded(
    world: TwoClusters, settings: ClientSettings, load: KeyedProducer, guarded: bool
) -> None:
    one = mirror(settings, metadata_epoch=guarded)
    world.start(load, one)
    world.run(1)
    world.fake.grow_old(0)
    world.fake.epoch += 1
    world.fake.move(HOT[0], 1)
    world.run(2)
    world.fake.old.clear()
    finish(world, load, one)
    copies = sum(row.count for row in world.rows("copies") if row.partition == 0)
    if guarded:
        assert copies == len(world.written(HOT[0]))
        assert world.copied(HOT[0]) == world.written(HOT[0])
    else:
        assert copies > len(world.written(HOT[0]))
        assert set(world.copied(HOT[0])) == set(world.written(HOT[0]))


def read_at(offset: int) -> ConsumerRecord:
    return ConsumerRecord(*HOT[0], offset, 1, None, b"v")


def test_dropped_partition_in_flight_settles_nothing() -> None:
    pipe = MirrorPipe()
    pipe.put([read_at(7), read_at(8)])
    batch = pipe.take(HOT[0])
    pipe.drop([HOT[0]])
    pipe.put([read_at(3)])
    pipe.settle(HOT[0], batch)
    assert pipe.copied == {}
    assert [each.offset for each in pipe.take(HOT[0])] == [3]
