"""Produce in transactions on several nodes.

Partitions are added by the first write to them (version 2), no record is written to a partition outside the
transaction, and read_committed consumers see whole transactions.
"""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.static.primitive import i32Timedelta

from reference_broker.core.tests.cluster_world import Member
from reference_broker.core.tests.test_transaction_coordinators import ID, INDEXES, TransactionsWorld
from reference_broker.ports.node_ports import Channel
from reference_broker.records.batch import iterate
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

COMMITTED = 1
TV1, TV2 = 11, 12


class ProducingWorld(TransactionsWorld):
    """A producer that uses version 2 of transactions, or sends nothing before it writes."""

    def init(self) -> None:
        """Get a producer ID with a transaction timeout longer than the replacement of a dead node."""
        timeout = i32Timedelta.parse(timedelta(seconds=60))
        body = InitProducerIdRequest(transactional_id=ID, transaction_timeout=timeout)
        response = self.retried(ApiKey.INIT_PRODUCER_ID, 4, body)
        self.owner = int(response.producer_id), int(response.producer_epoch)

    def batch(self, sequence: int) -> bytes:
        return build(
            [Record(timestamp_ms=self.now.wall_ms, key=None, value=b"v")],
            producer_id=self.owner[0],
            producer_epoch=self.owner[1],
            base_sequence=sequence,
            is_transactional=True,
        )

    def produce_to(self, index: int, sequence: int = 0, version: int = TV2, at: int | None = None) -> int:
        topics = [ProduceTopic("t", NO_TOPIC_ID, [ProducePartition(index, self.batch(sequence))])]
        request = ProduceRequest(-1, 3000, topics, transactional_id=ID)
        return self.send(self.leader("t", index) if at is None else at, ApiKey.PRODUCE, version, request)

    def error_of(self, token: int) -> ErrorCode | None:
        response = self.response_to(token)
        return None if response is None else ErrorCode(response.responses[0].partitions[0].error_code)

    def taken(self, index: int, sequence: int = 0) -> None:
        """Send the same batch until it is accepted."""
        for _ in range(300):
            leader = self.leader("t", index)
            if leader >= 0 and self.members[leader].alive:
                error = self.error_of(self.produce_to(index, sequence))
                if error is ErrorCode.none:
                    return
            self.run(50)
        raise AssertionError(f"partition {index} takes nothing: {error}")

    def finish(self, *, commits: bool = True) -> None:
        """EndTxn 5: the producer continues with the ID and epoch of the response."""
        response = self.retried(ApiKey.END_TXN, 5, self.end_body(commits=commits))
        assert response.error_code == ErrorCode.none
        self.owner = int(response.producer_id), int(response.producer_epoch)

    def close(self, member: Member) -> None:
        """Stop cleanly while the cluster agrees at once. The node receives responses for a while."""
        leaving: Any = member.node.broker.quorum_node
        leaving.shut_down = lambda left: left()
        self._take(member, member.node.shutdown(self.now))

    def read(self, index: int, isolation_level: int = COMMITTED) -> Any:
        wanted = FetchTopic("t", NO_TOPIC_ID, [FetchPartition(index, 0, 1 << 20)])
        request = FetchRequest(max_wait_ms=0, isolation_level=isolation_level, topics=[wanted])
        return self.request(self.leader("t", index), ApiKey.FETCH, 12, request).responses[0].partitions[0]

    def read_offsets(self, index: int) -> tuple[list[int], list[tuple[int, int]]]:
        """Return the batches that a read_committed consumer gets, and the aborted transactions."""
        data = self.read(index)
        batches = [header.base_offset for _, header in iterate(data.records or b"")]
        return batches, [
            (transaction.producer_id, transaction.first_offset) for transaction in data.aborted_transactions or ()
        ]


@pytest.fixture
def world() -> ProducingWorld:
    world = ProducingWorld()
    world.init()
    return world


@pytest.mark.clause("X-4", "X-5", "X-9")
@pytest.mark.parametrize("commits", [True, False])
def test_written_partitions_are_added_and_ended(world: ProducingWorld, commits: bool) -> None:
    producer, epoch = world.owner
    for index in INDEXES:
        world.taken(index)
        assert world.read_offsets(index) == ([], [])
    world.finish(commits=commits)
    assert world.owner == (producer, epoch + 1)
    assert world.settled() == ("CompleteCommit" if commits else "CompleteAbort")
    world.run(1000)
    for index in INDEXES:
        assert world.read_offsets(index) == ([0, 1], [] if commits else [(producer, 0)])
    world.no_transaction_is_open()


