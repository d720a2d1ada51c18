"""What a pass knows of transactions while it walks over the log (Kafka's CleanedTransactionMetadata).

Records of aborted transactions are removed. A marker is removed once no batch of its transaction is left.
"""

from collections.abc import Sequence
from operator import attrgetter

from reference_broker.log.transaction_index import Aborted
from reference_broker.records.batch import BatchHeader
from reference_broker.records.control import ControlType, read_marker


class CleanedTransactions:
    """The caller passes batches in the log's order, and the aborted transactions of each part before its batches."""

    __slots__ = ("_known_until", "_ongoing_aborted", "_ongoing_committed", "_still_there", "_waiting")

    def __init__(self) -> None:
        self._known_until = 0
        self._waiting: list[Aborted] = []
        """Aborted transactions that begin further on, the last one first."""
        self._ongoing_aborted: dict[int, tuple[Aborted, bool]] = {}
        """The aborted transactions at this place of the log, by producer ID, and whether a batch of each was seen."""
        self._ongoing_committed: dict[int, None] = {}
        self._still_there: list[Aborted] = []

    def begin(self, aborted: Sequence[Aborted], end_offset: int) -> None:
        """Begins with the next part of the log, up to ``end_offset``. ``aborted`` are the transactions that overlap
        it."""
        new = [entry for entry in aborted if entry.first_offset >= self._known_until] if self._known_until else aborted
        self._waiting = sorted((*self._waiting, *new), key=attrgetter("first_offset"), reverse=True)
        self._known_until = end_offset

    def taken(self) -> list[Aborted]:
        """Returns the aborted transactions that have a batch left, and whose marker came since the last call. Readers
        must not hear of the others, or they would wait for markers that are gone."""
        taken, self._still_there = self._still_there, []
        return taken

    def of_data(self, header: BatchHeader) -> bool:
        """Notes a data batch. Returns True if its transaction was aborted, so that it is to be removed."""
        self._begin_up_to(header.last_offset)
        if not header.is_transactional:
            return False
        if header.producer_id in self._ongoing_aborted:
            self._ongoing_aborted[header.producer_id] = self._ongoing_aborted[header.producer_id][0], True
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
            aborted, was_seen = self._ongoing_aborted.pop(header.producer_id, (None, False))
            if aborted is not None and was_seen:
                self._still_there.append(aborted)
            return not was_seen
        seen = header.producer_id in self._ongoing_committed
        self._ongoing_committed.pop(header.producer_id, None)
        return not seen

    def _begin_up_to(self, offset: int) -> None:
        while self._waiting and self._waiting[-1].first_offset <= offset:
            aborted = self._waiting.pop()
            self._ongoing_aborted.setdefault(aborted.producer_id, (aborted, False))
