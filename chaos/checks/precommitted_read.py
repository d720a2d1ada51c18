"""precommitted-read: no reader with read_committed has a value before its producer asks to commit the transaction."""

from chaos.checks.check import Check, History
from chaos.checks.transacted import shown, transacted


class PrecommittedRead(Check):
    guarantee = "precommitted-read"

    def end(self, history: History) -> None:
        for each in transacted(history):
            if each.row.asked != "commit":
                continue
            self.looked_at += 1
            for value, _ in each.values:
                at_us, reader = shown(history).get(value, (each.row.at_us, ""))
                if at_us < each.row.at_us:
                    self.violated(at_us, f"{reader} read {value} before the commit of {each.story} was asked for")
