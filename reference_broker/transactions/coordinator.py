"""The transaction coordinator of one node: the transactional IDs in the partitions of ``__transaction_state`` it leads.

``coordination.coordinator_shards`` loads and drops these partitions, and ``transaction`` judges each request.
``TransactionCompletion`` sends the markers of decided transactions and completes them, also on a node that takes over
(X-3).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.coordinator_shards import CoordinatorShards
from reference_broker.coordination.log import CoordinatorLog, ReplicatedCallback, client_error
from reference_broker.coordination.partitioner import partition_of
from reference_broker.coordination.record_fields import fits
from reference_broker.coordination.scheduling import DeferredCallbacks
from reference_broker.metadata.features import transaction_version
from reference_broker.metadata.identifiers import TRANSACTION_TOPIC, TopicPartition
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import Ports
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition
from reference_broker.transactions.marker_sender import MarkerSender
from reference_broker.transactions.markers import EPOCH_RAISED_FROM, MarkerWriter
from reference_broker.transactions.producer_ids import NO_BLOCK, ProducerIdManager
from reference_broker.transactions.timeouts import Timeouts
from reference_broker.transactions.transaction import (
    AddAction,
    EndAction,
    InitAction,
    ProducerIdAndEpoch,
    Transaction,
    check_adding,
    check_end,
    check_init,
    check_owner,
    completed,
    with_next_epoch,
    with_partitions,
    with_producer_id,
    with_same_epoch,
)
from reference_broker.transactions.transaction_completion import TransactionCompletion
from reference_broker.transactions.transactions_partition import (
    TransactionEntry,
    TransactionsPartition,
    TransactionsPlayback,
    partition_count,
)
from reference_broker.wire.errors import Error, ErrorCode

_COORDINATOR = ("kafka.server", "transaction-coordinator-metrics")
_SENDER = ("kafka.coordinator.transaction", "TransactionMarkerChannelManager")


class TransactionMetrics:
    """The counters and gauges of a transaction coordinator, under Kafka's names. Kafka has no gauge of loading
    partitions."""

    def __init__(self, metrics: Metrics) -> None:
        self.loading = metrics.gauge(*_COORDINATOR, "num-partitions", state="loading")
        self.load_time_ms = metrics.histogram(*_COORDINATOR, "partition-load-time")
        self.waiting_completions = metrics.gauge(*_SENDER, "LogAppendRetryQueueSize")
        """Transactions whose completion could not be written and is retried."""
        self.waiting_markers = metrics.gauge(*_SENDER, "UnknownDestinationQueueSize")
        """Markers that are sent again soon, because their leader is unknown or did not accept them."""


@dataclass(frozen=True, slots=True)
class InitRequest:
    """InitProducerId with a transactional ID."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None
    """Producer ID and epoch of the producer, if it continues after an error (KIP-360)."""


@dataclass(frozen=True, slots=True)
class AddRequest:
    """AddPartitionsToTxn, AddOffsetsToTxn."""

    transactional_id: str
    owner: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]
    client_version: int = 0
    """The ``transaction.version`` that the request's version implies."""


@dataclass(frozen=True, slots=True)
class EndRequest:
    """EndTxn."""

    transactional_id: str
    owner: ProducerIdAndEpoch
    commits: bool
    client_version: int = 0


NO_OWNER = ProducerIdAndEpoch(-1, -1)

OwnerCallback: TypeAlias = Callable[[Error, ProducerIdAndEpoch], None]
"""Called once with an error, and with NONE also the producer ID and epoch that the client has from now on (NO_OWNER if
the response has none)."""


_LOADING = ErrorCode.coordinator_load_in_progress


