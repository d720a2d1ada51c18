from chaos.checks.check import Check
from chaos.checks.history import History, named, place
from chaos.checks.written import acknowledged, never_read


class Unseen(Check):
    """unseen: each acknowledged value of a partition that was read to its end has been read by someone."""

    guarantee = "unseen"

    def end(self, history: History) -> None:
        self.looked_at += acknowledged(history)
        ended = {place(row) for row in history.ends}
        for run, value in never_read(history):
            if place(run) in ended:
                self.violated(history.ended_us(run), f"{named(run, value)} was acknowledged and never read")
