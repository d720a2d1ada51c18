"""The transaction coordinator of one node: the transactional IDs in the partitions of ``__transaction_state`` it leads.

``coordination.led_partitions`` says how these partitions are loaded and dropped. ``state.judging`` says what each
request is told, and ``endings`` brings decided transactions to their end.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.led_partitions import LedPartitions
from reference_broker.coordination.log import CoordinatorLog, Written, client_error
from reference_broker.coordination.partitioner import partition_of
from reference_broker.coordination.record_fields import fits
from reference_broker.coordination.scheduling import Steps
from reference_broker.metadata.features import transaction_version
from reference_broker.metadata.identifiers import TRANSACTION_TOPIC
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import Ports
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition
from reference_broker.transactions.endings import Endings
from reference_broker.transactions.idle import IdleTransactions
from reference_broker.transactions.markers.marker import EPOCH_RAISED_FROM, TopicPartition
from reference_broker.transactions.markers.sending import MarkerSender
from reference_broker.transactions.markers.writing import MarkerWriter
from reference_broker.transactions.metrics import TransactionMetrics
from reference_broker.transactions.producer_ids import COME_AGAIN, ProducerIds
from reference_broker.transactions.requests import NOBODY, AddRequest, EndRequest, Owned, TakeRequest
from reference_broker.transactions.state.judging import (
    Ending,
    Taking,
    judge_adding,
    judge_end,
    judge_owner,
    judge_taking,
)
from reference_broker.transactions.state.transaction import (
    Transaction,
    completed,
    with_next_epoch,
    with_partitions,
    with_producer_id,
    with_same_epoch,
)
from reference_broker.transactions.storage.loading import TransactionsTaker
from reference_broker.transactions.storage.partition import Held, TransactionsPartition
from reference_broker.transactions.storage.topic import partition_count
from reference_broker.wire.errors import Error, ErrorCode

_LOADING = ErrorCode.coordinator_load_in_progress


class TransactionCoordinator:
    """``image`` returns the metadata as this node knows it."""

    def __init__(
        self,
        ports: Ports,
        node_id: int,
        config: BrokerConfig,
        leaders: Leaders,
        image: Callable[[], MetadataImage],
        metrics: Metrics,
        writer: MarkerWriter,
        producer_ids: ProducerIds,
    ) -> None:
        self._ports = ports
        self._config = config
        self._leaders = leaders
        self._image = image
        self.producer_ids = producer_ids
        self.metrics = TransactionMetrics(metrics)
        self._led: LedPartitions[TransactionsPartition] = LedPartitions(
            ports, TRANSACTION_TOPIC, self, self.metrics.loading, self.metrics.load_time_ms, "transactions"
        )
        self.leads = self._led.leads
        self.resigns = self._led.resigns
        self._steps = Steps(ports)
        sender = MarkerSender(ports, node_id, image, writer, self._steps, self.metrics.waiting_markers)
        self._endings = Endings(ports, image, producer_ids, sender, self.metrics.waiting_completions)
        self._idle = IdleTransactions(ports, config, self._led.active, self._endings)
        self.is_creating = False
        """The topic has been asked for, and no answer has come."""

    def start(self) -> None:
        """Begins to look for what is open or idle for too long. The node calls it once, when it serves."""
        self._idle.start()

    # --- what is coordinated here -----------------------------------------------------------------------------------

    def find(self, transactional_id: str) -> TransactionsPartition | Error:
        """Returns the partition that keeps the ID, or NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE where too few replicas are in sync for what was loaded to be replicated, or
        INVALID_REQUEST for an ID that is empty or that no record can hold."""
        if not transactional_id or not fits(transactional_id):
            return ErrorCode.invalid_request
        found = self._led.find(partition_of(transactional_id, partition_count(self._image(), self._config)))
        if isinstance(found, TransactionsPartition) and not found.is_settled:
            return client_error(ErrorCode.not_enough_replicas) if found.lacks_replicas else _LOADING
        return found

    def held(self, transactional_id: str) -> Held | Error:
        """Returns the ID, an error of ``find``, or TRANSACTIONAL_ID_NOT_FOUND."""
        target = self.find(transactional_id)
        if isinstance(target, Error):
            return target
        return target.held.get(transactional_id, ErrorCode.transactional_id_not_found)

    def active(self) -> Sequence[TransactionsPartition]:
        """Returns every loaded partition, by index."""
        return self._led.active()

    def loading(self) -> bool:
        """Says whether a partition that is led here is not served yet."""
        return self._led.is_loading() or any(not each.is_settled for each in self._led.active())

    def validate(self) -> None:
        """Asserts what is true after each event. It looks at all IDs, so only tests and the simulator ask."""
        self._led.validate()

    # --- InitProducerId ---------------------------------------------------------------------------------------------

    def take(self, request: TakeRequest, answer: Owned) -> None:
        """Gives the producer the ID with the next epoch, and ends what was open (X-1). Errors: those of ``find`` and of
        ``judge_taking``, INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS also where an abort came first, and
        COORDINATOR_LOAD_IN_PROGRESS while there is no producer ID."""
        target = self.find(request.transactional_id)
        if not 0 < request.timeout_ms <= self._config.transaction_max_timeout_ms and request.transactional_id:
            answer(ErrorCode.invalid_transaction_timeout, NOBODY)
        elif isinstance(target, Error):
            answer(target, NOBODY)
        elif request.transactional_id in target.held:
            self._take(target, target.held[request.transactional_id], request, answer)
        else:
            self._take_new(target, request, answer)

    def _take_new(self, target: TransactionsPartition, request: TakeRequest, answer: Owned) -> None:
        """The producer ID may come in a later event. Another producer may have taken the ID by then."""

        def given(producer_id: int | Error) -> None:
            if isinstance(producer_id, Error):
                answer(producer_id, NOBODY)
                return
            if not target.is_led:
                answer(ErrorCode.not_coordinator, NOBODY)
                return
            held = target.held.get(request.transactional_id)
            if held is None:
                now_ms = self._ports.now().wall_ms
                held = target.add(Transaction(request.transactional_id, producer_id, request.timeout_ms, now_ms))
            self._take(target, held, request, answer)

        self.producer_ids.give(given)

    def _take(self, target: TransactionsPartition, held: Held, request: TakeRequest, answer: Owned) -> None:
        current, now_ms, timeout_ms = held.current, self._ports.now().wall_ms, request.timeout_ms
        verdict = judge_taking(current, request.expected, is_changing=held.is_changing)
        is_owner = request.expected is not None
        if isinstance(verdict, Error):
            answer(verdict, NOBODY)
        elif verdict is Taking.AFTER_ABORT:
            # The client comes again when the markers are written.
            self._endings.fence(target, held, lambda error: answer(error or ErrorCode.concurrent_transactions, NOBODY))
        elif verdict is Taking.NEW_PRODUCER_ID:
            producer_id = self.producer_ids.take()
            if producer_id is None:
                answer(COME_AGAIN, NOBODY)
                return
            step = with_producer_id(current, producer_id, timeout_ms, now_ms, is_asked_by_owner=is_owner)
            self._write_taking(target, held, step, answer)
        elif verdict is Taking.SAME_EPOCH:
            self._write_taking(target, held, with_same_epoch(current, timeout_ms, now_ms), answer)
        else:
            step = with_next_epoch(current, timeout_ms, now_ms, is_asked_by_owner=is_owner)
            self._write_taking(target, held, step, answer)

    def _write_taking(self, target: TransactionsPartition, held: Held, step: Transaction, answer: Owned) -> None:
        owner = step.producer_id, step.producer_epoch
        target.write(held, step, lambda error: answer(error, NOBODY if error else owner), partial(self._note, step))

    def _note(self, step: Transaction) -> None:
        self._ports.note(
            "transactional_id_taken",
            ("transactional_id", step.transactional_id),
            ("producer_id", step.producer_id),
            ("producer_epoch", step.producer_epoch),
        )

    # --- AddPartitionsToTxn, AddOffsetsToTxn ------------------------------------------------------------------------

    def add(self, request: AddRequest, answer: Written) -> None:
        """Adds the partitions, all or none, and begins the transaction with the first ones. Errors: those of ``find``
        and of ``judge_adding``, INVALID_PRODUCER_ID_MAPPING for an ID that nobody has, and those of the log."""
        target = self.find(request.transactional_id)
        if isinstance(target, Error):
            answer(target)
            return
        held = target.held.get(request.transactional_id)
        if held is None:
            answer(ErrorCode.invalid_producer_id_mapping)
            return
        verdict = judge_adding(held.current, request.owner, request.partitions, is_changing=held.is_changing)
        if verdict is not None:
            answer(verdict)
            return
        now_ms = self._ports.now().wall_ms
        target.write(held, with_partitions(held.current, request.partitions, request.client_version, now_ms), answer)

    def verify(self, request: AddRequest) -> Error | Mapping[TopicPartition, Error]:
        """Says whether each partition belongs to the open transaction: NONE or TRANSACTION_ABORTABLE (KIP-890). Errors
        for all are those of ``find`` and of ``judge_owner``, and INVALID_PRODUCER_ID_MAPPING for an ID that nobody
        has."""
        held = self.held(request.transactional_id)
        if isinstance(held, Error):
            is_unknown = held is ErrorCode.transactional_id_not_found
            return ErrorCode.invalid_producer_id_mapping if is_unknown else held
        refusal = judge_owner(held.current, request.owner)
        if refusal:
            return refusal
        known = held.current.partitions
        return {
            each: ErrorCode.none if each in known else ErrorCode.transaction_abortable for each in request.partitions
        }

    # --- EndTxn -----------------------------------------------------------------------------------------------------

    def end(self, request: EndRequest, answer: Owned) -> None:
        """Commits or aborts. Answers once that is durable: then it is decided, whatever dies (X-3). A client of version
        2 is told what it writes with from now on. Errors: those of ``find`` and of ``judge_end``,
        INVALID_PRODUCER_ID_MAPPING for an ID that nobody has, COORDINATOR_LOAD_IN_PROGRESS, and those of the log."""
        target = self.find(request.transactional_id)
        if isinstance(target, Error):
            answer(target, NOBODY)
            return
        held = target.held.get(request.transactional_id)
        if held is None:
            answer(ErrorCode.invalid_producer_id_mapping, NOBODY)
            return
        version = request.client_version
        verdict = judge_end(
            held.current, request.owner, commits=request.commits, client_version=version, is_changing=held.is_changing
        )
        tells_owner = version >= EPOCH_RAISED_FROM
        if isinstance(verdict, Error):
            answer(verdict, NOBODY)
        elif verdict is Ending.NOTHING:
            answer(ErrorCode.none, _owner(held.current) if tells_owner else NOBODY)
        else:

            def decided(error: Error) -> None:
                told = tells_owner and not error
                answer(error, _owner(completed(held.current, 0)) if told else NOBODY)

            self._endings.decide(target, held, version, decided, commits=request.commits)

    # --- partitions that come and go --------------------------------------------------------------------------------

    def begin(self, partition: Partition) -> TransactionsPartition:
        log = CoordinatorLog(self._ports, self._config.request_timeout_ms, self._leaders, partition)
        expiration_ms = self._config.transactional_id_expiration_ms
        return TransactionsPartition(self._ports, log, self._steps, self._feature_level, expiration_ms)

    def _feature_level(self) -> int:
        return transaction_version(self._image())

    def taker(self, found: TransactionsPartition) -> TransactionsTaker:
        return TransactionsTaker(found)

    def loaded(self, found: TransactionsPartition) -> None:
        found.when_settled(lambda: self._endings.resume(found))

    def unloaded(self, found: TransactionsPartition) -> None:
        """Who waits for a record hears NOT_COORDINATOR from the log."""


def _owner(transaction: Transaction) -> tuple[int, int]:
    return transaction.producer_id, transaction.producer_epoch
