from collections.abc import Sequence

from chaos.checks.check import Check
from chaos.checks.history import Place, place
from chaos.checks.surroundings import Surroundings
from reports.rows import HistoryRow, MembershipRow

GIVES_UP = ("revoked", "lost")


class AllAssigned(Check):
    """all-assigned: after the heal every partition of a subscribed topic gets one owner in each group, in time.

    The time is that in which Kafka's protocol must come to an assignment: a coordinator is elected and loads, sessions
    of members that are gone run out, and those that are there take part in two rebalances (``World``).

    ``World`` hands in each row as it comes, and asks ``reached`` after the heal.
    """

    guarantee = "all-assigned"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._expected = around.settings.subscribed
        self._owned: dict[str, dict[Place, dict[str, None]]] = {group: {} for group in self._expected}
        """by group and partition: the processes that own it"""

    def recorded(self, rows: Sequence[HistoryRow]) -> None:
        for row in rows:
            if type(row) is MembershipRow and row.group in self._owned:
                self._follow(self._owned[row.group], row)

    @staticmethod
    def _follow(owned: dict[Place, dict[str, None]], row: MembershipRow) -> None:
        if row.event == "assigned":
            owned.setdefault(place(row), {})[row.process] = None
        elif row.event in GIVES_UP:
            owned.get(place(row), {}).pop(row.process, None)
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
