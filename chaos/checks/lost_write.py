"""lost-write: no acknowledged value is overtaken by reads without ever being read itself.

This is judged only where the broker promises that acknowledged writes survive (``History.writes_promised``).
"""

from chaos.checks.check import Check, History
from chaos.checks.values import expanded, named, place
from chaos.checks.written import acknowledged, read_values


class LostWrite(Check):
    guarantee = "lost-write"

    def end(self, history: History) -> None:
        if not history.writes_promised:
            return
        read, last_read = read_values(history)
        for run in acknowledged(history):
            for value in expanded(run):
                where = place(run)
                if (where, value.writer, value.sequence) not in read and value.offset <= last_read.get(where, -1):
                    self.violated(
                        0,
                        f"{named(run, value)} was acknowledged, "
                        f"never read, and overtaken by reads up to {last_read[where]}",
                    )
