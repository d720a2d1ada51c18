"""The transaction coordinator of one node: the transactional IDs in the partitions of ``__transaction_state`` it leads.

``coordination.coordinator_shards`` loads and drops these partitions, and ``transaction_metadata`` checks each request.
``TransactionCompletion`` sends the markers of prepared transactions and completes them, also on a node that takes over
(X-3).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
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
from reference_broker.ports.coroutines import run_coroutine
from reference_broker.ports.node_ports import Ports
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition
from reference_broker.transactions.markers import EPOCH_RAISED_FROM, MarkerWriter
from reference_broker.transactions.producer_ids import NO_BLOCK, ProducerIdManager
from reference_broker.transactions.timeouts import Timeouts
from reference_broker.transactions.transaction_completion import TransactionCompletion
from reference_broker.transactions.transaction_marker_channel_manager import TransactionMarkerChannelManager
from reference_broker.transactions.transaction_metadata import (
    AddAction,
    EndAction,
    InitAction,
    ProducerIdAndEpoch,
    TransactionMetadata,
    TxnTransitMetadata,
    check_add_partitions,
    check_end_transaction,
    check_init_producer_id,
    check_producer,
    prepare_add_partitions,
    prepare_complete,
    prepare_increment_producer_epoch,
    prepare_producer_id_rotation,
    prepare_same_producer_epoch,
)
from reference_broker.transactions.transaction_state_manager import (
    TransactionsPlayback,
    TransactionStateManager,
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
    producer: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]
    client_version: int = 0
    """The ``transaction.version`` that the request's version implies."""


@dataclass(frozen=True, slots=True)
class EndRequest:
    """EndTxn."""

    transactional_id: str
    producer: ProducerIdAndEpoch
    commits: bool
    client_version: int = 0


NO_ID_AND_EPOCH = ProducerIdAndEpoch(-1, -1)
"""The producer in a response with an error."""

ProducerCallback: TypeAlias = Callable[[Error, ProducerIdAndEpoch], None]
"""Called once with an error, and with NONE also the producer ID and epoch that the client has from now on
(NO_ID_AND_EPOCH if the response has none)."""


_LOADING = ErrorCode.coordinator_load_in_progress


