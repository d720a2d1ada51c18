"""The state of one transactional ID as a value (Kafka's TxnTransitMetadata): states, steps, and checks of requests.

A transaction is Ongoing from the first partition on. Its end is decided when PrepareCommit or PrepareAbort is
replicated: from then on each partition gets its marker, whichever nodes fail. When all partitions have it, the
transaction is complete, and the next one may begin. ``NEXT`` is the table of all steps; any other step is a bug of ours
(KIP-98, KIP-890).

A ``Transaction`` is never changed. Each step is a function that returns the next value, which is written and takes
effect once it is replicated (X-2).
"""

from collections.abc import Collection, Mapping
from enum import Enum
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from reference_broker.metadata.identifiers import TopicPartition
from reference_broker.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from reference_broker.transactions.markers import EPOCH_RAISED_FROM, MAX_PRODUCER_EPOCH
from reference_broker.wire.errors import Error, ErrorCode


class TransactionState(Enum):
    """The value is the name in DescribeTransactions and ListTransactions."""

    EMPTY = "Empty"
    """A producer owns the ID. It has not written in a transaction yet."""
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
    this state. Here it ends in the same event, in which the abort begins."""


STATE_IDS: Final[Mapping[int, TransactionState]] = dict(enumerate(TransactionState))
"""The states by their number in a record of ``__transaction_state``."""
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
"""The states in which an idle ID may expire (X-10)."""
DECIDED: Final[Mapping[TransactionState, bool]] = {
    TransactionState.PREPARE_COMMIT: True,
    TransactionState.PREPARE_ABORT: False,
}
"""The states in which markers are sent, and whether they commit."""


Added: TypeAlias = Mapping[TopicPartition, None]
"""Partitions in the order in which they were added."""

LAST_USED_EPOCH: Final = MAX_PRODUCER_EPOCH - 1
"""The greatest epoch that a producer gets, so that the coordinator can always fence it with a greater one."""


_NONE: Final[Added] = MappingProxyType({})


class Transaction(NamedTuple):
    """One transactional ID at one moment. One producer owns it (X-1)."""

    transactional_id: str
    producer_id: int
    timeout_ms: int
    updated_ms: int
    state: TransactionState = TransactionState.EMPTY
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    """The epoch before, if the producer itself requested the next one, or got it at the end of a transaction of version
    2, so that it may repeat the request; else -1. This field is not in the record."""
    previous_producer_id: int = NO_PRODUCER_ID
    """The producer ID before the last step."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer ID after this transaction, if the epochs of the current one are used up; else -1."""
    partitions: Added = _NONE
    started_ms: int = NO_TIMESTAMP
    """-1 before the first transaction."""
    client_version: int = 0
    """The ``transaction.version`` of its client."""

    @property
    def is_exhausted(self) -> bool:
        """Whether the epochs of its producer ID are used up."""
        return self.producer_epoch >= LAST_USED_EPOCH

    @property
    def raises_epoch(self) -> bool:
        """Whether its client expects a new epoch at the end of each transaction (KIP-890)."""
        return self.client_version >= EPOCH_RAISED_FROM

    def validate(self) -> None:
        """Assert what is always true of a written value."""
        assert self.producer_id >= 0, f"{self.transactional_id} has no producer ID"
        assert -1 <= self.producer_epoch <= MAX_PRODUCER_EPOCH, f"{self.transactional_id}: {self.producer_epoch}"
        if self.state is TransactionState.EMPTY:
            assert not self.partitions, f"{self.transactional_id} is empty with {len(self.partitions)} partitions"
        if self.state in (TransactionState.ONGOING, *DECIDED):
            assert self.started_ms >= 0, f"{self.transactional_id} is {self.state.value} and never began"
        version = self.client_version
        assert 0 <= version <= EPOCH_RAISED_FROM, f"{self.transactional_id}: transaction.version {version}"
        if self.next_producer_id != NO_PRODUCER_ID:
            assert self.next_producer_id >= 0, f"{self.transactional_id} has next producer ID {self.next_producer_id}"
            assert self.state in DECIDED, f"{self.transactional_id} is {self.state.value} and has a next producer ID"


