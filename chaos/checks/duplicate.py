from chaos.checks.check import Check
from chaos.checks.history import History, Place, expanded, named, place
from chaos.checks.written import is_placed
from reports.rows import RunRow


class Duplicate(Check):
    """duplicate: no value stands at two offsets of one producer ID, by what was read and by what was acknowledged.

    P-6 promises this for one producer ID only. A producer that resends under a new ID, or has none (-1), may write a
    value twice. A value that no writer of this run made cannot be told from its like.
    """

    guarantee = "duplicate"

    def end(self, history: History) -> None:
        found: dict[tuple[Place, str, int, int], tuple[int, RunRow]] = {}
        for run in history.runs:
            if run.producer_id < 0 or not run.valid or not run.writer or not is_placed(run, history):
                continue
            self.looked_at += run.kind == "read"
            for value in expanded(run):
                key = (place(run), value.writer, value.sequence, value.producer_id)
                offset, other = found.setdefault(key, (value.offset, run))
                if offset != value.offset:
                    self.violated(
                        max(history.ended_us(other), history.ended_us(run)),
                        f"{named(run, value)} of producer {value.producer_id} stands at offset {offset} too",
                    )
