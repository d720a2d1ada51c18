"""Second set: transactional IDs and their owners, transactions that end, markers, and verification."""

# ruff: noqa: ARG001 - a replacement takes all parameters of its target.

from collections.abc import Callable, Collection
from typing import Any

from chaos.mutants.mutant import Function, mutant
from reference_broker.coordination.scheduling import DueTimes
from reference_broker.ports.slicing import RESUMED_TRANSACTIONS_PER_SLICE, Sliced
from reference_broker.records.batch import NO_PRODUCER_ID
from reference_broker.transactions.markers import EPOCH_RAISED_FROM
from reference_broker.transactions.transaction import (
    DECIDED,
    InitAction,
    ProducerIdAndEpoch,
    Transaction,
)
from reference_broker.wire.errors import Error, ErrorCode

TRANSACTION = "reference_broker.transactions.transaction"
COMPLETION = "reference_broker.transactions.transaction_completion"
PARTITION = "reference_broker.transactions.transactions_partition"
MARKERS = "reference_broker.transactions.markers"


# --- owners -----------------------------------------------------------------------------------------------------------


@mutant(f"{TRANSACTION}:check_init")
def lost_init_response_fences(
    original: Function, current: Transaction, expected: ProducerIdAndEpoch | None, *, is_changing: bool
) -> InitAction | Error:
    """A producer that repeats InitProducerId with the epoch before, because the response was lost, is fenced by itself
    (KIP-360, X-1)."""
    verdict: InitAction | Error = original(current, expected, is_changing=is_changing)
    return ErrorCode.producer_fenced if verdict is InitAction.SAME_EPOCH else verdict


@mutant(f"{TRANSACTION}:_may_continue")
def expected_producer_id_not_compared(original: Function, current: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """InitProducerId compares the epoch that its producer expects, but not the producer ID, so that a producer of an
    older ID takes the transactional ID back (KIP-360, X-1)."""
    return True


# --- open transactions ------------------------------------------------------------------------------------------------


@mutant(f"{TRANSACTION}:with_partitions")
def added_partitions_replace_earlier_ones(
    original: Function, current: Transaction, partitions: Collection[Any], client_version: int, now_ms: int
) -> Transaction:
    """Partitions that are added to an open transaction replace the ones that were added before, which get no marker
    (X-3, X-9)."""
    step: Transaction = original(current, partitions, client_version, now_ms)
    return step._replace(partitions=dict.fromkeys(partitions))


@mutant(f"{TRANSACTION}:with_partitions")
def timeout_restarts_with_each_partition(
    original: Function, current: Transaction, partitions: Collection[Any], client_version: int, now_ms: int
) -> Transaction:
    """The timeout of a transaction counts from the partition that was added last, and not from its start, so that it
    may stay open for ever (X-7)."""
    step: Transaction = original(current, partitions, client_version, now_ms)
    return step._replace(started_ms=now_ms)


@mutant(f"{PARTITION}:TransactionsPlayback.restore")
def loaded_transactions_never_time_out(original: Function, self: Any, skipped: Any) -> Sliced[None]:
    """A coordinator that takes over does not schedule the timeouts of the transactions that it loads, which hold back
    the last stable offset if their producers are gone (X-7)."""
    yield from original(self, skipped)
    self.shard.timeouts = DueTimes()


# --- transactions that end --------------------------------------------------------------------------------------------


@mutant(f"{COMPLETION}:decided", one_use="An abort that fences a producer still raises the epoch.")
def epoch_not_raised_by_end(
    original: Function,
    current: Transaction,
    now_ms: int,
    *,
    commits: bool,
    client_version: int,
    next_producer_id: int = NO_PRODUCER_ID,
) -> Transaction:
    """EndTxn of transactions of version 2 does not raise the producer epoch, so that a late write of one transaction
    lands in the next, and partitions refuse the marker as late (KIP-890, X-9)."""
    step: Transaction = original(
        current, now_ms, commits=commits, client_version=client_version, next_producer_id=next_producer_id
    )
    if client_version < EPOCH_RAISED_FROM:
        return step
    return step._replace(producer_epoch=current.producer_epoch, last_producer_epoch=current.last_producer_epoch)


@mutant(f"{COMPLETION}:TransactionCompletion._resume")
def prepared_aborts_not_resumed(original: Function, self: Any, shard: Any) -> Sliced[None]:
    """A coordinator that takes over sends the markers of prepared commits only. Prepared aborts keep their transactions
    open (X-3)."""
    commits = [each for each in shard.entries.values() if each.pending is None and DECIDED.get(each.current.state)]
    for number, entry in enumerate(commits, 1):
        if not shard.is_led:
            return
        if entry.current.state in DECIDED and entry.pending is None:
            self._send(shard, entry)
        if number % RESUMED_TRANSACTIONS_PER_SLICE == 0:
            yield


@mutant(f"{PARTITION}:_tags_of")
def client_version_not_written(original: Function, transaction: Transaction) -> dict[int, bytes]:
    """Records of ``__transaction_state`` lack the transaction.version of the client, so that the next coordinator ends
    a transaction of version 2 as an older one (KIP-890, X-2)."""
    tags: dict[int, bytes] = original(transaction)
    return {tag: value for tag, value in tags.items() if tag != 2}


# --- markers ----------------------------------------------------------------------------------------------------------


@mutant("reference_broker.transactions.marker_sender:MarkerSender._retry")
def leaderless_markers_never_sent(original: Function, self: Any) -> None:
    """Markers of partitions that had no leader when their transaction ended are not sent when the partitions have one
    (X-3)."""
    again, self._to_retry, self._leaderless = self._to_retry, [], []
    self._waiting.value = 0
    if again:
        self._work.add(self._distribute_all(again))


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
