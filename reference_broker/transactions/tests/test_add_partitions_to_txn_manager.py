"""Requests to transaction coordinators: their destinations, which are sent together, and the effect of each outcome.

The behaviours are those of Kafka's AddPartitionsToTxnManagerTest.
"""

from typing import Any

import pytest

from reference_broker.coordination.partitioner import partition_of
from reference_broker.coordination.record_fields import MAX_TEXT_BYTES
from reference_broker.metadata.identifiers import TRANSACTION_TOPIC
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.replication.tests.timed_ports import TimedPorts
from reference_broker.transactions.add_partitions_to_txn_manager import (
    MAX_ITEMS,
    AddPartitionsToTxnManager,
    SupportedOperation,
    VerificationRequest,
    operation_of_produce,
    produce_error,
)
from reference_broker.transactions.tests.coordinator_link import CoordinatorLink
from reference_broker.wire.errors import Error, ErrorCode

A, B = ("events", 0), ("events", 1)
OTHER = ("others", 0)


class VerifierWorld:
    """Node 1 verifies. The two partitions of the transaction topic are led by nodes 2 and 3."""

    def __init__(self, leaders: tuple[int, ...] = (2, 3)) -> None:
        self.time = TimedPorts()
        self.link = CoordinatorLink(self.time)
        self.metrics = Metrics()
        self.show(leaders)
        ports: Any = self.link
        self.verifier = AddPartitionsToTxnManager(
            ports, 1, lambda: self.image, self.link.serve_locally, self.metrics, 30_000
        )
        self.results: list[dict[tuple[str, int], Error]] = []

    def show(self, leaders: tuple[int, ...], fenced: int = 0) -> None:
        brokers = {
            each: BrokerImage(each, 100 + each, b"i" * 16, "127.0.0.1", 9092, fenced=each == fenced)
            for each in (1, 2, 3)
        }
        states = tuple(PartitionImage((1, 2, 3), (1, 2, 3), leader, 0, 0) for leader in leaders)
        topics = {TRANSACTION_TOPIC: TopicImage(TRANSACTION_TOPIC, b"s" * 16, states)} if leaders else {}
        self.image = MetadataImage(brokers=brokers, topics=topics)

    def id_of(self, leader: int, number: int = 0) -> str:
        """Return a transactional ID that this node coordinates."""
        ids = (f"id{n}" for n in range(1000))
        return [each for each in ids if partition_of(each, 2) == leader - 2][number]

    def verify(
        self,
        *partitions: tuple[str, int],
        leader: int = 2,
        number: int = 0,
        epoch: int = 0,
        operation: SupportedOperation = SupportedOperation.GENERIC_ERROR_SUPPORTED,
    ) -> list[dict[tuple[str, int], Error]]:
        results: list[dict[tuple[str, int], Error]] = []
        request = VerificationRequest(self.id_of(leader, number), 7, epoch, partitions or (A,), operation)
        self.verifier.verify(request, results.append)
        return results


@pytest.fixture
def world() -> VerifierWorld:
    return VerifierWorld()


def test_request_names_transaction_and_partitions(world: VerifierWorld) -> None:
    results = world.verify(A, B, OTHER, epoch=3)
    ((node, _, _, _),) = world.link.requests
    (request,) = world.link.transactions
    assert node == 2
    assert request.transactional_id == world.id_of(2)
    assert request.producer_id == 7
    assert request.producer_epoch == 3
    assert [(topic.name, topic.partitions) for topic in request.topics] == [("events", (0, 1)), ("others", (0,))]
    assert request.verify_only
    world.link.respond({B: ErrorCode.invalid_txn_state})
    assert results == [{B: ErrorCode.invalid_txn_state}]


@pytest.mark.parametrize(
    ("operation", "verifies"), [(SupportedOperation.DEFAULT_ERROR, True), (SupportedOperation.ADD_PARTITION, False)]
)
def test_operation_selects_verify_only(world: VerifierWorld, operation: SupportedOperation, verifies: bool) -> None:
    results = world.verify(operation=operation)
    assert world.link.transactions[0].verify_only is verifies
    world.link.respond()
    assert results == [{}]


