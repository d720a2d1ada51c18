"""Which batches must stay so that producers are found again in the log: the last one of each, below the end of a pass.

Kafka keeps the last batch of a producer in the whole log, and finds it in a snapshot once a newer one is cut off. Here
producers are found in the batches alone, and what is at or beyond a pass's end may be cut off (by a new leader, a power
loss): so the last one below it stays.
"""

from typing import NamedTuple

from reference_broker.log.producer_state import ProducerStates
from reference_broker.records.batch import BatchHeader


class _Last(NamedTuple):
    """``is_control``: it is a marker, and no batch of that epoch was seen before it."""

    producer_epoch: int
    last_offset: int
    is_control: bool


class LastBatches:
    """``producers``: those that the log knows now. Of producers that it has forgotten, nothing stays.

    ``latest_offset``: the last one that the pass has looked at. There is one entry for each active producer at most.
    """

    __slots__ = ("_last", "latest_offset", "producers")

    def __init__(self, producers: ProducerStates) -> None:
        self.producers = producers
        self.latest_offset = -1
        self._last: dict[int, _Last] = {}

    def note(self, header: BatchHeader) -> None:
        """The next batch of the dirty part. A marker changes nothing of its own epoch; it may begin one."""
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
        if header.last_offset > self.latest_offset:  # The next pass will know.
            return True
        if last is not None:
            return header.last_offset == last.last_offset or (
                last.is_control and not header.is_control and header.producer_epoch == last.producer_epoch
            )
        marks = [mark.last_offset for mark in producer.marks if mark.last_offset <= self.latest_offset]
        return not marks or header.last_offset == marks[-1]
