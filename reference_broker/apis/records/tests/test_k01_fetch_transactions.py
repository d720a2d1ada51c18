"""Read-committed fetches: their end, the aborted transactions in the response, and what completes a parked one."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from reference_broker.apis.records import k02_list_offsets
from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.apis.tests.replicated_world import NO_ID, ReplicatedWorld, partitions_of
from reference_broker.records.batch import iterate
from reference_broker.records.record import Record, build
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.transactions.markers import Marker
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import AbortedTransaction, FetchPartition, FetchRequest, FetchTopic, PartitionData

COMMITTED, UNCOMMITTED = 1, 0


class TransactionWorld(ReplicatedWorld):
    """Each producer sends one record a batch. ``sequences``: the next one of each."""

    def __init__(self, **how: Any) -> None:
        super().__init__(**how)
        self.sequences: dict[int, int] = {}

    def write(self, producer: int) -> None:
        sequence = self.sequences.get(producer, 0)
        self.sequences[producer] = sequence + 1
        record = Record(timestamp_ms=START_MS, key=None, value=b"%d" % sequence)
        batch = build([record], producer_id=producer, producer_epoch=0, base_sequence=sequence, is_transactional=True)
        self.partition.log.append(self.now(), batch, self.partition.leader_epoch)
        self.leaders.appended(self.partition)
        self.partition.changed()

    def end(self, producer: int, *, commit: bool) -> None:
        self.broker.markers.write(Marker(producer, 0, 0, commit), [("events", 0)], lambda _: None)

    def replicate(self) -> None:
        for follower in (2, 3):
            self.fetch(follower, self.partition, self.partition.log.log_end_offset)

    def read(
        self,
        offset: int = 0,
        level: int = COMMITTED,
        *,
        max_bytes: int = 1 << 20,
        wait_ms: int = 0,
        session: tuple[int, int] = (0, -1),
        named: bool = True,
    ) -> FakeCall:
        topics = [FetchTopic("events", NO_ID, [FetchPartition(0, offset, max_bytes)])] if named else []
        request = FetchRequest(
            max_wait_ms=wait_ms,
            isolation_level=level,
            session_id=session[0],
            session_epoch=session[1],
            topics=topics,
        )
        return self.send(request, "consumer")

    def data(self, offset: int = 0, level: int = COMMITTED, max_bytes: int = 1 << 20) -> PartitionData:
        return partitions_of(self.read(offset, level, max_bytes=max_bytes).response)[0]


@pytest.fixture
def world() -> TransactionWorld:
    return TransactionWorld()


def offsets(data: PartitionData) -> list[int]:
    return [header.base_offset for _, header in iterate(data.records or b"")]


@pytest.mark.clause("X-4")
def test_read_committed_ends_at_first_open_transaction(world: TransactionWorld) -> None:
    world.write(1)
    world.end(1, commit=True)
    world.write(2)
    world.write(1)
    world.replicate()
    committed, uncommitted = world.data(), world.data(level=UNCOMMITTED)
    assert offsets(committed) == [0, 1]
    assert committed.last_stable_offset == 2
    assert committed.high_watermark == 4
    assert (offsets(uncommitted), uncommitted.last_stable_offset) == ([0, 1, 2, 3], 2)
    assert (committed.aborted_transactions, uncommitted.aborted_transactions) == ([], None)


def test_marker_takes_effect_once_replicated(world: TransactionWorld) -> None:
    world.write(1)
    world.replicate()
    world.end(1, commit=True)
    assert (offsets(world.data()), world.data().last_stable_offset) == ([], 0)
    world.replicate()
    assert (offsets(world.data()), world.data().last_stable_offset) == ([0, 1], 2)


@pytest.mark.clause("X-5")
def test_aborted_transactions_are_those_of_returned_range(world: TransactionWorld) -> None:
    """The first transaction ends before the range, the last starts after it."""
    for producer in (1, 2, 3):
        world.write(producer)  # 0, 2, 4
        world.end(producer, commit=False)  # 1, 3, 5
    world.replicate()
    size = len(world.partition.log.read(0, 1))
    one = world.data(2, max_bytes=size)
    assert (offsets(one), one.aborted_transactions) == ([2], [AbortedTransaction(2, 2)])
    marker = world.data(3, max_bytes=1)
    assert (offsets(marker), marker.aborted_transactions) == ([3], [AbortedTransaction(2, 2)])
    assert world.data().aborted_transactions == [AbortedTransaction(at, 2 * at - 2) for at in (1, 2, 3)]


def test_committed_and_open_transactions_are_not_listed_as_aborted(world: TransactionWorld) -> None:
    world.write(1)
    world.write(2)
    world.end(1, commit=True)
    world.end(2, commit=False)
    world.write(3)
    world.replicate()
    data = world.data()
    assert (offsets(data), data.aborted_transactions) == ([0, 1, 2, 3], [AbortedTransaction(2, 1)])


@pytest.mark.clause("ReplicaManagerTest.testDelayedFetchIncludesAbortedTransactions")
@pytest.mark.parametrize("commit", [True, False])
def test_read_committed_fetch_waits_for_marker(world: TransactionWorld, commit: bool) -> None:
    call = world.read(wait_ms=500)
    world.write(1)
    world.replicate()
    assert not call.closed
    world.end(1, commit=commit)
    assert not call.closed
    world.replicate()
    data = partitions_of(call.response)[0]
    assert offsets(data) == [0, 1]
    assert data.aborted_transactions == ([] if commit else [AbortedTransaction(1, 0)])


def test_other_open_transaction_does_not_complete_parked_fetch(world: TransactionWorld) -> None:
    world.write(1)
    call = world.read(wait_ms=500)
    world.write(2)
    world.end(2, commit=True)
    world.replicate()
    assert not call.closed
    world.pass_ms(500)
    assert offsets(partitions_of(call.response)[0]) == []


@pytest.mark.clause("ReplicaManagerTest.testReadCommittedFetchLimitedAtLSO")
def test_session_sends_newly_committed_records(world: TransactionWorld) -> None:
    opened = world.read(session=(0, 0)).response
    world.write(1)
    world.replicate()
    held = partitions_of(world.read(session=(opened.session_id, 1), named=False).response)
    assert offsets(held[0]) == []
    assert held[0].last_stable_offset == 0
    assert held[0].high_watermark == 1
    assert partitions_of(world.read(session=(opened.session_id, 2), named=False).response) == {}
    world.end(1, commit=False)
    world.replicate()
    data = partitions_of(world.read(session=(opened.session_id, 3), named=False).response)[0]
    assert (offsets(data), data.aborted_transactions) == ([0, 1], [AbortedTransaction(1, 0)])


def latest(world: TransactionWorld, level: int) -> tuple[int, int]:
    wanted = ListOffsetsPartition(partition_index=i32(0), current_leader_epoch=i32(-1), timestamp=i64(-1))
    topic = ListOffsetsTopic(name=TopicName("events"), partitions=(wanted,))
    request = ListOffsetsRequest(
        replica_id=BrokerId(-1), isolation_level=i8(level), topics=(topic,), timeout=i32Timedelta.parse(timedelta(0))
    )
    call = FakeCall(1, "c", 10)
    k02_list_offsets.handle(world.broker, call, request)
    response: Any = call.response
    (one,) = response.topics[0].partitions
    return int(one.error_code), int(one.offset)


def test_list_offsets_latest_read_committed_is_last_stable_offset(world: TransactionWorld) -> None:
    world.write(1)
    world.end(1, commit=True)
    world.write(2)
    world.replicate()
    assert (latest(world, COMMITTED), latest(world, UNCOMMITTED)) == ((0, 2), (0, 3))


def test_new_leader_returns_last_stable_offset_of_earlier_transaction() -> None:
    """Kafka's Partition.fetchOffsetForTimestamp compares the start of the epoch with the high watermark at each
    isolation level."""
    world = TransactionWorld()
    world.write(1)
    world.write(2)
    world.end(2, commit=True)
    world.state(world.partition, (1, 2, 3), leader_epoch=1)
    assert latest(world, COMMITTED) == (ErrorCode.offset_not_available, -1)
    world.replicate()
    assert (latest(world, COMMITTED), latest(world, UNCOMMITTED)) == ((0, 0), (0, 3))
