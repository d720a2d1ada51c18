"""The transaction coordinator of one node: the transactional IDs in the partitions of ``__transaction_state`` it leads.

``coordination.led_partitions`` loads and drops these partitions, and ``transaction`` judges each request. ``Endings``
sends the markers of decided transactions and completes them, also on a node that takes over (X-3). ``IdleTransactions``
aborts transactions after their timeout (X-7) and expires IDs at rest (X-10).
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.led_partitions import LedPartitions
from reference_broker.coordination.log import CoordinatorLog, Written, client_error
from reference_broker.coordination.partitioner import partition_of
from reference_broker.coordination.record_fields import fits
from reference_broker.coordination.scheduling import DueTimes, SliceQueue, Steps
from reference_broker.metadata.features import transaction_version
from reference_broker.metadata.identifiers import TRANSACTION_TOPIC
from reference_broker.metadata.image import MetadataImage
from reference_broker.metrics.metrics import Gauge, Metrics
from reference_broker.ports.node_ports import Ports, Slices, later, run_slices
from reference_broker.records.batch import NO_PRODUCER_ID
from reference_broker.replication.leader.leaders import Leaders
from reference_broker.replication.partitions import Partition
from reference_broker.transactions.markers import (
    EPOCH_RAISED_FROM,
    Delivery,
    Marker,
    MarkerSender,
    MarkerWriter,
    TopicPartition,
)
from reference_broker.transactions.producer_ids import COME_AGAIN, ProducerIds
from reference_broker.transactions.transaction import (
    DECIDED,
    EXPIRING,
    Ending,
    ProducerIdAndEpoch,
    Taking,
    Transaction,
    TransactionState,
    completed,
    dead,
    decided,
    fenced,
    judge_adding,
    judge_end,
    judge_owner,
    judge_taking,
    with_next_epoch,
    with_partitions,
    with_producer_id,
    with_same_epoch,
)
from reference_broker.transactions.transactions_partition import (
    Held,
    TransactionsPartition,
    TransactionsTaker,
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
class TakeRequest:
    """InitProducerId with a transactional ID. ``expected`` is what the producer has, if it continues after an error."""

    transactional_id: str
    timeout_ms: int
    expected: ProducerIdAndEpoch | None = None


@dataclass(frozen=True, slots=True)
class AddRequest:
    """AddPartitionsToTxn, AddOffsetsToTxn. ``client_version`` is the ``transaction.version`` that the request's version
    implies."""

    transactional_id: str
    owner: ProducerIdAndEpoch
    partitions: tuple[TopicPartition, ...]
    client_version: int = 0


@dataclass(frozen=True, slots=True)
class EndRequest:
    """EndTxn."""

    transactional_id: str
    owner: ProducerIdAndEpoch
    commits: bool
    client_version: int = 0


NOBODY: ProducerIdAndEpoch = (-1, -1)

Owned: TypeAlias = Callable[[Error, ProducerIdAndEpoch], None]
"""Called once with an error, and with NONE also the producer ID and epoch that the client has from now on (NOBODY if
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
        """A request to create the topic is in flight."""

    def start(self) -> None:
        """Begin the checks for transactions that are open, and IDs that are idle, for too long. The node calls it once,
        when it serves."""
        self._idle.start()

    # --- what is coordinated here -------------------------------------------------------------------------------------

    def find(self, transactional_id: str) -> TransactionsPartition | Error:
        """Return the partition that stores the ID, or NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS,
        COORDINATOR_NOT_AVAILABLE where too few replicas are in sync for what was loaded to be replicated, or
        INVALID_REQUEST for an ID that is empty or that no record can hold."""
        if not transactional_id or not fits(transactional_id):
            return ErrorCode.invalid_request
        found = self._led.find(partition_of(transactional_id, partition_count(self._image(), self._config)))
        if isinstance(found, TransactionsPartition) and not found.is_settled:
            return client_error(ErrorCode.not_enough_replicas) if found.lacks_replicas else _LOADING
        return found

    def held(self, transactional_id: str) -> Held | Error:
        """Return the ID, an error of ``find``, or TRANSACTIONAL_ID_NOT_FOUND."""
        target = self.find(transactional_id)
        if isinstance(target, Error):
            return target
        return target.held.get(transactional_id, ErrorCode.transactional_id_not_found)

    def active(self) -> Sequence[TransactionsPartition]:
        """Return every loaded partition, by index."""
        return self._led.active()

    def loading(self) -> bool:
        """Return whether a partition that is led here is not served yet."""
        return self._led.is_loading() or any(not each.is_settled for each in self._led.active())

    def validate(self) -> None:
        """Assert the invariants. It looks at all IDs, so only tests and the simulator ask."""
        self._led.validate()

    # --- InitProducerId -----------------------------------------------------------------------------------------------

    def take(self, request: TakeRequest, respond: Owned) -> None:
        """Give the producer the ID with the next epoch, after an open transaction is aborted (X-1). Errors: those of
        ``find`` and of ``judge_taking``, INVALID_TRANSACTION_TIMEOUT, CONCURRENT_TRANSACTIONS also where an abort came
        first, and COORDINATOR_LOAD_IN_PROGRESS while there is no producer ID."""
        target = self.find(request.transactional_id)
        if not 0 < request.timeout_ms <= self._config.transaction_max_timeout_ms and request.transactional_id:
            respond(ErrorCode.invalid_transaction_timeout, NOBODY)
        elif isinstance(target, Error):
            respond(target, NOBODY)
        elif request.transactional_id in target.held:
            self._take(target, target.held[request.transactional_id], request, respond)
        else:
            self._take_new(target, request, respond)

    def _take_new(self, target: TransactionsPartition, request: TakeRequest, respond: Owned) -> None:
        """The producer ID may come in a later event. Another producer may own the transactional ID by then."""

        def given(producer_id: int | Error) -> None:
            if isinstance(producer_id, Error):
                respond(producer_id, NOBODY)
                return
            if not target.is_led:
                respond(ErrorCode.not_coordinator, NOBODY)
                return
            held = target.held.get(request.transactional_id)
            if held is None:
                now_ms = self._ports.now().wall_ms
                held = target.add(Transaction(request.transactional_id, producer_id, request.timeout_ms, now_ms))
            self._take(target, held, request, respond)

        self.producer_ids.give(given)

    def _take(self, target: TransactionsPartition, held: Held, request: TakeRequest, respond: Owned) -> None:
        current, now_ms, timeout_ms = held.current, self._ports.now().wall_ms, request.timeout_ms
        verdict = judge_taking(current, request.expected, is_changing=held.is_changing)
        is_owner = request.expected is not None
        if isinstance(verdict, Error):
            respond(verdict, NOBODY)
        elif verdict is Taking.AFTER_ABORT:
            # The client retries when the markers are written.
            self._endings.fence(target, held, lambda error: respond(error or ErrorCode.concurrent_transactions, NOBODY))
        elif verdict is Taking.NEW_PRODUCER_ID:
            producer_id = self.producer_ids.take()
            if producer_id is None:
                respond(COME_AGAIN, NOBODY)
                return
            step = with_producer_id(current, producer_id, timeout_ms, now_ms, is_requested_by_owner=is_owner)
            self._write_taking(target, held, step, respond)
        elif verdict is Taking.SAME_EPOCH:
            self._write_taking(target, held, with_same_epoch(current, timeout_ms, now_ms), respond)
        else:
            step = with_next_epoch(current, timeout_ms, now_ms, is_requested_by_owner=is_owner)
            self._write_taking(target, held, step, respond)

    def _write_taking(self, target: TransactionsPartition, held: Held, step: Transaction, respond: Owned) -> None:
        owner = step.producer_id, step.producer_epoch
        target.write(held, step, lambda error: respond(error, NOBODY if error else owner), partial(self._note, step))

    def _note(self, step: Transaction) -> None:
        self._ports.note(
            "transactional_id_taken",
            ("transactional_id", step.transactional_id),
            ("producer_id", step.producer_id),
            ("producer_epoch", step.producer_epoch),
        )

    # --- AddPartitionsToTxn, AddOffsetsToTxn --------------------------------------------------------------------------

    def add(self, request: AddRequest, respond: Written) -> None:
        """Add the partitions, all or none, and begin the transaction with the first ones. Errors: those of ``find``
        and of ``judge_adding``, INVALID_PRODUCER_ID_MAPPING for an unknown ID, and those of the log."""
        target = self.find(request.transactional_id)
        if isinstance(target, Error):
            respond(target)
            return
        held = target.held.get(request.transactional_id)
        if held is None:
            respond(ErrorCode.invalid_producer_id_mapping)
            return
        verdict = judge_adding(held.current, request.owner, request.partitions, is_changing=held.is_changing)
        if verdict is not None:
            respond(verdict)
            return
        now_ms = self._ports.now().wall_ms
        target.write(held, with_partitions(held.current, request.partitions, request.client_version, now_ms), respond)

    def verify(self, request: AddRequest) -> Error | Mapping[TopicPartition, Error]:
        """Return whether each partition belongs to the open transaction: NONE or TRANSACTION_ABORTABLE (KIP-890).
        Errors for all are those of ``find`` and of ``judge_owner``, and INVALID_PRODUCER_ID_MAPPING for an unknown ID.
        """
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

    # --- EndTxn -------------------------------------------------------------------------------------------------------

    def end(self, request: EndRequest, respond: Owned) -> None:
        """Commit or abort. Responds once that is durable: then it is decided, whatever dies (X-3). The response to a
        client of version 2 has the producer ID and epoch for its next transaction. Errors: those of ``find`` and of
        ``judge_end``, INVALID_PRODUCER_ID_MAPPING for an unknown ID, COORDINATOR_LOAD_IN_PROGRESS, and those of the
        log."""
        target = self.find(request.transactional_id)
        if isinstance(target, Error):
            respond(target, NOBODY)
            return
        held = target.held.get(request.transactional_id)
        if held is None:
            respond(ErrorCode.invalid_producer_id_mapping, NOBODY)
            return
        version = request.client_version
        verdict = judge_end(
            held.current, request.owner, commits=request.commits, client_version=version, is_changing=held.is_changing
        )
        returns_owner = version >= EPOCH_RAISED_FROM
        if isinstance(verdict, Error):
            respond(verdict, NOBODY)
        elif verdict is Ending.NOTHING:
            respond(ErrorCode.none, _owner(held.current) if returns_owner else NOBODY)
        else:

            def decided(error: Error) -> None:
                has_owner = returns_owner and not error
                respond(error, _owner(completed(held.current, 0)) if has_owner else NOBODY)

            self._endings.decide(target, held, version, decided, commits=request.commits)

    # --- partitions ---------------------------------------------------------------------------------------------------

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
        """The log has failed all pending requests with NOT_COORDINATOR."""


def _owner(transaction: Transaction) -> tuple[int, int]:
    return transaction.producer_id, transaction.producer_epoch


COMPLETION_RETRY_US = 1_000_000
"""The delay before a completion that could not be written is retried."""
RESUMED_A_SLICE = 100


@dataclass(slots=True)
class Endings:
    """How transactions end: they are decided, their partitions get the markers, and they are complete.

    A decision counts once it is durable. From then on the rest follows by itself, also on a node that takes over (X-3):
    markers are sent until each partition has one, and then the completion is written until it is durable. ``unwritten``
    counts completions that wait for a retry.
    """

    _ports: Ports
    _image: Callable[[], MetadataImage]
    _producer_ids: ProducerIds
    _sender: MarkerSender
    _unwritten: Gauge

    def decide(
        self,
        target: TransactionsPartition,
        held: Held,
        client_version: int,
        done: Callable[[Error], None],
        *,
        commits: bool,
    ) -> None:
        """Commit or abort for the owner. ``done`` is called once the decision is durable, or with an error:
        COORDINATOR_LOAD_IN_PROGRESS while there is no producer ID for a producer whose epochs are used up, else those
        of the log."""
        next_id = self._next_id(held.current, client_version)
        if next_id is None:
            done(COME_AGAIN)
            return
        now_ms = self._ports.now().wall_ms
        step = decided(held.current, now_ms, commits=commits, client_version=client_version, next_producer_id=next_id)
        self._write(target, held, step, done)

    def fence(self, target: TransactionsPartition, held: Held, done: Callable[[Error], None]) -> None:
        """Abort an open transaction with an epoch that no producer has. The errors are those of ``decide``."""
        version = transaction_version(self._image())
        next_id = self._next_id(held.current, version)
        if next_id is None:
            done(COME_AGAIN)
            return
        step = fenced(held.current, self._ports.now().wall_ms, version=version, next_producer_id=next_id)
        self._write(target, held, step, done)

    def _next_id(self, current: Transaction, client_version: int) -> int | None:
        """Return the producer ID after this transaction, -1 where no new one is needed, or None while there is none."""
        if client_version < EPOCH_RAISED_FROM or not current.is_exhausted:
            return NO_PRODUCER_ID
        return self._producer_ids.take()

    def _write(
        self, target: TransactionsPartition, held: Held, step: Transaction, done: Callable[[Error], None]
    ) -> None:
        target.write(held, step, done, lambda: self._send(target, held))

    def resume(self, target: TransactionsPartition) -> None:
        """Continue what the former coordinator has decided."""
        run_slices(self._ports, self._resume(target))

    def _resume(self, target: TransactionsPartition) -> Slices:
        open_ends = [each for each in target.held.values() if each.current.state in DECIDED and each.changing is None]
        for number, held in enumerate(open_ends, 1):
            if not target.is_led:
                return
            if held.current.state in DECIDED and held.changing is None:
                self._send(target, held)
            if number % RESUMED_A_SLICE == 0:
                yield

    def _send(self, target: TransactionsPartition, held: Held) -> None:
        """Send the markers, once: a transaction may be decided while the loaded ones are continued. Both would complete
        it."""
        if held.is_sent:
            return
        held.is_sent = True
        current = held.current
        assert current.state in DECIDED, f"markers of {current.transactional_id}, which is {current.state.value}"
        self._ports.note(
            "transaction_decided",
            ("transactional_id", current.transactional_id),
            ("producer_id", current.producer_id),
            ("producer_epoch", current.producer_epoch),
            ("outcome", "commit" if DECIDED[current.state] else "abort"),
            ("partitions", len(current.partitions)),
        )
        marker = Marker(
            producer_id=current.producer_id,
            producer_epoch=current.producer_epoch,
            coordinator_epoch=target.coordinator_epoch,
            is_commit=DECIDED[current.state],
            transaction_version=current.client_version,
        )
        held.missing = dict(current.partitions)
        self._sender.deliver(
            Delivery(
                marker,
                held.missing,
                is_wanted=lambda: target.is_led and held.current is current,
                delivered=partial(self._complete, target, held),
            )
        )

    def _complete(self, target: TransactionsPartition, held: Held) -> None:
        """Write the completion, since every partition has its marker. If it is in the log already, it becomes durable
        by itself."""
        if not target.is_led:
            return

        def written(error: Error) -> None:
            if error and target.is_led and held.changing is None:
                self._unwritten.value += 1
                later(self._ports, COMPLETION_RETRY_US, retry)

        def retry() -> None:
            self._unwritten.value -= 1
            self._complete(target, held)

        target.write(held, completed(held.current, self._ports.now().wall_ms), written)


IDS_A_SLICE = 20
"""IDs checked in one event. Each may append a record, which costs about 100 us."""

_Handler = Callable[[TransactionsPartition, Held, int], None]


@dataclass(slots=True)
class IdleTransactions:
    """Aborts transactions after their timeout and fences their producers (X-7), and expires IDs at rest (X-10). Only
    IDs that are due are checked. ``active`` returns the partitions that are led and loaded."""

    _ports: Ports
    _config: BrokerConfig
    _active: Callable[[], Sequence[TransactionsPartition]]
    _endings: Endings
    _work: SliceQueue = field(init=False)

    def __post_init__(self) -> None:
        self._work = SliceQueue(self._ports)

    def start(self) -> None:
        """The first checks come after one interval."""
        self._schedule_timeout_check()
        self._schedule_expiry_check()

    def _schedule_timeout_check(self) -> None:
        interval_ms = self._config.transaction_abort_timed_out_transaction_cleanup_interval_ms
        later(self._ports, interval_ms * 1000, self._check_timeouts)

    def _schedule_expiry_check(self) -> None:
        interval_ms = self._config.transaction_remove_expired_transaction_cleanup_interval_ms
        later(self._ports, interval_ms * 1000, self._check_expired)

    def _check_timeouts(self) -> None:
        for target in self._active():
            self._check(target, target.timeouts, self._time_out)
        self._schedule_timeout_check()

    def _check_expired(self) -> None:
        for target in self._active():
            self._check(target, target.expiries, self._expire)
        self._schedule_expiry_check()

    def _check(self, target: TransactionsPartition, due: DueTimes, handle: _Handler) -> None:
        now_ms = self._ports.now().wall_ms
        if target.is_settled and due.is_due(now_ms):
            self._work.add(self._handle_due(target, due, handle, now_ms))

    def _handle_due(self, target: TransactionsPartition, due: DueTimes, handle: _Handler, now_ms: int) -> Slices:
        """Handle the due IDs in slices. One that cannot be handled now is scheduled after ``now_ms``, for the next
        check."""
        count = 0
        while target.is_led and (transactional_id := due.due(now_ms)) is not None:
            held = target.held.get(transactional_id)
            if held is not None:
                handle(target, held, now_ms)
            count += 1
            if count % IDS_A_SLICE == 0:
                yield

    # --- open for too long --------------------------------------------------------------------------------------------

    def _time_out(self, target: TransactionsPartition, held: Held, now_ms: int) -> None:
        current = held.current
        if current.state is not TransactionState.ONGOING:
            return
        due_ms = current.started_ms + current.timeout_ms + 1
        if due_ms > now_ms or held.is_changing:
            target.timeouts.schedule(current.transactional_id, max(due_ms, now_ms + 1))
            return
        self._note("transaction_timed_out", current)
        self._endings.fence(target, held, partial(self._fenced, target, current.transactional_id, now_ms))

    def _fenced(self, target: TransactionsPartition, transactional_id: str, now_ms: int, error: Error) -> None:
        if error:
            target.timeouts.schedule(transactional_id, now_ms + 1)

    # --- idle for too long --------------------------------------------------------------------------------------------

    def _expire(self, target: TransactionsPartition, held: Held, now_ms: int) -> None:
        current = held.current
        due_ms = current.updated_ms + self._config.transactional_id_expiration_ms
        if due_ms > now_ms or held.is_changing or current.state not in EXPIRING:
            target.expiries.schedule(current.transactional_id, max(due_ms, now_ms + 1))
            return
        self._note("transactional_id_expired", current)
        target.write(held, dead(current, now_ms), partial(self._expired, target, current.transactional_id, now_ms))

    def _expired(self, target: TransactionsPartition, transactional_id: str, now_ms: int, error: Error) -> None:
        if error:
            target.expiries.schedule(transactional_id, now_ms + 1)

    def _note(self, what: str, current: Transaction) -> None:
        self._ports.note(
            what,
            ("transactional_id", current.transactional_id),
            ("producer_id", current.producer_id),
            ("producer_epoch", current.producer_epoch),
        )
