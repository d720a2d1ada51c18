"""Mutants of transactions and producers that no scenario names: endings, markers, verification, and producer state."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.log.producer_state import REMEMBERED_BATCHES
from reference_broker.transactions.transaction_metadata import TransactionState, prepare_complete
from reference_broker.wire.errors import Error, ErrorCode

SENDER = "reference_broker.transactions.transaction_marker_channel_manager:TransactionMarkerChannelManager"
STATES = "reference_broker.log.producer_state:ProducerStateManager"


# --- the coordinator --------------------------------------------------------------------------------------------------


@mutant(f"{SENDER}._failed")
def lost_marker_request_not_repeated(original: Function, self: Any, node_id: int, sent: Any) -> None:
    """Markers in a request without a response are not sent again, so that their transactions never end (X-3)."""
    self._send_next(node_id)


@mutant(f"{SENDER}._handle_errors")
def unknown_partition_taken_for_deleted(
    original: Function, self: Any, pending_txn: Any, errors: dict[Any, Error]
) -> None:
    """A partition that its broker reports as unknown needs no marker. A leader that lags behind in metadata never gets
    one, and the transaction stays open there (X-3, X-9)."""
    unknown = ErrorCode.unknown_topic_or_partition
    found = {key: ErrorCode.none if error == unknown else error for key, error in errors.items()}
    original(self, pending_txn, found)


@mutant("reference_broker.transactions.coordinator:TransactionCoordinator.loaded")
def resumed_before_replicated(original: Function, self: Any, state_manager: Any) -> None:
    """A coordinator that takes over sends the markers of decisions that it loaded before they are replicated. The next
    one may lack them, and decide otherwise (X-2, X-3)."""
    self._completion.resume(state_manager)


@mutant("reference_broker.transactions.timeouts:Timeouts._time_out")
def timeout_not_scheduled_again(original: Function, self: Any, state_manager: Any, metadata: Any, now_ms: int) -> None:
    """A transaction that is not due when its ID is checked is not checked again. The check may have been scheduled for
    the ID's transaction before that (X-7)."""
    current = metadata.current
    is_due = current.started_ms + current.timeout_ms + 1 <= now_ms
    if current.state is not TransactionState.ONGOING or (is_due and not metadata.pending_transition_in_progress):
        original(self, state_manager, metadata, now_ms)


@mutant("reference_broker.transactions.transaction_completion:TransactionCompletion._write_completion")
async def completion_not_repeated(original: Function, self: Any, state_manager: Any, metadata: Any) -> None:
    """A completion that could not be written, for want of replicas in sync, is not retried, and the transactional
    ID stays busy (X-3)."""
    if state_manager.is_led:
        state_manager.append_transaction_to_log(metadata, prepare_complete(metadata.current, self._ports.now().wall_ms))


@mutant("reference_broker.transactions.transaction_state_manager:TransactionStateManager._complete_late")
async def timed_out_step_taken_back(
    original: Function, self: Any, metadata: Any, transit: Any, end_offset: int
) -> bool:
    """A step that is in the log and was not acknowledged in time is taken back. A timeout may abort a transaction whose
    commit is replicated later (X-2, X-3)."""
    self._reset_pending_state(metadata)
    return False


@mutant("reference_broker.transactions.transaction_metadata:check_producer")
def verified_while_it_ends(original: Function, current: Any, producer: Any) -> Error:
    """The coordinator confirms a transaction that is decided, while some partitions lack their marker. A late batch
    opens it again where the marker is written already (X-9)."""
    error: Error = original(current, producer)
    return ErrorCode.none if error is ErrorCode.concurrent_transactions else error


# --- partitions -------------------------------------------------------------------------------------------------------


@mutant("reference_broker.log.transaction_verification:VerificationStates.note_written")
def guard_outlives_marker(original: Function, self: Any, header: Any) -> None:
    """A marker does not void the wait of a batch for its verification. The batch opens the transaction again that has
    ended meanwhile (KIP-890, X-9)."""
    if not header.is_control:
        original(self, header)


@mutant(f"{STATES}.record_marker")
def marker_frees_stable_offset_at_once(
    original: Function, self: Any, header: Any, offset: int, timestamp_ms: int, type_: Any, coordinator_epoch: int
) -> Any:
    """A transaction no longer holds the last stable offset back once its marker is written, replicated or not (X-4)."""
    before = list(self.completed)
    found = original(self, header, offset, timestamp_ms, type_, coordinator_epoch)
    self.completed = before
    return found


# --- producers --------------------------------------------------------------------------------------------------------


@mutant("reference_broker.controller.planning.brokers:ProducerIdBlock.plan")
def producer_ids_of_published_image(original: Function, self: Any, context: Any) -> Any:
    """A block of producer IDs begins where it does in the published image. A block that is written and not published
    yet is given to a second broker (P-6, X-1)."""
    records = original(self, context)
    if records:
        self.result = context.published.next_producer_id
    return records


@mutant("reference_broker.log.producer_state:_advanced")
def batches_of_older_epoch_remembered(
    original: Function, entry: Any, header: Any, first_offset: int, timestamp_ms: int
) -> Any:
    """A producer with a new epoch keeps the batches of its older one, whose sequences recur. A new batch with the
    sequences of an old one is taken for its retry, and not written (P-6)."""
    after = original(entry, header, first_offset, timestamp_ms)
    if entry is None or entry.producer_epoch == header.producer_epoch:
        return after
    return after._replace(batch_metadata=(*entry.batch_metadata, *after.batch_metadata)[-REMEMBERED_BATCHES:])


@mutant("reference_broker.log.producer_replay:_refill")
def only_last_batch_known_after_start(
    original: Function, segments: Any, end_offset: int, states: Any
) -> Generator[None, None, None]:
    """A start from a producer snapshot restores the last batch of each producer only. A retry of one before that is
    refused, and undecided markers before the snapshot hold nothing back (P-6, X-13)."""
    yield from ()


@mutant(f"{STATES}.record_marker")
def marker_does_not_renew_producer(
    original: Function, self: Any, header: Any, offset: int, timestamp_ms: int, type_: Any, coordinator_epoch: int
) -> Any:
    """A marker does not count as a record of its producer, which expires too early after a long transaction (P-1,
    P-7)."""
    known = self.by_id.get(header.producer_id)
    found = original(self, header, offset, timestamp_ms, type_, coordinator_epoch)
    if known is not None:
        producer = self.by_id[header.producer_id]
        self.by_id[header.producer_id] = producer._replace(last_timestamp_ms=known.last_timestamp_ms)
    return found


@mutant("reference_broker.apis.records.k00_produce:_append")
def retry_acknowledged_at_once(
    original: Function,
    progress: Any,
    partition: Any,
    entry: Any,
    records: Any,
    guard: Any,
    *,
    is_validated: bool = False,
) -> Any:
    """The retry of a batch that is in the leader's log is acknowledged although the batch is not replicated yet (P-6,
    E-7)."""
    written = progress.written
    count = len(written)
    response = original(progress, partition, entry, records, guard, is_validated=is_validated)
    if len(written) > count and not written[-1][1]:
        written.pop()
    return response
