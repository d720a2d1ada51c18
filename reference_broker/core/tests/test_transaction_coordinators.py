"""Transactions of several nodes: an outcome is final, whichever node dies at any time."""

from datetime import timedelta
from itertools import count
from typing import Any

import pytest
from kio.schema.add_partitions_to_txn.v5.request import (
    AddPartitionsToTxnRequest,
    AddPartitionsToTxnTopic,
    AddPartitionsToTxnTransaction,
)
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.end_txn.v5.request import EndTxnRequest
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.init_producer_id.v5.request import InitProducerIdRequest
from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i8, i16, i32, i32Timedelta

from reference_broker.core.tests.cluster_world import ClusterWorld
from reference_broker.records.batch import iterate
from reference_broker.records.control import ControlType, read_marker
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode, known_error
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

ID = TransactionalId("tx")
TIMEOUT = i32Timedelta.parse(timedelta(seconds=8))
INDEXES = (0, 1, 2)
RETRIABLE_ERRORS = (
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
    ErrorCode.concurrent_transactions,
    ErrorCode.network_exception,
    ErrorCode.unknown_topic_or_partition,
)


class TransactionsWorld(ClusterWorld):
    """Three nodes, the topic ``t`` with three partitions on all of them. One producer, which works as older clients do,
    or as those of transactions of version 2 (``is_modern``)."""

    def __init__(self, *, is_modern: bool = False, **config: str) -> None:
        self.is_modern = is_modern
        super().__init__(
            3,
            transaction_state_log_num_partitions="2",
            transaction_abort_timed_out_transaction_cleanup_interval_ms="500",
            **config,
        )
        self.ready()
        self.create("t", len(INDEXES))
        self.owner = (-1, -1)
        self.sequences = {index: count() for index in INDEXES}

    def coordinator(self) -> int:
        for _ in range(400):
            number = next(n for n, member in self.members.items() if member.alive)
            body = FindCoordinatorRequest(key_type=i8(1), coordinator_keys=(ID,))
            found = self.request(number, ApiKey.FIND_COORDINATOR, 6, body).coordinators[0]
            node = int(found.node_id)
            if found.error_code == ErrorCode.none and self.members[node].alive:
                return node
            self.run(50)
        raise AssertionError("the ID gets no coordinator")

    def response_to(self, token: int) -> Any:
        """Return the response, or None if there is none within three seconds."""
        deadline_us = self.mono_us + 3_000_000
        self.run_until(lambda: token in self.replies or self.mono_us > deadline_us)
        return self.replies.get(token)

    def retried(self, key: ApiKey, version: int, body: object, error_of: Any = lambda body: body.error_code) -> Any:
        """Send the request as a client does, with retries until the error is not retriable."""
        for _ in range(300):
            response = self.response_to(self.send(self.coordinator(), key, version, body))
            if response is not None and known_error(int(error_of(response))) not in RETRIABLE_ERRORS:
                return response
            self.run(50)
        raise AssertionError(f"no response to {key.name}")

    def init(self) -> None:
        body = InitProducerIdRequest(transactional_id=ID, transaction_timeout=TIMEOUT)
        response = self.retried(ApiKey.INIT_PRODUCER_ID, 4, body)
        assert response.error_code == ErrorCode.none
        self.owner = int(response.producer_id), int(response.producer_epoch)
        self.sequences = {index: count() for index in INDEXES}

    def add(self, *indexes: int) -> None:
        """Add the partitions before the first record, unless Produce adds them by itself."""
        if self.is_modern:
            return
        topic = AddPartitionsToTxnTopic(name=TopicName("t"), partitions=tuple(map(i32, indexes)))
        transaction = AddPartitionsToTxnTransaction(
            transactional_id=ID,
            producer_id=ProducerId(self.owner[0]),
            producer_epoch=i16(self.owner[1]),
            topics=(topic,),
        )
        response = self.retried(
            ApiKey.ADD_PARTITIONS_TO_TXN,
            3,
            AddPartitionsToTxnRequest(transactions=(transaction,)),
            lambda response: (
                response.results_by_transaction[0].topic_results[0].results_by_partition[0].partition_error_code
            ),
        )
        found = response.results_by_transaction[0].topic_results[0].results_by_partition
        assert [int(each.partition_error_code) for each in found] == [ErrorCode.none] * len(indexes)

    def write(self, value: bytes, *indexes: int) -> None:
        """Write one transactional record each, to any leader. The same batch is retried until it is accepted."""
        for index in indexes:
            records = [Record(timestamp_ms=self.now.wall_ms, key=None, value=value)]
            batch = build(
                records,
                producer_id=self.owner[0],
                producer_epoch=self.owner[1],
                base_sequence=next(self.sequences[index]),
                is_transactional=True,
            )
            topics = [ProduceTopic("t", NO_TOPIC_ID, [ProducePartition(index, batch)])]
            for _ in range(300):
                leader = self.leader("t", index)
                if leader < 0 or not self.members[leader].alive:
                    self.run(50)
                    continue
                request = ProduceRequest(-1, 1000, topics, transactional_id=ID)
                version = 12 if self.is_modern else 9
                response = self.response_to(self.send(leader, ApiKey.PRODUCE, version, request))
                if response is not None and response.responses[0].partitions[0].error_code == ErrorCode.none:
                    break
                self.run(50)
            else:
                raise AssertionError(f"partition {index} accepts nothing: {response}")

    def end_body(self, *, commits: bool = True) -> EndTxnRequest:
        return EndTxnRequest(
            transactional_id=ID,
            producer_id=ProducerId(self.owner[0]),
            producer_epoch=i16(self.owner[1]),
            committed=commits,
        )

    def end(self, *, commits: bool = True) -> ErrorCode:
        version = 5 if self.is_modern else 4
        response = self.retried(ApiKey.END_TXN, version, self.end_body(commits=commits))
        if self.is_modern and not response.error_code:
            self.owner = int(response.producer_id), int(response.producer_epoch)
            self.sequences = {index: count() for index in INDEXES}
        return ErrorCode(int(response.error_code))

    def described(self) -> str:
        body = DescribeTransactionsRequest(transactional_ids=(ID,))
        response = self.retried(
            ApiKey.DESCRIBE_TRANSACTIONS, 0, body, lambda response: response.transaction_states[0].error_code
        )
        return str(response.transaction_states[0].transaction_state)

    def settled(self) -> str:
        """Return the state once no marker is missing."""
        for _ in range(400):
            found = self.described()
            if not found.startswith("Prepare"):
                return found
            self.run(50)
        raise AssertionError("the transaction is never complete")

    def log_of(self, index: int) -> list[str]:
        """Return the leader's log: values, and the types of markers, repeated ones once."""
        leader = self.leader("t", index)
        data = memoryview(self.bytes_of(leader, "t", index))
        found: list[str] = []
        for position, header in iterate(data):
            batch = data[position : position + header.size_bytes]
            if not header.is_control:
                found.append("record")
                continue
            marker = read_marker(batch, header)
            assert marker is not None
            kind = "commit" if marker[0] is ControlType.COMMIT else "abort"
            if found[-1:] != [kind]:
                found.append(kind)
        return found

    def no_transaction_is_open(self) -> None:
        for index in INDEXES:
            producers = self.log(self.leader("t", index), "t", index).producers
            assert producers.open_transactions == {}, f"a transaction hangs in partition {index}"


