"""lost-transaction: of each transaction whose commit was acknowledged, readers with read_committed see something.

Where they see some of it and not all, torn-transaction speaks.
"""

from chaos.checks.check import Check, History
from chaos.checks.transactions_seen import Fate, missing, sightings, transactions


class LostTransaction(Check):
    guarantee = "lost-transaction"

    def end(self, history: History) -> None:
        if not history.writes_promised:
            return  # Physical: the only replica lost its power, and nothing had been synced.
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