def _step(current: Transaction, state: TransactionState, now_ms: int, **changes: Any) -> Transaction:
    assert state in NEXT[current.state], f"{current.transactional_id}: {current.state.value} -> {state.value}"
    return current._replace(state=state, previous_producer_id=current.producer_id, updated_ms=now_ms, **changes)


def _initialized(current: Transaction, timeout_ms: int, now_ms: int, **changes: int) -> Transaction:
    return _step(
        current,
        TransactionState.EMPTY,
        now_ms,
        timeout_ms=timeout_ms,
        partitions=_NONE,
        started_ms=NO_TIMESTAMP,
        **changes,
    )


def with_next_epoch(current: Transaction, timeout_ms: int, now_ms: int, *, is_requested_by_owner: bool) -> Transaction:
    """The producer gets the ID with the next epoch, which fences all earlier ones."""
    last = current.producer_epoch if is_requested_by_owner else NO_PRODUCER_EPOCH
    epoch = current.producer_epoch + 1
    return _initialized(current, timeout_ms, now_ms, producer_epoch=epoch, last_producer_epoch=last)


def with_same_epoch(current: Transaction, timeout_ms: int, now_ms: int) -> Transaction:
    """The owner requested again the epoch that it already has."""
    return _initialized(current, timeout_ms, now_ms)


def with_producer_id(
    current: Transaction, producer_id: int, timeout_ms: int, now_ms: int, *, is_requested_by_owner: bool
) -> Transaction:
    """The producer gets the ID with a new producer ID, because the epochs of the former one are used up."""
    last = current.producer_epoch if is_requested_by_owner else NO_PRODUCER_EPOCH
    return _initialized(
        current, timeout_ms, now_ms, producer_id=producer_id, producer_epoch=0, last_producer_epoch=last
    )


def with_partitions(
    current: Transaction, partitions: Collection[TopicPartition], client_version: int, now_ms: int
) -> Transaction:
    """The partitions belong to the transaction. The first ones begin it."""
    goes_on = current.state is TransactionState.ONGOING
    return _step(
        current,
        TransactionState.ONGOING,
        now_ms,
        partitions={**current.partitions, **dict.fromkeys(partitions)},
        started_ms=current.started_ms if goes_on else now_ms,
        client_version=client_version,
    )


def decided(
    current: Transaction, now_ms: int, *, commits: bool, client_version: int, next_producer_id: int = NO_PRODUCER_ID
) -> Transaction:
    """The transaction is committed or aborted. For clients of version 2 the epoch is raised, and ``next_producer_id``
    is what replaces an ID whose epochs are used up. An abort of nothing begins and ends a transaction."""
    state = TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT
    is_open = current.state in (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE)
    changes: dict[str, Any] = {}
    if client_version >= EPOCH_RAISED_FROM:
        epoch = min(current.producer_epoch + 1, MAX_PRODUCER_EPOCH)
        changes = {"producer_epoch": epoch, "last_producer_epoch": current.producer_epoch}
    return _step(
        current,
        state,
        now_ms,
        started_ms=current.started_ms if is_open else now_ms,
        client_version=client_version,
        next_producer_id=next_producer_id,
        **changes,
    )


def fenced(current: Transaction, now_ms: int, *, version: int, next_producer_id: int = NO_PRODUCER_ID) -> Transaction:
    """The transaction is aborted with an epoch that no producer has, because it is too old (X-7) or another producer
    takes the ID (X-1). ``version`` is the finalized ``transaction.version``. From 2 on the abort itself raises the
    epoch."""
    fence = current._replace(state=_fenced_state(current))
    if version < EPOCH_RAISED_FROM:
        epoch = min(current.producer_epoch + 1, MAX_PRODUCER_EPOCH)
        fence = fence._replace(producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)
        version = 0
    return decided(fence, now_ms, commits=False, client_version=version, next_producer_id=next_producer_id)


def _fenced_state(current: Transaction) -> TransactionState:
    assert TransactionState.PREPARE_EPOCH_FENCE in NEXT[current.state], f"{current.state.value} cannot be fenced"
    return TransactionState.PREPARE_EPOCH_FENCE


