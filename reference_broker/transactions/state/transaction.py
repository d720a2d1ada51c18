"""What is true of one transactional ID (Kafka's TransactionMetadata), and how each step changes it.

A value is never changed. Each function returns the next one, as it is to be written. It holds once it is durable (X-2).
"""

from collections.abc import Collection, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeAlias

from reference_broker.records.batch import NO_PRODUCER_EPOCH, NO_PRODUCER_ID, NO_TIMESTAMP
from reference_broker.transactions.markers.marker import EPOCH_RAISED_FROM, MAX_PRODUCER_EPOCH, TopicPartition
from reference_broker.transactions.state.states import DECIDED, NEXT, TransactionState

Added: TypeAlias = Mapping[TopicPartition, None]
"""Partitions in the order in which they were added."""

LAST_USED_EPOCH: Final = MAX_PRODUCER_EPOCH - 1
"""The greatest epoch that a producer is given. So the coordinator can always fence it with a greater one."""


_NONE: Final[Added] = MappingProxyType({})


class Transaction(NamedTuple):
    """``producer_id`` and ``producer_epoch`` are those of the one producer that owns the ID (X-1).

    ``last_producer_epoch`` is the epoch before, if the producer itself asked for the next one, else -1. So it may ask
    again. It is not written. ``previous_producer_id`` is the ID before the last step. ``next_producer_id`` is what the
    producer gets at the end of this transaction because the epochs of its ID are used up, else -1. ``started_ms`` is -1
    before the first transaction. ``client_version`` is the ``transaction.version`` by which its client works.
    """

    transactional_id: str
    producer_id: int
    timeout_ms: int
    updated_ms: int
    state: TransactionState = TransactionState.EMPTY
    producer_epoch: int = NO_PRODUCER_EPOCH
    last_producer_epoch: int = NO_PRODUCER_EPOCH
    previous_producer_id: int = NO_PRODUCER_ID
    next_producer_id: int = NO_PRODUCER_ID
    partitions: Added = _NONE
    started_ms: int = NO_TIMESTAMP
    client_version: int = 0

    @property
    def is_exhausted(self) -> bool:
        """The epochs of its producer ID are used up."""
        return self.producer_epoch >= LAST_USED_EPOCH

    @property
    def raises_epoch(self) -> bool:
        """Its client expects a new epoch at the end of each transaction (KIP-890)."""
        return self.client_version >= EPOCH_RAISED_FROM

    def validate(self) -> None:
        """Asserts what is always true of a written value."""
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


def _taken(current: Transaction, timeout_ms: int, now_ms: int, **changes: int) -> Transaction:
    return _step(
        current,
        TransactionState.EMPTY,
        now_ms,
        timeout_ms=timeout_ms,
        partitions=_NONE,
        started_ms=NO_TIMESTAMP,
        **changes,
    )


def with_next_epoch(current: Transaction, timeout_ms: int, now_ms: int, *, is_asked_by_owner: bool) -> Transaction:
    """A producer takes the ID with the next epoch, which fences all earlier ones."""
    last = current.producer_epoch if is_asked_by_owner else NO_PRODUCER_EPOCH
    epoch = current.producer_epoch + 1
    return _taken(current, timeout_ms, now_ms, producer_epoch=epoch, last_producer_epoch=last)


def with_same_epoch(current: Transaction, timeout_ms: int, now_ms: int) -> Transaction:
    """The owner asked again for the epoch that it has by now."""
    return _taken(current, timeout_ms, now_ms)


def with_producer_id(
    current: Transaction, producer_id: int, timeout_ms: int, now_ms: int, *, is_asked_by_owner: bool
) -> Transaction:
    """A producer takes the ID with a new producer ID, because the epochs of the former one are used up."""
    last = current.producer_epoch if is_asked_by_owner else NO_PRODUCER_EPOCH
    return _taken(current, timeout_ms, now_ms, producer_id=producer_id, producer_epoch=0, last_producer_epoch=last)


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
    between = current._replace(state=_fence(current))
    if version < EPOCH_RAISED_FROM:
        epoch = min(current.producer_epoch + 1, MAX_PRODUCER_EPOCH)
        between = between._replace(producer_epoch=epoch, last_producer_epoch=NO_PRODUCER_EPOCH)
        version = 0
    return decided(between, now_ms, commits=False, client_version=version, next_producer_id=next_producer_id)


def _fence(current: Transaction) -> TransactionState:
    assert TransactionState.PREPARE_EPOCH_FENCE in NEXT[current.state], f"{current.state.value} cannot be fenced"
    return TransactionState.PREPARE_EPOCH_FENCE


def completed(current: Transaction, now_ms: int) -> Transaction:
    """Every partition has its marker. ``last_producer_epoch`` stays what the client saw last."""
    state = TransactionState.COMPLETE_COMMIT if DECIDED[current.state] else TransactionState.COMPLETE_ABORT
    changes = {}
    if current.raises_epoch and current.next_producer_id != NO_PRODUCER_ID:
        changes = {"producer_id": current.next_producer_id, "producer_epoch": 0}
    return _step(current, state, now_ms, partitions=_NONE, next_producer_id=NO_PRODUCER_ID, **changes)


def dead(current: Transaction, now_ms: int) -> Transaction:
    """The ID is forgotten (X-10)."""
    return _step(current, TransactionState.DEAD, now_ms, partitions=_NONE)
