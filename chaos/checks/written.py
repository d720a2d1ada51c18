"""Collects what was acknowledged and what was read, for the checks of lost writes."""

from chaos.checks.check import History
from chaos.checks.values import Place, expanded, place
from reports.rows import RunRow


def acknowledged(history: History) -> list[RunRow]:
    """Returns the runs that a producer was told are written for good, at known offsets."""
    ok = {key: row.type == "ok" for key, row in history.operation_of().items()}
    return [
        run
        for run in history.runs
        if run.kind == "send"
        and run.first_offset >= 0
        and ok.get((run.process, run.index))
        and run.process not in history.unpromised
    ]


def read_values(history: History) -> tuple[dict[tuple[Place, str, int], None], dict[Place, int]]:
    """Returns the values that somebody read, and the greatest offset read of each partition."""
    read: dict[tuple[Place, str, int], None] = {}
    last: dict[Place, int] = {}
    for run in history.runs:
        if run.kind == "read":
            where = place(run)
            last[where] = max(last.get(where, -1), run.first_offset + run.count - 1)
            for value in expanded(run):
                read[where, value.writer, value.sequence] = None
    return read, last
