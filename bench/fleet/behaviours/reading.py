from collections.abc import Sequence
from dataclasses import dataclass, field

from bench.fleet.behaviours.habits import VARIANTS, FetcherPlan, Habits
from bench.fleet.behaviours.journal import AssignmentBook
from bench.fleet.behaviours.protocol import Chance, TopicPartition
from reference_broker.client.consumer import ConsumerState


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
