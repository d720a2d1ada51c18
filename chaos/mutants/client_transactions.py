"""Mutants of producers' transactions: their coordinator, their markers, and the state of partitions."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from kio.static.primitive import i64

from chaos.mutants.mutant import Function, mutant
from reference_broker.records.batch import NO_PRODUCER_ID
from reference_broker.transactions.markers import Marker
from reference_broker.transactions.transaction_marker_channel_manager import PendingCompleteTxn
from reference_broker.transactions.transaction_metadata import PREPARED, TransactionState
from reference_broker.wire.errors import Error, ErrorCode

APIS = "reference_broker.apis.transactions"
PRODUCERS = "reference_broker.log.producer_state:ProducerStateManager"
OFFSETS = "reference_broker.groups.committed_offsets:CommittedOffsets"
TIMEOUTS = "reference_broker.transactions.timeouts:Timeouts"
LOADED = "reference_broker.transactions.transaction_state_manager:read_transaction"


# --- the coordinator ------------------------------------------------------------------------------------------------


@mutant("reference_broker.transactions.transaction_completion:TransactionCompletion._prepare_then_send_markers")
async def markers_before_prepare(
    original: Function, self: Any, state_manager: Any, metadata: Any, transit: Any, respond: Any
) -> None:
    """Markers are sent as soon as the end is requested, before the decision is durable (X-2, X-3)."""
    marker = Marker(
        transit.producer_id,
        transit.producer_epoch,
        state_manager.coordinator_epoch,
        PREPARED[transit.state],
        transit.client_version,
    )
    self._marker_channels.add_markers_to_send(
        PendingCompleteTxn(marker, dict(transit.partitions), lambda: state_manager.is_led, lambda: None)
    )
    await original(self, state_manager, metadata, transit, respond)


@mutant(LOADED)
def transactions_dropped_at_load(original: Function, transactional_id: str, data: bytes) -> Any:
    """After a takeover the coordinator drops transactions that are open or decided (X-2, X-3)."""
    found = original(transactional_id, data)
    if found.state in PREPARED or found.state is TransactionState.ONGOING:
        return found._replace(state=TransactionState.EMPTY, partitions={})
    return found


@mutant(LOADED)
def opposite_outcome_after_takeover(original: Function, transactional_id: str, data: bytes) -> Any:
    """After a takeover the coordinator aborts transactions that were to be committed, and confirms that to clients that
    retry (X-3)."""
    found = original(transactional_id, data)
    if found.state is TransactionState.PREPARE_COMMIT:
        return found._replace(state=TransactionState.PREPARE_ABORT)
    return found


@mutant("reference_broker.transactions.transaction_metadata:prepare_increment_producer_epoch")
def epoch_not_raised(
    original: Function, current: Any, timeout_ms: int, now_ms: int, *, by_current_producer: bool
) -> Any:
    """InitProducerId returns the epoch of the previous producer, so that one is not fenced (X-1)."""
    transit = original(current, timeout_ms, now_ms, by_current_producer=by_current_producer)
    return transit._replace(producer_epoch=max(current.producer_epoch, 0))


@mutant("reference_broker.transactions.coordinator:TransactionCoordinator.init_producer_id")
def any_timeout_granted(original: Function, self: Any, request: Any, respond: Any) -> None:
    """A producer gets any timeout that it requests (X-7)."""
    config, self._config = self._config, replace(self._config, transaction_max_timeout_ms=2**31 - 1)
    try:
        original(self, request, respond)
    finally:
        self._config = config


@mutant(f"{TIMEOUTS}._time_out")
def timed_out_stays_open(original: Function, self: Any, state_manager: Any, metadata: Any, now_ms: int) -> None:
    """A transaction whose producer is gone is never aborted (X-7)."""


@mutant("reference_broker.transactions.transaction_completion:TransactionCompletion.fence_and_abort")
def timed_out_not_fenced(original: Function, self: Any, state_manager: Any, metadata: Any, respond: Any) -> None:
    """A transaction that timed out is aborted, and its producer keeps its epoch (X-7)."""
    self.end_transaction(state_manager, metadata, 0, respond, commits=False)


@mutant(f"{TIMEOUTS}._expire")
def idle_ids_never_forgotten(original: Function, self: Any, state_manager: Any, metadata: Any, now_ms: int) -> None:
    """Transactional IDs never expire (X-10)."""


@mutant(f"{TIMEOUTS}._expire")
def ids_forgotten_too_early(original: Function, self: Any, state_manager: Any, metadata: Any, now_ms: int) -> None:
    """A transactional ID expires after an eighth of ``transactional.id.expiration.ms`` (X-10)."""
    early_ms = self._config.transactional_id_expiration_ms * 7 // 8
    original(self, state_manager, metadata, now_ms + early_ms)


@mutant(f"{TIMEOUTS}._expire")
def open_transactions_expire(original: Function, self: Any, state_manager: Any, metadata: Any, now_ms: int) -> None:
    """An ID with an open transaction expires like an idle one, so the transaction is never ended (X-10)."""
    if metadata.current.state is TransactionState.ONGOING:
        metadata.current = metadata.current._replace(state=TransactionState.EMPTY, partitions={})
    original(self, state_manager, metadata, now_ms)


# --- partitions -----------------------------------------------------------------------------------------------------


@mutant(f"{PRODUCERS}._check_one")
def older_epoch_appended(original: Function, self: Any, producer: Any, header: Any) -> Any:
    """Producer states accept a batch with an older epoch (X-1)."""
    if producer is not None and header.producer_epoch < producer.producer_epoch:
        return None
    return original(self, producer, header)


@mutant("reference_broker.log.transaction_verification:_check_epoch", partner=older_epoch_appended)
def producer_epoch_not_checked(original: Function, entry: Any, batch: Any) -> None:
    """A partition appends batches of a fenced producer (X-1)."""


@mutant(f"{PRODUCERS}.first_unstable_offset")
def last_stable_at_high_watermark(original: Function, self: Any, high_watermark: int) -> int | None:
    """The last stable offset equals the high watermark, also with open transactions (X-4)."""
    return None


@mutant("reference_broker.log.producer_replay:note_batch")
def aborted_index_not_rebuilt(
    original: Function, disk: Any, segment: Any, position: int, header: Any, states: Any
) -> Any:
    """A start restores no aborted transactions (X-5, X-13)."""
    original(disk, segment, position, header, states)


@mutant("reference_broker.log.producer_state:pieces_of")
def open_transactions_missing_from_snapshot(original: Function, producers: Any) -> Any:
    """A producer snapshot contains no open transactions (X-13)."""
    return original({key: each._replace(current_txn_first_offset=-1) for key, each in producers.items()})


@mutant("reference_broker.transactions.add_partitions_to_txn_manager:AddPartitionsToTxnManager.verify")
def transactions_not_verified(original: Function, self: Any, request: Any, verified: Any) -> None:
    """A leader does not verify with the coordinator that a transaction is open (X-9)."""
    verified({})


@mutant("reference_broker.transactions.markers:refusal_of")
def coordinator_epoch_not_checked(original: Function, marker: Any, producer: Any) -> Error:
    """A partition appends the marker of a fenced coordinator (X-6)."""
    refusal: Error = original(marker, producer)
    return ErrorCode.none if refusal is ErrorCode.transaction_coordinator_fenced else refusal


# --- responses to admins --------------------------------------------------------------------------------------------


@mutant(f"{APIS}.k61_describe_producers:_describe_partition")
def open_transactions_not_returned(
    original: Function, broker: Any, topic: str, index: int, work: Any
) -> Generator[None, None, Any]:
    """DescribeProducers returns no open transactions (X-12)."""
    described = yield from original(broker, topic, index, work)
    producers = [replace(producer, current_txn_start_offset=i64(-1)) for producer in described.active_producers]
    return replace(described, active_producers=tuple(producers))


@mutant(f"{APIS}.k66_list_transactions:_response")
def open_transactions_not_listed(original: Function, error: Error, unknown: Any, listed: Any) -> Any:
    """ListTransactions omits open transactions (X-12)."""
    at_rest = [each for each in listed if each.transaction_state != TransactionState.ONGOING.value]
    return original(error, unknown, at_rest)


@mutant(f"{APIS}.k65_describe_transactions:_described")
def partitions_not_described(original: Function, transactional_id: Any, metadata: Any) -> Any:
    """DescribeTransactions returns no partitions (X-12)."""
    return replace(original(transactional_id, metadata), topics=())


@mutant("reference_broker.transactions.markers:MarkerWriter._append")
def aborts_acknowledged_unwritten(original: Function, self: Any, marker: Any, key: Any) -> Any:
    """An abort with the coordinator epoch that Kafka's tool invents succeeds, and no marker is written (X-12)."""
    partition = self._partitions.by_name.get(key)
    known = None if partition is None else partition.log.producers.by_id.get(marker.producer_id)
    if not marker.is_commit and marker.coordinator_epoch == 0 and known is not None and known.coordinator_epoch < 0:
        return ErrorCode.none
    return original(self, marker, key)


