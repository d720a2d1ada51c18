"""Produce in transactions: what the coordinator verifies, what is appended, and the errors of old and new producers."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.apis.records import k00_produce
from reference_broker.apis.tests.fetch_world import FakeCall
from reference_broker.apis.tests.replicated_world import NO_ID, ReplicatedWorld, errors_of, produced_partitions
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.config import LogConfig
from reference_broker.metadata.identifiers import OFFSETS_TOPIC, TRANSACTION_TOPIC
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.records.record import Record, build
from reference_broker.replication.tests.leader_world import TOPIC_ID
from reference_broker.replication.tests.timed_ports import START_MS
from reference_broker.transactions.add_partitions_to_txn_manager import AddPartitionsToTxnManager
from reference_broker.transactions.markers import Marker
from reference_broker.transactions.tests.coordinator_link import CoordinatorLink
from reference_broker.wire.errors import Error, ErrorCode, error_name
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

TV1, TV1_ABORTABLE, TV2 = 10, 11, 12
ANY_VERSION = (TV1, TV1_ABORTABLE, TV2)
A, B = ("events", 0), ("events", 1)


def transactional(
    sequence: int = 0, *, epoch: int = 0, producer: int = 7, is_transactional: bool = True, count: int = 1
) -> bytes:
    records = [Record(timestamp_ms=START_MS, key=None, value=b"v")] * count
    return build(
        records,
        producer_id=producer,
        producer_epoch=epoch,
        base_sequence=sequence,
        is_transactional=is_transactional,
    )


class TransactionWorld(ReplicatedWorld):
    """One replica in sync: an append is committed. Node 2 is the coordinator, and ``link`` the connection to it."""

    def __init__(self, partitions: int = 2, settings: dict[str, str] | None = None) -> None:
        super().__init__(partitions, settings=settings, isr=(1,))
        self.link = CoordinatorLink(self)
        ports: Any = self.link
        self.broker.verifier = AddPartitionsToTxnManager(
            ports, 1, lambda: self.controller.image, self.link.serve_locally, self.metrics, 30_000
        )
        demands = BrokerConfig.parse(settings or {}).transaction_partition_verification_enable
        for partition in self.led:
            partition.log.config = LogConfig(transaction_verification_enable=demands)
        state = PartitionImage((2,), (2,), 2, 0, 0)
        image = self.controller.image
        topics = {**image.topics, TRANSACTION_TOPIC: TopicImage(TRANSACTION_TOPIC, b"s" * 16, (state,))}
        self.controller.image = replace(image, topics=topics)

    def produce_to(
        self, *batches: bytes, version: int = TV1_ABORTABLE, transactional_id: str | None = "id", topic: str = "events"
    ) -> FakeCall:
        """Send batches for the first partitions."""
        self.broker.now = self.now()
        by_id = version >= 13
        parts = [ProducePartition(index, data) for index, data in enumerate(batches)]
        wanted = ProduceTopic("" if by_id else topic, TOPIC_ID if by_id else NO_ID, parts)
        call = FakeCall(9, "producer", version)
        k00_produce.handle(self.broker, call, ProduceRequest(-1, 1000, [wanted], transactional_id))
        return call

    def open(self, sequence: int = 0, *, version: int = TV1_ABORTABLE, **batch: Any) -> None:
        """Send the first batch of a transaction, verified and appended."""
        call = self.produce_to(transactional(sequence, **batch), version=version)
        self.link.respond()
        assert errors_of(call) == [ErrorCode.none]

    def end(self, epoch: int = 0, version: int = 0, commit: bool = True, index: int = 0) -> None:
        results: list[dict[tuple[str, int], Error]] = []
        self.broker.markers.write(Marker(7, epoch, 0, commit, version), [("events", index)], results.append)
        assert results == [{("events", index): ErrorCode.none}]

    @property
    def ends(self) -> list[int]:
        return [partition.log.log_end_offset for partition in self.led]


@pytest.fixture
def world() -> TransactionWorld:
    return TransactionWorld()


@pytest.mark.clause(
    "ReplicaManagerTest.testTransactionVerificationFlow",
    "ReplicaManagerTest.testTransactionVerificationGuardOnMultiplePartitions",
)
@pytest.mark.parametrize("version", [3, *ANY_VERSION, 13])
def test_first_batch_of_transaction_waits_for_verification(world: TransactionWorld, version: int) -> None:
    call = world.produce_to(transactional(), transactional(), version=version)
    assert (call.closed, world.ends) == (False, [0, 0])
    (request,) = world.link.transactions
    assert (request.transactional_id, request.producer_id, request.producer_epoch) == ("id", 7, 0)
    assert [(topic.name, topic.partitions) for topic in request.topics] == [("events", (0, 1))]
    assert request.verify_only is (version < 12)
    world.link.respond()
    assert (errors_of(call), world.ends) == ([ErrorCode.none, ErrorCode.none], [1, 1])
    assert world.led[0].log.last_stable_offset == 0


@pytest.mark.clause("UnifiedLogTest.testTransactionIsOngoingAndVerificationGuardTV1")
def test_later_batches_of_verified_transaction_are_appended_at_once(world: TransactionWorld) -> None:
    world.open()
    assert errors_of(world.produce_to(transactional(1))) == [ErrorCode.none]
    call = world.produce_to(transactional(2), transactional())
    (request,) = world.link.transactions
    assert [(topic.name, topic.partitions) for topic in request.topics] == [("events", (1,))]
    world.link.respond()
    assert (errors_of(call), world.ends) == ([ErrorCode.none, ErrorCode.none], [3, 1])


@pytest.mark.clause("X-9", "ReplicaManagerTest.testTransactionVerificationFlow")
@pytest.mark.parametrize("version", ANY_VERSION)
def test_batch_for_partition_outside_transaction_is_rejected(world: TransactionWorld, version: int) -> None:
    call = world.produce_to(transactional(), transactional(), version=version)
    world.link.respond({A: ErrorCode.invalid_txn_state})
    refused, taken = produced_partitions(call)
    assert (refused.error_code, taken.error_code, world.ends) == (ErrorCode.invalid_txn_state, ErrorCode.none, [0, 1])
    assert "not added to the transaction" in (refused.error_message or "")


@pytest.mark.parametrize(
    ("version", "error", "returned"),
    [
        (TV1, ErrorCode.transaction_abortable, ErrorCode.invalid_txn_state),
        (TV1_ABORTABLE, ErrorCode.transaction_abortable, ErrorCode.transaction_abortable),
        (TV1_ABORTABLE, ErrorCode.concurrent_transactions, ErrorCode.not_enough_replicas),
        (TV1_ABORTABLE, ErrorCode.producer_fenced, ErrorCode.invalid_producer_epoch),
        (TV1_ABORTABLE, ErrorCode.not_coordinator, ErrorCode.not_enough_replicas),
        (TV2, ErrorCode.not_coordinator, ErrorCode.not_enough_replicas),
        (TV2, ErrorCode.invalid_producer_id_mapping, ErrorCode.invalid_producer_id_mapping),
    ],
)
def test_verification_error_is_mapped_for_producer(
    world: TransactionWorld, version: int, error: ErrorCode, returned: ErrorCode
) -> None:
    call = world.produce_to(transactional(), version=version)
    world.link.respond({A: error})
    assert (errors_of(call), world.ends) == ([returned], [0, 0])
    assert (produced_partitions(call)[0].log_start_offset, world.led[0].log.log_start_offset) == (-1, 0)


@pytest.mark.clause("ReplicaManagerTest.testVerificationErrorConversions")
@pytest.mark.parametrize(
    "error",
    [
        *(ErrorCode.not_coordinator, ErrorCode.concurrent_transactions),
        *(ErrorCode.coordinator_load_in_progress, ErrorCode.coordinator_not_available),
    ],
)
def test_unreachable_coordinator_is_named_in_error_message(world: TransactionWorld, error: ErrorCode) -> None:
    call = world.produce_to(transactional())
    world.link.respond({A: error})
    (refused,) = produced_partitions(call)
    assert (refused.error_code, world.ends) == (ErrorCode.not_enough_replicas, [0, 0])
    assert refused.error_message == f"the transaction's coordinator could not be reached: {error_name(error)}"


def test_lost_or_unknown_coordinator_returns_not_enough_replicas(world: TransactionWorld) -> None:
    call = world.produce_to(transactional())
    world.link.lose()
    assert errors_of(call) == [ErrorCode.not_enough_replicas]
    world.controller.image = replace(world.controller.image, topics={})
    assert errors_of(world.produce_to(transactional())) == [ErrorCode.not_enough_replicas]


def test_concurrent_transactions_is_retried_by_broker_in_version_2(world: TransactionWorld) -> None:
    """KIP-890: add.partitions.to.txn.retry.backoff.ms, version 2 only."""
    call = world.produce_to(transactional(), version=TV2)
    for _ in range(2):
        world.link.respond({A: ErrorCode.concurrent_transactions})
        assert world.link.requests == []
        world.pass_ms(20)
    world.link.respond()
    assert (errors_of(call), world.ends) == ([ErrorCode.none], [1, 0])


def test_concurrent_transactions_retries_are_limited(world: TransactionWorld) -> None:
    call = world.produce_to(transactional(), version=TV2)
    verifications = 0
    while not call.closed:
        world.link.respond({A: ErrorCode.concurrent_transactions})
        world.pass_ms(20)
        verifications += 1
    assert verifications == 6
    assert (errors_of(call), world.ends) == ([ErrorCode.concurrent_transactions], [0, 0])


@pytest.mark.clause("UnifiedLogTest.testEmptyTransactionStillClearsVerificationGuard")
@pytest.mark.parametrize("version", [TV1, TV1_ABORTABLE])
def test_marker_invalidates_pending_verification(world: TransactionWorld, version: int) -> None:
    """The verification precedes the end of the transaction."""
    call = world.produce_to(transactional(), version=version)
    world.end(commit=False)
    world.link.respond()
    assert (errors_of(call), world.ends) == ([ErrorCode.invalid_txn_state], [1, 0])
    again = world.produce_to(transactional(), version=version)
    world.link.respond()
    assert errors_of(again) == [ErrorCode.none]


def test_verification_of_earlier_transaction_does_not_verify_next(world: TransactionWorld) -> None:
    """The transaction is aborted, and the next one of the same epoch is verified while the first response is in
    flight."""
    first = world.produce_to(transactional())
    world.end(commit=False)
    second = world.produce_to(transactional())
    assert len(world.link.requests) == 1
    world.link.respond()
    assert (errors_of(first), second.closed) == ([ErrorCode.invalid_txn_state], False)
    world.link.respond({A: ErrorCode.invalid_txn_state})
    assert (errors_of(second), world.ends) == ([ErrorCode.invalid_txn_state], [1, 0])


@pytest.mark.clause("UnifiedLogTest.testNextTransactionVerificationGuardNotCleared")
def test_marker_of_previous_transaction_keeps_pending_verification_in_version_2(world: TransactionWorld) -> None:
    """The marker has the epoch that the producer already uses."""
    world.open(version=TV2)
    call = world.produce_to(transactional(epoch=1), version=TV2)
    world.end(epoch=1, version=2)
    world.link.respond()
    assert (errors_of(call), world.ends) == ([ErrorCode.none], [3, 0])
    assert world.led[0].log.last_stable_offset == 2


@pytest.mark.clause("UnifiedLogTest.testTransactionIsOngoingAndVerificationGuardTV2")
def test_marker_of_same_epoch_invalidates_pending_verification_in_version_2(world: TransactionWorld) -> None:
    call = world.produce_to(transactional(), version=TV2)
    world.end(epoch=1, version=2, commit=False)
    world.link.respond()
    assert (errors_of(call), world.ends) == ([ErrorCode.invalid_producer_epoch], [1, 0])


@pytest.mark.clause(
    "UnifiedLogTest.testStaleProducerEpochReturnsRecoverableErrorForTV1Clients",
    "UnifiedLogTest.testStaleProducerEpochReturnsRecoverableErrorForTV2Clients",
)
@pytest.mark.parametrize("version", ANY_VERSION)
def test_stale_producer_epoch_is_rejected_without_verification(world: TransactionWorld, version: int) -> None:
    world.end(epoch=3)
    assert errors_of(world.produce_to(transactional(epoch=2), version=version)) == [ErrorCode.invalid_producer_epoch]
    assert world.link.requests == []


def test_retry_of_appended_batch_starts_no_transaction(world: TransactionWorld) -> None:
    world.open()
    world.end()
    call = world.produce_to(transactional())
    world.link.respond()
    (response,) = produced_partitions(call)
    assert (response.error_code, response.base_offset, world.ends) == (ErrorCode.none, 0, [2, 0])


@pytest.mark.clause(
    "ProducerStateManagerTest.testThrowOutOfOrderSequenceWithVerificationSequenceCheck",
    "ReplicaManagerTest.testTransactionVerificationBlocksOutOfOrderSequence",
)
def test_batch_is_rejected_while_earlier_sequence_awaits_verification(world: TransactionWorld) -> None:
    """KAFKA-14920: otherwise the earlier one would be out of order for ever."""
    first = world.produce_to(transactional(0))
    world.link.lose()
    assert errors_of(first) == [ErrorCode.not_enough_replicas]
    second = world.produce_to(transactional(1))
    world.link.respond()
    assert errors_of(second) == [ErrorCode.out_of_order_sequence_number]
    world.open(0)
    assert errors_of(world.produce_to(transactional(1))) == [ErrorCode.none]


@pytest.mark.clause(
    "ProducerStateManagerTest.testRejectNonZeroSequenceForTransactionsV2WithEmptyState",
    "ProducerStateManagerTest.testAllowNonZeroSequenceForTransactionsV1WithEmptyState",
)
@pytest.mark.parametrize(("version", "error"), [(TV1, ErrorCode.none), (TV2, ErrorCode.out_of_order_sequence_number)])
def test_first_batch_of_unknown_producer_must_have_sequence_zero_in_version_2(
    world: TransactionWorld, version: int, error: int
) -> None:
    call = world.produce_to(transactional(5), version=version)
    world.link.respond()
    assert errors_of(call) == [error]


def test_transactional_batch_without_transactional_id_is_rejected(world: TransactionWorld) -> None:
    call = world.produce_to(transactional(), transactional(is_transactional=False), transactional_id=None)
    assert errors_of(call) == [ErrorCode.transactional_id_authorization_failed, ErrorCode.none]
    assert (world.ends, world.link.requests) == ([0, 1], [])


@pytest.mark.clause("ReplicaManagerTest.testVerificationForTransactionalPartitionsOnly")
def test_only_partitions_of_transactional_batches_are_verified(world: TransactionWorld) -> None:
    call = world.produce_to(transactional(), transactional(is_transactional=False, producer=8))
    (request,) = world.link.transactions
    assert [(topic.name, topic.partitions) for topic in request.topics] == [("events", (0,))]
    world.link.respond()
    assert errors_of(call) == [ErrorCode.none, ErrorCode.none]


def test_nontransactional_batch_with_transactional_id_is_accepted(world: TransactionWorld) -> None:
    call = world.produce_to(transactional(is_transactional=False), build([Record(timestamp_ms=START_MS, value=b"v")]))
    assert (errors_of(call), world.link.requests) == ([ErrorCode.none, ErrorCode.none], [])


@pytest.mark.clause("ProducerStateManagerTest.testNonTransactionalAppendWithOngoingTransaction")
def test_nontransactional_batch_during_open_transaction_is_rejected(world: TransactionWorld) -> None:
    world.open()
    call = world.produce_to(transactional(1, is_transactional=False))
    assert errors_of(call) == [ErrorCode.invalid_txn_state]


@pytest.mark.clause("ReplicaManagerTest.testExceptionWhenUnverifiedTransactionHasMultipleProducerIds")
def test_transactional_batches_of_two_producers_are_rejected(world: TransactionWorld) -> None:
    for other in (transactional(producer=8), transactional(epoch=1)):
        call = world.produce_to(transactional(), other)
        assert errors_of(call) == [ErrorCode.invalid_producer_id_mapping] * 2
    assert (world.ends, world.link.requests) == ([0, 0], [])


@pytest.mark.clause(
    "ReplicaManagerTest.testTransactionVerificationWhenNotLeader", "ReplicaManagerTest.testPreVerificationError"
)
def test_partitions_led_elsewhere_are_not_verified(world: TransactionWorld) -> None:
    call = world.produce_to(transactional(), transactional(), transactional())
    (request,) = world.link.transactions
    assert [(topic.name, topic.partitions) for topic in request.topics] == [("events", (0, 1))]
    world.link.respond()
    assert errors_of(call) == [ErrorCode.none, ErrorCode.none, ErrorCode.unknown_topic_or_partition]


def test_internal_topics_are_rejected_without_verification(world: TransactionWorld) -> None:
    results = [errors_of(world.produce_to(transactional(), topic=each)) for each in (TRANSACTION_TOPIC, OFFSETS_TOPIC)]
    assert results == [[ErrorCode.invalid_topic_exception], [ErrorCode.unknown_topic_or_partition]], (
        "the first one exists"
    )
    assert world.link.requests == []


def test_leadership_lost_during_verification_returns_not_leader(world: TransactionWorld) -> None:
    call = world.produce_to(transactional())
    world.move_leader(0)
    world.link.respond()
    assert (errors_of(call), world.ends) == ([ErrorCode.not_leader_or_follower], [0, 0])


@pytest.mark.clause(
    "UnifiedLogTest.testDisabledVerificationClearsVerificationGuard",
    "ReplicaManagerTest.testDisabledTransactionVerification",
)
def test_verification_can_be_disabled() -> None:
    world = TransactionWorld(settings={"transaction.partition.verification.enable": "false"})
    assert errors_of(world.produce_to(transactional(), version=TV1)) == [ErrorCode.none]
    assert world.link.requests == []
    added = world.produce_to(transactional(1, epoch=0), transactional(), version=TV2)
    assert not added.closed
    world.link.respond()
    assert errors_of(added) == [ErrorCode.none, ErrorCode.none]
    assert world.led[1].log.verification.guards == {}


@pytest.mark.clause("ReplicaManagerTest.testTransactionVerificationDynamicDisablement")
@pytest.mark.parametrize("switched_off", [0, 1])
def test_verification_disabled_during_wait_follows_each_logs_setting(switched_off: int) -> None:
    """The broker's config changes first, and then that of one log after the other."""
    world = TransactionWorld(settings={"transaction.partition.verification.enable": "false"})
    world.led[1 - switched_off].log.config = LogConfig(transaction_verification_enable=True)
    call = world.produce_to(transactional(), transactional(), version=TV1)
    assert len(world.link.requests) == 1
    world.link.respond()
    assert errors_of(call) == [ErrorCode.none, ErrorCode.none]


