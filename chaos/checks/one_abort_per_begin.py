"""one-abort-per-begin: in the committed log each Begin has one End or one Abort, and no marker stands anywhere else."""

from collections.abc import Iterator, Sequence

from chaos.checks.batches import Batch
from chaos.checks.quorum_check import QuorumCheck
from chaos.checks.quorum_view import Member, QuorumView
from reference_broker.records.reader import read_records

BEGIN, END, ABORT = 23, 24, 25
MARKERS = {BEGIN: "Begin", END: "End", ABORT: "Abort"}


class OneAbortPerBegin(QuorumCheck):
    guarantee = "one-abort-per-begin"

    def __init__(self, view: QuorumView) -> None:
        super().__init__(view)
        self._open_at = -1
        self._at = 0

    def committed(self, at_us: int, member: Member, batches: Sequence[tuple[Batch, bytes]]) -> None:  # noqa: ARG002
        for batch, data in batches:
            if batch.base_offset != self._at:
                self._open_at = -1  # Between lies what a snapshot took over, which holds no open transaction.
            self._at = batch.last_offset + 1
            if not batch.control:
                for marker in _markers(data):
                    self._marker(at_us, batch, marker)

    def _marker(self, at_us: int, batch: Batch, marker: int) -> None:
        if (marker == BEGIN) == (self._open_at >= 0):
            inside = f"inside the transaction of offset {self._open_at}" if self._open_at >= 0 else "without a Begin"
            self.violated(at_us, f"{MARKERS[marker]} in {batch.named} stands {inside}")
        self._open_at = batch.base_offset if marker == BEGIN else -1


def _markers(data: bytes) -> Iterator[int]:
    """A value begins with the frame's version, then the record's API key (both varints below 128)."""
    for record in read_records(memoryview(data)):
        value = record.value
        if value is not None and len(value) > 1 and value[1] in MARKERS:
            yield value[1]
