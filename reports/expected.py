"""What a judge can know of runs before they end."""

from dataclasses import dataclass
from typing import Final

from reports import schema

SELDOM: Final = frozenset(
    (
        *("keyed_writes", "views", "changes", "metadata_reads", "commits", "memberships", "metadata_epochs", "resets"),
        *("transactions", "told_transactions", "transforms", "copies", "target_runs"),
    )
)
"""Tables that only some loads leave."""
_OF_FOREIGN: Final = frozenset(("frames", "frame_lines"))


@dataclass(frozen=True, slots=True)
class Expected:
    """How many runs there are, whether their broker is not ours, and which tables of SELDOM they can leave.

    The judge's queries depend on this. Runs that turn out otherwise are judged as if nobody had expected anything.
    """

    runs: int = 1
    foreign: bool = False
    seldom: frozenset[str] = SELDOM

    @property
    def present(self) -> frozenset[tuple[int, str]]:
        """(run, table name) for all tables that such runs can leave."""
        absent = (SELDOM - self.seldom) | (frozenset() if self.foreign else _OF_FOREIGN)
        names = [table.name for table in schema.TABLES if table.name not in absent]
        return frozenset((run, name) for run in range(self.runs) for name in names)
