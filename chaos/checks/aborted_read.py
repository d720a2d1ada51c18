from chaos.checks.check import Check
from chaos.checks.history import History
from chaos.checks.transactions_seen import Fate, sightings, transactions


class AbortedRead(Check):
    """aborted-read (G1a): no reader with read_committed sees a value of a transaction that was never committed."""

    guarantee = "aborted-read"

    def end(self, history: History) -> None:
        seen = sightings(history)
        for each in transactions(history):
            if each.fate is not Fate.NEVER:
                continue  # Physical: an EndTxn whose answer was lost may have taken effect.
            self.looked_at += 1
            shown = [(key, seen[key][0]) for key, _ in each.values() if key in seen]
            if shown:
                ((topic, partition), writer, sequence), first = min(shown, key=lambda one: one[1].at_us)
                self.violated(
                    first.at_us,
                    f"{first.process} read {topic}-{partition} offset {first.offset}: {writer}/{sequence} of "
                    f"{each.named}, which was never committed ({each.row.asked} was asked for)",
                )
