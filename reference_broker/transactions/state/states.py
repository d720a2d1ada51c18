"""The states of a transactional ID, and the steps between them (Kafka's TransactionState; KIP-98, KIP-890).

A transaction is Ongoing from the first partition on. Its end is decided when PrepareCommit or PrepareAbort is durable:
then each partition gets its marker, whatever dies. When all have it, the transaction is complete, and the next one may
begin. ``NEXT`` is the whole table; a step that is not in it is a bug of ours.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class TransactionState(Enum):
    """The value is the name that DescribeTransactions and ListTransactions tell."""

    EMPTY = "Empty"
    """A producer has the ID. It has not written in a transaction yet."""
    ONGOING = "Ongoing"
    """A transaction is open."""
    PREPARE_COMMIT = "PrepareCommit"
    """The transaction is committed. Some partitions have no marker yet."""
    PREPARE_ABORT = "PrepareAbort"
    """The transaction is aborted. Some partitions have no marker yet."""
    COMPLETE_COMMIT = "CompleteCommit"
    """Every partition has its commit marker."""
    COMPLETE_ABORT = "CompleteAbort"
    """Every partition has its abort marker."""
    DEAD = "Dead"
    """The ID has expired. Its tombstone is on its way."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """The producer of an open transaction is fenced, and the transaction is about to be aborted. Kafka never writes
    this state. Here it does not last: the abort begins in the same event."""


STATE_IDS: Final[Mapping[int, TransactionState]] = dict(enumerate(TransactionState))
"""By the number that a record of ``__transaction_state`` has for it."""
IDS: Final[Mapping[TransactionState, int]] = {state: number for number, state in STATE_IDS.items()}

_AT_REST: Final = (TransactionState.EMPTY, TransactionState.COMPLETE_COMMIT, TransactionState.COMPLETE_ABORT)
_AFTER_REST: Final = (
    TransactionState.EMPTY,  # A producer takes the ID.
    TransactionState.ONGOING,
    TransactionState.PREPARE_ABORT,  # A producer that does not know whether it wrote anything aborts (KIP-890).
    TransactionState.DEAD,
)

NEXT: Final[Mapping[TransactionState, tuple[TransactionState, ...]]] = {
    **dict.fromkeys(_AT_REST, _AFTER_REST),
    TransactionState.ONGOING: (
        TransactionState.ONGOING,  # More partitions are added.
        TransactionState.PREPARE_COMMIT,
        TransactionState.PREPARE_ABORT,
        TransactionState.PREPARE_EPOCH_FENCE,
    ),
    TransactionState.PREPARE_EPOCH_FENCE: (TransactionState.PREPARE_ABORT,),
    TransactionState.PREPARE_COMMIT: (TransactionState.COMPLETE_COMMIT,),
    TransactionState.PREPARE_ABORT: (TransactionState.COMPLETE_ABORT,),
    TransactionState.DEAD: (),
}
"""The states that may follow each state."""

EXPIRING: Final = _AT_REST
"""In these states an idle ID may be forgotten (X-10)."""
DECIDED: Final[Mapping[TransactionState, bool]] = {
    TransactionState.PREPARE_COMMIT: True,
    TransactionState.PREPARE_ABORT: False,
}
"""The states in which markers are sent, and whether they commit."""
