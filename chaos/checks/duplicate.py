"""duplicate: no value stands at two offsets of one producer ID.

P-6 promises this for one producer ID only. A producer that resends under a new ID, or has none (-1), may write a value
twice. A value that no writer of this run made cannot be told from its like.
"""

from chaos.checks.check import Check, History
from chaos.checks.values import Place, expanded, named, place


class Duplicate(Check):
    guarantee = "duplicate"

    def end(self, history: History) -> None:
        found: dict[tuple[Place, str, int, int], int] = {}
        for run in history.runs:
            if run.kind != "read" or not run.writer or run.producer_id < 0:
                continue
            for value in expanded(run):
                key = (place(run), value.writer, value.sequence, value.producer_id)
                offset = found.setdefault(key, value.offset)
                if offset != value.offset:
                    self.violated(
                        0,
                        f"{named(run, value)} of producer {value.producer_id} stands at offset {offset} too",
                    )
