"""lost-write: no acknowledged value is overtaken by reads without ever being read itself.

This is judged only where the broker promises that acknowledged writes survive (``History.writes_promised``).
"""

from chaos.checks.check import Check, History
from chaos.checks.values import named, place
from chaos.checks.written import acknowledged, last_read, never_read


class LostWrite(Check):
    guarantee = "lost-write"

    def end(self, history: History) -> None:
        self.looked_at += acknowledged(history)
        last = last_read(history)
        for run, value in never_read(history):
            overtaken_by = last.get(place(run), -1)
            if value.offset <= overtaken_by:
                self.violated(
                    history.ended_us(run),
                    f"{named(run, value)} was acknowledged, never read, and overtaken by reads up to {overtaken_by}",
                )
