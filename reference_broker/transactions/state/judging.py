"""What a coordinator says to each request, by what is true of the transactional ID (TransactionCoordinator).

``is_changing`` says that a step of the ID is being written, or the markers of its last transaction. The checks are in
Kafka's order, which differs between transactions of version 2 and older ones.
"""

from collections.abc import Collection, Mapping
from enum import Enum
from typing import Final, TypeAlias

from reference_broker.records.batch import NO_PRODUCER_EPOCH
from reference_broker.transactions.markers.marker import EPOCH_RAISED_FROM, TopicPartition
from reference_broker.transactions.state.states import DECIDED, TransactionState
from reference_broker.transactions.state.transaction import LAST_USED_EPOCH, Transaction
from reference_broker.wire.errors import Error, ErrorCode

ProducerIdAndEpoch: TypeAlias = tuple[int, int]


class Taking(Enum):
    """How a producer takes a transactional ID (InitProducerId)."""

    NEXT_EPOCH = "with the next epoch"
    SAME_EPOCH = "with the epoch that it was given, but did not hear of"
    NEW_PRODUCER_ID = "with a new producer ID"
    AFTER_ABORT = "after the open transaction is aborted"


class Ending(Enum):
    """What EndTxn does."""

    DECIDE = "the transaction is committed or aborted"
    NOTHING = "it was done before, and the client did not hear of it"


def judge_taking(current: Transaction, expected: ProducerIdAndEpoch | None, *, is_changing: bool) -> Taking | Error:
    """``expected`` is what the producer has, if it goes on after an error (KIP-360). Errors: CONCURRENT_TRANSACTIONS,
    PRODUCER_FENCED.

    Deliberately unlike Kafka, a producer that did not hear of the last epoch is told it again, too. In Kafka it gets
    UNKNOWN_SERVER_ERROR.
    """
    if is_changing:
        return ErrorCode.concurrent_transactions
    if expected is not None and not _may_go_on(current, expected):
        return ErrorCode.producer_fenced
    if current.state is TransactionState.ONGOING:
        return Taking.AFTER_ABORT
    if expected is None or current.producer_epoch == NO_PRODUCER_EPOCH or expected[1] == current.producer_epoch:
        return Taking.NEW_PRODUCER_ID if current.is_exhausted else Taking.NEXT_EPOCH
    return Taking.SAME_EPOCH if expected[1] == current.last_producer_epoch else ErrorCode.producer_fenced


def _may_go_on(current: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """The transactional ID may be new, because it expired meanwhile. Or the producer may not have heard that it got a
    new producer ID."""
    producer_id, epoch = expected
    return (
        current.producer_epoch == NO_PRODUCER_EPOCH
        or producer_id == current.producer_id
        or (producer_id == current.previous_producer_id and epoch >= LAST_USED_EPOCH)
    )


def judge_adding(
    current: Transaction, owner: ProducerIdAndEpoch, partitions: Collection[TopicPartition], *, is_changing: bool
) -> Error | None:
    """Returns None if the partitions are to be added, and NONE if they belong to the transaction already. Errors:
    CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED."""
    if is_changing:
        return ErrorCode.concurrent_transactions
    refusal = judge_owner(current, owner)
    if refusal:
        return refusal
    is_known = current.state is TransactionState.ONGOING and all(each in current.partitions for each in partitions)
    return ErrorCode.none if is_known else None


def judge_owner(current: Transaction, owner: ProducerIdAndEpoch) -> Error:
    """Says whether this producer may write in a transaction now. Steps that are being written do not count."""
    if current.producer_id != owner[0]:
        return ErrorCode.invalid_producer_id_mapping
    if current.producer_epoch != owner[1]:
        return ErrorCode.producer_fenced
    return ErrorCode.concurrent_transactions if current.state in DECIDED else ErrorCode.none


def judge_end(
    current: Transaction, owner: ProducerIdAndEpoch, *, commits: bool, client_version: int, is_changing: bool
) -> Ending | Error:
    """Errors: CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE."""
    judge = _judge_end if client_version >= EPOCH_RAISED_FROM else _judge_old_end
    return judge(current, owner, commits, is_changing)


_OLD_ENDS: Final[Mapping[tuple[TransactionState, bool], Ending]] = {
    (TransactionState.ONGOING, True): Ending.DECIDE,
    (TransactionState.ONGOING, False): Ending.DECIDE,
    (TransactionState.COMPLETE_COMMIT, True): Ending.NOTHING,
    (TransactionState.COMPLETE_ABORT, False): Ending.NOTHING,
}
"""By the state and whether the producer commits. All else is INVALID_TXN_STATE. The epoch stays the same, so an end
that comes again looks like the first."""

_AGAIN: Final[Mapping[tuple[TransactionState, bool], Ending]] = {
    (TransactionState.COMPLETE_COMMIT, True): Ending.NOTHING,
    (TransactionState.COMPLETE_ABORT, False): Ending.NOTHING,
}
"""What an end that comes again is told, which has the epoch before the one that the end gave (KIP-890)."""
_ENDS: Final[Mapping[tuple[TransactionState, bool], Ending]] = {
    (TransactionState.ONGOING, True): Ending.DECIDE,
    (TransactionState.ONGOING, False): Ending.DECIDE,
    (TransactionState.EMPTY, False): Ending.DECIDE,
    (TransactionState.COMPLETE_COMMIT, False): Ending.DECIDE,
    (TransactionState.COMPLETE_ABORT, False): Ending.DECIDE,
}
"""What an end with the present epoch does. A producer whose write failed may not know whether its transaction has
begun, so it may abort in any state at rest."""


def _judge_old_end(current: Transaction, owner: ProducerIdAndEpoch, commits: bool, is_changing: bool) -> Ending | Error:
    if current.producer_id != owner[0]:
        return ErrorCode.invalid_producer_id_mapping
    if current.producer_epoch != owner[1]:
        return ErrorCode.producer_fenced
    if is_changing:
        return ErrorCode.concurrent_transactions
    return _OLD_ENDS.get((current.state, commits), ErrorCode.invalid_txn_state)


def _judge_end(current: Transaction, owner: ProducerIdAndEpoch, commits: bool, is_changing: bool) -> Ending | Error:
    if is_changing:
        return ErrorCode.concurrent_transactions
    producer_id, epoch = owner
    got_new_id = producer_id == current.previous_producer_id and (epoch, current.producer_epoch) == (LAST_USED_EPOCH, 0)
    if producer_id != current.producer_id and not got_new_id:
        return ErrorCode.invalid_producer_id_mapping
    comes_again = current.producer_epoch == epoch + 1 or got_new_id
    if current.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        comes_again = False
    if not comes_again and epoch != current.producer_epoch:
        return ErrorCode.producer_fenced
    ends = _AGAIN if comes_again else _ENDS
    return ends.get((current.state, commits), ErrorCode.invalid_txn_state)
