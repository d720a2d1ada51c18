"""hanging-transaction: once all is quiet, no last stable offset stands below its high watermark.

A transaction of which nobody was told the end may still be open within its timeout and the interval in which its
coordinator looks for old ones (``transaction.abort.timed.out.transaction.cleanup.interval.ms``, 10 s by default).
"""

from chaos.checks.check import Check, History

CLEANUP_US = 10_000_000


class HangingTransaction(Check):
    guarantee = "hanging-transaction"

    def end(self, history: History) -> None:
        self.looked_at += len(history.transactions)
        last_us = max((row.at_us + row.timeout_us for row in history.transactions if row.outcome != "ok"), default=-1)
        for end in history.ends:
            is_held = 0 <= end.last_stable_offset < end.high_watermark
            if is_held and (last_us < 0 or end.end_us > last_us + CLEANUP_US):
                self.violated(
                    end.end_us,
                    f"{end.topic}-{end.partition}: the last stable offset stands at {end.last_stable_offset}, the high "
                    f"watermark at {end.high_watermark}",
                )