@pytest.mark.clause("UnifiedLogTest.testNonZeroSequenceOnFirstAppendNonZeroEpoch")
def test_sequences_restart_at_zero_after_marker_with_epoch_bump(world: TransactionWorld) -> None:
    world.open(version=TV2)
    world.end(epoch=1, version=2)
    late = world.produce_to(transactional(1, epoch=1), version=TV2)
    world.link.respond()
    assert errors_of(late) == [ErrorCode.out_of_order_sequence_number]
    world.open(0, epoch=1, version=TV2)


@pytest.mark.clause("ProducerStateManagerTest.testVerificationStateEntryExpiration")
def test_verification_guard_expires_with_its_producer(world: TransactionWorld) -> None:
    world.produce_to(transactional())
    world.link.lose()
    log = world.led[0].log
    expiry_ms = log.producers.expiration_ms
    world.pass_ms(expiry_ms - 1)
    log.expire_producers(world.now())
    assert list(log.verification.guards) == [7]
    world.pass_ms(1)
    log.expire_producers(world.now())
    assert log.verification.guards == {}


def test_batch_is_appended_although_connection_closed(world: TransactionWorld) -> None:
    """As in Kafka: its records are appended."""
    call = world.produce_to(transactional())
    call.closed = True
    world.link.respond()
    assert (world.ends, call.responses) == ([1, 0], [])
