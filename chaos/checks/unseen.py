"""unseen: each acknowledged value has been read by someone when all is quiet."""

from chaos.checks.check import Check, History
from chaos.checks.values import expanded, named, place
from chaos.checks.written import acknowledged, read_values


class Unseen(Check):
    guarantee = "unseen"

    def end(self, history: History) -> None:
        if not history.writes_promised:
            return
        read, _ = read_values(history)
        for run in acknowledged(history):
            for value in expanded(run):
                if (place(run), value.writer, value.sequence) not in read:
                    self.violated(
                        0,
                        f"{named(run, value)} was acknowledged and never read",
                    )