def completed(current: Transaction, now_ms: int) -> Transaction:
    """Every partition has its marker. ``last_producer_epoch`` stays what the client saw last."""
    state = TransactionState.COMPLETE_COMMIT if DECIDED[current.state] else TransactionState.COMPLETE_ABORT
    changes = {}
    if current.raises_epoch and current.next_producer_id != NO_PRODUCER_ID:  # Decision completed-with-new-id
        changes = {"producer_id": current.next_producer_id, "producer_epoch": 0}
    return _step(current, state, now_ms, partitions=_NONE, next_producer_id=NO_PRODUCER_ID, **changes)


def dead(current: Transaction, now_ms: int) -> Transaction:
    """The ID expires (X-10)."""
    return _step(current, TransactionState.DEAD, now_ms, partitions=_NONE)


class ProducerIdAndEpoch(NamedTuple):
    """A producer, as its requests name it."""

    producer_id: int
    producer_epoch: int


class InitAction(Enum):
    """The action for InitProducerId with a transactional ID. The value completes "the producer gets it ..."."""

    NEXT_EPOCH = "with the next epoch"
    SAME_EPOCH = "with the epoch that it has, since the response was lost"
    NEW_PRODUCER_ID = "with a new producer ID"
    AFTER_ABORT = "after the open transaction is aborted"


class AddAction(Enum):
    """The action for AddPartitionsToTxn and AddOffsetsToTxn."""

    ADD = "the partitions are added to the transaction"
    NOTHING = "the transaction has them"


class EndAction(Enum):
    """The action for EndTxn."""

    DECIDE = "the transaction is committed or aborted"
    NOTHING = "it was done before, and the response was lost"


def check_init(current: Transaction, expected: ProducerIdAndEpoch | None, *, is_changing: bool) -> InitAction | Error:
    """Check InitProducerId. ``expected`` is what the producer has, if it continues after an error (KIP-360).
    ``is_changing``, here and below, means that a step of the ID is being written, or the markers of its last
    transaction. The checks are in Kafka's order. Errors: CONCURRENT_TRANSACTIONS, PRODUCER_FENCED.

    Unlike in Kafka, a producer that lost the response with the last epoch gets that epoch again. In Kafka it gets
    UNKNOWN_SERVER_ERROR.
    """
    if is_changing:  # Decision producer-init-concurrent
        return ErrorCode.concurrent_transactions
    if expected is not None and not _may_continue(current, expected):  # Decision producer-init-fenced
        return ErrorCode.producer_fenced
    if current.state is TransactionState.ONGOING:
        return InitAction.AFTER_ABORT
    if (
        expected is None
        or current.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_epoch == current.producer_epoch
    ):
        # Decision producer-epoch-exhausted
        return InitAction.NEW_PRODUCER_ID if current.is_exhausted else InitAction.NEXT_EPOCH
    is_retry = expected.producer_epoch == current.last_producer_epoch
    return InitAction.SAME_EPOCH if is_retry else ErrorCode.producer_fenced  # Decision producer-init-response-lost


def _may_continue(current: Transaction, expected: ProducerIdAndEpoch) -> bool:
    """Return whether the producer may continue. The transactional ID may be new, because it expired meanwhile. Or the
    response with a new producer ID was lost."""
    return (
        current.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == current.producer_id
        or (expected.producer_id == current.previous_producer_id and expected.producer_epoch >= LAST_USED_EPOCH)
    )


def check_adding(
    current: Transaction, owner: ProducerIdAndEpoch, partitions: Collection[TopicPartition], *, is_changing: bool
) -> AddAction | Error:
    """Check AddPartitionsToTxn. Errors: CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED."""
    if is_changing:  # Decision transaction-adding-concurrent
        return ErrorCode.concurrent_transactions
    refusal = check_owner(current, owner)
    if refusal:
        return refusal
    is_known = current.state is TransactionState.ONGOING and all(
        partition in current.partitions for partition in partitions
    )
    return AddAction.NOTHING if is_known else AddAction.ADD


