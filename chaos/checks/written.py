"""Collects what was acknowledged and what was read, for the checks of lost writes."""

from collections.abc import Iterator

from chaos.checks.check import History
from chaos.checks.values import Place, Sent, expanded, place
from reports.rows import RunRow


def never_read(history: History) -> Iterator[tuple[RunRow, Sent]]:
    """Yields the values that were acknowledged for good, at known offsets, and that nobody read.

    Yields nothing if acknowledged writes need not survive.
    """
    if not history.writes_promised:
        return  # Physical: the only replica lost its power, and nothing had been synced.
    read: set[tuple[Place, str, int]] = set()
    for run in history.runs:
        if run.kind == "read":
            read.update((place(run), value.writer, value.sequence) for value in expanded(run))
    for run, operation in history.with_operations(history.runs, "produce"):
        # Physical: a send whose end is unknown, or whose answer has no offset, may not have been written.
        is_known = operation.type == "ok" and run.kind == "send" and run.first_offset >= 0
        # E-7 speaks of acks=all. What only the leader acknowledged may be truncated.
        if is_known and run.process not in history.unpromised:
            for value in expanded(run):
                if (place(run), value.writer, value.sequence) not in read:
                    yield run, value


def last_read(history: History) -> dict[Place, int]:
    """Returns the greatest offset that somebody read of each partition."""
    last: dict[Place, int] = {}
    for run in history.runs:
        if run.kind == "read":
            last[place(run)] = max(last.get(place(run), -1), run.first_offset + run.count - 1)
    return last
