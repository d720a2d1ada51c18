"""What transactions sent, and what readers with read_committed saw of it, value by value."""

from dataclasses import dataclass

from chaos.checks.check import History, once
from chaos.checks.values import Place, expanded, grouped, place
from reports.rows import RunRow, TransactionRow

READ_COMMITTED = 1
Value = tuple[Place, str, int]
"""A value's partition, its writer and that writer's number of it."""


@dataclass(frozen=True, slots=True)
class Transacted:
    """One transaction with the runs that it sent."""

    row: TransactionRow
    sends: tuple[RunRow, ...]

    @property
    def is_committed(self) -> bool:
        return self.row.asked == "commit" and self.row.outcome == "ok"

    @property
    def is_refuted(self) -> bool:
        """Whether it can never have been committed."""
        return self.row.asked != "commit" or self.row.outcome == "failed"

    @property
    def story(self) -> str:
        return f"transaction {self.row.index} of {self.row.process} ({self.row.asked}: {self.row.outcome})"

    @property
    def values(self) -> list[tuple[Value, int]]:
        """Each value with its offset. The offset is negative where nobody told it."""
        return [
            ((place(run), each.writer, each.sequence), each.offset if run.first_offset >= 0 else -1)
            for run in self.sends
            for each in expanded(run)
        ]


@once
def transacted(history: History) -> list[Transacted]:
    sends = grouped((run for run in history.runs if run.kind == "send"), lambda run: (run.process, run.index))
    return [Transacted(row, tuple(sends.get((row.process, row.index), ()))) for row in history.transactions]


@once
def shown(history: History) -> dict[Value, tuple[int, str]]:
    """The values that readers with read_committed saw, each with the time and the reader of the first such read."""
    found: dict[Value, tuple[int, str]] = {}
    for run in _committed_runs(history):
        at = history.ended_us(run), run.process
        for each in expanded(run):
            key = place(run), each.writer, each.sequence
            found[key] = min(found.get(key, at), at)
    return found


@once
def shown_offsets(history: History) -> dict[Place, set[int]]:
    """The offsets at which such readers saw a value."""
    found: dict[Place, set[int]] = {}
    for run in _committed_runs(history):
        found.setdefault(place(run), set()).update(range(run.first_offset, run.first_offset + run.count))
    return found


@once
def known_until(history: History) -> dict[Place, int]:
    """The offset up to which such readers know a partition: the highest that they saw, or the last stable one if the
    partition was read to its end."""
    found = {where: max(offsets) for where, offsets in shown_offsets(history).items()}
    for end in history.ends:
        stable = end.high_watermark if end.last_stable_offset < 0 else end.last_stable_offset
        found[place(end)] = max(found.get(place(end), -1), min(stable, end.high_watermark) - 1)
    return found


def missing(each: Transacted, history: History) -> list[tuple[Value, int]]:
    """The values that are not there, although readers with read_committed know the partition up to them."""
    seen, known = shown(history), known_until(history)
    starts = {place(end): end.log_start_offset for end in history.ends}
    return [
        (value, offset)
        for value, offset in each.values
        if value not in seen and starts.get(value[0], 0) <= offset <= known.get(value[0], -1)
    ]


def _committed_runs(history: History) -> list[RunRow]:
    return [
        run
        for run in history.runs
        if run.kind == "read" and run.isolation == READ_COMMITTED and run.valid and run.writer
        # A read that did not end well proves nothing.
        if (operation := history.operation_of.get((run.process, run.index))) is not None and operation.type == "ok"
    ]
