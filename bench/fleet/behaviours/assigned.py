"""Records since when a client fetches each partition, and decides what a fetcher drops, takes back and seeks."""

from dataclasses import dataclass, field

from bench.fleet.behaviours.journal import Journal
from bench.fleet.behaviours.protocol import HistoryRow, TopicPartition
from reports.rows import AssignmentRow


@dataclass(frozen=True, slots=True)
class Assignment:
    """One partition that is fetched. ``from_offset`` is the position at the beginning."""

    from_us: int
    from_offset: int


@dataclass(slots=True)
class AssignmentBook:
    """Records each assignment when it ends. ``running`` holds the assignments that have not ended."""

    journal: Journal
    running: dict[TopicPartition, Assignment] = field(default_factory=dict)

    def begin(self, where: TopicPartition, offset: int) -> None:
        """The partition is fetched from now on. Nothing changes if it was fetched before."""
        if where not in self.running:
            self.running[where] = Assignment(self.journal.now.mono_us, offset)

    def move(self, where: TopicPartition, offset: int) -> None:
        """A seek ends one assignment and begins another."""
        if where in self.running:
            self.end(where)
            self.begin(where, offset)

    def end(self, where: TopicPartition) -> None:
        """The partition is not fetched any more."""
        if where in self.running:
            self.journal.record(self._row(where, self.journal.now.mono_us))

    def end_all(self, until_us: int) -> list[HistoryRow]:
        """Ends all running assignments and returns their rows."""
        return [self._row(where, until_us) for where in list(self.running)]

    def _row(self, where: TopicPartition, until_us: int) -> AssignmentRow:
        assigned = self.running.pop(where)
        return AssignmentRow(self.journal.process, *where, assigned.from_us, until_us, assigned.from_offset)


