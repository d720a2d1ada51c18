"""redelivery: a member that was given a partition begins to read below what the group had committed of it.

The next owner reads again what was read but not committed, as promised. ``rewinds`` judges positions that were out of
range.
"""

from bisect import bisect_right
from collections.abc import Iterator
from dataclasses import dataclass

from chaos.checks.check import Check, History
from chaos.checks.committed import COMMIT, Asked, asked
from chaos.checks.values import Place
from reports.rows import MembershipRow, RunRow

NO_OFFSET = "no_offset"
"""Nothing was committed: a reset's reason."""


@dataclass(frozen=True, slots=True)
class FirstRead:
    """The first records that a member read of a partition after the partition was assigned to it."""

    given: MembershipRow
    run: RunRow
    invoke_us: int
    at_us: int


class Redelivery(Check):
    guarantee = "redelivery"

    def end(self, history: History) -> None:
        if not history.memberships:
            return
        commits = asked(history, COMMIT)
        moved = _moves(history)
        for first in first_reads(history):
            given = first.given
            written = commits.get((given.group, given.topic, given.partition), [])
            last = _last_acked(written, given.at_us)
            if last is None or first.run.first_offset >= last.row.offset:
                continue
            sent_back = any(
                each.row.offset <= first.run.first_offset
                and each.until_us > last.invoke_us
                and each.invoke_us < first.invoke_us
                for each in written
            )
            where = (given.process, given.topic, given.partition)
            was_moved = any(given.at_us <= at_us <= first.at_us for at_us in moved.get(where, ()))
            if not sent_back and not was_moved:
                self.violated(
                    first.at_us,
                    f"{given.process} was given {given.topic}-{given.partition} in generation {given.generation} and "
                    f"read from offset {first.run.first_offset}; group {given.group} had committed {last.row.offset}",
                )


def first_reads(history: History) -> Iterator[FirstRead]:
    """Yields them in the order of reading."""
    given: dict[tuple[str, Place], list[MembershipRow]] = {}
    for row in history.memberships:
        if row.event == "assigned":
            given.setdefault((row.process, (row.topic, row.partition)), []).append(row)
    operations = history.operation_of()
    seen: dict[tuple[str, Place, int], None] = {}
    reads = [run for run in history.runs if run.kind == "read"]
    reads.sort(key=lambda run: (run.process, run.index, run.position))
    for run in reads:
        key = (run.process, (run.topic, run.partition))
        operation = operations.get((run.process, run.index))
        if key not in given or operation is None or operation.type != "ok":
            continue
        times = bisect_right([row.at_us for row in given[key]], operation.invoke_us)
        if times and (*key, times) not in seen:
            seen[*key, times] = None
            yield FirstRead(given[key][times - 1], run, operation.invoke_us, operation.complete_us)


def _last_acked(written: list[Asked], before_us: int) -> Asked | None:
    acked = [each for each in written if each.acked and each.until_us < before_us]
    return max(acked, key=lambda each: (each.invoke_us, each.row.offset), default=None)


def _moves(history: History) -> dict[tuple[str, str, int], list[int]]:
    moved: dict[tuple[str, str, int], list[int]] = {}
    for row in history.resets:
        if row.reason != NO_OFFSET:
            moved.setdefault((row.process, row.topic, row.partition), []).append(row.at_us)
    return moved
