"""Workers that consume, transform and produce: their pipe, their plans, and who reads at the end."""

import pytest

from bench.fleet.behaviours.group_member import IN_TRANSACTIONS
from bench.fleet.behaviours.protocol import Behaviour, TopicPartition
from bench.fleet.behaviours.transactional_worker import WorkerPipe, _consecutive
from bench.fleet.fleet import Fleet, make_fleet
from bench.fleet.spec import FleetSpec
from reference_broker.client.consumer_partitions import ConsumerRecord
from scenarios.load import Load, Topic, TransactionalWriters, Workers

IN0 = TopicPartition("in", 0)
TOPICS = (Topic("in", 2), Topic("out", 3), Topic("ledger", 4))


def read(pipe: WorkerPipe, *offsets: int) -> None:
    pipe.put([ConsumerRecord("in", 0, offset, 0, None, b"v") for offset in offsets])


def test_consumed_records_stay_in_pipe_until_committed() -> None:
    pipe = WorkerPipe()
    read(pipe, 3, 4, 6)
    taken = list(pipe.waiting[IN0])
    read(pipe, 7)
    assert pipe.holds([IN0])
    pipe.settle(IN0, taken)
    assert list(pipe.waiting[IN0]) == [7]
    pipe.settle(IN0, [7])
    assert pipe.is_empty


def test_records_of_reassigned_partition_are_dropped() -> None:
    pipe = WorkerPipe()
    read(pipe, 3, 4)
    taken = list(pipe.waiting[IN0])
    pipe.drop([IN0])
    assert pipe.is_empty
    read(pipe, 5)
    pipe.settle(IN0, taken)
    assert list(pipe.waiting[IN0]) == [5]


@pytest.mark.parametrize(
    ("offsets", "runs"), [([3], [(0, 1)]), ([3, 4, 6, 7, 9], [(0, 2), (2, 2), (4, 1)]), ([3, 4, 5], [(0, 3)])]
)
def test_markers_between_records_end_a_run(offsets: list[int], runs: list[tuple[int, int]]) -> None:
    assert _consecutive(offsets) == runs


def spec(**more: object) -> FleetSpec:
    return FleetSpec(["one:9092"], Load(seconds=1, topics=TOPICS, **more))  # type: ignore[arg-type]


def clients(fleet: Fleet) -> list[Behaviour]:
    return [*fleet.transactional, *fleet.workers]


def test_names_and_partitions_do_not_depend_on_the_number_of_processes() -> None:
    load = spec(
        transactional=(TransactionalWriters(count=3, topic="ledger", transactions_per_s=4),),
        workers=(Workers(name="w", count=3, source="in", target="out"),),
    )
    alone = make_fleet(load)
    dealt = [make_fleet(load, (share, 2)) for share in range(2)]
    names = [client.process for client in clients(alone)]
    assert names == [f"transactional-{n}" for n in range(3)] + [f"worker-{n}" for n in range(3)]
    assert sorted(client.process for one in dealt for client in clients(one)) == sorted(names)
    [first, *_] = alone.workers
    assert (first.plan.target_partitions, first.plan.habits.process) == (3, "worker-0-writer")
    assert (first.plan.member.offsets, first.plan.member.read_committed) == (IN_TRANSACTIONS, True)
    assert alone.transactional[0].plan.interval_us == 250_000


def test_committed_records_are_read_once_more_where_there_are_transactions() -> None:
    with_them = make_fleet(spec(workers=(Workers(name="w", count=1, source="in", target="out"),)))
    assert [reader.process for reader in with_them.last_readers] == [
        "final-reader",
        "committed-reader",
        "offsets-reader",
    ]
    assert [reader.process for reader in make_fleet(spec()).last_readers] == ["final-reader"]
