"""One led partition of ``__transaction_state``: its transactional IDs, their log, and their records as bytes.

Keys and values have Kafka's layouts (TransactionLogKey, TransactionLogValue in
transaction-coordinator/src/main/resources). Each begins with its version (int16). Keys have version 0. Values are
written in version 1, which is flexible, from ``transaction.version`` 1 on, and else in version 0. Version 1 has tagged
fields: 0 the previous producer ID, 1 the next one, 2 the client's ``transaction.version``. Tag 3 (KIP-939) is not
written here.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from struct import Struct
from typing import Final

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.coordinator_shards import CoordinatorShard, Skipped
from reference_broker.coordination.log import CoordinatorLog, client_error
from reference_broker.coordination.record_fields import DamagedRecord, FieldReader, FieldWriter
from reference_broker.coordination.scheduling import DeferredCallbacks, DueTimes
from reference_broker.metadata.identifiers import TRANSACTION_TOPIC, TopicPartition
from reference_broker.metadata.image import MetadataImage
from reference_broker.ports.coroutines import Future, Wait, pause, run_coroutine
from reference_broker.ports.node_ports import Ports
from reference_broker.ports.slicing import COORDINATOR_RECORDS_PER_SLICE, Sliced
from reference_broker.records.batch import NO_PRODUCER_ID, BatchHeader
from reference_broker.records.record import Record
from reference_broker.transactions.transaction_metadata import (
    PREPARED,
    STATE_IDS,
    STATES_BY_ID,
    TransactionMetadata,
    TransactionState,
    TxnTransitMetadata,
)
from reference_broker.wire.decoding import primitive_reader
from reference_broker.wire.errors import Error, ErrorCode

RETRY_US = 100_000
SPARE_BYTES = 64
"""Number of bytes by which the record of a prepared transaction may be longer than that of the open one. A transaction
whose prepared state does not fit into a batch would never end."""


@dataclass(slots=True)
class TransactionAppend:
    """A transition that is being written to the log."""

    error: Future[Error] = field(default_factory=Future)
    """The error for the client, at the end of an event. NONE means that the transition is replicated."""
    is_complete: Future[bool] = field(default_factory=Future)
    """Whether the new state is the current one, and this node still leads the partition. It may come later than
    ``error``."""


class TransactionStateManager(CoordinatorShard):
    """The transactional IDs of one led partition (Kafka's TransactionStateManager has those of all partitions).
    ``feature_level`` returns the finalized ``transaction.version``."""

    def __init__(
        self,
        ports: Ports,
        log: CoordinatorLog,
        deferred: DeferredCallbacks,
        feature_level: Callable[[], int],
        expiration_ms: int,
    ) -> None:
        super().__init__(log.led)
        self.entries: dict[str, TransactionMetadata] = {}
        """All transactional IDs of the partition."""
        self.timeouts = DueTimes()
        """When to check whether a transaction is open for too long (X-7)."""
        self.expiries = DueTimes()
        """When to check whether an ID is idle for too long (X-10)."""
        self._ports = ports
        self._log = log
        self._deferred = deferred
        self._feature_level = feature_level
        self._expiration_ms = expiration_ms
        self._is_settled = False

    @property
    def coordinator_epoch(self) -> int:
        """The epoch in markers, so that those of an older coordinator are refused (X-6)."""
        return self.led.leader_epoch

    @property
    def is_settled(self) -> bool:
        """Whether the loaded records are replicated. Before that, a coordinator that takes over could act on records
        that the next one does not have (X-2). Kafka does not wait."""
        self._is_settled = self._is_settled or self.led.log.high_watermark >= self.loaded_end
        return self._is_settled

    @property
    def lacks_replicas(self) -> bool:
        """Whether so few replicas are in sync that nothing is replicated for now."""
        return self._log.lacks_replicas

    def when_settled(self, settled: Callable[[], None]) -> None:
        """Call ``settled`` once the loaded records are replicated, unless another node leads by then."""
        run_coroutine(self._settle(settled))

    async def _settle(self, settled: Callable[[], None]) -> None:
        while self.is_led:
            error = await self._replicated(self.loaded_end)
            if not self.is_led:
                return
            if not error or self.is_settled:
                self._is_settled = True
                self._deferred.add(settled)
                return
            await pause(self._ports, RETRY_US)

    def _replicated(self, end_offset: int) -> Wait[Error]:
        """Wait until everything below ``end_offset`` is replicated. The errors are those of the log."""
        return Wait(partial(self._log.when_replicated, end_offset))

    # --- transitions --------------------------------------------------------------------------------------------------

    def add(self, current: TxnTransitMetadata) -> TransactionMetadata:
        """Add a new transactional ID, of which nothing is written yet."""
        metadata = self.entries[current.transactional_id] = TransactionMetadata(current)
        return metadata

    def append_transaction_to_log(
        self, metadata: TransactionMetadata, transit: TxnTransitMetadata
    ) -> TransactionAppend:
        """Append the next state of the ID to the log. There are three outcomes:

        ===========================  =============  ==============================================
        the record                   ``error``      the pending state
        ===========================  =============  ==============================================
        1. is replicated in time     NONE           becomes the current one
        2. is refused by the log     an error       is reset
        3. is in the log, and its    an error       stays, and becomes the current one late, as
           replication times out                    soon as the record is replicated
        ===========================  =============  ==============================================

        Kafka resets the pending state in the third case, too. Here it stays, because its record may still be
        replicated, and another transition that came between could end the transaction twice (X-3). If another node
        leads by then, the transition is left to that node, and the error is NOT_COORDINATOR.

        The other errors are those of CoordinatorOperationExceptionHelper."""
        assert self.is_led, f"partition {self.index} is written and lost"
        assert metadata.pending_state is None, f"{metadata.current.transactional_id}: two transitions at once"
        transit.validate()
        metadata.pending_state = transit
        append = TransactionAppend()
        run_coroutine(self._append_transaction(metadata, transit, append))
        return append

    async def _append_transaction(
        self, metadata: TransactionMetadata, transit: TxnTransitMetadata, append: TransactionAppend
    ) -> None:
        error, end_offset = await self._append_record(transit)
        # 1. The record is replicated in time.
        if not error and self.is_led:  # Decision transaction-step-replicated
            self._complete_transition(metadata, transit)
            await self._deferred.end_of_event()
            append.error.set_result(ErrorCode.none)
            append.is_complete.set_result(self.is_led)
            return
        refusal = client_error(error) if error else ErrorCode.not_coordinator
        self._deferred.add(partial(append.error.set_result, refusal))
        is_complete = False
        # 2. The log has refused it.
        if end_offset is None:  # Decision transaction-step-appended
            self._reset_pending_state(metadata)
        # 3. It is in the log, and may be replicated late.
        elif self.is_led:
            is_complete = await self._complete_late(metadata, transit, end_offset)
        append.is_complete.set_result(is_complete)

    async def _complete_late(self, metadata: TransactionMetadata, transit: TxnTransitMetadata, end_offset: int) -> bool:
        """Complete the transition once its record is replicated, however long that takes. Return False if another node
        leads by then."""
        while True:
            await pause(self._ports, RETRY_US)
            if not self.is_led:
                return False
            error = await self._replicated(end_offset)
            if not self.is_led:
                return False
            if error:  # Decision transaction-late-step
                continue
            self._complete_transition(metadata, transit)
            await self._deferred.end_of_event()
            return self.is_led

    async def _append_record(self, transit: TxnTransitMetadata) -> tuple[Error, int | None]:
        """Append the record, and wait for its acknowledgement. Return the error of the log, and one past the record, or
        None if the record is not in the log."""
        key = transaction_key(transit.transactional_id)
        value = None if transit.state is TransactionState.DEAD else transaction_value(transit, self._feature_level())
        spare_bytes = SPARE_BYTES if transit.state is TransactionState.ONGOING else 0
        appended = self._log.append([(key, value)], spare_bytes=spare_bytes)
        if isinstance(appended, Error):
            return appended, None
        return await appended.announce_and_wait(), appended.end_offset

    def _complete_transition(self, metadata: TransactionMetadata, transit: TxnTransitMetadata) -> None:
        metadata.complete_transition_to(transit)
        if transit.state is TransactionState.DEAD:
            del self.entries[transit.transactional_id]
        else:
            self.schedule_checks(transit)

    def _reset_pending_state(self, metadata: TransactionMetadata) -> None:
        """Reset a pending state that is not in the log. A new ID is removed with it."""
        metadata.pending_state = None
        if metadata.current.producer_epoch < 0:
            self.entries.pop(metadata.current.transactional_id, None)

    def schedule_checks(self, transaction: TxnTransitMetadata) -> None:
        """Schedule the next checks of the ID."""
        if transaction.state is TransactionState.ONGOING:
            self.timeouts.schedule(transaction.transactional_id, transaction.started_ms + transaction.timeout_ms + 1)
        self.expiries.schedule(transaction.transactional_id, transaction.updated_ms + self._expiration_ms)

    def validate(self) -> None:
        for transactional_id, metadata in self.entries.items():
            assert metadata.current.transactional_id == transactional_id, (
                f"{metadata.current} is stored under {transactional_id}"
            )
            metadata.current.validate()
            if metadata.current.producer_epoch < 0:
                assert metadata.pending_state is not None, f"{transactional_id} was never written"


@dataclass(slots=True)
class TransactionsPlayback:
    """Implements ``coordination.coordinator_shards.Playback``."""

    state_manager: TransactionStateManager
    _values: dict[str, bytes] = field(default_factory=dict)
    """The last value of each transactional ID."""

    def replay(self, header: BatchHeader, record: Record, end_offset: int) -> None:  # noqa: ARG002 - the protocol's form
        transactional_id = None if header.is_control else read_key(record.key or b"")
        if transactional_id is None:
            return
        self._values.pop(transactional_id, None)
        if record.value is not None:
            self._values[transactional_id] = record.value

    def batch_replayed(self) -> None:
        """Do nothing, since only the last value of each ID counts."""

    def restore(self, skipped: Skipped) -> Sliced[None]:
        for number, (transactional_id, value) in enumerate(self._values.items(), 1):
            try:
                transaction = read_transaction(transactional_id, value)
            except DamagedRecord as damaged:
                skipped(-1, f"transactional ID {transactional_id}: {damaged}")
                continue
            # Decision restored-transaction
            without_marker = dict(transaction.partitions) if transaction.state in PREPARED else {}
            self.state_manager.entries[transactional_id] = TransactionMetadata(
                transaction, partitions_without_marker=without_marker
            )
            self.state_manager.schedule_checks(transaction)
            if number % COORDINATOR_RECORDS_PER_SLICE == 0:
                yield


KEY: Final = 0
PLAIN_VALUE: Final = 0
FLEXIBLE_VALUE: Final = 1
FLEXIBLE_FROM: Final = 1
"""The finalized ``transaction.version`` from which values are written in their flexible version."""

_PREVIOUS_ID: Final = 0
_NEXT_ID: Final = 1
_CLIENT_VERSION: Final = 2
_PRODUCER_AND_STATE = Struct(">qhib")
_TIMES = Struct(">qq")
_INT16 = Struct(">h")
_INT64 = Struct(">q")
_TAGS: Final = {
    _PREVIOUS_ID: primitive_reader("int64", flexible=True, nullable=False),
    _NEXT_ID: primitive_reader("int64", flexible=True, nullable=False),
    _CLIENT_VERSION: primitive_reader("int16", flexible=True, nullable=False),
}


def transaction_key(transactional_id: str) -> bytes:
    """TransactionLogKey 0. Raise TextTooLong."""
    out = FieldWriter(KEY)
    out.string(transactional_id)
    return bytes(out.data)


def read_key(data: bytes) -> str | None:
    """Return the transactional ID, or None for a key of another kind. Raise DamagedRecord."""
    fields = FieldReader(data)
    return fields.string() if fields.version == KEY else None


def transaction_value(transaction: TxnTransitMetadata, feature_level: int) -> bytes:
    """TransactionLogValue, in the version that the finalized ``transaction.version`` allows."""
    version = FLEXIBLE_VALUE if feature_level >= FLEXIBLE_FROM else PLAIN_VALUE
    out = FieldWriter(version, flexible_from=FLEXIBLE_VALUE)
    out.numbers(
        _PRODUCER_AND_STATE,
        transaction.producer_id,
        transaction.producer_epoch,
        transaction.timeout_ms,
        STATE_IDS[transaction.state],
    )
    _write_partitions(out, transaction, is_flexible=version == FLEXIBLE_VALUE)
    out.numbers(_TIMES, transaction.updated_ms, transaction.started_ms)
    if version == FLEXIBLE_VALUE:
        out.tagged(_tags_of(transaction))
    return bytes(out.data)


def _write_partitions(out: FieldWriter, transaction: TxnTransitMetadata, *, is_flexible: bool) -> None:
    if transaction.state is TransactionState.EMPTY:
        out.null()
        return
    by_topic: dict[str, list[int]] = {}
    for topic, index in transaction.partitions:
        by_topic.setdefault(topic, []).append(index)
    out.length(len(by_topic))
    for topic, indexes in by_topic.items():
        out.string(topic)
        out.length(len(indexes))
        for index in indexes:
            out.int32(index)
        if is_flexible:
            out.tagged({})


def _tags_of(transaction: TxnTransitMetadata) -> dict[int, bytes]:
    tags = {}
    if transaction.previous_producer_id != NO_PRODUCER_ID:
        tags[_PREVIOUS_ID] = _INT64.pack(transaction.previous_producer_id)
    if transaction.next_producer_id != NO_PRODUCER_ID:
        tags[_NEXT_ID] = _INT64.pack(transaction.next_producer_id)
    if transaction.client_version:
        tags[_CLIENT_VERSION] = _INT16.pack(transaction.client_version)
    return tags


def read_transaction(transactional_id: str, data: bytes) -> TxnTransitMetadata:
    """Read TransactionLogValue 0 and 1. Raise DamagedRecord, also for a value that no coordinator writes: its markers
    could not be sent, or a later state could not be written."""
    fields = FieldReader(data, flexible_from=FLEXIBLE_VALUE, greatest=FLEXIBLE_VALUE)
    producer_id, epoch, timeout_ms = fields.int64(), fields.int16(), fields.int32()
    state = STATES_BY_ID.get(fields.int8())
    if state in (None, TransactionState.DEAD, TransactionState.PREPARE_EPOCH_FENCE):
        raise DamagedRecord(f"transactional ID {transactional_id} is in no state that is ever written")
    if epoch < 0:
        raise DamagedRecord(f"transactional ID {transactional_id} has producer epoch {epoch}")
    partitions = _read_partitions(fields)
    updated_ms, started_ms = fields.int64(), fields.int64()
    tags = fields.tagged(_TAGS)
    transaction = TxnTransitMetadata(
        transactional_id=transactional_id,
        producer_id=producer_id,
        timeout_ms=timeout_ms,
        updated_ms=updated_ms,
        state=state,
        producer_epoch=epoch,
        previous_producer_id=tags.get(_PREVIOUS_ID, NO_PRODUCER_ID),
        next_producer_id=tags.get(_NEXT_ID, NO_PRODUCER_ID),
        partitions=partitions,
        started_ms=started_ms,
        client_version=tags.get(_CLIENT_VERSION, 0),
    )
    try:
        transaction.validate()
    except AssertionError as wrong:
        raise DamagedRecord(str(wrong)) from None
    return transaction


def _read_partitions(fields: FieldReader) -> dict[TopicPartition, None]:
    partitions: dict[TopicPartition, None] = {}
    for _ in range(fields.nullable_length() or 0):
        topic = fields.string()
        for _ in range(fields.length()):
            index = fields.int32()
            if index < 0:
                raise DamagedRecord(f"a transaction has partition {index} of topic {topic}")
            partitions[topic, index] = None
        fields.tagged({})
    return partitions


def partition_count(image: MetadataImage, config: BrokerConfig) -> int:
    """The topic keeps the count with which it was created. Until it exists, ``transaction.state.log.num.partitions``
    counts."""
    topic = image.topics.get(TRANSACTION_TOPIC)
    return config.transaction_state_log_num_partitions if topic is None else len(topic.partitions)


def transaction_topic_configs(config: BrokerConfig, replicas: int) -> tuple[tuple[str, str], ...]:
    """The topic's own settings, which are those that Kafka gives it. Unlike in Kafka, ``min.insync.replicas`` is not
    above the number of replicas: nothing could be written then."""
    return (
        ("cleanup.policy", "compact"),
        ("compression.type", "uncompressed"),
        ("min.insync.replicas", str(min(config.transaction_state_log_min_isr, replicas))),
        ("segment.bytes", str(config.transaction_state_log_segment_bytes)),
        ("unclean.leader.election.enable", "false"),
    )
