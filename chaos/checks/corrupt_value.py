from chaos.checks.check import Check
from chaos.checks.history import History


class CorruptValue(Check):
    """corrupt-value: each value that is read was made by a writer of this run. A batch has a checksum."""

    guarantee = "corrupt-value"

    def end(self, history: History) -> None:
        for run in history.runs:
            if run.kind != "read":
                continue
            self.looked_at += 1
            if not run.valid or not run.writer:
                where = f"{run.topic}-{run.partition} offset {run.first_offset}"
                self.violated(history.ended_us(run), f"{where}: {run.process} saw a damaged value")
