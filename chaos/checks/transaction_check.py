"""Base of checks of the committed metadata log that need to know whether a transaction is open, from its markers."""

from abc import abstractmethod
from collections.abc import Sequence

from chaos.checks.batches import Batch, records_in
from chaos.checks.quorum_view import Member, QuorumCheck
from chaos.checks.surroundings import Surroundings

BEGIN, END, ABORT = 23, 24, 25
MARKERS = {BEGIN: "Begin", END: "End", ABORT: "Abort"}


class TransactionCheck(QuorumCheck):
    """``open_at`` is the offset at which the open transaction begins, or -1 if none is open. While ``record`` is
    called, the current record is not taken into account yet."""

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.open_at = -1
        self._at = 0

    def committed(self, at_us: int, member: Member, batches: Sequence[tuple[Batch, bytes]]) -> None:  # noqa: ARG002
        for batch, data in batches:
            if batch.base_offset != self._at:
                self.open_at = -1  # T-9: a snapshot replaced what lies between, and holds no open transaction.
                self.skipped()
            self._at = batch.last_offset + 1
            if not batch.control:
                self._records(at_us, batch, data)

    def _records(self, at_us: int, batch: Batch, data: bytes) -> None:
        """Reads a batch's records. A value begins with the frame's version, then the record's API key (both varints
        below 128)."""
        for record in records_in(data):
            value = record.value
            assert value is not None, f"{batch.named} holds a record without a value"
            self.record(at_us, batch, value[1], value)
            if value[1] in MARKERS:
                self.open_at = batch.base_offset if value[1] == BEGIN else -1

    def skipped(self) -> None:
        """Called before what follows a snapshot."""

    @abstractmethod
    def record(self, at_us: int, batch: Batch, api_key: int, value: bytes) -> None:
        """Called with each committed record, in the log's order."""