@pytest.mark.clause("AddPartitionsToTxnManagerTest.testGenerateRequests")
def test_requests_to_busy_coordinator_are_batched(world: VerifierWorld) -> None:
    first = world.verify()
    later = [world.verify(number=1), world.verify(number=2)]
    elsewhere = world.verify(leader=3)
    assert [node for node, _, _, _ in world.link.requests] == [2, 3]
    world.link.respond()
    assert (first, later) == ([{}], [[], []])
    world.link.respond()
    assert elsewhere == [{}]
    assert [transaction.transactional_id for transaction in world.link.transactions] == [
        world.id_of(2, 1),
        world.id_of(2, 2),
    ]
    world.link.respond({A: ErrorCode.not_coordinator})
    assert later == [[{A: ErrorCode.not_coordinator}]] * 2


@pytest.mark.parametrize(
    ("epoch", "first_result", "second_result"),
    [
        (4, [{A: ErrorCode.network_exception}], []),
        (5, [{A: ErrorCode.invalid_producer_epoch}], []),
        (3, [], [{A: ErrorCode.invalid_producer_epoch}]),
    ],
)
@pytest.mark.clause("AddPartitionsToTxnManagerTest.testAddTxnData")
def test_second_request_for_transaction_replaces_or_is_fenced(
    world: VerifierWorld, epoch: int, first_result: Any, second_result: Any
) -> None:
    """With the same epoch the producer retries. Otherwise the older epoch is fenced."""
    world.verify(number=1)
    first, second = world.verify(epoch=4), world.verify(epoch=epoch)
    assert (first, second) == (first_result, second_result)
    world.link.respond()
    (request,) = world.link.transactions
    assert request.producer_epoch == max(4, epoch)
    world.link.respond()
    assert len(first) == len(second) == 1


def test_request_in_flight_is_not_replaced(world: VerifierWorld) -> None:
    first, second = world.verify(), world.verify()
    world.link.respond()
    assert (first, second) == ([{}], [])
    world.link.respond()
    assert second == [{}]


@pytest.mark.clause("AddPartitionsToTxnManagerTest.testTransactionCoordinatorResolution")
def test_missing_coordinator_returns_coordinator_not_available(world: VerifierWorld) -> None:
    unavailable = [{A: ErrorCode.coordinator_not_available, B: ErrorCode.coordinator_not_available}]
    for leaders, fenced in (((), 0), ((-1, 3), 0), ((2, 3), 2)):
        world.show(leaders, fenced)
        assert world.verify(A, B) == unavailable
    assert world.link.requests == []


@pytest.mark.clause("AddPartitionsToTxnManagerTest.testAddPartitionsToTxnHandlerErrorHandling")
def test_lost_response_returns_network_exception(world: VerifierWorld) -> None:
    results, waiting = world.verify(A, B), world.verify(number=1)
    world.link.lose()
    assert results == [{A: ErrorCode.network_exception, B: ErrorCode.network_exception}]
    world.link.respond()
    assert waiting == [{}]


@pytest.mark.parametrize(
    ("top", "error"),
    [
        (ErrorCode.cluster_authorization_failed, ErrorCode.invalid_txn_state),
        (ErrorCode.unknown_server_error, ErrorCode.unknown_server_error),
    ],
)
@pytest.mark.clause("AddPartitionsToTxnManagerTest.testAddPartitionsToTxnHandlerErrorHandling")
def test_top_level_error_applies_to_all_partitions(world: VerifierWorld, top: ErrorCode, error: Error) -> None:
    results = world.verify(A, B)
    world.link.respond(top=top)
    assert results == [{A: error, B: error}]


def test_partition_missing_in_response_returns_network_exception(world: VerifierWorld) -> None:
    results = world.verify(A, B)
    response: Any = None

    def keep(given: object) -> None:
        nonlocal response
        response = given

    node, body, replied, failed = world.link.requests[0]
    world.link.requests[0] = (node, body, keep, failed)
    world.link.respond()
    (one,) = response.results_by_transaction
    (topic,) = one.topic_results
    half = type(topic)(name=topic.name, results_by_partition=topic.results_by_partition[:1])
    result = type(one)(transactional_id=one.transactional_id, topic_results=(half,))
    replied(type(response)(throttle_time=response.throttle_time, error_code=0, results_by_transaction=(result,)))
    assert results == [{B: ErrorCode.network_exception}]


