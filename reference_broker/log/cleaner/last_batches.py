"""Decides which batches must stay so that a start finds the producers' sequences again.

Kafka keeps the last batch of each producer in the whole log. If that batch is cut off, Kafka finds the producer in a
snapshot. Here a swap deletes the snapshots below its end (``producer_snapshots``). A new leader or a power loss may cut
off everything at or beyond the end of a pass. So the last batch of each producer below that end stays.
"""

from typing import NamedTuple

from reference_broker.log.producer_state import ProducerStates
from reference_broker.records.batch import BatchHeader


class _Last(NamedTuple):
    """The last batch of one producer. ``is_control`` says that it is a marker, and that no data batch of its epoch was
    seen before it."""

    producer_epoch: int
    last_offset: int
    is_control: bool


class LastBatches:
    """``producers`` are those that the log knows now. No batch stays for a producer that the log has forgotten.

    ``latest_offset`` is the last offset that the pass has looked at. Each known producer has at most one entry.
    """

    __slots__ = ("_last", "latest_offset", "producers")

    def __init__(self, producers: ProducerStates) -> None:
        self.producers = producers
        self.latest_offset = -1
        self._last: dict[int, _Last] = {}

    def note(self, header: BatchHeader) -> None:
        """Notes the next batch of the dirty part. A marker counts only if it begins a new epoch."""
        if header.producer_id < 0 or header.producer_id not in self.producers.by_id:
            return
        known = self._last.get(header.producer_id)
        if header.is_control and known is not None and header.producer_epoch <= known.producer_epoch:
            return
        self._last[header.producer_id] = _Last(header.producer_epoch, header.last_offset, header.is_control)

    def must_stay(self, header: BatchHeader) -> bool:
        producer = self.producers.by_id.get(header.producer_id) if header.producer_id >= 0 else None
        if producer is None:
            return False
        last = self._last.get(header.producer_id)
        if header.last_offset > self.latest_offset:  # The pass did not look so far, so the next pass decides.
            return True
        if last is not None:
            return header.last_offset == last.last_offset or (
                last.is_control and not header.is_control and header.producer_epoch == last.producer_epoch
            )
        marks = [mark.last_offset for mark in producer.marks if mark.last_offset <= self.latest_offset]
        return not marks or header.last_offset == marks[-1]
