"""Requests to transaction coordinators: to which nodes, what is sent together, and what every outcome means.

The behaviours are those of Kafka's AddPartitionsToTxnManagerTest.
"""

from typing import Any

import pytest

from reference_broker.coordination.partitioner import partition_of
from reference_broker.coordination.record_fields import MOST_TEXT_BYTES
from reference_broker.metadata.identifiers import TRANSACTION_TOPIC
from reference_broker.metadata.image import BrokerImage, MetadataImage, PartitionImage, TopicImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.replication.tests.timed_ports import TimedPorts
from reference_broker.transactions.add_partitions_to_txn_manager import (
    MOST_ITEMS,
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
            one: BrokerImage(one, 100 + one, b"i" * 16, "127.0.0.1", 9092, fenced=one == fenced) for one in (1, 2, 3)
        }
        states = tuple(PartitionImage((1, 2, 3), (1, 2, 3), leader, 0, 0) for leader in leaders)
        topics = {TRANSACTION_TOPIC: TopicImage(TRANSACTION_TOPIC, b"s" * 16, states)} if leaders else {}
        self.image = MetadataImage(brokers=brokers, topics=topics)

    def id_of(self, leader: int, number: int = 0) -> str:
        """A transactional ID that this node coordinates."""
        ids = (f"id{n}" for n in range(1000))
        return [one for one in ids if partition_of(one, 2) == leader - 2][number]

    def ask(
        self,
        *partitions: tuple[str, int],
        leader: int = 2,
        number: int = 0,
        epoch: int = 0,
        operation: SupportedOperation = SupportedOperation.VERIFY_ABORTABLE,
    ) -> list[dict[tuple[str, int], Error]]:
        results: list[dict[tuple[str, int], Error]] = []
        request = VerificationRequest(self.id_of(leader, number), 7, epoch, partitions or (A,), operation)
        self.verifier.verify(request, results.append)
        return results


@pytest.fixture
def world() -> VerifierWorld:
    return VerifierWorld()


def test_a_question_names_the_transaction_and_its_partitions(world: VerifierWorld) -> None:
    results = world.ask(A, B, OTHER, epoch=3)
    ((node, _, _, _),) = world.link.requests
    (request,) = world.link.transactions
    assert (node, request.transactional_id, request.producer_id, request.producer_epoch) == (2, world.id_of(2), 7, 3)
    assert [(topic.name, topic.partitions) for topic in request.topics] == [("events", (0, 1)), ("others", (0,))]
    assert request.verify_only
    world.link.respond({B: ErrorCode.invalid_txn_state})
    assert results == [{B: ErrorCode.invalid_txn_state}]


@pytest.mark.parametrize(
    ("operation", "verifies"), [(SupportedOperation.VERIFY, True), (SupportedOperation.ADD, False)]
)
def test_version_2_adds_the_partitions(world: VerifierWorld, operation: SupportedOperation, verifies: bool) -> None:
    results = world.ask(operation=operation)
    assert world.link.transactions[0].verify_only is verifies
    world.link.respond()
    assert results == [{}]


@pytest.mark.clause("AddPartitionsToTxnManagerTest.testGenerateRequests")
def test_questions_for_a_busy_coordinator_go_together(world: VerifierWorld) -> None:
    first = world.ask()
    later = [world.ask(number=1), world.ask(number=2)]
    elsewhere = world.ask(leader=3)
    assert [node for node, _, _, _ in world.link.requests] == [2, 3]
    world.link.respond()
    assert (first, later) == ([{}], [[], []])
    world.link.respond()
    assert elsewhere == [{}]
    assert [one.transactional_id for one in world.link.transactions] == [world.id_of(2, 1), world.id_of(2, 2)]
    world.link.respond({A: ErrorCode.not_coordinator})
    assert later == [[{A: ErrorCode.not_coordinator}]] * 2


@pytest.mark.parametrize(
    ("epoch", "first_told", "second_told"),
    [
        (4, [{A: ErrorCode.network_exception}], []),
        (5, [{A: ErrorCode.invalid_producer_epoch}], []),
        (3, [], [{A: ErrorCode.invalid_producer_epoch}]),
    ],
)
@pytest.mark.clause("AddPartitionsToTxnManagerTest.testAddTxnData")
def test_of_two_questions_for_one_transaction_one_waits(
    world: VerifierWorld, epoch: int, first_told: Any, second_told: Any
) -> None:
    """The same epoch: the producer asks again. Else the older epoch is fenced."""
    world.ask(number=1)
    first, second = world.ask(epoch=4), world.ask(epoch=epoch)
    assert (first, second) == (first_told, second_told)
    world.link.respond()
    (request,) = world.link.transactions
    assert request.producer_epoch == max(4, epoch)
    world.link.respond()
    assert len(first) == len(second) == 1


def test_a_question_that_is_on_its_way_is_not_replaced(world: VerifierWorld) -> None:
    first, second = world.ask(), world.ask()
    world.link.respond()
    assert (first, second) == ([{}], [])
    world.link.respond()
    assert second == [{}]