# --- the offsets of groups ------------------------------------------------------------------------------------------


@mutant(f"{OFFSETS}.add_unreplicated")
def offsets_visible_before_commit(
    original: Function, self: Any, end_offset: int, changes: Any, producer_id: int = NO_PRODUCER_ID
) -> None:
    """The offsets of a transaction are visible at once, and stay after an abort (X-8)."""
    original(self, end_offset, changes)


@mutant(f"{OFFSETS}.add_end_transaction_marker")
def offsets_kept_after_abort(
    original: Function, self: Any, end_offset: int, producer_id: int, *, is_commit: bool
) -> None:
    """An abort makes the offsets of its transaction visible, like a commit (X-8)."""
    original(self, end_offset, producer_id, is_commit=True)


@mutant("reference_broker.groups.group:Group.check_transactional_commit")
def transactional_generation_not_checked(
    original: Function, self: Any, member_id: str, group_instance_id: str | None, generation: int
) -> Error:
    """A member of an earlier generation may still commit in its transaction (X-8, X-14)."""
    error: Error = original(self, member_id, group_instance_id, generation)
    return ErrorCode.none if error in (ErrorCode.illegal_generation, ErrorCode.unknown_member_id) else error


@mutant(
    "reference_broker.transactions.transaction_marker_channel_manager:TransactionMarkerChannelManager._handle_errors"
)
def moved_partition_gets_no_marker(original: Function, self: Any, pending_txn: Any, errors: dict[Any, Error]) -> None:
    """A partition whose leader has moved when the marker comes does not get it again, and its transaction never ends
    (X-3)."""
    moved = ErrorCode.not_leader_or_follower
    original(self, pending_txn, {key: error for key, error in errors.items() if error is not moved})


@mutant("reference_broker.log.transaction_verification:VerificationStates.check")
def voided_wait_accepted(original: Function, self: Any, entry: Any, batch: Any, guard: Any) -> None:
    """A batch may be appended after its verification although a marker has voided its wait meanwhile (X-9)."""
    if guard is not None:
        self.guards.setdefault(batch.producer_id, guard)
    original(self, entry, batch, guard)
