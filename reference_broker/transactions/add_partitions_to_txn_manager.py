"""Verification of transactional appends (KIP-890): the coordinator of the transaction verifies them.

``AddPartitionsToTxnManager`` has at most one AddPartitionsToTxn in flight to each coordinator. Verifications that are
requested meanwhile share the next one. The rules are those of Kafka's AddPartitionsToTxnManager.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

from kio.schema.types import ProducerId, TopicName, TransactionalId
from kio.static.primitive import i16, i32

from reference_broker.coordination.partitioner import partition_of
from reference_broker.coordination.record_fields import fits
from reference_broker.metadata.identifiers import TRANSACTION_TOPIC, TopicPartition
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import Channel, Ports, later
from reference_broker.wire.apis import VERSIONS, ApiKey
from reference_broker.wire.errors import Error, ErrorCode, known_error

if TYPE_CHECKING:
    from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnTransaction
    from kio.schema.add_partitions_to_txn.v5.response import AddPartitionsToTxnResult


Errors: TypeAlias = dict[TopicPartition, Error]
"""The errors of the partitions that may not be written to. All others may."""
VerificationCallback: TypeAlias = Callable[[Errors], None]


class SupportedOperation(Enum):
    """The operation that a producer's version of Produce supports (Kafka's TransactionSupportedOperation)."""

    DEFAULT_ERROR = "the transaction must have the partition; the producer does not know TRANSACTION_ABORTABLE"
    GENERIC_ERROR_SUPPORTED = "the same, and the producer knows it"
    ADD_PARTITION = "the partition is added to the transaction: version 2 of transactions"

    @property
    def adds(self) -> bool:
        return self is SupportedOperation.ADD_PARTITION


ABORTABLE_FROM = 11
ADDS_FROM = 12
"""The versions of Produce."""


def operation_of_produce(api_version: int) -> SupportedOperation:
    if api_version >= ADDS_FROM:
        return SupportedOperation.ADD_PARTITION
    return (
        SupportedOperation.GENERIC_ERROR_SUPPORTED
        if api_version >= ABORTABLE_FROM
        else SupportedOperation.DEFAULT_ERROR
    )


@dataclass(frozen=True, slots=True)
class VerificationRequest:
    """A request to verify that a producer may write to these partitions in its ongoing transaction."""

    transactional_id: str
    producer_id: int
    producer_epoch: int
    partitions: tuple[TopicPartition, ...]
    operation: SupportedOperation

    def all(self, error: Error) -> Errors:
        return dict.fromkeys(self.partitions, error)


def error_for_producer(operation: SupportedOperation, error: Error) -> Error:
    """Return the error for the producer, given the coordinator's error of a partition.

    Fenced producers expect INVALID_PRODUCER_EPOCH. Old ones know INVALID_TXN_STATE, but not TRANSACTION_ABORTABLE.
    """
    if error is ErrorCode.producer_fenced:
        return ErrorCode.invalid_producer_epoch
    if error is ErrorCode.transaction_abortable and operation is SupportedOperation.DEFAULT_ERROR:
        return ErrorCode.invalid_txn_state
    return error


_COORDINATOR_ERRORS = (
    ErrorCode.network_exception,
    ErrorCode.coordinator_load_in_progress,
    ErrorCode.coordinator_not_available,
    ErrorCode.not_coordinator,
)


def produce_error(operation: SupportedOperation, error: Error) -> Error:
    """Return the error in the response to Produce. The producer must retry where the coordinator could not be reached,
    and it knows no errors of coordinators there. NOT_ENOUGH_REPLICAS makes it retry without new metadata."""
    is_busy = error is ErrorCode.concurrent_transactions and not operation.adds
    return ErrorCode.not_enough_replicas if is_busy or error in _COORDINATOR_ERRORS else error


MAX_ITEMS = 10_000
"""Bounds the transactions, topics and partitions of one request, unless it has a single transaction."""

ServeLocally: TypeAlias = Callable[[int, object, Callable[[object], None]], None]
"""Serves a request of this node itself: (API key, body, callback for the response)."""


@dataclass(slots=True)
class _Pending:
    """A verification without a result."""

    request: VerificationRequest
    verified: VerificationCallback
    since_us: int
    """When the verification was requested."""


@dataclass(slots=True)
class _Coordinator:
    """The requests to one coordinator."""

    node_id: int
    waiting: dict[str, _Pending] = field(default_factory=dict)
    """For the next request, by transactional ID."""
    is_busy: bool = False
    """Whether a request is in flight."""


class AddPartitionsToTxnManager:
    """Verifies with transaction coordinators. ``image`` returns this node's metadata image."""

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        image: Callable[[], MetadataImage],
        serve_locally: ServeLocally,
        metrics: Metrics,
        request_timeout_ms: int,
    ) -> None:
        self._ports = ports
        self._request_timeout_ms = request_timeout_ms
        self._node_id = node_id
        self._image = image
        self._serve_locally = serve_locally
        self._coordinators: dict[int, _Coordinator] = {}
        self._failures = metrics.counter("kafka.server", "AddPartitionsToTxnManager", "VerificationFailureRate")
        self._time_ms = metrics.histogram("kafka.server", "AddPartitionsToTxnManager", "VerificationTimeMs")

    def verify(self, request: VerificationRequest, verified: VerificationCallback) -> None:
        """Call ``verified`` once, with the errors of the partitions that may not be written to, maybe at once.

        The errors are those of the coordinator (``error_for_producer``), COORDINATOR_NOT_AVAILABLE if there is none,
        and NETWORK_EXCEPTION if it did not respond. An ID that no coordinator can store gets INVALID_REQUEST: even to
        find its partition takes long.

        Of two pending verifications for one transactional ID, that of the older epoch gets INVALID_PRODUCER_EPOCH. If
        both have the same epoch, the producer has retried, and the first one gets NETWORK_EXCEPTION.
        """
        pending = _Pending(request, verified, self._ports.now().mono_us)
        if not fits(request.transactional_id):
            self._report(pending, request.all(ErrorCode.invalid_request))
            return
        node_id = self._coordinator_of(request.transactional_id)
        if node_id is None:  # Decision transaction-verification-coordinator
            self._report(pending, request.all(ErrorCode.coordinator_not_available))
            return
        coordinator = self._coordinators.setdefault(node_id, _Coordinator(node_id))
        earlier = coordinator.waiting.get(request.transactional_id)
        # Decision transaction-verification-fenced
        if earlier is not None and earlier.request.producer_epoch > request.producer_epoch:
            self._report(pending, request.all(ErrorCode.invalid_producer_epoch))
            return
        coordinator.waiting.pop(request.transactional_id, None)
        coordinator.waiting[request.transactional_id] = pending
        if earlier is not None:  # Decision transaction-verification-superseded
            is_fenced = earlier.request.producer_epoch < request.producer_epoch
            error = ErrorCode.invalid_producer_epoch if is_fenced else ErrorCode.network_exception
            self._report(earlier, earlier.request.all(error))
        self._send(coordinator)

    def _coordinator_of(self, transactional_id: str) -> int | None:
        image = self._image()
        topic = image.topics.get(TRANSACTION_TOPIC)
        if topic is None:
            return None
        leader = topic.partitions[partition_of(transactional_id, len(topic.partitions))].leader
        broker = image.brokers.get(leader)
        return None if broker is None or broker.fenced else leader

    def _send(self, coordinator: _Coordinator) -> None:
        from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnRequest

        if coordinator.is_busy or not coordinator.waiting:
            return
        coordinator.is_busy = True
        pending = _next_of(coordinator.waiting)
        for verification in pending:
            del coordinator.waiting[verification.request.transactional_id]
        transactions = tuple(_transaction(verification.request) for verification in pending)
        body = AddPartitionsToTxnRequest(transactions=transactions)
        replied = partial(self._replied, coordinator, pending)
        failed = partial(self._finished, coordinator, pending, [ErrorCode.network_exception] * len(pending))
        key = ApiKey.ADD_PARTITIONS_TO_TXN
        if coordinator.node_id == self._node_id:
            later(self._ports, 0, lambda: self._serve_locally(key, body, replied))
            return
        self._ports.send(
            coordinator.node_id,
            Channel.VERIFICATION,
            key,
            VERSIONS[key][1],
            body,
            self._request_timeout_ms,
            replied,
            failed,
        )

    def _replied(self, coordinator: _Coordinator, pending: list[_Pending], response: object) -> None:
        from kio.schema.add_partitions_to_txn.v5.response import AddPartitionsToTxnResponse

        assert isinstance(response, AddPartitionsToTxnResponse), f"AddPartitionsToTxn got {type(response).__name__}"
        error = known_error(response.error_code)
        if error:  # Decision transaction-verification-refused
            # An error between brokers, which producers must not see.
            is_denied = error is ErrorCode.cluster_authorization_failed
            error_for_producers: Error = ErrorCode.invalid_txn_state if is_denied else error
            self._finished(coordinator, pending, [error_for_producers] * len(pending))
            return
        by_id = {result.transactional_id: result for result in response.results_by_transaction}
        omitted = ErrorCode.network_exception  # A transaction that the response omits was not verified.
        ids = [TransactionalId(verification.request.transactional_id) for verification in pending]
        self._finished(coordinator, pending, [by_id.get(transactional_id, omitted) for transactional_id in ids])

    def _finished(
        self, coordinator: _Coordinator, pending: list[_Pending], results: "Iterable[Error | AddPartitionsToTxnResult]"
    ) -> None:
        """Report the errors. The next request is sent first, since a callback may request a verification."""
        coordinator.is_busy = False
        self._send(coordinator)
        for verification, result in zip(pending, results, strict=True):
            request = verification.request
            self._report(verification, request.all(result) if isinstance(result, Error) else _errors(request, result))

    def _report(self, pending: _Pending, errors: Errors) -> None:
        self._failures.value += len(errors)
        self._time_ms.record((self._ports.now().mono_us - pending.since_us) // 1000)
        pending.verified(errors)


def _next_of(waiting: dict[str, _Pending]) -> list[_Pending]:
    """Return the verifications that fit into one request, oldest first."""
    batch: list[_Pending] = []
    items = 0
    for pending in waiting.values():
        items += 1 + 2 * len(pending.request.partitions)
        if batch and items > MAX_ITEMS:
            break
        batch.append(pending)
    return batch


def _transaction(request: VerificationRequest) -> "AddPartitionsToTxnTransaction":
    from kio.schema.add_partitions_to_txn.v5.request import AddPartitionsToTxnTopic, AddPartitionsToTxnTransaction

    topics: dict[str, list[i32]] = {}
    for name, index in request.partitions:
        topics.setdefault(name, []).append(i32(index))
    return AddPartitionsToTxnTransaction(
        transactional_id=TransactionalId(request.transactional_id),
        producer_id=ProducerId(request.producer_id),
        producer_epoch=i16(request.producer_epoch),
        verify_only=not request.operation.adds,
        topics=tuple(
            AddPartitionsToTxnTopic(name=TopicName(name), partitions=tuple(indexes)) for name, indexes in topics.items()
        ),
    )


def _errors(request: VerificationRequest, result: "AddPartitionsToTxnResult") -> Errors:
    """Return the errors of a verification. A partition that the response omits was not verified."""
    errors = {
        (str(topic.name), int(partition.partition_index)): known_error(partition.partition_error_code)
        for topic in result.topic_results
        for partition in topic.results_by_partition
    }
    requested = {key: errors.get(key, ErrorCode.network_exception) for key in request.partitions}
    return {key: error_for_producer(request.operation, error) for key, error in requested.items() if error}
