"""lost-transaction: of a committed transaction readers with read_committed see something."""

from chaos.checks.check import Check, History
from chaos.checks.transacted import missing, shown, transacted


class LostTransaction(Check):
    guarantee = "lost-transaction"

    def end(self, history: History) -> None:
        for each in transacted(history):
            if not each.is_committed or not each.values:
                continue
            self.looked_at += 1
            gone = missing(each, history)
            if gone and not any(value in shown(history) for value, _ in each.values):
                self.violated(each.row.until_us, f"nothing of {each.story} is there, for example {gone[0]}")
