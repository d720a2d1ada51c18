"""Collects what was acknowledged and what was read, for the checks of lost writes."""

from chaos.checks.check import History, once
from chaos.checks.keyed import excused
from chaos.checks.values import Place, Sent, expanded, place
from reports.rows import RunRow


def is_placed(run: RunRow, history: History) -> bool:
    """Returns whether the run says at which offsets its values are: it was read, or acknowledged for good."""
    if run.kind == "read":
        return True
    operation = history.operation_of.get((run.process, run.index))
    # Physical: a send whose end is unknown, or whose answer has no offset, may not have been written.
    is_known = operation is not None and operation.type == "ok" and run.first_offset >= 0
    # E-7 speaks of acks=all. What only the leader acknowledged may be truncated.
    return is_known and run.process not in history.unpromised


@once
def acknowledged(history: History) -> int:
    """Returns the number of runs that were acknowledged for good, if acknowledged writes must survive."""
    if not history.writes_promised:
        return 0
    return sum(run.kind == "send" and is_placed(run, history) for run in history.runs)


@once
def never_read(history: History) -> list[tuple[RunRow, Sent]]:
    """Returns the values that must be in the log, with their offsets, and that nobody read.

    They were acknowledged for good. Or the end of their send is not known, and others of its batch were read: a batch
    is written whole or not at all. There are none if acknowledged writes need not survive. X-11: a cleaner may have
    taken what is ``excused``.
    """
    if not history.writes_promised:
        return []  # Physical: the only replica lost its power, and nothing had been synced.
    found: list[tuple[RunRow, Sent]] = []
    read: dict[tuple[Place, str, int], int] = {}
    for run in history.runs:
        operation = history.operation_of.get((run.process, run.index))
        if run.kind == "read" and operation is not None and operation.type == "ok":
            read.update(((place(run), value.writer, value.sequence), value.offset) for value in expanded(run))
    for run in history.runs:
        if run.kind != "send":
            continue
        values = list(expanded(run))
        places = [read.get((place(run), value.writer, value.sequence)) for value in values]
        shifts = [offset - value.offset for value, offset in zip(values, places, strict=True) if offset is not None]
        if is_placed(run, history):
            shift = 0
        elif shifts and _end_is_unknown(run, history):
            shift = min(shifts)
        else:
            continue
        for value, offset in zip(values, places, strict=True):
            if offset is None and (place(run), value.writer, value.sequence) not in excused(history)[0]:
                found.append((run, value._replace(offset=value.offset + shift)))
    return found


def _end_is_unknown(run: RunRow, history: History) -> bool:
    operation = history.operation_of.get((run.process, run.index))
    return operation is None or operation.type == "info"


def last_read(history: History) -> dict[Place, int]:
    """Returns the greatest offset that somebody read of each partition."""
    last: dict[Place, int] = {}
    for run in history.runs:
        if run.kind == "read":
            last[place(run)] = max(last.get(place(run), -1), run.first_offset + run.count - 1)
    return last
