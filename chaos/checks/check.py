"""A check watches one guarantee: it is told what happens, and collects the violations that it saw.

Checks of the mechanisms look at trace rows, and at the node after every event. That costs what the event touched.
Checks of what clients saw judge the recorded history at the run's end. Checks are plain Python and run in the
simulator; the Spark jobs judge recorded runs under the same names. ``watching.py`` gives each check only what it asks
for.
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
    """``guarantee`` is its public name. ``story`` says what happened, with partition, offset, session and time."""

    guarantee: str
    at_us: int
    story: str


class Check:
    """Base of all checks. Each overrides the methods for what it wants to see.

    ``guarantee`` is a name of ``reports/guarantees.py``; a base class has none. ``rows`` names the trace rows that the
    check wants. With ``needs_one_node`` it looks inside one node only, so a live node's own process can run it.
    """

    guarantee: str = ""
    rows: ClassVar[tuple[str, ...]] = ()
    needs_one_node: ClassVar[bool] = False

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        assert not cls.guarantee or cls.guarantee in GUARANTEES, f"{cls.__name__} judges an unknown guarantee"

    @classmethod
    def made(cls, around: "Surroundings") -> Self:  # noqa: ARG003
        """Returns a fresh check for one run."""
        return cls()

    def __init__(self) -> None:
        self.violations: list[Violation] = []

    def trace(self, row: TraceRow) -> None:
        """Called with each trace row that it asked for, in order."""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        """Called with what a node did with an event (None for its start), before ``node`` is called."""

    def node(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:
        """Called after each event (None after the start). ``thorough`` means: compare all, not only what the event
        touched."""

    def end(self, history: "History") -> None:
        """Called at the end, when all is quiet and recorded."""

    def violated(self, at_us: int, story: str) -> None:
        if len(self.violations) < MAX_VIOLATIONS:
            self.violations.append(Violation(self.guarantee, at_us, story))


@dataclass(slots=True)
class History:
    """A run's history rows by table, in the order of recording.

    ``writes_promised`` says whether acknowledged writes must survive. They need not after a power loss, unless a flush
    policy promises it.
    """

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
        """Returns the history without what was read and written in these partitions (topic and index). If one of them
        holds committed offsets, all commits are left out too."""
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
        """Returns all tables, in the order of the fields."""
        return [getattr(self, table.name) for table in ROW_TABLES.values() if hasattr(self, table.name)]

    def add(self, rows: Sequence[HistoryRow]) -> None:
        for row in rows:
            getattr(self, ROW_TABLES[type(row)].name).append(row)

    def operation_of(self) -> dict[tuple[str, int], OperationRow]:
        """Returns the operations by process and index."""
        return {(row.process, row.index): row for row in self.operations}
