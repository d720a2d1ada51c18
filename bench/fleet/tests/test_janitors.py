"""Janitors find what hangs as Kafka's tool does, and strays leave what hangs."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pytest
from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.describe_producers.v0.response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kio.schema.describe_transactions.v0.request import DescribeTransactionsRequest
from kio.schema.describe_transactions.v0.response import DescribeTransactionsResponse, TopicData
from kio.schema.describe_transactions.v0.response import TransactionState as Described
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse
from kio.schema.list_transactions.v2.request import ListTransactionsRequest
from kio.schema.list_transactions.v2.response import ListTransactionsResponse
from kio.schema.list_transactions.v2.response import TransactionState as Listed
from kio.schema.types import BrokerId, ProducerId, TopicName, TransactionalId
from kio.schema.write_txn_markers.v2.request import WriteTxnMarkersRequest
from kio.schema.write_txn_markers.v2.response import (
    WritableTxnMarkerPartitionResult,
    WritableTxnMarkerResult,
    WritableTxnMarkerTopicResult,
    WriteTxnMarkersResponse,
)
from kio.static.primitive import i16, i32, i64

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.hanging_transactions import Janitor
from bench.fleet.behaviours.protocol import Request, TopicPartition
from bench.fleet.fleet import make_fleet
from bench.fleet.spec import FleetSpec
from bench.fleet.tests.conftest import ADDRESS, FakeBroker, FleetWorld
from reference_broker.records.batch import read_header
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reports.rows import DescribedTransactionRow, OperationRow, SpanRow, TransactionRow
from scenarios.load import Janitors, Load, Strays, Topic

NO_WAIT = bodies.milliseconds(0)
HOT0, HOT1 = TopicPartition("hot", 0), TopicPartition("hot", 1)
LOAD = Load(
    seconds=1,
    topics=(Topic("hot", 2),),
    strays=(Strays(topic="hot", transactions_per_s=1),),
    janitors=(Janitors(topic="hot", interval_ms=500, older_than_ms=300),),
)


@dataclass
class OpenAtBroker:
    """An open transaction in a partition. Its producer wrote last at ``written_ms``."""

    producer_id: int
    start_offset: int
    written_ms: int = 0
    coordinator_epoch: int = -1


@dataclass
class JanitorBroker(FakeBroker):
    """``held`` is open in each partition. ``ids`` and ``expected`` are what the coordinator knows."""

    held: dict[TopicPartition, list[OpenAtBroker]] = field(default_factory=dict)
    owners: dict[int, str] = field(default_factory=dict)
    expected: dict[str, tuple[TopicPartition, ...]] = field(default_factory=dict)
    markers: list[Any] = field(default_factory=list)
    loading: int = 0

    def __post_init__(self) -> None:
        super().__init__({"hot": 2})

    def handle(self, request: Request) -> object:
        responses: dict[int, Callable[[Any], object]] = {
            ApiKey.DESCRIBE_PRODUCERS: self.producers,
            ApiKey.LIST_TRANSACTIONS: self.listed,
            ApiKey.DESCRIBE_TRANSACTIONS: self.described,
            ApiKey.FIND_COORDINATOR: self.coordinators,
            ApiKey.WRITE_TXN_MARKERS: self.written,
        }
        response = responses.get(request.api_key)
        if response is None:
            return super().handle(request)
        self.requests.append(request)
        return response(request.body)

    def producers(self, body: DescribeProducersRequest) -> DescribeProducersResponse:
        def partition_response(partition: TopicPartition) -> PartitionResponse:
            states = tuple(
                ProducerState(
                    producer_id=ProducerId(each.producer_id),
                    producer_epoch=i32(4),
                    last_sequence=i32(0),
                    last_timestamp=i64(each.written_ms),
                    coordinator_epoch=i32(each.coordinator_epoch),
                    current_txn_start_offset=i64(each.start_offset),
                )
                for each in self.held.get(partition, ())
            )
            return PartitionResponse(
                partition_index=i32(partition.partition), error_code=ErrorCode.none, active_producers=states
            )

        return DescribeProducersResponse(
            throttle_time=NO_WAIT,
            topics=tuple(
                TopicResponse(
                    name=topic.name,
                    partitions=tuple(
                        partition_response(TopicPartition(topic.name, int(index))) for index in topic.partition_indexes
                    ),
                )
                for topic in body.topics
            ),
        )

    def listed(self, body: ListTransactionsRequest) -> ListTransactionsResponse:
        error = ErrorCode.none
        if self.loading:
            self.loading, error = self.loading - 1, ErrorCode.coordinator_load_in_progress
        return ListTransactionsResponse(
            throttle_time=NO_WAIT,
            error_code=error,
            unknown_state_filters=(),
            transaction_states=tuple(
                Listed(
                    transactional_id=TransactionalId(self.owners[producer_id_filter]),
                    producer_id=ProducerId(producer_id_filter),
                    transaction_state="Ongoing",
                )
                for producer_id_filter in body.producer_id_filters
                if producer_id_filter in self.owners and error is ErrorCode.none
            ),
        )

    def described(self, body: DescribeTransactionsRequest) -> DescribeTransactionsResponse:
        (transactional_id,) = body.transactional_ids
        state = Described(
            error_code=ErrorCode.none,
            transactional_id=transactional_id,
            transaction_state="Ongoing",
            transaction_timeout=NO_WAIT,
            transaction_start_time=None,  # type: ignore[arg-type]
            producer_id=ProducerId(0),
            producer_epoch=i16(0),
            topics=tuple(
                TopicData(topic=TopicName(topic), partitions=(i32(index),))
                for topic, index in self.expected[transactional_id]
            ),
        )
        return DescribeTransactionsResponse(throttle_time=NO_WAIT, transaction_states=(state,))

    def coordinators(self, body: FindCoordinatorRequest) -> FindCoordinatorResponse:
        (key,) = body.coordinator_keys
        found = Coordinator(
            key=key,
            node_id=BrokerId(0),
            host=ADDRESS.host,
            port=i32(ADDRESS.port),
            error_code=ErrorCode.none,
            error_message=None,
        )
        return FindCoordinatorResponse(throttle_time=NO_WAIT, coordinators=(found,))

    def written(self, body: WriteTxnMarkersRequest) -> WriteTxnMarkersResponse:
        (marker,) = body.markers
        self.markers.append(marker)
        (topic,) = marker.topics
        where = TopicPartition(topic.name, int(topic.partition_indexes[0]))
        self.held[where] = [each for each in self.held[where] if each.producer_id != marker.producer_id]
        result = WritableTxnMarkerPartitionResult(partition_index=i32(where.partition), error_code=ErrorCode.none)
        topic_result = WritableTxnMarkerTopicResult(name=topic.name, partitions=(result,))
        return WriteTxnMarkersResponse(
            markers=(WritableTxnMarkerResult(producer_id=ProducerId(0), topics=(topic_result,)),)
        )


@pytest.fixture
def admin() -> JanitorBroker:
    return JanitorBroker()


@pytest.fixture
def world(admin: JanitorBroker) -> FleetWorld:
    return FleetWorld(admin)


def janitor() -> Janitor:
    (made,) = make_fleet(FleetSpec([f"{ADDRESS.host}:{ADDRESS.port}"], LOAD)).janitors
    return made


def described_transactions(world: FleetWorld) -> list[DescribedTransactionRow]:
    return [row for row in world.rows("described_transactions") if row.producer_id >= 0]


def test_transaction_unknown_to_coordinator_is_aborted_at_second_check(world: FleetWorld, admin: JanitorBroker) -> None:
    admin.held = {HOT0: [OpenAtBroker(7, 3), OpenAtBroker(8, 5, coordinator_epoch=2)], HOT1: [OpenAtBroker(9, 0)]}
    admin.owners, admin.expected = {8: "b", 9: "c"}, {"b": (HOT1,), "c": (HOT1,)}
    world.start(janitor())
    world.run(3)
    found = {
        (transaction.producer_id, transaction.start_offset, transaction.transactional_id, transaction.found)
        for transaction in described_transactions(world)
    }
    assert found == {(7, 3, "", "hanging"), (8, 5, "b", "hanging"), (9, 0, "c", "known")}
    aborted = [transaction for transaction in described_transactions(world) if transaction.abort]
    assert [(transaction.producer_id, transaction.abort) for transaction in aborted] == [(7, "ok"), (8, "ok")]
    assert (
        len({transaction.index for transaction in described_transactions(world) if transaction.producer_id == 7}) == 2
    )
    assert [(marker.producer_id, marker.coordinator_epoch) for marker in admin.markers] == [(7, 0), (8, 2)]
    assert {marker.producer_epoch for marker in admin.markers} == {4}
    assert not any(marker.transaction_result for marker in admin.markers)


def test_young_transaction_is_not_checked(world: FleetWorld, admin: JanitorBroker) -> None:
    admin.held = {HOT0: [OpenAtBroker(7, 3, written_ms=10**9)]}
    world.start(janitor())
    world.run(3)
    assert {transaction.found for transaction in described_transactions(world)} == {"young"}
    assert ApiKey.LIST_TRANSACTIONS not in {request.api_key for request in admin.requests}


def test_check_without_response_is_ignored(world: FleetWorld, admin: JanitorBroker) -> None:
    """A coordinator that loads lists nothing, so an ID may be missing."""
    admin.held = {HOT0: [OpenAtBroker(7, 3)]}
    admin.loading = 3
    world.start(janitor())
    world.run(3)
    looks = [row for row in world.rows("operations") if row.f == "find_hanging"]
    assert [lookup.error for lookup in looks[:4]] == ["COORDINATOR_LOAD_IN_PROGRESS"] * 3 + [None]
    hanging = [transaction for transaction in described_transactions(world) if transaction.found == "hanging"]
    assert [bool(transaction.abort) for transaction in hanging] == [False, True]


def test_each_check_looks_up_leaders(world: FleetWorld, admin: JanitorBroker) -> None:
    """A follower would report what is open, and refuse the abort."""
    admin.held = {HOT0: [OpenAtBroker(7, 3)]}
    world.start(janitor())
    world.run(1)
    admin.nodes.add(1)
    admin.move(HOT0, 1)
    admin.move(HOT1, 1)
    admin.held = {HOT0: [OpenAtBroker(8, 9)]}
    admin.requests.clear()
    world.run(3)
    assert 1 in {row.node for row in world.rows("operations") if row.f == "connect" and row.type == "ok"}
    assert [
        transaction.abort
        for transaction in described_transactions(world)
        if transaction.producer_id == 8 and transaction.abort
    ] == ["ok"]


def test_it_ends_once_nothing_is_open(world: FleetWorld, admin: JanitorBroker) -> None:
    admin.held = {HOT0: [OpenAtBroker(7, 3, written_ms=10**9)]}
    behaviour = janitor()
    world.start(behaviour)
    world.run(1)
    world.stop(behaviour)
    world.run(8)
    assert behaviour.process not in world.finished
    admin.held = {}
    world.run(1)
    assert behaviour.process in world.finished


def test_stray_writes_transaction_unknown_to_coordinator(world: FleetWorld, admin: JanitorBroker) -> None:
    (stray,) = make_fleet(FleetSpec([f"{ADDRESS.host}:{ADDRESS.port}"], LOAD)).strays
    lost = iter([True])
    world.fault = lambda each: "lose_response" if each.api_key == ApiKey.PRODUCE and next(lost, False) else None
    world.start(stray)
    world.run(9)
    world.stop(stray)
    world.run(4)
    assert stray.process in world.finished
    ends: list[TransactionRow] = world.rows("transactions")
    runs: list[SpanRow] = world.rows("runs")
    assert len(ends) == len(runs) >= 3
    assert {(end.requested_end, end.outcome, end.error) for end in ends} == {("nothing", "failed", "not_added")}
    assert len({end.transactional_id for end in ends}) == len({end.producer_id for end in ends}) == len(ends)
    written = {
        (partition, read_header(batch).producer_id) for partition, log in admin.logs.items() for batch in log.batches
    }
    assert {(TopicPartition(run.topic, run.partition), run.producer_id) for run in runs} == written
    assert all(read_header(batch).is_transactional for log in admin.logs.values() for batch in log.batches)
    operations: list[OperationRow] = [row for row in world.rows("operations") if row.f == "transaction"]
    assert {operation.type for operation in operations} == {"fail"}
    assert ApiKey.ADD_PARTITIONS_TO_TXN not in {request.api_key for request in admin.requests}
