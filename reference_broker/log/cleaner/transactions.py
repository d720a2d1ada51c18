"""What a pass knows of transactions while it walks over the log (Kafka's CleanedTransactionMetadata).

Records of aborted transactions are removed. A marker is removed once no batch of its transaction is left.
"""

from collections.abc import Sequence

from reference_broker.records.batch import BatchHeader
from reference_broker.records.control import ControlType, read_marker


class CleanedTransactions:
    """``aborted`` has the (first offset, marker's offset, producer ID) of each aborted transaction that the log knows.
    Those that ended before ``start_offset`` do not matter. The caller passes batches in the log's order."""

    __slots__ = ("_aborted", "_next", "_ongoing_aborted", "_ongoing_committed", "dropped_markers")

    def __init__(self, aborted: Sequence[tuple[int, int, int]], start_offset: int = 0) -> None:
        self._aborted = sorted(entry for entry in aborted if entry[1] >= start_offset)
        self._next = 0
        self._ongoing_aborted: dict[int, bool] = {}
        """The aborted transactions at this place of the log, by producer ID, and whether a batch of each was seen."""
        self._ongoing_committed: dict[int, None] = {}
        self.dropped_markers: dict[int, None] = {}
        """The offsets of abort markers whose transaction has no batch left."""

    def of_data(self, header: BatchHeader) -> bool:
        """Notes a data batch. Returns True if its transaction was aborted, so that it is to be removed."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._ongoing_aborted:
            self._ongoing_aborted[header.producer_id] = True
            return True
        self._ongoing_committed[header.producer_id] = None
        return False

    def of_control(self, header: BatchHeader, batch: memoryview) -> bool:
        """Notes a control batch. Returns True if no batch of its transaction was seen, so that it may be removed."""
        self._begin_up_to(header.last_offset)
        if header.record_count == 0:
            return True
        marker = read_marker(batch, header)
        if marker is None:
            return False
        if marker[0] is ControlType.ABORT:
            gone = not self._ongoing_aborted.pop(header.producer_id, False)
            if gone:
                self.dropped_markers[header.last_offset] = None
            return gone
        seen = header.producer_id in self._ongoing_committed
        self._ongoing_committed.pop(header.producer_id, None)
        return not seen

    def _begin_up_to(self, offset: int) -> None:
        while self._next < len(self._aborted) and self._aborted[self._next][0] <= offset:
            self._ongoing_aborted.setdefault(self._aborted[self._next][2], False)
            self._next += 1
