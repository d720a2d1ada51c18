from chaos.checks.check import Check
from chaos.checks.history import History
from chaos.checks.transactions_seen import sightings, transactions


class PrecommittedRead(Check):
    """precommitted-read: no reader with read_committed has a value before its producer asked to commit it.

    A transaction's end is asked for at ``TransactionRow.at_us`` at the earliest, and all times are of one clock.
    """

    guarantee = "precommitted-read"

    def end(self, history: History) -> None:
        seen = sightings(history)
        for each in transactions(history):
            if each.row.asked != "commit":
                continue  # aborted-read judges it.
            self.looked_at += 1
            for key, _ in each.values():
                first = seen[key][0] if key in seen else None
                if first is not None and first.at_us < each.row.at_us:
                    (topic, partition), writer, sequence = key
                    self.violated(
                        first.at_us,
                        f"{first.process} read {topic}-{partition} offset {first.offset}: {writer}/{sequence} "
                        f"{each.row.at_us - first.at_us} us before {each.named} asked for its commit",
                    )
                    break