class TransactionCoordinator:
    """The coordinator of a node. ``image`` returns the cluster's metadata as this node knows it."""

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
        self._shards: CoordinatorShards[TransactionStateManager] = CoordinatorShards(
            ports, TRANSACTION_TOPIC, self, self.metrics.loading, self.metrics.load_time_ms, "transactions"
        )
        self.leads = self._shards.leads
        self.stops_leading = self._shards.stops_leading
        self._deferred = DeferredCallbacks(ports)
        sender = TransactionMarkerChannelManager(
            ports, node_id, image, writer, self._deferred, self.metrics.waiting_markers
        )
        self._completion = TransactionCompletion(ports, image, producer_ids, sender, self.metrics.waiting_completions)
        self._timeouts = Timeouts(ports, config, self._shards.active, self._completion)
        self.is_creating = False
        """A request to create the topic is in flight."""

    def start(self) -> None:
        """Begin the checks for transactions that are open, and IDs that are idle, for too long. The node calls it once,
        when it serves."""
        self._timeouts.start()

    # --- what is coordinated here -------------------------------------------------------------------------------------

    def find(self, transactional_id: str) -> TransactionStateManager | Error:
        """Return the partition that stores the ID, or NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE where too few replicas are in sync for what was loaded to be replicated, or
        INVALID_REQUEST for an ID that is empty or that no record can hold."""
        if not transactional_id or not fits(transactional_id):
            return ErrorCode.invalid_request
        state_manager = self._shards.find(partition_of(transactional_id, partition_count(self._image(), self._config)))
        # Decision transaction-coordinator-settled
        if isinstance(state_manager, TransactionStateManager) and not state_manager.is_settled:
            return client_error(ErrorCode.not_enough_replicas) if state_manager.lacks_replicas else _LOADING
        return state_manager

    def find_metadata(self, transactional_id: str) -> TransactionMetadata | Error:
        """Return the state of the ID, an error of ``find``, or TRANSACTIONAL_ID_NOT_FOUND."""
        state_manager = self.find(transactional_id)
        if isinstance(state_manager, Error):
            return state_manager
        return state_manager.entries.get(transactional_id, ErrorCode.transactional_id_not_found)

    def active(self) -> Sequence[TransactionStateManager]:
        """Return every loaded partition, by index."""
        return self._shards.active()

    def loading(self) -> bool:
        """Return whether a partition that is led here is not served yet."""
        return self._shards.is_loading() or any(not each.is_settled for each in self._shards.active())

    def validate(self) -> None:
        """Assert the invariants. It looks at all IDs, so only tests and the simulator call it."""
        self._shards.validate()

    # --- InitProducerId -----------------------------------------------------------------------------------------------

    def init_producer_id(self, request: InitRequest, respond: ProducerCallback) -> None:
        """Give the producer the ID with the next epoch, after an open transaction is aborted (X-1). Errors: those of
        ``find`` and of ``check_init_producer_id``, INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS also where an
        abort came first, and COORDINATOR_LOAD_IN_PROGRESS while there is no producer ID."""
        state_manager = self.find(request.transactional_id)
        is_timeout_valid = 0 < request.timeout_ms <= self._config.transaction_max_timeout_ms
        if request.transactional_id and not is_timeout_valid:
            respond(ErrorCode.invalid_transaction_timeout, NO_ID_AND_EPOCH)
        elif isinstance(state_manager, Error):
            respond(state_manager, NO_ID_AND_EPOCH)
        elif request.transactional_id in state_manager.entries:
            self._init_producer_id(state_manager, state_manager.entries[request.transactional_id], request, respond)
        else:
            self._generate_producer_id(state_manager, request, respond)

    def _generate_producer_id(
        self, state_manager: TransactionStateManager, request: InitRequest, respond: ProducerCallback
    ) -> None:
        """Add a new transactional ID with a new producer ID. That may come in a later event, when another producer may
        have the transactional ID."""

        def generated(producer_id: int | Error) -> None:
            if isinstance(producer_id, Error):
                respond(producer_id, NO_ID_AND_EPOCH)
                return
            if not state_manager.is_led:  # Decision producer-id-after-lost-partition
                respond(ErrorCode.not_coordinator, NO_ID_AND_EPOCH)
                return
            metadata = state_manager.entries.get(request.transactional_id)
            if metadata is None:
                now_ms = self._ports.now().wall_ms
                metadata = state_manager.add(
                    TxnTransitMetadata(request.transactional_id, producer_id, request.timeout_ms, now_ms)
                )
            self._init_producer_id(state_manager, metadata, request, respond)

        self.producer_ids.generate(generated)

    def _init_producer_id(
        self,
        state_manager: TransactionStateManager,
        metadata: TransactionMetadata,
        request: InitRequest,
        respond: ProducerCallback,
    ) -> None:
        action_or_error = check_init_producer_id(metadata, request.expected)
        if isinstance(action_or_error, Error):
            respond(action_or_error, NO_ID_AND_EPOCH)
        elif action_or_error is InitAction.AFTER_ABORT:  # Decision producer-init-ends-transaction
            # The client retries when the markers are written.
            self._completion.fence_and_abort(
                state_manager,
                metadata,
                lambda error: respond(error or ErrorCode.concurrent_transactions, NO_ID_AND_EPOCH),
            )
        else:
            transit = self._prepare_init_producer_id(metadata.current, request, action_or_error)
            if transit is None:
                respond(NO_BLOCK, NO_ID_AND_EPOCH)
            else:
                run_coroutine(self._append_producer(state_manager, metadata, transit, respond))

    def _prepare_init_producer_id(
        self, current: TxnTransitMetadata, request: InitRequest, action: InitAction
    ) -> TxnTransitMetadata | None:
        """Return the next state of the ID, or None if it needs a producer ID and there is none."""
        now_ms, timeout_ms = self._ports.now().wall_ms, request.timeout_ms
        is_current = request.expected is not None
        if action is InitAction.SAME_EPOCH:
            return prepare_same_producer_epoch(current, timeout_ms, now_ms)
        if action is InitAction.NEXT_EPOCH:
            return prepare_increment_producer_epoch(current, timeout_ms, now_ms, by_current_producer=is_current)
        producer_id = self.producer_ids.take()
        if producer_id is None:
            return None
        return prepare_producer_id_rotation(current, producer_id, timeout_ms, now_ms, by_current_producer=is_current)

    async def _append_producer(
        self,
        state_manager: TransactionStateManager,
        metadata: TransactionMetadata,
        transit: TxnTransitMetadata,
        respond: ProducerCallback,
    ) -> None:
        append = state_manager.append_transaction_to_log(metadata, transit)
        error = await append.error
        respond(error, NO_ID_AND_EPOCH if error else _producer(transit))
        if await append.is_complete:
            self._ports.note(
                "transactional_id_taken",
                ("transactional_id", transit.transactional_id),
                ("producer_id", transit.producer_id),
                ("producer_epoch", transit.producer_epoch),
            )

    # --- AddPartitionsToTxn, AddOffsetsToTxn --------------------------------------------------------------------------

    def add_partitions(self, request: AddRequest, respond: ReplicatedCallback) -> None:
        """Add the partitions, all or none, and begin the transaction with the first ones. Errors: those of ``find``
        and of ``check_add_partitions``, INVALID_PRODUCER_ID_MAPPING for an unknown ID, and those of the log."""
        state_manager = self.find(request.transactional_id)
        if isinstance(state_manager, Error):
            respond(state_manager)
            return
        metadata = state_manager.entries.get(request.transactional_id)
        if metadata is None:
            respond(ErrorCode.invalid_producer_id_mapping)
            return
        action_or_error = check_add_partitions(metadata, request.producer, request.partitions)
        if isinstance(action_or_error, Error):
            respond(action_or_error)
        elif action_or_error is AddAction.NOTHING:  # Decision transaction-partitions-added
            respond(ErrorCode.none)
        else:
            transit = prepare_add_partitions(
                metadata.current, request.partitions, request.client_version, self._ports.now().wall_ms
            )
            state_manager.append_transaction_to_log(metadata, transit).error.add_done_callback(respond)

    def verify_partitions(self, request: AddRequest) -> Error | Mapping[TopicPartition, Error]:
        """Return whether each partition belongs to the open transaction: NONE or TRANSACTION_ABORTABLE (KIP-890).
        Errors for all are those of ``find`` and of ``check_producer``, and INVALID_PRODUCER_ID_MAPPING for an unknown
        ID."""
        metadata = self.find_metadata(request.transactional_id)
        if isinstance(metadata, Error):
            is_unknown = metadata is ErrorCode.transactional_id_not_found
            return ErrorCode.invalid_producer_id_mapping if is_unknown else metadata
        refusal = check_producer(metadata.current, request.producer)
        if refusal:
            return refusal
        partitions = metadata.current.partitions
        # Decision transaction-partition-verified
        return {
            partition: ErrorCode.none if partition in partitions else ErrorCode.transaction_abortable
            for partition in request.partitions
        }

    # --- EndTxn -------------------------------------------------------------------------------------------------------

    def end_transaction(self, request: EndRequest, respond: ProducerCallback) -> None:
        """Commit or abort. Responds once the prepared state is replicated, which makes the outcome final, whichever
        nodes fail (X-3). The response to a client of version 2 has the producer ID and epoch for its next transaction.
        Errors: those of ``find`` and of ``check_end_transaction``, INVALID_PRODUCER_ID_MAPPING for an unknown ID,
        COORDINATOR_LOAD_IN_PROGRESS, and those of the log."""
        state_manager = self.find(request.transactional_id)
        if isinstance(state_manager, Error):
            respond(state_manager, NO_ID_AND_EPOCH)
            return
        metadata = state_manager.entries.get(request.transactional_id)
        if metadata is None:
            respond(ErrorCode.invalid_producer_id_mapping, NO_ID_AND_EPOCH)
            return
        version = request.client_version
        action_or_error = check_end_transaction(
            metadata, request.producer, commits=request.commits, client_version=version
        )
        returns_producer = version >= EPOCH_RAISED_FROM
        if isinstance(action_or_error, Error):
            respond(action_or_error, NO_ID_AND_EPOCH)
        elif action_or_error is EndAction.NOTHING:  # Decision transaction-end-done-before
            respond(ErrorCode.none, _producer(metadata.current) if returns_producer else NO_ID_AND_EPOCH)
        else:

            def respond_when_prepared(error: Error) -> None:
                has_producer = returns_producer and not error
                respond(error, _producer(prepare_complete(metadata.current, 0)) if has_producer else NO_ID_AND_EPOCH)

            self._completion.end_transaction(
                state_manager, metadata, version, respond_when_prepared, commits=request.commits
            )

    # --- partitions ---------------------------------------------------------------------------------------------------

    def new_shard(self, partition: Partition) -> TransactionStateManager:
        log = CoordinatorLog(self._ports, self._config.request_timeout_ms, self._leaders, partition)
        expiration_ms = self._config.transactional_id_expiration_ms
        return TransactionStateManager(self._ports, log, self._deferred, self._feature_level, expiration_ms)

    def _feature_level(self) -> int:
        return transaction_version(self._image())

    def new_playback(self, state_manager: TransactionStateManager) -> TransactionsPlayback:
        return TransactionsPlayback(state_manager)

    def loaded(self, state_manager: TransactionStateManager) -> None:
        state_manager.when_settled(lambda: self._completion.resume(state_manager))

    def unloaded(self, state_manager: TransactionStateManager) -> None:
        """Do nothing: the log has failed all pending requests with NOT_COORDINATOR."""


def _producer(state: TxnTransitMetadata) -> ProducerIdAndEpoch:
    return ProducerIdAndEpoch(state.producer_id, state.producer_epoch)
