"""lso-regression: a leader's last stable offset never goes back within its leader epoch (X-4).

Two answers of one node have an order if one had come before the other was asked for. Only fetches that named the leader
epoch tell which leader answered.
"""

from collections.abc import Iterator

from chaos.checks.check import Check, History
from chaos.checks.values import Place, grouped, place
from reports.rows import PositionRow

Answer = tuple[int, int, int]
"""When it was asked for, when it came, and its last stable offset."""


class LsoRegression(Check):
    guarantee = "lso-regression"

    def end(self, history: History) -> None:
        for leader, rows in grouped(_told(history), lambda each: each[0]).items():
            self.looked_at += len(rows)
            answers = [each[1] for each in rows]
            ends = sorted((came_us, offset) for _, came_us, offset in answers)
            best, at = -1, 0
            for asked_us, came_us, offset in sorted(answers):
                while at < len(ends) and ends[at][0] < asked_us:
                    best, at = max(best, ends[at][1]), at + 1
                if offset < best:
                    self.violated(came_us, f"{leader}: the last stable offset went from {best} back to {offset}")


def _told(history: History) -> Iterator[tuple[tuple[Place, int, int], Answer]]:
    for row in history.positions:
        if row.last_stable_offset < 0 or row.leader_epoch < 0 or row.error is not None:
            continue
        yield from _of_leader(history, row)


def _of_leader(history: History, row: PositionRow) -> Iterator[tuple[tuple[Place, int, int], Answer]]:
    operation = history.operation_of.get((row.process, row.index))
    if operation is not None and operation.node >= 0:
        leader = place(row), operation.node, row.leader_epoch
        yield leader, (operation.invoke_us, operation.complete_us, row.last_stable_offset)
