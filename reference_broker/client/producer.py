"""The state of an idempotent producer (KIP-98).

A batch keeps its producer ID, epoch and sequence through all its attempts, so that the broker writes it once. If the
outcome of an attempt is unknown (lost response, timeout), the batch may have been written. Only a response to the
*same* batch can show which.
"""

from collections import deque
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import add_sequence

MAX_IN_FLIGHT: Final = 5
"""The most batches in flight in one partition. A broker remembers a producer's last five batches."""

OUT_OF_ORDER_SEQUENCE_NUMBER: Final = 45
DUPLICATE_SEQUENCE_NUMBER: Final = 46
UNKNOWN_PRODUCER_ID: Final = 59

REFRESH_METADATA: Final = frozenset({3, 5, 6, 9, 56, 72, 74, 75, 76, 100, 103})
"""The batch was not written, and the leader must be looked up again (not leader, unknown topic, fenced epoch, ...)."""
TRY_AGAIN: Final = frozenset({2, 13, 19, 51, 89})
"""The batch was not written, and the same node may accept it later (corrupt on the way, too few replicas, ...)."""
MAYBE_WRITTEN: Final = frozenset({7, 20})
"""REQUEST_TIMED_OUT and NOT_ENOUGH_REPLICAS_AFTER_APPEND. The batch is in the leader's log, and may be missing in the
logs of its followers."""


class Next(Enum):
    """The fate of a batch."""

    DONE = "written"
    RETRY = "send again after a wait"
    RETRY_ELSEWHERE = "refresh metadata, then send again"
    FAILED = "not written and never will be"
    UNKNOWN = "not known; a new producer ID is needed before anything else is sent"


@dataclass(slots=True)
class ProducerBatch:
    """A batch of an idempotent producer."""

    where: TopicPartition
    producer_id: int
    producer_epoch: int
    base_sequence: int
    count: int
    maybe_written: bool = False
    """Whether an attempt ended without a response."""
    base_offset: int = -1
    """Set once the batch is done; -1 if the broker did not return it."""


@dataclass(slots=True)
class ProducerState:
    """The state of one producer."""

    max_in_flight: int = 1
    """Limits the unsettled batches of one partition, 1 to 5."""
    idempotent: bool = True
    """If False, batches have neither a producer ID nor a sequence (both are -1), and a lost batch must not be
    resent."""
    producer_id: int = -1
    producer_epoch: int = -1
    _next_sequence: dict[TopicPartition, int] = field(default_factory=dict)
    _open: dict[TopicPartition, deque[ProducerBatch]] = field(default_factory=dict)
    """The unsettled batches of each partition in the order of their sequences. They must be sent in this order, also
    when they are sent again."""

    def __post_init__(self) -> None:
        assert 1 <= self.max_in_flight <= MAX_IN_FLIGHT, f"max_in_flight is {self.max_in_flight}, not 1 to 5"

    @property
    def needs_producer_id(self) -> bool:
        return self.idempotent and self.producer_id < 0

    def assign(self, producer_id: int, producer_epoch: int) -> None:
        """Take an ID from InitProducerId. Sequences start at 0 again. Open batches keep what they were made with."""
        self.producer_id, self.producer_epoch = producer_id, producer_epoch
        self._next_sequence.clear()

    def forget_producer_id(self) -> None:
        self.producer_id = self.producer_epoch = -1

    def can_add(self, partition: TopicPartition) -> bool:
        return not self.needs_producer_id and len(self._open.get(partition, ())) < self.max_in_flight

    def add(self, partition: TopicPartition, count: int) -> ProducerBatch:
        """Make a batch with the next sequence number."""
        assert self.can_add(partition), "too many batches in flight, or no producer ID"
        sequence = -1
        if self.idempotent:
            sequence = self._next_sequence.get(partition, 0)
            self._next_sequence[partition] = add_sequence(sequence, count)
        batch = ProducerBatch(partition, self.producer_id, self.producer_epoch, sequence, count)
        self._open.setdefault(partition, deque()).append(batch)
        return batch

    def lost(self, batch: ProducerBatch) -> Next:
        """Record that an attempt ended without a response. A batch without a sequence is not sent again, because the
        broker could not recognise it."""
        batch.maybe_written = True
        return Next.RETRY_ELSEWHERE if self.idempotent else self.give_up(batch)

    def responded(self, batch: ProducerBatch, error_code: int, base_offset: int) -> Next:
        """Return what one partition's response means for its batch."""
        if error_code == 0 or error_code == DUPLICATE_SEQUENCE_NUMBER:
            batch.base_offset = base_offset
            self._close(batch)
            return Next.DONE
        if error_code in REFRESH_METADATA:
            return Next.RETRY_ELSEWHERE
        if error_code in TRY_AGAIN:
            return Next.RETRY
        if error_code in MAYBE_WRITTEN:
            batch.maybe_written = True
            return Next.RETRY if self.idempotent else self.give_up(batch)
        if error_code == OUT_OF_ORDER_SEQUENCE_NUMBER and self._open[batch.where][0] is not batch:
            # An earlier batch is being retried. This one will fit once that one is written.
            return Next.RETRY
        if error_code == UNKNOWN_PRODUCER_ID and not batch.maybe_written:
            return self._renumber(batch)
        return self.give_up(batch)

    def _renumber(self, batch: ProducerBatch) -> Next:
        """Handle UNKNOWN_PRODUCER_ID: the broker has forgotten this producer and has certainly not written the batch.
        So the batch may be sent with a new producer ID."""
        if batch.producer_id == self.producer_id:
            self.forget_producer_id()
        return Next.RETRY

    def renew(self, batch: ProducerBatch) -> None:
        """Give a batch that was refused with UNKNOWN_PRODUCER_ID the new producer ID and its next sequence."""
        assert not batch.maybe_written, "a batch that may be written must keep its sequence"
        batch.producer_id, batch.producer_epoch = self.producer_id, self.producer_epoch
        batch.base_sequence = self._next_sequence.get(batch.where, 0)
        self._next_sequence[batch.where] = add_sequence(batch.base_sequence, batch.count)

    def give_up(self, batch: ProducerBatch) -> Next:
        """End the attempts of a batch. The sequence now has a hole, so this producer ID is not used any more."""
        self._close(batch)
        if batch.producer_id == self.producer_id:
            self.forget_producer_id()
        return Next.UNKNOWN if batch.maybe_written else Next.FAILED

    def _close(self, batch: ProducerBatch) -> None:
        """Remove a batch whose end is known from the open ones."""
        batches = self._open[batch.where]
        batches.remove(batch)
        if not batches:
            del self._open[batch.where]