@pytest.mark.thorough
def test_consecutive_transactions_have_own_epochs(world: ProducingWorld) -> None:
    for number in range(4):
        world.taken(0)
        world.taken(0, 1)
        world.finish(commits=number % 2 == 0)
    world.settled()
    world.run(1000)
    batches, aborted = world.read_offsets(0)
    assert batches == list(range(12))
    assert [first for _, first in aborted] == [3, 9]
    world.no_transaction_is_open()


@pytest.mark.clause("X-9")
def test_write_to_partition_outside_transaction_is_rejected(world: ProducingWorld) -> None:
    """Before version 2 partitions are added by the producer. This one forgets to."""
    assert world.error_of(world.produce_to(0, version=TV1)) is ErrorCode.transaction_abortable
    assert world.error_of(world.produce_to(0, version=TV1 - 1)) is ErrorCode.invalid_txn_state
    world.add(1)
    assert world.error_of(world.produce_to(0, version=TV1)) is ErrorCode.transaction_abortable
    assert world.error_of(world.produce_to(1, version=TV1)) is ErrorCode.none
    assert world.log_of(0) == []


@pytest.mark.clause("X-9")
def test_older_producer_is_fenced_at_each_partition(world: ProducingWorld) -> None:
    old = world.owner
    world.taken(0)
    world.init()
    world.taken(1)
    new, world.owner = world.owner, old
    for index in INDEXES:
        for version in (TV1, TV2):
            assert world.error_of(world.produce_to(index, 1, version)) is ErrorCode.invalid_producer_epoch
    world.owner = new
    world.finish()
    world.settled()
    assert [world.log_of(index) for index in INDEXES] == [["record", "abort"], ["record", "commit"], []]


@pytest.mark.thorough
@pytest.mark.clause("X-9")
@pytest.mark.parametrize("delay_us", [0, 150, 300, 450, 700, 1000, 1500])
@pytest.mark.parametrize("victim", ["coordinator", "leader"])
def test_no_hanging_transaction_when_node_dies_during_add(victim: str, delay_us: int) -> None:
    world = ProducingWorld()
    world.init()
    world.taken(0)
    leader = world.leader("t", 1)
    dies = world.coordinator() if victim == "coordinator" else leader
    world.produce_to(1)
    end_us = world.mono_us + delay_us
    world.run_until(lambda: world.mono_us >= end_us)
    world.kill(dies)
    world.taken(1)
    world.finish()
    assert world.settled() == "CompleteCommit"
    world.start(dies)
    world.ready()
    world.run(2000)
    for index in (0, 1):
        assert world.log_of(index) == ["record", "commit"]
        assert world.read_offsets(index)[1] == []
    world.no_transaction_is_open()


def test_stopping_node_appends_no_late_verified_batch(world: ProducingWorld) -> None:
    """Otherwise the clean-shutdown file would be wrong."""
    coordinator = world.coordinator()
    index = next(each for each in INDEXES if world.leader("t", each) != coordinator)
    leader = world.members[world.leader("t", index)]
    world.add(index)
    world.produce_to(index, version=TV1)
    world.run_until(lambda: (coordinator, Channel.VERIFICATION) in leader.links)
    assert world.log_of(index) == []
    world.close(leader)
    world.run(3000)
    assert leader.node.stopped
    assert world.log_of(index) == []


@pytest.mark.clause("X-9")
def test_batch_awaiting_verification_of_aborted_transaction_is_rejected(world: ProducingWorld) -> None:
    """The coordinator adds the partition, but its response arrives after the end of the transaction."""
    world.taken(0)
    coordinator = world.coordinator()
    index = next(each for each in INDEXES if world.leader("t", each) != coordinator)
    before = world.log_of(index)
    token = world.produce_to(index, sequence=1 if index == 0 else 0)
    world.run(1)
    world.finish(commits=False)
    world.settled()
    world.run(1000)
    error = world.error_of(token)
    found = world.log_of(index)[len(before) :]
    assert (error is ErrorCode.none) == ("record" in found)
    world.no_transaction_is_open()
