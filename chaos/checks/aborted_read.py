"""aborted-read: no reader with read_committed sees a value of a transaction that can never have been committed."""

from chaos.checks.check import Check, History
from chaos.checks.transacted import shown, transacted


class AbortedRead(Check):
    guarantee = "aborted-read"

    def end(self, history: History) -> None:
        for each in transacted(history):
            if not each.is_refuted:
                continue
            self.looked_at += 1
            for value, _ in each.values:
                if value in shown(history):
                    at_us, reader = shown(history)[value]
                    self.violated(at_us, f"{reader} read {value} of {each.story}")
