"""Facts about runs that are known before their end: the history tables that they can have."""

from dataclasses import dataclass
from typing import Final

from reports import schema

SELDOM: Final = frozenset(
    (
        *("keyed_writes", "views", "changes", "metadata_reads", "commits", "memberships", "metadata_epochs", "resets"),
        *("transactions", "described_transactions", "transforms", "copies", "target_runs"),
    )
)
"""Tables that only some loads leave."""
_OF_EXTERNAL: Final = frozenset(("frames", "frame_lines"))


@dataclass(frozen=True, slots=True)
class Expected:
    """Which tables of SELDOM each run can leave, whether the broker of all of them is not ours, and how long the
    brokers of each keep the ID of an idle producer (Kafka's default if none are given).

    The queries depend on this. For runs that turn out otherwise the queries are planned at the end.
    """

    seldom: tuple[frozenset[str], ...] = (SELDOM,)
    external: bool = False
    producer_expirations_us: tuple[int, ...] = ()

    @property
    def runs(self) -> int:
        return len(self.seldom)

    @property
    def present(self) -> frozenset[tuple[int, str]]:
        """(run, table name) for all tables that such runs can leave."""
        names = {table.name for table in schema.TABLES} - SELDOM - (frozenset() if self.external else _OF_EXTERNAL)
        return frozenset((run, name) for run, seldom in enumerate(self.seldom) for name in names | seldom)
