"""epoch-gated-by-transaction: while a transaction of the metadata log is open no metadata epoch is written (M-2)."""

from collections.abc import Sequence

from chaos.checks.batches import Batch
from chaos.checks.quorum_check import QuorumCheck
from chaos.checks.quorum_view import Member, QuorumView
from reference_broker.records.reader import read_records

BEGIN, END, ABORT = 23, 24, 25
NO_OP = 20
BARE_BYTES = 4
"""A NoOpRecord without the epoch: frame version, API key, version, no tagged fields, each one byte."""


class EpochGatedByTransaction(QuorumCheck):
    guarantee = "epoch-gated-by-transaction"

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
                self._batch(at_us, batch, data)

    def _batch(self, at_us: int, batch: Batch, data: bytes) -> None:
        for record in read_records(memoryview(data)):
            value = record.value
            kind = value[1] if value is not None and len(value) > 1 else -1
            if kind in (BEGIN, END, ABORT):
                self._open_at = batch.base_offset if kind == BEGIN else -1
            elif kind == NO_OP and value is not None and len(value) > BARE_BYTES and self._open_at >= 0:
                self.violated(
                    at_us, f"a metadata epoch in {batch.named} stands inside the transaction of offset {self._open_at}"
                )
