"""Lines of the trace about committed batches: which part of what they are. Faults strike at them."""

from dataclasses import dataclass, field

from reference_broker.metadata.batch import MetadataBatch
from reference_broker.metadata.records import (
    AbortTransactionRecord,
    BeginTransactionRecord,
    EndTransactionRecord,
    MetadataRecord,
)
from reference_broker.ports.node_ports import Ports

UNKNOWN = 0
_KINDS: dict[type, str] = {
    BeginTransactionRecord: "begin",
    EndTransactionRecord: "end",
    AbortTransactionRecord: "abort",
}


def kind_of(markers: tuple[MetadataRecord, ...], in_transaction: bool) -> str:
    """By its first marker: begin, end, abort; else batch (of a transaction) or single."""
    if markers:
        return _KINDS[type(markers[0])]
    return "batch" if in_transaction else "single"


@dataclass(slots=True)
class BatchNotes:
    """``number``: batches of the open transaction so far, -1 outside. ``of``: how many it will have, where known.

    ``expected``: by the offset of their Begin, the sizes of the transactions that this node appended as leader.
    """

    ports: Ports
    number: int = -1
    of: int = UNKNOWN
    expected: dict[int, int] = field(default_factory=dict)

    def expect(self, begin_offset: int, batches: int) -> None:
        """One at a time: what an earlier leadership expected may never have been committed."""
        self.expected = {begin_offset: batches}

    def reset(self) -> None:
        self.number = -1
        self.expected.clear()

    def committed(self, batch: MetadataBatch) -> None:
        """Control batches are not metadata and get no line."""
        if not batch.records:
            return
        offset = batch.provenance.offset
        kind = kind_of(batch.markers, self.number >= 0)
        if kind == "begin":
            self.number, self.of = 0, self.expected.pop(offset, UNKNOWN)
        elif kind == "batch":
            self.number += 1
        number, of = (1, 1) if kind == "single" else (self.number, self.of)
        self.ports.note("metadata_committed", ("offset", offset), ("kind", kind), ("number", number), ("of", of))
        if batch.markers and not isinstance(batch.markers[-1], BeginTransactionRecord):
            self.number = -1
