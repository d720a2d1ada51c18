"""Which batches of a Fetch answer belong to aborted transactions (KIP-98). There is no I/O here.

A broker sends a read_committed consumer the aborted transactions that overlap the answer, each with its first offset.
Batches of a producer in the list are dropped from there on, until the marker that ends the transaction. Markers
themselves are control batches, which give no records to anybody.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from reference_broker.records.batch import BatchHeader, Buffer
from reference_broker.records.control import ControlType, read_marker
from reference_broker.wire.fetch import AbortedTransaction

READ_UNCOMMITTED: Final = 0
READ_COMMITTED: Final = 1


@dataclass(slots=True)
class AbortedBatches:
    """One partition of one answer, whose batches are asked for in their order."""

    transactions: Iterable[AbortedTransaction]
    _to_come: list[tuple[int, int]] = field(init=False)
    _aborted: set[int] = field(default_factory=set)
    """The producers in whose aborted transaction the batches are now."""

    def __post_init__(self) -> None:
        self._to_come = sorted(((each.first_offset, each.producer_id) for each in self.transactions), reverse=True)

    def drops(self, header: BatchHeader, batch: Buffer) -> bool:
        """Whether this batch, the next of the answer, belongs to an aborted transaction. Markers do not."""
        if not header.is_transactional:
            return False
        while self._to_come and self._to_come[-1][0] <= header.last_offset:
            self._aborted.add(self._to_come.pop()[1])
        if not header.is_control:
            return header.producer_id in self._aborted
        marker = read_marker(batch, header)
        if marker is not None and marker[0] is ControlType.ABORT:
            self._aborted.discard(header.producer_id)
        return False
