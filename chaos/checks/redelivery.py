from bisect import bisect_right
from collections.abc import Iterator
from typing import NamedTuple

from chaos.checks.check import Check
from chaos.checks.committed import COMMIT, Asked, asked
from chaos.checks.history import History, Place, grouped, place
from chaos.checks.reads import reads
from reports.rows import MembershipRow, OperationRow, RunRow

NO_OFFSET = "no_offset"
"""The reason of a reset where nothing was committed."""


class FirstRead(NamedTuple):
    """The first records that a member read of a partition after the partition was assigned to it."""

    given: MembershipRow
    run: RunRow
    operation: OperationRow


class Redelivery(Check):
    """redelivery: a member that is given a partition does not begin to read below the offset that its group has
    committed.

    Records that were read but not committed may be read again: the promise is at least once. ``rewinds`` judges
    positions that were out of range.
    """

    guarantee = "redelivery"

    def end(self, history: History) -> None:
        if not history.memberships:
            return
        self.looked_at += assigned_times(history)
        commits = asked(history, COMMIT)
        resets = (row for row in history.resets if row.reason != NO_OFFSET)
        moves = grouped(resets, lambda row: (row.process, place(row)))
        for given, run, operation in first_reads(history):
            written = commits.get((given.group, given.topic, given.partition), [])
            last = _last_acked(written, given.at_us)
            if last is None or run.first_offset >= last.row.offset:
                continue
            sent_back = any(
                each.row.offset <= run.first_offset
                and each.until_us > last.invoke_us
                and each.invoke_us < operation.invoke_us
                for each in written
            )
            was_moved = any(
                given.at_us <= row.at_us <= operation.complete_us
                for row in moves.get((given.process, place(given)), ())
            )
            if not sent_back and not was_moved:
                self.violated(
                    operation.complete_us,
                    f"{given.process} was given {given.topic}-{given.partition} in generation {given.generation} and "
                    f"read from offset {run.first_offset}; group {given.group} had committed {last.row.offset}",
                )


def assigned_times(history: History) -> int:
    """Returns how often a partition was given to a member."""
    return sum(row.event == "assigned" for row in history.memberships)


def first_reads(history: History) -> Iterator[FirstRead]:
    """Yields them in the order of reading."""
    assigned = (row for row in history.memberships if row.event == "assigned")
    given = grouped(assigned, lambda row: (row.process, place(row)))
    seen: set[tuple[str, Place, int]] = set()
    for run, operation in reads(history):
        key = (run.process, place(run))
        rows = given.get(key, [])
        times = bisect_right(rows, operation.invoke_us, key=lambda row: row.at_us)
        if times and (*key, times) not in seen:
            seen.add((*key, times))
            yield FirstRead(rows[times - 1], run, operation)


def _last_acked(written: list[Asked], before_us: int) -> Asked | None:
    acked = [each for each in written if each.acked and each.until_us < before_us]
    return max(acked, key=lambda each: (each.invoke_us, each.row.offset), default=None)
