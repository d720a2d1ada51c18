"""Second set: transactional IDs and their owners, transactions that end, markers, and verification."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Callable, Collection
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.coordination.scheduling import DueTimes
from reference_broker.ports.slicing import RESUMED_TRANSACTIONS_PER_SLICE, Sliced
from reference_broker.records.batch import NO_PRODUCER_ID
from reference_broker.transactions.markers import EPOCH_RAISED_FROM
from reference_broker.transactions.transaction_metadata import (
    PREPARED,
    InitAction,
    ProducerIdAndEpoch,
    TxnTransitMetadata,
)
from reference_broker.wire.errors import Error, ErrorCode

TRANSACTION = "reference_broker.transactions.transaction_metadata"
COMPLETION = "reference_broker.transactions.transaction_completion"
PARTITION = "reference_broker.transactions.transaction_state_manager"
MARKERS = "reference_broker.transactions.markers"


# --- owners -----------------------------------------------------------------------------------------------------------


@mutant(f"{TRANSACTION}:check_init_producer_id")
def lost_init_response_fences(
    original: Function, metadata: Any, expected: ProducerIdAndEpoch | None
) -> InitAction | Error:
    """A producer that repeats InitProducerId with the epoch before, because the response was lost, is fenced by itself
    (KIP-360, X-1)."""
    verdict: InitAction | Error = original(metadata, expected)
    return ErrorCode.producer_fenced if verdict is InitAction.SAME_EPOCH else verdict


@mutant(f"{TRANSACTION}:_may_continue")
def expected_producer_id_not_compared(
    original: Function, current: TxnTransitMetadata, expected: ProducerIdAndEpoch
) -> bool:
    """InitProducerId compares the epoch that its producer expects, but not the producer ID, so that a producer of an
    older ID takes the transactional ID back (KIP-360, X-1)."""
    return True


# --- open transactions ------------------------------------------------------------------------------------------------


@mutant(f"{TRANSACTION}:prepare_add_partitions")
def added_partitions_replace_earlier_ones(
    original: Function, current: TxnTransitMetadata, partitions: Collection[Any], client_version: int, now_ms: int
) -> TxnTransitMetadata:
    """Partitions that are added to an open transaction replace the ones that were added before, which get no marker
    (X-3, X-9)."""
    transit: TxnTransitMetadata = original(current, partitions, client_version, now_ms)
    return transit._replace(partitions=dict.fromkeys(partitions))


@mutant(f"{TRANSACTION}:prepare_add_partitions")
def timeout_restarts_with_each_partition(
    original: Function, current: TxnTransitMetadata, partitions: Collection[Any], client_version: int, now_ms: int
) -> TxnTransitMetadata:
    """The timeout of a transaction counts from the partition that was added last, and not from its start, so that it
    may stay open for ever (X-7)."""
    transit: TxnTransitMetadata = original(current, partitions, client_version, now_ms)
    return transit._replace(started_ms=now_ms)


@mutant(f"{PARTITION}:TransactionsPlayback.restore")
def loaded_transactions_never_time_out(original: Function, self: Any, skipped: Any) -> Sliced[None]:
    """A coordinator that takes over does not schedule the timeouts of the transactions that it loads, which hold back
    the last stable offset if their producers are gone (X-7)."""
    yield from original(self, skipped)
    self.state_manager.timeouts = DueTimes()


# --- transactions that end --------------------------------------------------------------------------------------------


@mutant(f"{COMPLETION}:prepare_abort_or_commit", one_use="An abort that fences a producer still raises the epoch.")
def epoch_not_raised_by_end(
    original: Function,
    current: TxnTransitMetadata,
    now_ms: int,
    *,
    commits: bool,
    client_version: int,
    next_producer_id: int = NO_PRODUCER_ID,
) -> TxnTransitMetadata:
    """EndTxn of transactions of version 2 does not raise the producer epoch, so that a late write of one transaction
    lands in the next, and partitions refuse the marker as late (KIP-890, X-9)."""
    transit: TxnTransitMetadata = original(
        current, now_ms, commits=commits, client_version=client_version, next_producer_id=next_producer_id
    )
    if client_version < EPOCH_RAISED_FROM:
        return transit
    return transit._replace(producer_epoch=current.producer_epoch, last_producer_epoch=current.last_producer_epoch)


@mutant(f"{COMPLETION}:TransactionCompletion._resume")
def prepared_aborts_not_resumed(original: Function, self: Any, state_manager: Any) -> Sliced[None]:
    """A coordinator that takes over sends the markers of prepared commits only. Prepared aborts keep their transactions
    open (X-3)."""
    prepared = [entry for entry in state_manager.entries.values() if entry.pending_state is None]
    commits = [entry for entry in prepared if PREPARED.get(entry.current.state)]
    for number, metadata in enumerate(commits, 1):
        if not state_manager.is_led:
            return
        if metadata.current.state in PREPARED and metadata.pending_state is None:
            self._send_markers(state_manager, metadata)
        if number % RESUMED_TRANSACTIONS_PER_SLICE == 0:
            yield


@mutant(f"{PARTITION}:_tags_of")
def client_version_not_written(original: Function, transaction: TxnTransitMetadata) -> dict[int, bytes]:
    """Records of ``__transaction_state`` lack the transaction.version of the client, so that the next coordinator ends
    a transaction of version 2 as an older one (KIP-890, X-2)."""
    tags: dict[int, bytes] = original(transaction)
    return {tag: value for tag, value in tags.items() if tag != 2}


# --- markers ----------------------------------------------------------------------------------------------------------


@mutant("reference_broker.transactions.transaction_marker_channel_manager:TransactionMarkerChannelManager._retry")
def leaderless_markers_never_sent(original: Function, self: Any) -> None:
    """Markers of partitions that had no leader when their transaction ended are not sent when the partitions have one
    (X-3)."""
    again, self._to_retry, self._leaderless = self._to_retry, [], []
    self._waiting.value = 0
    if again:
        self._work.add(self._add_all_to_broker_queues(again))


@mutant(f"{MARKERS}:MarkerWriter._wait_until_replicated")
def marker_acknowledged_unreplicated(
    original: Function, self: Any, errors: dict[Any, Error], appended: list[Any], written: Callable[[Any], None]
) -> None:
    """A leader acknowledges a marker that is in its own log only. If it fails, the transaction is complete for its
    coordinator and open in the partition (X-3)."""
    written(errors)


@mutant(f"{MARKERS}:_is_late")
def late_marker_ends_next_transaction(original: Function, marker: Any, producer: Any) -> bool:
    """A repeated marker of version 2 with the epoch of an open transaction is accepted, and ends that transaction
    (KIP-890, X-3)."""
    return False


# --- verification -----------------------------------------------------------------------------------------------------


@mutant("reference_broker.log.transaction_verification:_check_sequence")
def later_batch_overtakes_waiting_one(original: Function, entry: Any, header: Any, there: Any) -> None:
    """The second batch of a transaction is appended before the first one, which still waits to be verified and is out
    of order then (KAFKA-14920, X-9)."""
