"""unseen: each acknowledged value has been read by someone when all is quiet."""

from chaos.checks.check import Check, History
from chaos.checks.values import named
from chaos.checks.written import never_read


class Unseen(Check):
    guarantee = "unseen"

    def end(self, history: History) -> None:
        for run, value in never_read(history):
            self.violated(0, f"{named(run, value)} was acknowledged and never read")