@pytest.mark.parametrize(
    ("operation", "error", "returned"),
    [
        (SupportedOperation.DEFAULT_ERROR, ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state),
        (SupportedOperation.GENERIC_ERROR_SUPPORTED, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        (SupportedOperation.ADD_PARTITION, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        *[(operation, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch) for operation in SupportedOperation],
        *[
            (operation, ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping)
            for operation in SupportedOperation
        ],
    ],
)
@pytest.mark.clause("AddPartitionsToTxnManagerTest.testAddPartitionsToTxnHandlerErrorHandling")
def test_coordinator_error_is_mapped_by_operation(
    world: VerifierWorld, operation: SupportedOperation, error: ErrorCode, returned: ErrorCode
) -> None:
    results = world.verify(operation=operation)
    world.link.respond({A: error})
    assert results == [{A: returned}]


@pytest.mark.parametrize(
    "error",
    [
        ErrorCode.coordinator_load_in_progress,
        ErrorCode.coordinator_not_available,
        ErrorCode.not_coordinator,
        ErrorCode.network_exception,
    ],
)
def test_retriable_coordinator_error_becomes_not_enough_replicas(error: int) -> None:
    for operation in SupportedOperation:
        assert produce_error(operation, ErrorCode(error)) is ErrorCode.not_enough_replicas


def test_concurrent_transactions_is_returned_only_for_add() -> None:
    busy = ErrorCode.concurrent_transactions
    assert [produce_error(operation, busy) for operation in SupportedOperation] == [
        *[ErrorCode.not_enough_replicas] * 2,
        busy,
    ]


def test_produce_version_selects_operation() -> None:
    assert [operation_of_produce(version) for version in (3, 10, 11, 12, 13)] == [
        *[SupportedOperation.DEFAULT_ERROR] * 2,
        SupportedOperation.GENERIC_ERROR_SUPPORTED,
        *[SupportedOperation.ADD_PARTITION] * 2,
    ]


def test_local_coordinator_is_requested_locally() -> None:
    world = VerifierWorld(leaders=(1, 3))
    results = world.verify()
    assert world.link.requests == []
    world.time.pass_ms(0)
    ((node, _, _, _),) = world.link.requests
    assert node == 1
    world.link.respond()
    assert results == [{}]


def test_request_size_is_limited_to_receivers_limit(world: VerifierWorld) -> None:
    world.verify()
    many = tuple(("events", index) for index in range(MAX_ITEMS // 4))
    for number in range(1, 4):
        world.verify(*many, number=number)
    sizes = []
    for _ in range(3):
        world.link.respond()
        sizes.append(len(world.link.transactions))
    assert sizes == [1, 1, 1]


@pytest.mark.clause("AddPartitionsToTxnManagerTest.testAddPartitionsToTxnManagerMetrics")
def test_verification_failures_are_counted(world: VerifierWorld) -> None:
    world.verify(A, B)
    world.time.pass_ms(100)
    world.link.respond({A: ErrorCode.invalid_txn_state})
    times = world.metrics.histogram("kafka.server", "AddPartitionsToTxnManager", "VerificationTimeMs")
    assert (times.count, times.largest) == (1, 100)
    counter = world.metrics.counter("kafka.server", "AddPartitionsToTxnManager", "VerificationFailureRate")
    assert counter.value == 1


def test_transactional_id_too_long_for_record_is_rejected_at_once(world: VerifierWorld) -> None:
    """A client may send an ID of a MiB, whose hash takes some 60 ms."""
    results: list[dict[tuple[str, int], Error]] = []
    for length in (MAX_TEXT_BYTES + 1, MAX_TEXT_BYTES):
        request = VerificationRequest("x" * length, 7, 0, (A,), SupportedOperation.ADD_PARTITION)
        world.verifier.verify(request, results.append)
    assert results == [{A: ErrorCode.invalid_request}]
    assert len(world.link.requests) == 1, "the longest ID that a record can hold is verified"
