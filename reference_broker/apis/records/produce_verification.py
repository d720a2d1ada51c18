"""Verification of the transactions of a Produce, before its batches are appended (KIP-98, KIP-890).

All transactional batches must be of one producer. For the partitions where the transaction is not open yet, its
coordinator must confirm that it has them, or add them: Produce 12 and newer. The log appends such a batch only with the
guard of its wait, so that a transaction which ended meanwhile is not opened again. The order of the checks and the
errors are those of Kafka's ReplicaManager.handleProduceAppend.
"""

from collections.abc import Callable, Iterable, Mapping
from typing import TypeAlias

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback
from reference_broker.log.transaction_verification import VerificationGuard
from reference_broker.metadata.identifiers import TopicPartition, is_internal
from reference_broker.ports.node_ports import later
from reference_broker.records.batch import HEADER_BYTES, TRANSACTIONAL, BatchHeader, InvalidRecords, read_header
from reference_broker.transactions.add_partitions_to_txn_manager import (
    Errors,
    SupportedOperation,
    VerificationRequest,
    operation_of_produce,
    produce_error,
)
from reference_broker.wire.errors import Error, ErrorCode, error_name
from reference_broker.wire.produce import ProducePartitionResponse, ProduceRequest, ProduceTopic

VerificationResults: TypeAlias = dict[TopicPartition, VerificationGuard | ProducePartitionResponse]
"""The guards of the batches that begin a transaction in their partitions, or why a batch is refused."""


def topic_name(broker: Broker, topic: ProduceTopic) -> str:
    """Return the topic's name, also if the request has its ID. It is empty for an ID that is not known here."""
    return topic.topic or broker.partitions.topic_names.get(topic.topic_id, "")


def verify_transaction(
    broker: Broker, call: Call, body: ProduceRequest, done: Callable[[VerificationResults], None]
) -> None:
    """Call ``done`` once, with the results for the request's transactional batches. That is at once if they belong to a
    transaction that is open in all their partitions. A partition that is not led here has none: the append returns its
    error."""
    transactional = _transactional_headers(broker, body)
    owners = {(header.producer_id, header.producer_epoch): None for header in transactional.values()}
    if len(owners) > 1:
        done(_refuse_all(broker, body))
        return
    operation = operation_of_produce(call.api_version)
    if not transactional or not (operation.adds or _is_demanded(broker, transactional)):  # Decision verification-needed
        done({})
        return
    (owner,) = owners
    config = broker.config
    last_us = broker.now.mono_us + 1000 * config.add_partitions_to_txn_retry_backoff_max_ms

    def verify() -> None:
        verifications = _begin_verifications(broker, transactional, operation)
        waiting = tuple(
            key for key, verification in verifications.items() if isinstance(verification, VerificationGuard)
        )
        if not waiting:  # Decision transaction-open-everywhere
            done(verifications)
            return
        request = VerificationRequest(body.transactional_id or "", *owner, waiting, operation)
        broker.verifier.verify(request, callback(call, lambda errors: verified(verifications, errors)))

    def verified(verifications: VerificationResults, errors: Errors) -> None:
        """A transaction that is ending is over soon. A retry costs less than sending the batches again."""
        is_ending = operation.adds and ErrorCode.concurrent_transactions in errors.values()
        if is_ending and broker.now.mono_us < last_us:  # Decision ending-transaction
            wait_us = 1000 * config.add_partitions_to_txn_retry_backoff_ms
            later(broker.ports, wait_us, callback(call, verify))
            return
        for key, error in errors.items():
            verifications[key] = _not_verified(key[1], operation, error)
        done(verifications)

    verify()


def _is_demanded(broker: Broker, transactional: Iterable[TopicPartition]) -> bool:
    """Whether a log requires that a transaction is verified. The logs' settings count, and not the broker's
    (``transaction.partition.verification.enable``), since a change of it reaches many logs one after the other."""
    led = (broker.partitions.by_name.get(key) for key in transactional)
    return any(partition is not None and partition.log.verification.is_demanded for partition in led)


def _transactional_headers(broker: Broker, body: ProduceRequest) -> dict[TopicPartition, BatchHeader]:
    """Return the headers of the transactional batches, except those for internal topics."""
    headers = {}
    for topic in body.topics:
        name = topic_name(broker, topic)
        if is_internal(name):
            continue
        for entry in topic.partitions:
            if entry.records is not None and is_transactional(entry.records):
                header = read_header(entry.records)
                if header.producer_id >= 0:
                    headers[name, entry.partition] = header
    return headers


def is_transactional(records: bytes | memoryview) -> bool:
    """The attributes are big-endian at byte 21."""
    return len(records) >= HEADER_BYTES and bool(records[22] & TRANSACTIONAL)


def _begin_verifications(
    broker: Broker, transactional: Mapping[TopicPartition, BatchHeader], operation: SupportedOperation
) -> VerificationResults:
    """Return the guards of the partitions where the transaction is not open yet, and the errors of fenced producers."""
    verifications: VerificationResults = {}
    for key, header in transactional.items():
        partition = broker.partitions.by_name.get(key)
        if partition is None:
            continue
        log = partition.log
        entry = log.producers.by_id.get(header.producer_id)
        try:  # Decision transactional-batch-epoch
            guard = log.verification.begin(entry, header, raises_epoch=operation.adds, wall_ms=broker.now.wall_ms)
        except InvalidRecords as refused:
            verifications[key] = ProducePartitionResponse(key[1], refused.error, error_message=refused.message)
        else:
            if guard is not None:  # Decision transaction-in-partition
                verifications[key] = guard
    return verifications


def _not_verified(index: int, operation: SupportedOperation, error: Error) -> ProducePartitionResponse:
    """Return the part of the response of a partition whose transaction the coordinator did not confirm."""
    shown = produce_error(operation, error)
    text = None
    if shown is not error:
        text = f"the transaction's coordinator could not be reached: {error_name(error)}"
    elif error is ErrorCode.invalid_txn_state:
        text = "the partition was not added to the transaction"
    return ProducePartitionResponse(index, shown, error_message=text)


def _refuse_all(broker: Broker, body: ProduceRequest) -> VerificationResults:
    error, text = ErrorCode.invalid_producer_id_mapping, "the transactional batches are of more than one producer"
    return {
        (topic_name(broker, topic), entry.partition): ProducePartitionResponse(
            entry.partition, error, error_message=text
        )
        for topic in body.topics
        for entry in topic.partitions
    }
