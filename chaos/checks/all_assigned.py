"""all-assigned: after the heal every partition of a subscribed topic gets one owner in each group, in time."""

from collections.abc import Mapping, Sequence
from typing import Self

from chaos.checks.check import Check
from chaos.checks.surroundings import Surroundings
from chaos.checks.values import Place
from reports.rows import HistoryRow, MembershipRow

GIVES_UP = ("revoked", "lost")


class AllAssigned(Check):
    """``expected`` holds the partitions that each group's members subscribe to together. The player of the run hands in
    each row as it comes, and asks ``reached`` after the heal."""

    guarantee = "all-assigned"

    def __init__(self, expected: Mapping[str, Sequence[Place]]) -> None:
        super().__init__()
        self._expected = expected
        self._owned: dict[str, dict[Place, dict[str, None]]] = {group: {} for group in expected}
        """Owners (processes) by partition."""

    @classmethod
    def made(cls, around: Surroundings) -> Self:
        return cls(around.settings.subscribed)

    def recorded(self, rows: Sequence[HistoryRow]) -> None:
        for row in rows:
            if type(row) is MembershipRow and row.group in self._owned:
                self._follow(self._owned[row.group], row)

    @staticmethod
    def _follow(owned: dict[Place, dict[str, None]], row: MembershipRow) -> None:
        if row.event == "assigned":
            owned.setdefault((row.topic, row.partition), {})[row.process] = None
        elif row.event in GIVES_UP:
            owned.get((row.topic, row.partition), {}).pop(row.process, None)
        elif row.event == "left":
            for owners in owned.values():
                owners.pop(row.process, None)

    def reached(self) -> bool:
        return not any(self._wrong(group) for group in self._expected)

    def overdue(self, at_us: int, after_us: int) -> None:
        """Reports the violation: the assignment was not reached in that time."""
        for group in self._expected:
            for where, owners in self._wrong(group):
                told = " and ".join(owners) or "nobody"
                self.violated(
                    at_us, f"group {group}: {where[0]}-{where[1]} has {told} {after_us / 1e6:g} s after the heal"
                )

    def _wrong(self, group: str) -> list[tuple[Place, dict[str, None]]]:
        owned = self._owned[group]
        found = [(where, owned.get(where, {})) for where in self._expected[group]]
        return [each for each in found if len(each[1]) != 1]
