"""How each fetcher walked through its partitions, for the checks of skips and repeats.

A read follows another without a gap if no offset that is known to hold a record lies between them. Seeks and new
assignments begin a new walk. X-11: a cleaner may have taken a record before the second read (``keyed.missable``).
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from chaos.checks.history import History, Place, grouped, once, place
from chaos.checks.keyed import NEVER_US, missable_offsets
from reports.rows import OperationRow, ResetRow, RunRow


@dataclass(frozen=True, slots=True)
class Pair:
    """Two neighbouring runs of one process in one partition.

    ``at_us`` is when the second was read. ``skipped`` counts known records between them. With ``back`` the second
    begins at or before the end of the first. With ``inside`` both belong to one operation.
    """

    before: RunRow
    after: RunRow
    at_us: int
    inside: bool
    skipped: int
    back: bool

    @property
    def story(self) -> str:
        last = self.before.first_offset + self.before.count - 1
        return (
            f"{self.after.process}: {self.after.topic}-{self.after.partition} after offset {last} (operation "
            f"{self.before.index}) came {self.after.first_offset} (operation {self.after.index})"
        )


@once
def reads(history: History) -> list[tuple[RunRow, OperationRow]]:
    """Returns what was read by operations that succeeded, each run with its operation, by process and in the order of
    reading. A member asks several nodes at once, so that is the order in which answers came."""
    found = [
        (run, operation)
        for run in history.runs
        if run.kind == "read"
        and (operation := history.operation_of.get((run.process, run.index))) is not None
        and operation.type == "ok"
    ]
    found.sort(key=lambda each: (each[0].process, each[1].complete_us, each[0].index, each[0].position))
    return found


@once
def pairs(history: History) -> list[Pair]:
    """Returns all neighbouring runs of one reader in one partition, in the order of reading."""
    known = known_offsets(history)
    assigned = grouped(history.assignments, lambda row: (row.process, place(row)))
    starts = {key: sorted(row.from_us for row in rows) for key, rows in assigned.items()}
    walks: dict[tuple[str, Place], tuple[RunRow, int]] = {}
    found: list[Pair] = []
    for run, operation in reads(history):
        key = (run.process, place(run))
        begun = bisect_left(starts.get(key, []), operation.complete_us)
        last = walks.get(key)
        walks[key] = (run, begun)
        if last is not None and last[1] == begun:
            offsets, taken = known[place(run), run.isolation], missable_offsets(history).get(place(run), {})
            found.append(_pair(last[0], run, operation.complete_us, offsets, taken))
    return found


def _pair(before: RunRow, after: RunRow, at_us: int, known: list[int], taken: Mapping[int, int]) -> Pair:
    following = before.first_offset + before.count
    between = range(bisect_left(known, following), bisect_left(known, after.first_offset))
    skipped = len(between)
    if taken:
        skipped = sum(taken.get(known[each], NEVER_US) > at_us for each in between)
    return Pair(before, after, at_us, before.index == after.index, skipped, after.first_offset < following)


@once
def known_offsets(history: History) -> dict[tuple[Place, int], list[int]]:
    """Returns the sorted offsets at which somebody read a record, by partition and by the reader's isolation level.

    An acknowledged record that nobody read is lost, and lost-write judges whether it may be. X-4 and X-5: readers with
    read_committed (1) get no records of aborted transactions. So for them only what such readers read counts.
    """
    found: dict[tuple[Place, int], dict[int, None]] = {}
    for run in history.runs:
        if run.kind == "read":
            offsets = dict.fromkeys(range(run.first_offset, run.first_offset + run.count))
            for level in range(run.isolation + 1):
                found.setdefault((place(run), level), {}).update(offsets)
    return {key: sorted(offsets) for key, offsets in found.items()}


def moved_forward(history: History) -> Iterator[ResetRow]:
    """Yields the resets that moved a position forward, possibly over records."""
    return (row for row in history.resets if row.to_offset > max(row.from_offset, 0))