def opened(*, is_modern: bool = False, **config: str) -> TransactionsWorld:
    world = TransactionsWorld(is_modern=is_modern, **config)
    world.init()
    world.add(*INDEXES)
    world.write(b"v", *INDEXES)
    return world


@pytest.mark.clause("X-3")
@pytest.mark.parametrize("is_modern", [False, True])
@pytest.mark.parametrize("commits", [True, False])
def test_each_partition_gets_marker_at_its_leader(commits: bool, is_modern: bool) -> None:
    world = opened(is_modern=is_modern)
    assert world.end(commits=commits) is ErrorCode.none
    outcome = "commit" if commits else "abort"
    assert world.settled() == f"Complete{outcome.capitalize()}"
    for index in INDEXES:
        assert world.log_of(index) == ["record", outcome]
    world.no_transaction_is_open()


@pytest.mark.thorough
@pytest.mark.clause("X-2", "X-3")
@pytest.mark.parametrize("is_modern", [False, True])
@pytest.mark.parametrize("delay_us", [*range(0, 2400, 150), 3000, 5000, 8000])
def test_coordinator_death_after_end_txn_leaves_one_outcome(delay_us: int, is_modern: bool) -> None:
    """The coordinator dies this long after EndTxn arrived: before PrepareCommit is written, before it is replicated,
    before the markers are, before the completion is. Its successor continues, and the producer that retries gets the
    outcome."""
    world = opened(is_modern=is_modern)
    coordinator = world.coordinator()
    token = world.send(coordinator, ApiKey.END_TXN, 5 if is_modern else 4, world.end_body())
    end_us = world.mono_us + delay_us
    world.run_until(lambda: world.mono_us >= end_us)
    acknowledged = token in world.replies
    world.kill(coordinator)
    error = world.end()
    if acknowledged:
        assert error is ErrorCode.none
    outcome = {"CompleteCommit": "commit", "CompleteAbort": "abort"}[world.settled()]
    assert (outcome == "commit") == (error is ErrorCode.none)
    world.start(coordinator)
    world.ready()
    world.run(2000)
    for index in INDEXES:
        assert world.log_of(index) == ["record", outcome]
    world.no_transaction_is_open()
    if outcome == "commit":
        world.add(0)
        world.write(b"next", 0)
        assert world.end() is ErrorCode.none