def check_owner(current: Transaction, owner: ProducerIdAndEpoch) -> Error:
    """Return the error if this producer may not write in a transaction now. Steps that are being written do not
    count."""
    if current.producer_id != owner.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if current.producer_epoch != owner.producer_epoch:  # Decision transaction-owner-epoch
        return ErrorCode.producer_fenced
    return ErrorCode.concurrent_transactions if current.state in DECIDED else ErrorCode.none


def check_end(
    current: Transaction, owner: ProducerIdAndEpoch, *, commits: bool, client_version: int, is_changing: bool
) -> EndAction | Error:
    """Check EndTxn: CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE."""
    check = _check_end_of_version_2 if client_version >= EPOCH_RAISED_FROM else _check_end_before_version_2
    return check(current, owner, commits, is_changing)


_ENDS_BEFORE_VERSION_2: Final[Mapping[tuple[TransactionState, bool], EndAction]] = {
    (TransactionState.ONGOING, True): EndAction.DECIDE,
    (TransactionState.ONGOING, False): EndAction.DECIDE,
    (TransactionState.COMPLETE_COMMIT, True): EndAction.NOTHING,
    (TransactionState.COMPLETE_ABORT, False): EndAction.NOTHING,
}
"""The action for EndTxn before version 2, by the state and whether the producer commits. All else is INVALID_TXN_STATE.
The epoch stays the same, so a repeated EndTxn looks like the first one."""

_REPEATED_ENDS: Final[Mapping[tuple[TransactionState, bool], EndAction]] = {
    (TransactionState.COMPLETE_COMMIT, True): EndAction.NOTHING,
    (TransactionState.COMPLETE_ABORT, False): EndAction.NOTHING,
}
"""The action for a repeated EndTxn of version 2, whose epoch is the one before: the first EndTxn has raised the epoch
(KIP-890)."""
_ENDS_OF_VERSION_2: Final[Mapping[tuple[TransactionState, bool], EndAction]] = {
    (TransactionState.ONGOING, True): EndAction.DECIDE,
    (TransactionState.ONGOING, False): EndAction.DECIDE,
    (TransactionState.EMPTY, False): EndAction.DECIDE,
    (TransactionState.COMPLETE_COMMIT, False): EndAction.DECIDE,
    (TransactionState.COMPLETE_ABORT, False): EndAction.DECIDE,
}
"""The action for an EndTxn of version 2 with the current epoch. A producer whose write failed may not know whether its
transaction has begun, so it may abort in any state at rest."""


def _check_end_before_version_2(
    current: Transaction, owner: ProducerIdAndEpoch, commits: bool, is_changing: bool
) -> EndAction | Error:
    if current.producer_id != owner.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if current.producer_epoch != owner.producer_epoch:
        return ErrorCode.producer_fenced
    # Also for the other outcome while markers are written. In Kafka PrepareCommit and PrepareAbort return
    # INVALID_TXN_STATE for that, but there the completion is a pending step as soon as the decision is replicated, and
    # again after the transaction was loaded (TransactionMetadata.prepareComplete). A pending step is checked first.
    if is_changing:  # Decision transaction-old-end-concurrent
        return ErrorCode.concurrent_transactions
    return _ENDS_BEFORE_VERSION_2.get((current.state, commits), ErrorCode.invalid_txn_state)


def _check_end_of_version_2(
    current: Transaction, owner: ProducerIdAndEpoch, commits: bool, is_changing: bool
) -> EndAction | Error:
    if is_changing:  # Decision transaction-end-concurrent
        return ErrorCode.concurrent_transactions
    producer_id, epoch = owner
    got_new_id = producer_id == current.previous_producer_id and (epoch, current.producer_epoch) == (LAST_USED_EPOCH, 0)
    if producer_id != current.producer_id and not got_new_id:
        return ErrorCode.invalid_producer_id_mapping
    is_repeated = current.producer_epoch == epoch + 1 or got_new_id
    if current.state in (TransactionState.EMPTY, TransactionState.ONGOING):
        is_repeated = False
    if not is_repeated and epoch != current.producer_epoch:  # Decision transaction-end-fenced
        return ErrorCode.producer_fenced
    ends = _REPEATED_ENDS if is_repeated else _ENDS_OF_VERSION_2  # Decision transaction-end-repeated
    return ends.get((current.state, commits), ErrorCode.invalid_txn_state)
