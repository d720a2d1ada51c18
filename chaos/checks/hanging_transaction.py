from chaos.checks.check import Check
from chaos.checks.history import History
from chaos.checks.transactions import transactions

CLEANUP_US = 10_000_000
"""Kafka's default of that interval."""


class HangingTransaction(Check):
    """hanging-transaction: once all is quiet, no transaction holds back the last stable offset that should have ended.

    A coordinator aborts what is older than its timeout, and looks for it every
    ``transaction.abort.timed.out.transaction.cleanup.interval.ms``. Until then a transaction whose end nobody was told
    may be open.
    """

    guarantee = "hanging-transaction"

    def end(self, history: History) -> None:
        self.looked_at += len(history.transactions)
        for end in history.ends:
            if not 0 <= end.last_stable_offset < end.high_watermark:
                continue
            may_be_open = any(
                each.row.outcome != "ok" and each.row.at_us + each.row.timeout_us + CLEANUP_US >= end.end_us
                for each in transactions(history)
            )
            if not may_be_open:
                self.violated(
                    end.end_us,
                    f"{end.topic}-{end.partition}: the last stable offset stands at {end.last_stable_offset}, the high "
                    f"watermark at {end.high_watermark}, and no transaction may be open",
                )
