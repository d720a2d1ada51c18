"""AddPartitionsToTxn: adds partitions to transactions, or verifies that they belong to them.

* The partitions of a transaction are added all or none. If one does not exist it gets UNKNOWN_TOPIC_OR_PARTITION, and
  the others get OPERATION_NOT_ATTEMPTED.
* A client cannot add a partition of an internal topic: TOPIC_AUTHORIZATION_FAILED. Those of groups come by
  AddOffsetsToTxn.
* Unlike Kafka: a partition that is named twice is in the response once.
* Partitions are added once the new state is replicated. A coordinator that takes over has them, too.

Version notes:
* v0-v3 are for clients, of one transaction each.
* v2: a producer that is fenced gets PRODUCER_FENCED. Before, it gets INVALID_PRODUCER_EPOCH.
* v4 and newer are for brokers: several transactions at once, to be added to or only to be verified (KIP-890). What is
  added by them is of transactions of version 2.
* v5: a partition that does not belong to the transaction is TRANSACTION_ABORTABLE, in v4, too.

KIPs: 98, 360, 890.
"""

from collections.abc import Mapping
from typing import Protocol

from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnRequest, AddPartitionsToTxnTransaction
from kio.schema.add_partitions_to_txn.v5.response import (
    AddPartitionsToTxnPartitionResult,
    AddPartitionsToTxnResponse,
    AddPartitionsToTxnResult,
    AddPartitionsToTxnTopicResult,
)
from kio.schema.types import TopicName, TransactionalId
from kio.static.primitive import i32

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback, respond_in_slices, run_in_slices
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE, error_for_version
from reference_broker.metadata.identifiers import TopicPartition, is_internal
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced, run_to_end
from reference_broker.transactions.coordinator import AddRequest
from reference_broker.transactions.transaction_metadata import ProducerIdAndEpoch
from reference_broker.wire.errors import Error, ErrorCode

FOR_BROKERS_FROM = 4
VERSION_FOR_BROKERS = 2
"""The ``transaction.version`` of what brokers add."""
KNOWS_FENCED_FROM = 2
UNITS_PER_PARTITION = 3
"""The cost of a partition, with its part of the response, in microseconds."""
UNITS_PER_VERIFICATION = 10
UNITS_PER_STEP = 150
"""The cost to look at a transaction, and to write a step of it."""


def handle(broker: Broker, call: Call, body: AddPartitionsToTxnRequest) -> AddPartitionsToTxnResponse | None:
    """Respond when all transactions of the request are handled, each with a result of its own."""
    results: dict[str, Mapping[TopicPartition, Error]] = {}
    missing = len({transaction.transactional_id for transaction in body.transactions})
    if not missing:
        return run_to_end(_response({}))

    def handled(transactional_id: str, errors: Mapping[TopicPartition, Error]) -> None:
        if transactional_id in results:
            return
        results[transactional_id] = errors
        if len(results) == missing:
            # The response to a client has its one transaction, without the ID.
            by_id = results if call.api_version >= FOR_BROKERS_FROM else {"": errors}
            respond_in_slices(broker, call, _response(by_id))

    def handle_each() -> Sliced[None]:
        work = Budget(LOOKUP_US_PER_SLICE)
        for transaction in body.transactions:
            yield from _handle_transaction(broker, call, transaction, handled, work)
            if work.spend(UNITS_PER_VERIFICATION if transaction.verify_only else UNITS_PER_STEP):
                yield

    run_in_slices(broker, call, handle_each())
    return None


API = Api.of(AddPartitionsToTxnRequest, handle)


class _Handled(Protocol):
    def __call__(self, transactional_id: str, errors: Mapping[TopicPartition, Error], /) -> None: ...


def _handle_transaction(
    broker: Broker, call: Call, transaction: AddPartitionsToTxnTransaction, handled: _Handled, work: Budget
) -> Sliced[None]:
    is_from_broker = call.api_version >= FOR_BROKERS_FROM
    partitions: list[TopicPartition] = []
    refused: dict[TopicPartition, Error] = {}
    topics = broker.loader.image.topics
    for topic in transaction.topics:
        image = topics.get(topic.name)
        count = 0 if image is None else len(image.partitions)
        is_forbidden = is_internal(topic.name) and not is_from_broker
        for index in topic.partitions:
            partitions.append((topic.name, int(index)))
            if is_forbidden:
                refused[topic.name, int(index)] = ErrorCode.topic_authorization_failed
            elif not 0 <= index < count:
                refused[topic.name, int(index)] = ErrorCode.unknown_topic_or_partition
            if work.spend(UNITS_PER_PARTITION):
                yield
    transactional_id = transaction.transactional_id
    if refused:
        handled(transactional_id, {**dict.fromkeys(partitions, ErrorCode.operation_not_attempted), **refused})
        return
    request = AddRequest(
        transactional_id,
        ProducerIdAndEpoch(int(transaction.producer_id), int(transaction.producer_epoch)),
        tuple(partitions),
        VERSION_FOR_BROKERS if is_from_broker else 0,
    )

    def respond(error: Error) -> None:
        error = error_for_version(error, call.api_version, KNOWS_FENCED_FROM)
        handled(transactional_id, dict.fromkeys(partitions, error))

    if not transaction.verify_only:  # Decision transaction-adding-or-verifying
        broker.transactions.add_partitions(request, callback(call, respond))
        return
    verified = broker.transactions.verify_partitions(request)
    if isinstance(verified, Error):
        respond(verified)
    else:
        handled(transactional_id, verified)


def _response(results: Mapping[str, Mapping[TopicPartition, Error]]) -> Sliced[AddPartitionsToTxnResponse]:
    work = Budget(LOOKUP_US_PER_SLICE)
    transactions = []
    for transactional_id, errors in results.items():
        by_topic: dict[str, list[AddPartitionsToTxnPartitionResult]] = {}
        for (topic, index), error in errors.items():
            result = AddPartitionsToTxnPartitionResult(
                partition_index=i32(index), partition_error_code=ErrorCode(error)
            )
            by_topic.setdefault(topic, []).append(result)
            if work.spend(UNITS_PER_PARTITION):
                yield
        if work.spend(UNITS_PER_PARTITION):
            yield
        transactions.append(
            AddPartitionsToTxnResult(
                transactional_id=TransactionalId(transactional_id),
                topic_results=tuple(
                    AddPartitionsToTxnTopicResult(name=TopicName(name), results_by_partition=tuple(topic_results))
                    for name, topic_results in by_topic.items()
                ),
            )
        )
    return AddPartitionsToTxnResponse(
        throttle_time=NO_THROTTLE, error_code=ErrorCode.none, results_by_transaction=tuple(transactions)
    )