@pytest.mark.clause("AddPartitionsToTxnManagerTest.testTransactionCoordinatorResolution")
def test_without_a_coordinator(world: VerifierWorld) -> None:
    nobody = [{A: ErrorCode.coordinator_not_available, B: ErrorCode.coordinator_not_available}]
    for leaders, fenced in (((), 0), ((-1, 3), 0), ((2, 3), 2)):
        world.show(leaders, fenced)
        assert world.ask(A, B) == nobody
    assert world.link.requests == []


@pytest.mark.clause("AddPartitionsToTxnManagerTest.testAddPartitionsToTxnHandlerErrorHandling")
def test_a_coordinator_that_does_not_answer(world: VerifierWorld) -> None:
    results, waiting = world.ask(A, B), world.ask(number=1)
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
def test_a_request_that_is_refused_whole(world: VerifierWorld, top: ErrorCode, error: Error) -> None:
    results = world.ask(A, B)
    world.link.respond(top=top)
    assert results == [{A: error, B: error}]


def test_what_the_coordinator_says_nothing_of_is_not_verified(world: VerifierWorld) -> None:
    results = world.ask(A, B)
    answer: Any = None

    def keep(given: object) -> None:
        nonlocal answer
        answer = given

    node, body, replied, failed = world.link.requests[0]
    world.link.requests[0] = (node, body, keep, failed)
    world.link.respond()
    (one,) = answer.results_by_transaction
    (topic,) = one.topic_results
    half = type(topic)(name=topic.name, results_by_partition=topic.results_by_partition[:1])
    result = type(one)(transactional_id=one.transactional_id, topic_results=(half,))
    replied(type(answer)(throttle_time=answer.throttle_time, error_code=0, results_by_transaction=(result,)))
    assert results == [{B: ErrorCode.network_exception}]


@pytest.mark.parametrize(
    ("operation", "error", "returned"),
    [
        (SupportedOperation.VERIFY, ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state),
        (SupportedOperation.VERIFY_ABORTABLE, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        (SupportedOperation.ADD, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        *[(operation, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch) for operation in SupportedOperation],
        *[
            (operation, ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping)
            for operation in SupportedOperation
        ],
    ],
)
@pytest.mark.clause("AddPartitionsToTxnManagerTest.testAddPartitionsToTxnHandlerErrorHandling")
def test_errors_are_told_as_the_producer_knows_them(
    world: VerifierWorld, operation: SupportedOperation, error: ErrorCode, returned: ErrorCode
) -> None:
    answer = world.ask(operation=operation)
    world.link.respond({A: error})
    assert answer == [{A: returned}]


@pytest.mark.parametrize("error", [14, 15, 16, 13])
def test_a_producer_comes_again_where_the_coordinator_could_not_be_asked(error: int) -> None:
    for operation in SupportedOperation:
        assert produce_error(operation, ErrorCode(error)) is ErrorCode.not_enough_replicas


def test_a_busy_transaction_is_told_to_those_who_know_it() -> None:
    busy = ErrorCode.concurrent_transactions
    assert [produce_error(operation, busy) for operation in SupportedOperation] == [
        *[ErrorCode.not_enough_replicas] * 2,
        busy,
    ]


def test_the_version_of_produce_decides() -> None:
    assert [operation_of_produce(version) for version in (3, 10, 11, 12, 13)] == [
        *[SupportedOperation.VERIFY] * 2,
        SupportedOperation.VERIFY_ABORTABLE,
        *[SupportedOperation.ADD] * 2,
    ]


def test_a_node_that_coordinates_the_transaction_asks_itself() -> None:
    world = VerifierWorld(leaders=(1, 3))
    results = world.ask()
    assert world.link.requests == []
    world.time.pass_ms(0)
    ((node, _, _, _),) = world.link.requests
    assert node == 1
    world.link.respond()
    assert results == [{}]


def test_a_request_holds_no_more_than_its_receiver_takes(world: VerifierWorld) -> None:
    world.ask()
    many = tuple(("events", index) for index in range(MOST_ITEMS // 4))
    for number in range(1, 4):
        world.ask(*many, number=number)
    sizes = []
    for _ in range(3):
        world.link.respond()
        sizes.append(len(world.link.transactions))
    assert sizes == [1, 1, 1]


@pytest.mark.clause("AddPartitionsToTxnManagerTest.testAddPartitionsToTxnManagerMetrics")
def test_failures_are_counted(world: VerifierWorld) -> None:
    world.ask(A, B)
    world.time.pass_ms(100)
    world.link.respond({A: ErrorCode.invalid_txn_state})
    times = world.metrics.histogram("kafka.server", "AddPartitionsToTxnManager", "VerificationTimeMs")
    assert (times.count, times.largest) == (1, 100)
    counter = world.metrics.counter("kafka.server", "AddPartitionsToTxnManager", "VerificationFailureRate")
    assert counter.value == 1


def test_an_id_that_no_coordinator_can_keep_is_refused_at_once(world: VerifierWorld) -> None:
    """A client may send a whole MiB of it. To hash that takes some 60 ms."""
    results: list[dict[tuple[str, int], Error]] = []
    for length in (MOST_TEXT_BYTES + 1, MOST_TEXT_BYTES):
        request = VerificationRequest("x" * length, 7, 0, (A,), SupportedOperation.ADD)
        world.verifier.verify(request, results.append)
    assert results == [{A: ErrorCode.invalid_request}]
    assert len(world.link.requests) == 1, "the longest ID that a record can hold is verified"
