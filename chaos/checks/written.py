"""Collects what was acknowledged and what was read, for the checks of lost writes, and says what retention explains."""

from chaos.checks.history import History, Place, Sent, expanded, once, place
from chaos.checks.keyed import excused
from reports.rows import EndRow, RunRow

CLOCKS_US = 5_000_000
"""Physical: the time by which the clock of a node, which deletes, may be ahead of that of a client, which wrote."""


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


def may_be_deleted(end: EndRow, sent_us: int, history: History) -> bool:
    """Returns whether retention explains that a record, sent at ``sent_us``, lies below its log's start at the end.

    Kafka: retention.ms deletes nothing younger by the deleting node's clock, which faults may have stepped.
    retention.bytes leaves at least so many bytes at the leader. A later leader may have fewer: it lacks what was not
    replicated, which is taken to be a segment at most. No client of a load sends DeleteRecords. Without known limits
    anything may be deleted: the topic compacts, or DescribeConfigs failed.
    """
    if end.retention_ms is None or end.retention_bytes is None:
        return True
    oldest_us = end.end_us - sent_us + CLOCKS_US + history.clock_steps_us
    if 0 <= end.retention_ms * 1000 <= oldest_us:
        return True
    if end.retention_bytes < 0:
        return False
    return end.segment_bytes is None or end.retention_bytes <= end.size_bytes + end.segment_bytes


@once
def deleted(history: History) -> dict[Place, EndRow]:
    """Returns the ends of the partitions that were read to their end and whose logs do not begin at 0."""
    return {place(row): row for row in history.ends if row.error is None and row.log_start_offset > 0}


@once
def never_read(history: History) -> list[tuple[RunRow, Sent]]:
    """Returns the values that must be in the log, with their offsets, and that nobody read.

    They were acknowledged for good. Or the end of their send is not known, and others of its batch were read: a batch
    is written whole or not at all. There are none if acknowledged writes need not survive. X-11: a cleaner may have
    taken what is ``excused``. Neither are there those that retention may have deleted.
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
        end = deleted(history).get(place(run))
        begins_at = (
            end.log_start_offset if end is not None and may_be_deleted(end, sent_us(run, history), history) else 0
        )
        for value, offset in zip(values, places, strict=True):
            is_missed = offset is None and value.offset + shift >= begins_at
            if is_missed and (place(run), value.writer, value.sequence) not in excused(history)[0]:
                found.append((run, value._replace(offset=value.offset + shift)))
    return found


def sent_us(run: RunRow, history: History) -> int:
    """Returns when the run's operation began, or 0 if that is not known."""
    operation = history.operation_of.get((run.process, run.index))
    return 0 if operation is None else operation.invoke_us


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
