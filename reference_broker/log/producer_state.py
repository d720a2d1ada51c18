"""What a partition remembers of each idempotent producer (KIP-98; clauses P-1, P-5, P-6, P-7)."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from reference_broker.log.config import LogConfig
from reference_broker.log.transaction_index import Aborted
from reference_broker.records.batch import (
    MAX_SEQUENCE,
    NO_SEQUENCE,
    NO_TIMESTAMP,
    BatchHeader,
    Buffer,
    InvalidRecords,
    add_sequence,
)
from reference_broker.records.control import ControlType, read_marker
from reference_broker.wire.errors import ErrorCode

REMEMBERED_BATCHES = 5
"""How many batches of a producer are remembered. As in Kafka, a producer has at most five requests in flight, so a
retry is one of its last five batches."""


class BatchMark(NamedTuple):
    """One remembered batch. A retry is recognised by its first and last sequence."""

    first_sequence: int
    last_sequence: int
    first_offset: int
    last_offset: int
    timestamp_ms: int


class Producer(NamedTuple):
    """What is known of one producer ID. It is never changed: each batch makes a new one.

    ``marks`` are the last five batches of this epoch, oldest first. There are none after a transaction marker that
    raised the epoch. ``last_timestamp_ms`` is the largest timestamp of the last batch, by the producer's clock or the
    append time. ``current_txn_first_offset`` is -1 while no transaction is open.
    """

    producer_epoch: int
    marks: tuple[BatchMark, ...] = ()
    last_timestamp_ms: int = -1
    coordinator_epoch: int = -1
    current_txn_first_offset: int = -1

    @property
    def last_sequence(self) -> int:
        return self.marks[-1].last_sequence if self.marks else NO_SEQUENCE

    def retried(self, header: BatchHeader) -> BatchMark | None:
        """Returns the remembered batch of this epoch that ``header`` is a retry of, if it is one."""
        for mark in reversed(self.marks):
            if mark.first_sequence == header.base_sequence and mark.last_sequence == header.last_sequence:
                return mark if header.producer_epoch == self.producer_epoch else None
        return None


@dataclass(slots=True)
class ProducerStates:
    """What is known of all producers of a log.

    ``by_id`` has one entry for each producer ID. ``reject_unknown`` is the policy of P-5. ``completed`` has the first
    offset and the marker's offset of the transactions that have ended, but whose marker the high watermark has not
    passed yet. They hold back the last stable offset. Those that ended before ``completed_from`` are not known singly,
    because the state came from a snapshot. ``swept_ms`` is the time of the last expiry.
    """

    expiration_ms: int
    reject_unknown: bool
    by_id: dict[int, Producer] = field(default_factory=dict)
    completed: list[tuple[int, int]] = field(default_factory=list)
    open_transactions: dict[int, int] = field(default_factory=dict)
    """The first offset of each open transaction, by producer ID."""
    completed_from: int = 0
    swept_ms: int = 0

    @staticmethod
    def of(config: LogConfig, wall_ms: int) -> "ProducerStates":
        """Makes the state of a log without producers."""
        rejects = config.unknown_producer_id_policy != "accept"
        return ProducerStates(config.producer_id_expiration_ms, rejects, swept_ms=wall_ms)

    def configure(self, config: LogConfig) -> None:
        self.expiration_ms = config.producer_id_expiration_ms
        self.reject_unknown = config.unknown_producer_id_policy != "accept"

    def check(self, batches: Sequence[BatchHeader]) -> list[BatchMark] | None:
        """Judges a client's batches without changing anything.

        Returns None if they are to be appended. Returns their marks if all of them were written before. Raises
        InvalidRecords with one of these errors:

        - INVALID_PRODUCER_EPOCH: the epoch is older than the known one.
        - OUT_OF_ORDER_SEQUENCE_NUMBER: there is a gap, an overlap or a duplicate older than five batches, or a new
          epoch does not start at 0.
        - UNKNOWN_PRODUCER_ID: the producer is unknown, and the policy of P-5 refuses it.
        - INVALID_TXN_STATE: the batch is not transactional, and the producer has an open transaction.
        """
        if len(batches) == 1:
            header = batches[0]
            if header.producer_id < 0:
                return None
            mark = self._check_one(self.by_id.get(header.producer_id), header)
            return None if mark is None else [mark]
        return self._check_many(batches)

    def _check_many(self, batches: Sequence[BatchHeader]) -> list[BatchMark] | None:
        staged: dict[int, Producer] = {}
        marks = []
        for header in batches:
            known = staged.get(header.producer_id) or self.by_id.get(header.producer_id)
            mark = self._check_one(known, header) if header.producer_id >= 0 else None
            if mark is not None:
                marks.append(mark)
                continue
            staged[header.producer_id] = _advanced(known, header, header.base_offset, NO_TIMESTAMP)
        if marks and len(marks) != len(batches):
            raise _out_of_order(batches[0], "some of the batches were written before, others were not")
        return marks or None

    def _check_one(self, producer: Producer | None, header: BatchHeader) -> BatchMark | None:
        first, epoch = header.base_sequence, header.producer_epoch
        if producer is None:
            if first != 0 and self.reject_unknown:
                raise InvalidRecords(
                    ErrorCode.unknown_producer_id,
                    f"producer {header.producer_id} is not known here and sent sequence {first}, not 0",
                )
            return None
        if epoch < producer.producer_epoch:
            raise InvalidRecords(
                ErrorCode.invalid_producer_epoch,
                f"producer {header.producer_id} has epoch {producer.producer_epoch}, but the batch has epoch {epoch}",
            )
        if epoch > producer.producer_epoch:
            if first != 0:
                raise _out_of_order(header, f"a new epoch starts at 0, not {first}")
            return None
        mark = producer.retried(header)
        if mark is not None:
            return mark
        expected = _next_sequence(producer.last_sequence)
        if first != expected:
            raise _out_of_order(header, f"expected sequence {expected}, got {first}")
        if producer.current_txn_first_offset >= 0 and not header.is_transactional:
            raise InvalidRecords(
                ErrorCode.invalid_txn_state,
                f"producer {header.producer_id} has an open transaction, but the batch is not transactional",
            )
        return None

    def record(self, header: BatchHeader, first_offset: int, timestamp_ms: int) -> None:
        """Notes a data batch that was written, replicated, or read from the log. It was judged before."""
        producer_id = header.producer_id
        producer = self.by_id.get(producer_id)
        assert producer is None or not producer.marks or first_offset > producer.marks[-1].last_offset, (
            f"producer {producer_id} has a batch at offset {first_offset}, and its batch before that one ends at "
            f"{producer.marks[-1].last_offset}"
        )
        producer = self.by_id[producer_id] = _advanced(producer, header, first_offset, timestamp_ms)
        if producer.current_txn_first_offset >= 0:
            self.open_transactions.setdefault(producer_id, producer.current_txn_first_offset)

    def record_control(self, header: BatchHeader, offset: int, timestamp_ms: int, batch: Buffer) -> Aborted | None:
        """Notes a control batch that was written, replicated, or read from the log. It may hold a transaction marker.
        Returns the transaction that it aborts, if any."""
        marker = read_marker(batch, header)
        return None if marker is None else self.record_marker(header, offset, timestamp_ms, *marker)

    def record_marker(
        self, header: BatchHeader, offset: int, timestamp_ms: int, type_: ControlType, coordinator_epoch: int
    ) -> Aborted | None:
        """Notes a transaction marker: the transaction is over. If the marker raises the epoch, the next sequence is 0.
        Returns the transaction if it was aborted."""
        assert type_ in (ControlType.ABORT, ControlType.COMMIT), f"control type {type_} ends no transaction"
        known = self.by_id.get(header.producer_id) or Producer(header.producer_epoch)
        self.by_id[header.producer_id] = Producer(
            max(header.producer_epoch, known.producer_epoch),
            () if header.producer_epoch > known.producer_epoch else known.marks,
            timestamp_ms,
            max(known.coordinator_epoch, coordinator_epoch),
        )
        first = self.open_transactions.pop(header.producer_id, None)
        if first is None:
            return None
        self.completed.append((first, offset))
        if type_ != ControlType.ABORT:
            return None
        return Aborted(header.producer_id, first, offset, min(self.open_transactions.values(), default=offset + 1))

    def first_unstable_offset(self, high_watermark: int) -> int | None:
        """Returns the first offset of the earliest transaction that is open, or whose marker is not below the high
        watermark. Returns None if there is none. Returns 0 as long as it cannot be known: above the high watermark lie
        markers whose transactions the snapshot of the start does not tell."""
        if high_watermark < self.completed_from:
            return 0
        if not self.open_transactions and not self.completed:
            return None
        self.completed = [(first, marker) for first, marker in self.completed if marker >= high_watermark]
        return min((*self.open_transactions.values(), *(first for first, _ in self.completed)), default=None)

    def oldest_open_timestamp_ms(self) -> int:
        """The time of the last batch in the transaction that begins first of those that are open; -1 if none is."""
        if not self.open_transactions:
            return NO_TIMESTAMP
        return self.by_id[min(self.open_transactions, key=self.open_transactions.__getitem__)].last_timestamp_ms

    def keep_completed(self, known: "ProducerStates", end_offset: int) -> None:
        """Takes over the completed transactions that the log knew before it was cut at ``end_offset``. A snapshot does
        not have them."""
        self.completed = [each for each in known.completed if each[1] < end_offset]
        self.completed_from = min(known.completed_from, end_offset)

    def expire(self, wall_ms: int) -> int:
        """Forgets producers that have no open transaction and whose last record is old enough (P-7). Returns how
        many."""
        self.swept_ms = wall_ms
        expired = [
            producer_id
            for producer_id, producer in self.by_id.items()
            if producer.current_txn_first_offset < 0 and wall_ms - producer.last_timestamp_ms >= self.expiration_ms
        ]
        for producer_id in expired:
            del self.by_id[producer_id]
        return len(expired)

    def restore(self, producers: Iterable[tuple[int, Producer]]) -> None:
        """Takes over some of the producers that a snapshot tells."""
        for producer_id, producer in producers:
            self.by_id[producer_id] = producer
            if producer.current_txn_first_offset >= 0:
                self.open_transactions[producer_id] = producer.current_txn_first_offset

    def emptied(self) -> "ProducerStates":
        """Returns a new state with the same settings and without producers."""
        return ProducerStates(self.expiration_ms, self.reject_unknown, swept_ms=self.swept_ms)

    def clear(self) -> None:
        self.by_id.clear()
        self.open_transactions.clear()
        self.completed.clear()
        self.completed_from = 0


def _advanced(known: Producer | None, header: BatchHeader, first_offset: int, timestamp_ms: int) -> Producer:
    epoch, marks, _, coordinator_epoch, begun = known or Producer(header.producer_epoch)
    if header.producer_epoch != epoch:
        marks = ()
    if begun < 0 and header.is_transactional:
        begun = first_offset
    marks = (*marks[1 - REMEMBERED_BATCHES :], mark_of(header, first_offset, timestamp_ms))
    return Producer(header.producer_epoch, marks, timestamp_ms, coordinator_epoch, begun)


def mark_of(header: BatchHeader, first_offset: int, timestamp_ms: int) -> BatchMark:
    last_offset = first_offset + header.last_offset_delta
    return BatchMark(header.base_sequence, header.last_sequence, first_offset, last_offset, timestamp_ms)


def _next_sequence(last: int) -> int:
    return 0 if last in (NO_SEQUENCE, MAX_SEQUENCE) else add_sequence(last, 1)


def _out_of_order(header: BatchHeader, why: str) -> InvalidRecords:
    return InvalidRecords(
        ErrorCode.out_of_order_sequence_number, f"producer {header.producer_id}, epoch {header.producer_epoch}: {why}"
    )
