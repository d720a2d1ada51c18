"""Writes a line of the trace for each committed batch. The line says which part of a transaction the batch is. A fault
can be set to strike at such a line."""

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


def kind_of(markers: list[MetadataRecord], in_transaction: bool) -> str:
    """The kind of a batch. Its first marker makes it a begin, end or abort. Without a marker it is a batch if it is in
    a transaction, and otherwise single."""
    if markers:
        return _KINDS[type(markers[0])]
    return "batch" if in_transaction else "single"


@dataclass(slots=True)
class BatchNotes:
    """``number`` counts the batches of the open transaction so far, and is -1 outside of one. ``of`` is how many it
    will have, if known.

    ``expected`` holds the number of batches of a transaction that this node appended as leader, by the offset of its
    Begin.
    """

    ports: Ports
    number: int = -1
    of: int = UNKNOWN
    expected: dict[int, int] = field(default_factory=dict)

    def expect(self, begin_offset: int, batches: int) -> None:
        """Keeps one expectation only, because the transaction of an earlier leadership may never have been
        committed."""
        self.expected = {begin_offset: batches}

    def reset(self) -> None:
        self.number = -1
        self.expected.clear()

    def committed(self, batch: MetadataBatch) -> None:
        """Writes the line of a batch. A control batch gets none, because it is not metadata."""
        if not batch.records:
            return
        offset = batch.provenance.offset
        markers = batch.markers
        kind = kind_of(markers, self.number >= 0)
        if kind == "begin":
            self.number, self.of = 0, self.expected.pop(offset, UNKNOWN)
        elif kind == "batch":
            self.number += 1
        number, of = (1, 1) if kind == "single" else (self.number, self.of)
        self.ports.note("metadata_committed", ("offset", offset), ("kind", kind), ("number", number), ("of", of))
        if markers and not isinstance(markers[-1], BeginTransactionRecord):
            self.number = -1
