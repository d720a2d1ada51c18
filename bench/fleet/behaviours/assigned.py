"""Records since when a client fetches each partition, and decides what a fetcher drops, takes back and seeks."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.fleet.behaviours.chance import Chance
from bench.fleet.behaviours.habits import VARIANTS, FetcherPlan, Habits
from bench.fleet.behaviours.journal import Journal
from bench.fleet.behaviours.protocol import HistoryRow, TopicPartition
from reference_broker.client.consumer import ConsumerState
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


@dataclass(slots=True)
class Reading:
    """What one fetcher reads, as its habits say. ``dropped`` holds the partitions that it does not want now."""

    plan: FetcherPlan
    random: Chance
    book: AssignmentBook
    consumer: ConsumerState = field(default_factory=ConsumerState)
    dropped: frozenset[TopicPartition] = frozenset()
    polls: int = 0

    @property
    def habits(self) -> Habits:
        return VARIANTS[self.plan.variant]

    def change_mind(self, stopping: bool) -> None:
        """Drops, takes back or seeks partitions before a poll. Nothing is dropped after the load has ended."""
        hot = self.plan.partitions[1:]
        forget, seek = self.habits.forget_every, self.habits.seek_every
        if stopping:
            self.dropped = frozenset()
        elif forget and hot and self.polls % forget == forget - 1:
            wanted = frozenset(self.plan.partitions) if self.habits.forgets_all else self._some(hot)
            self.dropped = frozenset() if self.dropped else wanted
        elif seek and hot and self.polls % seek == seek - 1:
            chosen = self._some(hot)
            for where in [each for each in hot if each in chosen]:
                self.seek(where, max(0, self.consumer.positions[where].log_start_offset))

    def _some(self, hot: Sequence[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(self.random.sample(hot, max(1, len(hot) // 5)))

    def seek(self, where: TopicPartition, offset: int) -> None:
        self.book.move(where, offset)
        self.consumer.seek(where, offset)