@pytest.mark.thorough
@pytest.mark.clause("X-9")
@pytest.mark.parametrize("delay_us", range(0, 1600, 200))
def test_partition_being_added_at_coordinator_death_does_not_hang(delay_us: int) -> None:
    world = TransactionsWorld()
    world.init()
    world.add(0)
    world.write(b"v", 0)
    coordinator = world.coordinator()
    topic = AddPartitionsToTxnTopic(name=TopicName("t"), partitions=(i32(1),))
    body = AddPartitionsToTxnRequest(
        transactions=(
            AddPartitionsToTxnTransaction(
                transactional_id=ID,
                producer_id=ProducerId(world.owner[0]),
                producer_epoch=i16(world.owner[1]),
                topics=(topic,),
            ),
        )
    )
    world.send(coordinator, ApiKey.ADD_PARTITIONS_TO_TXN, 3, body)
    end_us = world.mono_us + delay_us
    world.run_until(lambda: world.mono_us >= end_us)
    world.kill(coordinator)
    world.add(1)
    world.write(b"w", 1)
    assert world.end() is ErrorCode.none
    assert world.settled() == "CompleteCommit"
    assert world.log_of(0) == ["record", "commit"]
    assert world.log_of(1) == ["record", "commit"]
    assert world.log_of(2) == []
    world.no_transaction_is_open()


@pytest.mark.clause("X-7")
def test_silent_producer_is_fenced_by_next_coordinator() -> None:
    world = opened()
    world.kill(world.coordinator())
    world.run(15_000)
    assert world.settled() == "CompleteAbort"
    assert world.end() is ErrorCode.producer_fenced
    for index in INDEXES:
        assert world.log_of(index) == ["record", "abort"]
    world.no_transaction_is_open()


@pytest.mark.clause("X-1")
def test_new_producer_aborts_transaction_of_predecessor() -> None:
    world = opened()
    first = world.owner
    world.init()
    assert world.owner == (first[0], first[1] + 2)
    for index in INDEXES:
        assert world.log_of(index) == ["record", "abort"]
    world.add(0)
    world.write(b"w", 0)
    assert world.end() is ErrorCode.none
    world.settled()
    assert world.log_of(0) == ["record", "abort", "record", "commit"]


@pytest.mark.clause("X-2")
def test_isolated_coordinator_completes_no_transaction() -> None:
    world = opened(replica_lag_time_max_ms="30000")
    old = world.coordinator()
    for number in range(3):
        if number != old:
            world.sever(old, number)
    token = world.send(old, ApiKey.END_TXN, 4, world.end_body())
    world.run(1000)
    assert token not in world.replies
    for index in INDEXES:
        assert world.log_of(index) == ["record"]
    world.run(20_000)
    world.heal()
    world.run(5000)
    outcome = {"CompleteCommit": "commit", "CompleteAbort": "abort"}[world.settled()]
    world.run(5000)
    for index in INDEXES:
        assert world.log_of(index) == ["record", outcome]
    world.no_transaction_is_open()
