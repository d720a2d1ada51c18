"""Transactions that await verification (KIP-890): Kafka's VerificationStateEntry.

The first batch of a transaction in a partition waits until the transaction's coordinator has verified that the
transaction has the partition. Meanwhile the transaction may end: a marker comes, or the producer is fenced. Then the
verification is stale. So each one has a guard, an object of its own, and the append must pass the guard that the
partition still has. A batch of the transaction removes it, since the transaction is open from then on, and so does a
marker, since it is over.
"""

from dataclasses import dataclass, field
from typing import Protocol

from reference_broker.log.producer_state import ProducerStateEntry
from reference_broker.records.batch import BatchHeader, InvalidRecords
from reference_broker.wire.errors import ErrorCode


class TransactionalBatch(Protocol):
    """The part of a batch header that is verified. Batches of the node itself have sequence -1."""

    @property
    def producer_id(self) -> int: ...

    @property
    def producer_epoch(self) -> int: ...

    @property
    def base_sequence(self) -> int: ...


@dataclass(slots=True, eq=False)
class VerificationGuard:
    """One pending verification (Kafka's VerificationGuard). It is equal to no other one."""

    lowest_sequence: int
    """The lowest first sequence of the pending batches of ``epoch``. No later batch may be written before it, or it
    would be out of order for ever (KAFKA-14920)."""
    epoch: int
    """The newest producer epoch among the pending batches."""
    raises_epoch: bool
    """Whether the producer uses version 2 of transactions: each has an epoch of its own, and begins with sequence 0."""
    since_ms: int
    """Unix time at which the first batch came."""

    def wait(self, sequence: int, epoch: int) -> None:
        """Add a batch to the pending ones."""
        if epoch > self.epoch:
            self.epoch, self.lowest_sequence = epoch, sequence
        elif epoch == self.epoch:
            self.lowest_sequence = min(self.lowest_sequence, sequence)


@dataclass(slots=True)
class VerificationStates:
    """The pending verifications of one partition."""

    is_demanded: bool = False
    """``transaction.partition.verification.enable``"""
    guards: dict[int, VerificationGuard] = field(default_factory=dict)
    """By producer ID."""

    def begin(
        self, entry: ProducerStateEntry | None, batch: TransactionalBatch, *, raises_epoch: bool, wall_ms: int
    ) -> VerificationGuard | None:
        """Return the guard with which a producer's transactional batch may be appended once it is verified, or None if
        the transaction is open here already. Raise InvalidRecords (INVALID_PRODUCER_EPOCH) for an older epoch."""
        _check_epoch(entry, batch)
        if _is_open(entry, batch):
            return None
        guard = self.guards.get(batch.producer_id)
        if guard is None:  # Decision verification-wait
            guard = VerificationGuard(batch.base_sequence, batch.producer_epoch, raises_epoch, wall_ms)
            self.guards[batch.producer_id] = guard
        else:
            guard.wait(batch.base_sequence, batch.producer_epoch)
        return guard

    def check_client(
        self, entry: ProducerStateEntry | None, header: BatchHeader, guard: VerificationGuard | None
    ) -> None:
        """Validate a client's transactional batch that is to be appended now, unless it is a retry. Raise
        InvalidRecords with one of these errors:

        - INVALID_PRODUCER_EPOCH: the epoch is older than the known one.
        - INVALID_TXN_STATE: the transaction is not open here, and the guard is not that of the wait for it.
        - OUT_OF_ORDER_SEQUENCE_NUMBER: an earlier batch still waits, or a transaction of version 2 of a producer
          without batches does not begin with sequence 0.
        """
        if entry is not None and entry.find_duplicate_batch(header) is not None:
            return
        self.check(entry, header, guard)
        there = self.guards.get(header.producer_id)
        if there is not None:
            _check_sequence(entry, header, there)

    def check(
        self, entry: ProducerStateEntry | None, batch: TransactionalBatch, guard: VerificationGuard | None
    ) -> None:
        """Validate a transactional batch of the node itself, which has no sequence. Raise InvalidRecords as
        ``check_client`` does."""
        if _is_open(entry, batch):
            return
        _check_epoch(entry, batch)
        # Decision transaction-verified
        if self.is_demanded and (guard is None or guard is not self.guards.get(batch.producer_id)):
            raise InvalidRecords(
                ErrorCode.invalid_txn_state, f"producer {batch.producer_id} has no verified transaction here"
            )

    def note_written(self, header: BatchHeader) -> None:
        """Called when a transactional batch or a marker of a producer is in the log. A marker of version 2 may have the
        epoch of a guard, because that is the next transaction's. Then the guard stays."""
        guard = self.guards.get(header.producer_id)
        if guard is None:
            return
        is_of_the_next = guard.raises_epoch and header.is_control and header.producer_epoch == guard.epoch
        if not is_of_the_next:
            del self.guards[header.producer_id]

    def expire(self, wall_ms: int, expiration_ms: int) -> None:
        """Drop the guards of verifications that had no result."""
        for producer_id in [one for one, guard in self.guards.items() if wall_ms - guard.since_ms >= expiration_ms]:
            del self.guards[producer_id]


def _is_open(entry: ProducerStateEntry | None, batch: TransactionalBatch) -> bool:
    """Return whether the batch belongs to the transaction that is open here. That of a newer epoch is another one."""
    return entry is not None and entry.current_txn_first_offset >= 0 and entry.producer_epoch == batch.producer_epoch


def _check_epoch(entry: ProducerStateEntry | None, batch: TransactionalBatch) -> None:
    if entry is not None and batch.producer_epoch < entry.producer_epoch:
        raise InvalidRecords(
            ErrorCode.invalid_producer_epoch,
            f"producer {batch.producer_id} has epoch {entry.producer_epoch}, but the batch has epoch "
            f"{batch.producer_epoch}",
        )


def _check_sequence(entry: ProducerStateEntry | None, header: BatchHeader, there: VerificationGuard) -> None:
    first = header.base_sequence
    begins_late = there.raises_epoch and first != 0 and (entry is None or not entry.batch_metadata)
    if begins_late or first > there.lowest_sequence:  # Decision earlier-batch-waits
        expected = 0 if begins_late else there.lowest_sequence
        raise InvalidRecords(
            ErrorCode.out_of_order_sequence_number,
            f"producer {header.producer_id} begins a transaction with sequence {first}, but {expected} comes first",
        )
