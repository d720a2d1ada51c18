from chaos.checks.batches import Batch
from chaos.checks.transaction_check import TransactionCheck

NO_OP = 20
BARE_BYTES = 4
"""The length of a NoOpRecord without the epoch. Frame version, API key, version and the number of tagged fields take
one byte each."""


class EpochGatedByTransaction(TransactionCheck):
    """epoch-gated-by-transaction: no metadata epoch is written inside a transaction of the metadata log (M-2)."""

    guarantee = "epoch-gated-by-transaction"
    needs_one_node = True

    def record(self, at_us: int, batch: Batch, api_key: int, value: bytes) -> None:
        if api_key == NO_OP and len(value) > BARE_BYTES and self.open_at >= 0:
            self.violated(
                at_us, f"a metadata epoch in {batch.named} stands inside the transaction of offset {self.open_at}"
            )
