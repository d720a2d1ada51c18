"""Produce in transactions on several nodes: partitions are added by what is written to them (version 2), nothing is
written to a partition that the transaction does not have, and readers of committed records see whole transactions."""

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
    """The producer speaks version 2 of transactions, or asks for nothing before it writes."""

    def init(self) -> None:
        """A transaction lives longer than it takes to replace a dead node."""
        timeout = i32Timedelta.parse(timedelta(seconds=60))
        body = InitProducerIdRequest(transactional_id=ID, transaction_timeout=timeout)
        answer = self.again(ApiKey.INIT_PRODUCER_ID, 4, body)
        self.owner = int(answer.producer_id), int(answer.producer_epoch)

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
        answer = self.answer_of(token)
        return None if answer is None else ErrorCode(answer.responses[0].partitions[0].error_code)

    def taken(self, index: int, sequence: int = 0) -> None:
        """The same batch again until it is taken."""
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
        answer = self.again(ApiKey.END_TXN, 5, self.end_body(commits=commits))
        assert answer.error_code == 0
        self.owner = int(answer.producer_id), int(answer.producer_epoch)

    def close(self, member: Member) -> None:
        """A clean end to which the cluster agrees at once. The node hears the others for a while."""
        leaving: Any = member.node.broker.replica
        leaving.shut_down = lambda left: left()
        self._take(member, member.node.shutdown(self.now))

    def read(self, index: int, isolation_level: int = COMMITTED) -> Any:
        wanted = FetchTopic("t", NO_TOPIC_ID, [FetchPartition(index, 0, 1 << 20)])
        request = FetchRequest(max_wait_ms=0, isolation_level=isolation_level, topics=[wanted])
        return self.ask(self.leader("t", index), ApiKey.FETCH, 12, request).responses[0].partitions[0]

    def read_offsets(self, index: int) -> tuple[list[int], list[tuple[int, int]]]:
        """The batches that a reader of committed records gets, and the aborted transactions."""
        data = self.read(index)
        batches = [header.base_offset for _, header in iterate(data.records or b"")]
        return batches, [(one.producer_id, one.first_offset) for one in data.aborted_transactions or ()]


@pytest.fixture
def world() -> ProducingWorld:
    world = ProducingWorld()
    world.init()
    return world


@pytest.mark.clause("X-4", "X-5", "X-9")
@pytest.mark.parametrize("commits", [True, False])
def test_what_is_written_to_is_added_and_ended(world: ProducingWorld, commits: bool) -> None:
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
def test_transactions_follow_each_other_with_an_epoch_of_their_own(world: ProducingWorld) -> None:
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
def test_nothing_is_written_where_the_transaction_does_not_have_the_partition(world: ProducingWorld) -> None:
    """Before version 2 partitions are added by the producer. This one forgets to."""
    assert world.error_of(world.produce_to(0, version=TV1)) is ErrorCode.transaction_abortable
    assert world.error_of(world.produce_to(0, version=TV1 - 1)) is ErrorCode.invalid_txn_state
    world.add(1)
    assert world.error_of(world.produce_to(0, version=TV1)) is ErrorCode.transaction_abortable
    assert world.error_of(world.produce_to(1, version=TV1)) is ErrorCode.none
    assert world.log_of(0) == []


@pytest.mark.clause("X-9")
def test_an_older_producer_is_fenced_wherever_it_writes(world: ProducingWorld) -> None:
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
def test_no_transaction_hangs_when_a_node_dies_while_a_partition_is_added(victim: str, delay_us: int) -> None:
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


def test_a_node_that_closes_its_logs_appends_nothing_that_its_coordinator_allows_then(world: ProducingWorld) -> None:
    """Else the mark of a clean end would be wrong."""
    coordinator = world.coordinator()
    index = next(one for one in INDEXES if world.leader("t", one) != coordinator)
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
def test_a_batch_that_waits_while_its_transaction_is_aborted_is_refused(world: ProducingWorld) -> None:
    """The coordinator adds the partition, but its word does not reach the leader before the transaction is over."""
    world.taken(0)
    coordinator = world.coordinator()
    index = next(one for one in INDEXES if world.leader("t", one) != coordinator)
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
