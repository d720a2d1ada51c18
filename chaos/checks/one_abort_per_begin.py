"""one-abort-per-begin: in the committed log each Begin has one End or one Abort, and there are no other markers."""

from chaos.checks.batches import Batch
from chaos.checks.transaction_check import BEGIN, MARKERS, TransactionCheck


class OneAbortPerBegin(TransactionCheck):
    guarantee = "one-abort-per-begin"

    def record(self, at_us: int, batch: Batch, api_key: int, value: bytes) -> None:  # noqa: ARG002
        self.looked_at += api_key in MARKERS
        if api_key in MARKERS and (api_key == BEGIN) == (self.open_at >= 0):
            inside = f"inside the transaction of offset {self.open_at}" if self.open_at >= 0 else "without a Begin"
            self.violated(at_us, f"{MARKERS[api_key]} in {batch.named} stands {inside}")