class TransactionCoordinator:
    """The coordinator of a node. ``image`` returns the metadata as this node knows it."""

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        config: BrokerConfig,
        leaders: Leaders,
        image: Callable[[], MetadataImage],
        metrics: Metrics,
        writer: MarkerWriter,
        producer_ids: ProducerIdManager,
    ) -> None:
        self._ports = ports
        self._config = config
        self._leaders = leaders
        self._image = image
        self.producer_ids = producer_ids
        self.metrics = TransactionMetrics(metrics)
        self._shards: CoordinatorShards[TransactionsPartition] = CoordinatorShards(
            ports, TRANSACTION_TOPIC, self, self.metrics.loading, self.metrics.load_time_ms, "transactions"
        )
        self.leads = self._shards.leads
        self.stops_leading = self._shards.stops_leading
        self._deferred = DeferredCallbacks(ports)
        sender = MarkerSender(ports, node_id, image, writer, self._deferred, self.metrics.waiting_markers)
        self._completion = TransactionCompletion(ports, image, producer_ids, sender, self.metrics.waiting_completions)
        self._timeouts = Timeouts(ports, config, self._shards.active, self._completion)
        self.is_creating = False
        """A request to create the topic is in flight."""

    def start(self) -> None:
        """Begin the checks for transactions that are open, and IDs that are idle, for too long. The node calls it once,
        when it serves."""
        self._timeouts.start()

    # --- what is coordinated here -------------------------------------------------------------------------------------

    def find(self, transactional_id: str) -> TransactionsPartition | Error:
        """Return the partition that stores the ID, or NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE where too few replicas are in sync for what was loaded to be replicated, or
        INVALID_REQUEST for an ID that is empty or that no record can hold."""
        if not transactional_id or not fits(transactional_id):
            return ErrorCode.invalid_request
        shard = self._shards.find(partition_of(transactional_id, partition_count(self._image(), self._config)))
        # Decision transaction-coordinator-settled
        if isinstance(shard, TransactionsPartition) and not shard.is_settled:
            return client_error(ErrorCode.not_enough_replicas) if shard.lacks_replicas else _LOADING
        return shard

    def entry(self, transactional_id: str) -> TransactionEntry | Error:
        """Return the ID, an error of ``find``, or TRANSACTIONAL_ID_NOT_FOUND."""
        shard = self.find(transactional_id)
        if isinstance(shard, Error):
            return shard
        return shard.entries.get(transactional_id, ErrorCode.transactional_id_not_found)

    def active(self) -> Sequence[TransactionsPartition]:
        """Return every loaded partition, by index."""
        return self._shards.active()

    def loading(self) -> bool:
        """Return whether a partition that is led here is not served yet."""
        return self._shards.is_loading() or any(not each.is_settled for each in self._shards.active())

    def validate(self) -> None:
        """Assert the invariants. It looks at all IDs, so only tests and the simulator call it."""
        self._shards.validate()

    # --- InitProducerId -----------------------------------------------------------------------------------------------

    def init_producer_id(self, request: InitRequest, respond: OwnerCallback) -> None:
        """Give the producer the ID with the next epoch, after an open transaction is aborted (X-1). Errors: those of
        ``find`` and of ``check_init``, INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS also where an abort came
        first, and COORDINATOR_LOAD_IN_PROGRESS while there is no producer ID."""
        shard = self.find(request.transactional_id)
        is_timeout_valid = 0 < request.timeout_ms <= self._config.transaction_max_timeout_ms
        if request.transactional_id and not is_timeout_valid:
            respond(ErrorCode.invalid_transaction_timeout, NO_OWNER)
        elif isinstance(shard, Error):
            respond(shard, NO_OWNER)
        elif request.transactional_id in shard.entries:
            self._init(shard, shard.entries[request.transactional_id], request, respond)
        else:
            self._init_new(shard, request, respond)

    def _init_new(self, shard: TransactionsPartition, request: InitRequest, respond: OwnerCallback) -> None:
        """The producer ID may come in a later event. Another producer may own the transactional ID by then."""

        def generated(producer_id: int | Error) -> None:
            if isinstance(producer_id, Error):
                respond(producer_id, NO_OWNER)
                return
            if not shard.is_led:  # Decision producer-id-after-lost-partition
                respond(ErrorCode.not_coordinator, NO_OWNER)
                return
            entry = shard.entries.get(request.transactional_id)
            if entry is None:
                now_ms = self._ports.now().wall_ms
                entry = shard.add(Transaction(request.transactional_id, producer_id, request.timeout_ms, now_ms))
            self._init(shard, entry, request, respond)

        self.producer_ids.generate(generated)

    def _init(
        self, shard: TransactionsPartition, entry: TransactionEntry, request: InitRequest, respond: OwnerCallback
    ) -> None:
        current, now_ms, timeout_ms = entry.current, self._ports.now().wall_ms, request.timeout_ms
        action_or_error = check_init(current, request.expected, is_changing=entry.is_changing)
        is_owner = request.expected is not None
        if isinstance(action_or_error, Error):
            respond(action_or_error, NO_OWNER)
        elif action_or_error is InitAction.AFTER_ABORT:  # Decision producer-init-ends-transaction
            # The client retries when the markers are written.
            self._completion.fence(
                shard, entry, lambda error: respond(error or ErrorCode.concurrent_transactions, NO_OWNER)
            )
        elif action_or_error is InitAction.NEW_PRODUCER_ID:
            producer_id = self.producer_ids.take()
            if producer_id is None:
                respond(NO_BLOCK, NO_OWNER)
                return
            step = with_producer_id(current, producer_id, timeout_ms, now_ms, is_requested_by_owner=is_owner)
            self._write_owner(shard, entry, step, respond)
        elif action_or_error is InitAction.SAME_EPOCH:
            self._write_owner(shard, entry, with_same_epoch(current, timeout_ms, now_ms), respond)
        else:
            step = with_next_epoch(current, timeout_ms, now_ms, is_requested_by_owner=is_owner)
            self._write_owner(shard, entry, step, respond)

    def _write_owner(
        self, shard: TransactionsPartition, entry: TransactionEntry, step: Transaction, respond: OwnerCallback
    ) -> None:
        owner = _owner(step)
        shard.write(entry, step, lambda error: respond(error, NO_OWNER if error else owner), partial(self._note, step))

    def _note(self, step: Transaction) -> None:
        self._ports.note(
            "transactional_id_taken",
            ("transactional_id", step.transactional_id),
            ("producer_id", step.producer_id),
            ("producer_epoch", step.producer_epoch),
        )

    # --- AddPartitionsToTxn, AddOffsetsToTxn --------------------------------------------------------------------------

    def add_partitions(self, request: AddRequest, respond: ReplicatedCallback) -> None:
        """Add the partitions, all or none, and begin the transaction with the first ones. Errors: those of ``find``
        and of ``check_adding``, INVALID_PRODUCER_ID_MAPPING for an unknown ID, and those of the log."""
        shard = self.find(request.transactional_id)
        if isinstance(shard, Error):
            respond(shard)
            return
        entry = shard.entries.get(request.transactional_id)
        if entry is None:
            respond(ErrorCode.invalid_producer_id_mapping)
            return
        current, partitions = entry.current, request.partitions
        action_or_error = check_adding(current, request.owner, partitions, is_changing=entry.is_changing)
        if isinstance(action_or_error, Error):
            respond(action_or_error)
        elif action_or_error is AddAction.NOTHING:  # Decision transaction-partitions-added
            respond(ErrorCode.none)
        else:
            now_ms = self._ports.now().wall_ms
            shard.write(entry, with_partitions(current, partitions, request.client_version, now_ms), respond)

    def verify_partitions(self, request: AddRequest) -> Error | Mapping[TopicPartition, Error]:
        """Return whether each partition belongs to the open transaction: NONE or TRANSACTION_ABORTABLE (KIP-890).
        Errors for all are those of ``find`` and of ``check_owner``, and INVALID_PRODUCER_ID_MAPPING for an unknown ID.
        """
        entry = self.entry(request.transactional_id)
        if isinstance(entry, Error):
            is_unknown = entry is ErrorCode.transactional_id_not_found
            return ErrorCode.invalid_producer_id_mapping if is_unknown else entry
        refusal = check_owner(entry.current, request.owner)
        if refusal:
            return refusal
        partitions = entry.current.partitions
        # Decision transaction-partition-verified
        return {
            partition: ErrorCode.none if partition in partitions else ErrorCode.transaction_abortable
            for partition in request.partitions
        }

    # --- EndTxn -------------------------------------------------------------------------------------------------------

    def end_transaction(self, request: EndRequest, respond: OwnerCallback) -> None:
        """Commit or abort. Responds once that is replicated: then it is decided, whichever nodes fail (X-3). The
        response to a client of version 2 has the producer ID and epoch for its next transaction. Errors: those of
        ``find`` and of ``check_end``, INVALID_PRODUCER_ID_MAPPING for an unknown ID, COORDINATOR_LOAD_IN_PROGRESS, and
        those of the log."""
        shard = self.find(request.transactional_id)
        if isinstance(shard, Error):
            respond(shard, NO_OWNER)
            return
        entry = shard.entries.get(request.transactional_id)
        if entry is None:
            respond(ErrorCode.invalid_producer_id_mapping, NO_OWNER)
            return
        version = request.client_version
        action_or_error = check_end(
            entry.current, request.owner, commits=request.commits, client_version=version, is_changing=entry.is_changing
        )
        returns_owner = version >= EPOCH_RAISED_FROM
        if isinstance(action_or_error, Error):
            respond(action_or_error, NO_OWNER)
        elif action_or_error is EndAction.NOTHING:  # Decision transaction-end-done-before
            respond(ErrorCode.none, _owner(entry.current) if returns_owner else NO_OWNER)
        else:

            def respond_when_decided(error: Error) -> None:
                has_owner = returns_owner and not error
                respond(error, _owner(completed(entry.current, 0)) if has_owner else NO_OWNER)

            self._completion.decide(shard, entry, version, respond_when_decided, commits=request.commits)

    # --- partitions ---------------------------------------------------------------------------------------------------

    def new_shard(self, partition: Partition) -> TransactionsPartition:
        log = CoordinatorLog(self._ports, self._config.request_timeout_ms, self._leaders, partition)
        expiration_ms = self._config.transactional_id_expiration_ms
        return TransactionsPartition(self._ports, log, self._deferred, self._feature_level, expiration_ms)

    def _feature_level(self) -> int:
        return transaction_version(self._image())

    def new_playback(self, shard: TransactionsPartition) -> TransactionsPlayback:
        return TransactionsPlayback(shard)

    def loaded(self, shard: TransactionsPartition) -> None:
        shard.when_settled(lambda: self._completion.resume(shard))

    def unloaded(self, shard: TransactionsPartition) -> None:
        """The log has failed all pending requests with NOT_COORDINATOR."""


def _owner(transaction: Transaction) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(transaction.producer_id, transaction.producer_epoch)
