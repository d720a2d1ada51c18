"""One transactional ID (Kafka's TransactionMetadata): its states, its transitions, and the checks of requests.

A transaction is Ongoing from the first partition on. Its outcome is final when PrepareCommit or PrepareAbort is
replicated: from then on each partition gets its marker, whichever nodes fail. When all partitions have it, the
transaction is complete, and the next one may begin (KIP-98, KIP-890). ``VALID_PREVIOUS_STATES`` has all transitions;
any other is a bug of ours.

A ``TxnTransitMetadata`` is never changed. Each ``prepare`` function returns the one to which an ID goes next. It is
written to the log, and becomes the current one once it is replicated (X-2).
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
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
    """The ID has expired. Its tombstone is being written."""
    PREPARE_EPOCH_FENCE = "PrepareEpochFence"
    """The producer of an open transaction is fenced, and the transaction is about to be aborted. Kafka never writes
    this state. Here it ends in the same event, in which the abort begins."""


STATES_BY_ID: Final[Mapping[int, TransactionState]] = dict(enumerate(TransactionState))
"""The states by their number in a record of ``__transaction_state``."""
STATE_IDS: Final[Mapping[TransactionState, int]] = {state: number for number, state in STATES_BY_ID.items()}

EXPIRATION_ALLOWED: Final = (
    TransactionState.EMPTY,
    TransactionState.COMPLETE_COMMIT,
    TransactionState.COMPLETE_ABORT,
)
"""The states in which an idle ID may expire (X-10). No transaction is open in them."""
PREPARED: Final[Mapping[TransactionState, bool]] = {
    TransactionState.PREPARE_COMMIT: True,
    TransactionState.PREPARE_ABORT: False,
}
"""The states in which markers are sent, and whether they commit."""

VALID_PREVIOUS_STATES: Final[Mapping[TransactionState, tuple[TransactionState, ...]]] = {
    TransactionState.EMPTY: EXPIRATION_ALLOWED,
    TransactionState.ONGOING: (*EXPIRATION_ALLOWED, TransactionState.ONGOING),
    TransactionState.PREPARE_COMMIT: (TransactionState.ONGOING,),
    # A producer that does not know whether it wrote anything may abort without a transaction (KIP-890).
    TransactionState.PREPARE_ABORT: (
        *EXPIRATION_ALLOWED,
        TransactionState.ONGOING,
        TransactionState.PREPARE_EPOCH_FENCE,
    ),
    TransactionState.COMPLETE_COMMIT: (TransactionState.PREPARE_COMMIT,),
    TransactionState.COMPLETE_ABORT: (TransactionState.PREPARE_ABORT,),
    TransactionState.DEAD: EXPIRATION_ALLOWED,
    TransactionState.PREPARE_EPOCH_FENCE: (TransactionState.ONGOING,),
}
"""The states from which an ID may go to each state (Kafka's TransactionState)."""


Partitions: TypeAlias = Mapping[TopicPartition, None]
"""Partitions in the order in which they were added."""

LAST_USED_EPOCH: Final = MAX_PRODUCER_EPOCH - 1
"""The greatest epoch that a producer gets, so that the coordinator can always fence it with a greater one."""


_NO_PARTITIONS: Final[Partitions] = MappingProxyType({})


class TxnTransitMetadata(NamedTuple):
    """The state of one transactional ID: the current one, or the one to which it goes next (Kafka's
    TxnTransitMetadata). One producer has the ID (X-1)."""

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
    """The producer ID before the last transition."""
    next_producer_id: int = NO_PRODUCER_ID
    """The producer ID after this transaction, if the epochs of the current one are used up; else -1."""
    partitions: Partitions = _NO_PARTITIONS
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
        if self.state in (TransactionState.ONGOING, *PREPARED):
            assert self.started_ms >= 0, f"{self.transactional_id} is {self.state.value} and never began"
        version = self.client_version
        assert 0 <= version <= EPOCH_RAISED_FROM, f"{self.transactional_id}: transaction.version {version}"
        if self.next_producer_id != NO_PRODUCER_ID:
            assert self.next_producer_id >= 0, f"{self.transactional_id} has next producer ID {self.next_producer_id}"
            assert self.state in PREPARED, f"{self.transactional_id} is {self.state.value} and has a next producer ID"


def _prepare_transition_to(
    current: TxnTransitMetadata, state: TransactionState, now_ms: int, **changes: Any
) -> TxnTransitMetadata:
    is_valid = current.state in VALID_PREVIOUS_STATES[state]
    assert is_valid, f"{current.transactional_id}: {current.state.value} -> {state.value}"
    return current._replace(state=state, previous_producer_id=current.producer_id, updated_ms=now_ms, **changes)


def _prepare_empty(current: TxnTransitMetadata, timeout_ms: int, now_ms: int, **changes: int) -> TxnTransitMetadata:
    return _prepare_transition_to(
        current,
        TransactionState.EMPTY,
        now_ms,
        timeout_ms=timeout_ms,
        partitions=_NO_PARTITIONS,
        started_ms=NO_TIMESTAMP,
        **changes,
    )


def prepare_increment_producer_epoch(
    current: TxnTransitMetadata, timeout_ms: int, now_ms: int, *, by_current_producer: bool
) -> TxnTransitMetadata:
    """Return the next state: the ID with the next epoch, which fences all earlier ones.

    ``by_current_producer``: the request names the producer that has the ID (KIP-360).
    """
    last = current.producer_epoch if by_current_producer else NO_PRODUCER_EPOCH
    epoch = current.producer_epoch + 1
    return _prepare_empty(current, timeout_ms, now_ms, producer_epoch=epoch, last_producer_epoch=last)


def prepare_same_producer_epoch(current: TxnTransitMetadata, timeout_ms: int, now_ms: int) -> TxnTransitMetadata:
    """Return the next state: the ID with the epoch that its producer has and requested again."""
    return _prepare_empty(current, timeout_ms, now_ms)


def prepare_producer_id_rotation(
    current: TxnTransitMetadata, producer_id: int, timeout_ms: int, now_ms: int, *, by_current_producer: bool
) -> TxnTransitMetadata:
    """Return the next state: the ID with a new producer ID, because the epochs of the former one are used up."""
    last = current.producer_epoch if by_current_producer else NO_PRODUCER_EPOCH
    return _prepare_empty(
        current, timeout_ms, now_ms, producer_id=producer_id, producer_epoch=0, last_producer_epoch=last
    )


def prepare_add_partitions(
    current: TxnTransitMetadata, partitions: Collection[TopicPartition], client_version: int, now_ms: int
) -> TxnTransitMetadata:
    """Return the next state: the ID with these partitions in its transaction, which begins with the first ones."""
    is_ongoing = current.state is TransactionState.ONGOING
    return _prepare_transition_to(
        current,
        TransactionState.ONGOING,
        now_ms,
        partitions={**current.partitions, **dict.fromkeys(partitions)},
        started_ms=current.started_ms if is_ongoing else now_ms,
        client_version=client_version,
    )


def prepare_abort_or_commit(
    current: TxnTransitMetadata,
    now_ms: int,
    *,
    commits: bool,
    client_version: int,
    next_producer_id: int = NO_PRODUCER_ID,
) -> TxnTransitMetadata:
    """Return the next state: the ID with its transaction committed or aborted.

    For clients of version 2 the epoch is raised, and ``next_producer_id`` replaces a producer ID whose epochs are used
    up. An abort without a transaction begins and ends one.
    """
    state = TransactionState.PREPARE_COMMIT if commits else TransactionState.PREPARE_ABORT
    is_open = current.state in (TransactionState.ONGOING, TransactionState.PREPARE_EPOCH_FENCE)
    changes: dict[str, Any] = {}
    if client_version >= EPOCH_RAISED_FROM:
        epoch = min(current.producer_epoch + 1, MAX_PRODUCER_EPOCH)
        changes = {"producer_epoch": epoch, "last_producer_epoch": current.producer_epoch}
    return _prepare_transition_to(
        current,
        state,
        now_ms,
        started_ms=current.started_ms if is_open else now_ms,
        client_version=client_version,
        next_producer_id=next_producer_id,
        **changes,
    )


def prepare_fence_producer_epoch(
    current: TxnTransitMetadata, now_ms: int, *, version: int, next_producer_id: int = NO_PRODUCER_ID
) -> TxnTransitMetadata:
    """Return the next state: the ID with its transaction aborted and an epoch that no producer has.

    The reason is that the transaction is too old (X-7), or that another producer takes the ID (X-1). ``version`` is the
    finalized ``transaction.version``. From 2 on the abort itself raises the epoch.
    """
    assert current.state in VALID_PREVIOUS_STATES[TransactionState.PREPARE_EPOCH_FENCE], (
        f"{current.transactional_id} is {current.state.value} and cannot be fenced"
    )
    fence = current._replace(state=TransactionState.PREPARE_EPOCH_FENCE)
    if version < EPOCH_RAISED_FROM:
        epoch = min(current.producer_epoch + 1, MAX_PRODUCER_EPOCH)
        fence = fence._replace(producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)
        version = 0
    return prepare_abort_or_commit(
        fence, now_ms, commits=False, client_version=version, next_producer_id=next_producer_id
    )


def prepare_complete(current: TxnTransitMetadata, now_ms: int) -> TxnTransitMetadata:
    """Return the next state: the ID with its transaction complete, since every partition has its marker.

    ``last_producer_epoch`` stays the last epoch that the client has.
    """
    state = TransactionState.COMPLETE_COMMIT if PREPARED[current.state] else TransactionState.COMPLETE_ABORT
    changes = {}
    if current.raises_epoch and current.next_producer_id != NO_PRODUCER_ID:  # Decision completed-with-new-id
        changes = {"producer_id": current.next_producer_id, "producer_epoch": 0}
    return _prepare_transition_to(
        current, state, now_ms, partitions=_NO_PARTITIONS, next_producer_id=NO_PRODUCER_ID, **changes
    )


def prepare_dead(current: TxnTransitMetadata, now_ms: int) -> TxnTransitMetadata:
    """Return the next state: the ID is expired (X-10)."""
    return _prepare_transition_to(current, TransactionState.DEAD, now_ms, partitions=_NO_PARTITIONS)


@dataclass(slots=True, eq=False)
class TransactionMetadata:
    """One transactional ID of a partition: its current state, and the transition that is being written."""

    current: TxnTransitMetadata
    """The state that requests see. It is replicated, once the partition is settled. A new ID has one without a producer
    epoch until its first transition is replicated."""
    pending_state: TxnTransitMetadata | None = None
    """The state that is being written. Until it is replicated, requests do not see it and no other transition begins
    (X-2)."""
    partitions_without_marker: dict[TopicPartition, None] = field(default_factory=dict)
    """The partitions of a prepared transaction that have no marker yet."""
    is_sending_markers: bool = False
    """Whether this node is sending the markers of the transaction."""

    def start_sending_markers(self) -> dict[TopicPartition, None]:
        """Return the partitions to which the markers have to be sent. The caller removes each one that has its own."""
        self.is_sending_markers = True
        self.partitions_without_marker = dict(self.current.partitions)
        return self.partitions_without_marker

    @property
    def pending_transition_in_progress(self) -> bool:
        """Whether a transition or markers are being written. Requests for another transition are refused meanwhile."""
        return self.pending_state is not None or self.current.state in PREPARED

    def complete_transition_to(self, transit: TxnTransitMetadata) -> None:
        """Make the state current that was pending, because it is replicated."""
        self.current, self.pending_state = transit, None
        self.partitions_without_marker, self.is_sending_markers = {}, False


# --- checks of requests -----------------------------------------------------------------------------------------------


class ProducerIdAndEpoch(NamedTuple):
    """A producer, as its requests name it."""

    producer_id: int
    producer_epoch: int


class InitAction(Enum):
    """The action for InitProducerId with a transactional ID. The value is for people."""

    NEXT_EPOCH = "the producer gets the ID with the next epoch"
    SAME_EPOCH = "the producer gets the epoch that it has, since the response was lost"
    NEW_PRODUCER_ID = "the producer gets a new producer ID"
    AFTER_ABORT = "the open transaction is aborted first, and the producer must retry"


class AddAction(Enum):
    """The action for AddPartitionsToTxn and AddOffsetsToTxn."""

    ADD = "the partitions are added to the transaction"
    NOTHING = "the transaction has them"


class EndAction(Enum):
    """The action for EndTxn."""

    END = "the transaction is committed or aborted"
    NOTHING = "it was done before, and the response was lost"


def check_init_producer_id(metadata: TransactionMetadata, expected: ProducerIdAndEpoch | None) -> InitAction | Error:
    """Check InitProducerId. ``expected`` is the producer, if it continues after an error (KIP-360). The checks are in
    Kafka's order. Errors: CONCURRENT_TRANSACTIONS, PRODUCER_FENCED.

    Unlike in Kafka, a producer that lost the response with the last epoch gets that epoch again. In Kafka it gets
    UNKNOWN_SERVER_ERROR.
    """
    current = metadata.current
    if metadata.pending_transition_in_progress:  # Decision producer-init-concurrent
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


def _may_continue(current: TxnTransitMetadata, expected: ProducerIdAndEpoch) -> bool:
    """Return whether the producer may continue. The transactional ID may be new, because it expired meanwhile. Or the
    response with a new producer ID was lost."""
    return (
        current.producer_epoch == NO_PRODUCER_EPOCH
        or expected.producer_id == current.producer_id
        or (expected.producer_id == current.previous_producer_id and expected.producer_epoch >= LAST_USED_EPOCH)
    )


def check_add_partitions(
    metadata: TransactionMetadata, producer: ProducerIdAndEpoch, partitions: Collection[TopicPartition]
) -> AddAction | Error:
    """Check AddPartitionsToTxn. Errors: CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED."""
    current = metadata.current
    if metadata.pending_transition_in_progress:  # Decision transaction-adding-concurrent
        return ErrorCode.concurrent_transactions
    refusal = check_producer(current, producer)
    if refusal:
        return refusal
    is_known = current.state is TransactionState.ONGOING and all(
        partition in current.partitions for partition in partitions
    )
    return AddAction.NOTHING if is_known else AddAction.ADD


def check_producer(current: TxnTransitMetadata, producer: ProducerIdAndEpoch) -> Error:
    """Return the error if this producer may not write in a transaction now: INVALID_PRODUCER_ID_MAPPING,
    PRODUCER_FENCED, CONCURRENT_TRANSACTIONS or NONE. A transition that is being written does not count."""
    if current.producer_id != producer.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if current.producer_epoch != producer.producer_epoch:  # Decision transaction-owner-epoch
        return ErrorCode.producer_fenced
    return ErrorCode.concurrent_transactions if current.state in PREPARED else ErrorCode.none


def check_end_transaction(
    metadata: TransactionMetadata, producer: ProducerIdAndEpoch, *, commits: bool, client_version: int
) -> EndAction | Error:
    """Check EndTxn: CONCURRENT_TRANSACTIONS, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED, INVALID_TXN_STATE."""
    check = _check_end_of_version_2 if client_version >= EPOCH_RAISED_FROM else _check_end_before_version_2
    return check(metadata, producer, commits)


_ENDS_BEFORE_VERSION_2: Final[Mapping[tuple[TransactionState, bool], EndAction]] = {
    (TransactionState.ONGOING, True): EndAction.END,
    (TransactionState.ONGOING, False): EndAction.END,
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
    (TransactionState.ONGOING, True): EndAction.END,
    (TransactionState.ONGOING, False): EndAction.END,
    (TransactionState.EMPTY, False): EndAction.END,
    (TransactionState.COMPLETE_COMMIT, False): EndAction.END,
    (TransactionState.COMPLETE_ABORT, False): EndAction.END,
}
"""The action for an EndTxn of version 2 with the current epoch. A producer whose write failed may not know whether its
transaction has started, so it may abort in any state at rest."""


def _check_end_before_version_2(
    metadata: TransactionMetadata, producer: ProducerIdAndEpoch, commits: bool
) -> EndAction | Error:
    current = metadata.current
    if current.producer_id != producer.producer_id:
        return ErrorCode.invalid_producer_id_mapping
    if current.producer_epoch != producer.producer_epoch:
        return ErrorCode.producer_fenced
    # Also for the other outcome while markers are written. In Kafka PrepareCommit and PrepareAbort return
    # INVALID_TXN_STATE for that, but there the complete state is pending as soon as the prepared one is replicated, and
    # again after the transaction was loaded (TransactionMetadata.prepareComplete). A pending state is checked first.
    if metadata.pending_transition_in_progress:  # Decision transaction-old-end-concurrent
        return ErrorCode.concurrent_transactions
    return _ENDS_BEFORE_VERSION_2.get((current.state, commits), ErrorCode.invalid_txn_state)


def _check_end_of_version_2(
    metadata: TransactionMetadata, producer: ProducerIdAndEpoch, commits: bool
) -> EndAction | Error:
    current = metadata.current
    if metadata.pending_transition_in_progress:  # Decision transaction-end-concurrent
        return ErrorCode.concurrent_transactions
    producer_id, epoch = producer
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
