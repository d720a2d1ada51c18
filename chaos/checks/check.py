"""What a check is: one guarantee, fed with what happens, collecting the violations that it saw.

Checks of the mechanisms look at trace rows and at the node after every event, at a price that depends on what the
event touched; checks of what clients saw judge the recorded history at the run's end. They are plain Python and run in
the simulator; the Spark jobs judge recorded runs under the same names. ``watching.py`` gives each check only what it
asks for.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, ClassVar, Self

from reference_broker.core.effects import Effect
from reference_broker.core.events import Event
from reports.columns import ROW_TABLES
from reports.guarantees import GUARANTEES
from reports.rows import (
    AssignmentRow,
    ChangeRow,
    CommitRow,
    CopyRow,
    EndRow,
    HistoryRow,
    MembershipRow,
    MetadataEpochRow,
    MetadataReadRow,
    OperationRow,
    PositionRow,
    ResetRow,
    RunRow,
    TargetRunRow,
    TraceRow,
)

if TYPE_CHECKING:
    from chaos.checks.surroundings import Surroundings
    from reference_broker.core.node import Node

OFFSETS_TOPIC = "__consumer_offsets"
MAX_VIOLATIONS = 20
"""A check keeps so many; one is enough to fail a run."""


@dataclass(frozen=True, slots=True)
class Violation:
    """``guarantee``: its public name; ``story``: what happened, with partition, offset, session and time."""

    guarantee: str
    at_us: int
    story: str


class Check:
    """Base of all checks; each overrides what it wants to see.

    ``guarantee``: a name of ``reports/guarantees.py``; a base class has none. ``rows``: names of the trace rows that it
    wants. ``needs_one_node``: it looks inside one node only, so a live node's own process can run it."""

    guarantee: str = ""
    rows: ClassVar[tuple[str, ...]] = ()
    needs_one_node: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        assert not cls.guarantee or cls.guarantee in GUARANTEES, f"{cls.__name__} judges an unknown guarantee"

    @classmethod
    def made(cls, around: "Surroundings") -> Self:  # noqa: ARG003
        """One for a run."""
        return cls()

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def trace(self, row: TraceRow) -> None:
        """One row of the trace that it asked for, in order."""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        """What a node did with an event (None: its start), before ``node`` is looked at."""

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:
        """After each event (None: after the start). ``thorough``: compare all, not only what was touched."""

    def end(self, history: "History") -> None:
        """All is quiet and recorded."""

    def violated(self, at_us: int, story: str) -> None:
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(self.guarantee, at_us, story))


@dataclass(slots=True)
class History:
    """A run's history rows by table, in the order of recording. ``writes_promised``: whether acknowledged writes must
    survive (not after a power loss without a flush policy that promises it)."""

    operations: list[OperationRow] = field(default_factory=list)
    runs: list[RunRow] = field(default_factory=list)
    positions: list[PositionRow] = field(default_factory=list)
    assignments: list[AssignmentRow] = field(default_factory=list)
    ends: list[EndRow] = field(default_factory=list)
    changes: list[ChangeRow] = field(default_factory=list)
    metadata_reads: list[MetadataReadRow] = field(default_factory=list)
    commits: list[CommitRow] = field(default_factory=list)
    memberships: list[MembershipRow] = field(default_factory=list)
    metadata_epochs: list[MetadataEpochRow] = field(default_factory=list)
    resets: list[ResetRow] = field(default_factory=list)
    copies: list[CopyRow] = field(default_factory=list)
    target_runs: list[TargetRunRow] = field(default_factory=list)
    writes_promised: bool = True
    unpromised: tuple[str, ...] = ()
    """processes whose acknowledged writes may be lost: they ask for one acknowledgement of several replicas"""

    def without(self, places: Sequence[tuple[str, int]]) -> "History":
        """The same without what was read and written in these partitions (topic and index); without all
        commits, if one of them holds committed offsets."""
        if not places:
            return self
        offsets_lost = any(topic == OFFSETS_TOPIC for topic, _ in places)
        return replace(
            self,
            commits=[] if offsets_lost else self.commits,
            runs=[row for row in self.runs if (row.topic, row.partition) not in places],
            positions=[row for row in self.positions if (row.topic, row.partition) not in places],
            assignments=[row for row in self.assignments if (row.topic, row.partition) not in places],
            ends=[row for row in self.ends if (row.topic, row.partition) not in places],
            resets=[row for row in self.resets if (row.topic, row.partition) not in places],
        )

    @property
    def tables(self) -> list[list[HistoryRow]]:
        """All of them, in the order above."""
        return [getattr(self, table.name) for table in ROW_TABLES.values() if hasattr(self, table.name)]

    def add(self, rows: Sequence[HistoryRow]) -> None:
        for row in rows:
            getattr(self, ROW_TABLES[type(row)].name).append(row)

    def operation_of(self) -> dict[tuple[str, int], OperationRow]:
        """Operations by process and index."""
        return {(row.process, row.index): row for row in self.operations}
