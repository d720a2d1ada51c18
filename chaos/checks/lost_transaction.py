from itertools import pairwise

from chaos.checks.check import Check
from chaos.checks.history import History, grouped
from chaos.checks.transactions_seen import Fate, missing, sightings, transactions

LAST_EPOCH = 30_000
"""A producer ID has 32,767 epochs. Where it may have used them up, the next producer gets another one."""
IDLE_US = 2_500_000
"""No scenario has a smaller ``transactional.id.expiration.ms``: an ID that was idle for so long may be gone (X-10)."""


class LostTransaction(Check):
    """lost-transaction: of each transaction whose commit was acknowledged, readers with read_committed see something.

    Where they see some of it and not all, torn-transaction speaks. A transactional ID that is in use keeps its producer
    ID, with epochs that rise (X-1). Otherwise its coordinator has forgotten it, and with it what was decided and not
    told.
    """

    guarantee = "lost-transaction"

    def end(self, history: History) -> None:
        if not history.writes_promised:
            return  # Physical: the only replica lost its power, and nothing had been synced.
        self._forgotten(history)
        seen = sightings(history)
        for each in transactions(history):
            if each.fate is not Fate.COMMITTED:
                continue
            self.looked_at += 1
            gone = missing(history, each)
            if gone and not any(key in seen for key, _ in each.values()):
                ((topic, partition), writer, sequence), value = gone[0]
                self.violated(
                    each.row.until_us,
                    f"{each.named} was committed, and nobody read any of its values, such as {writer}/{sequence} at "
                    f"{topic}-{partition} offset {value.offset}",
                )

    def _forgotten(self, history: History) -> None:
        begun = [row for row in history.transactions if row.producer_id >= 0]
        for rows in grouped(begun, lambda row: (row.process, row.transactional_id)).values():
            for before, row in pairwise(sorted(rows, key=lambda each: each.index)):
                is_same = before.producer_id == row.producer_id
                in_use = before.producer_epoch < LAST_EPOCH and row.from_us - before.from_us < IDLE_US
                if (is_same and row.producer_epoch < before.producer_epoch) or (not is_same and in_use):
                    now, then = (f"{each.producer_id}, epoch {each.producer_epoch}" for each in (row, before))
                    self.violated(
                        row.from_us,
                        f"{row.transactional_id} went on as producer {now}, after producer {then}: it was forgotten",
                    )
