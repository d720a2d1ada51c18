"""What a fetcher reads and from where: its assignments, which it drops, takes back and moves as its habits say."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from bench.fleet.behaviours.chance import Chance
from bench.fleet.behaviours.cluster import ClusterScript
from bench.fleet.behaviours.habits import VARIANTS, FetcherPlan
from bench.fleet.behaviours.protocol import ClientSettings, HistoryRow, TopicPartition
from reference_broker.client.consumer import ConsumerState
from reports.rows import END_OF_RUN_US, AssignmentRow


@dataclass(slots=True)
class Assigned:
    from_us: int
    from_offset: int


class AssignedScript(ClusterScript):
    """``dropped``: partitions that it does not want at the moment. ``assigned``: those that a broker was asked for."""

    def __init__(self, plan: FetcherPlan, settings: ClientSettings, random: Chance) -> None:
        super().__init__(plan.process, settings, random, [each.topic for each in plan.partitions])
        self.plan = plan
        self.habits = VARIANTS[plan.variant]
        self.consumer = ConsumerState()
        self.dropped: frozenset[TopicPartition] = frozenset()
        self.assigned: dict[TopicPartition, Assigned] = {}
        self.polls = 0

    def still_open(self) -> list[HistoryRow]:
        until_us = self.now.mono_us if self.leaving else END_OF_RUN_US
        return [self._assignment_row(where, until_us) for where in list(self.assigned)]

    def _change_mind(self) -> None:
        """Before a poll: drop, take back or seek, as the habits say. Nothing is dropped once load has ended."""
        hot = self.plan.partitions[1:]
        forget, seek = self.habits.forget_every, self.habits.seek_every
        if self.stopping:
            self.dropped = frozenset()
        elif forget and hot and self.polls % forget == forget - 1:
            self.dropped = frozenset() if self.dropped else self._some(hot)
        elif seek and hot and self.polls % seek == seek - 1:
            for where in self._in_order(hot, self._some(hot)):
                self._seek(where, max(0, self.consumer.positions[where].log_start_offset))

    def _some(self, hot: Sequence[TopicPartition]) -> frozenset[TopicPartition]:
        return frozenset(self.random.sample(hot, max(1, len(hot) // 5)))

    @staticmethod
    def _in_order(hot: Sequence[TopicPartition], chosen: frozenset[TopicPartition]) -> list[TopicPartition]:
        return [each for each in hot if each in chosen]

    def _seek(self, where: TopicPartition, offset: int) -> None:
        if where in self.assigned:
            self.record(self._assignment_row(where, self.now.mono_us))
            self.assigned[where] = Assigned(self.now.mono_us, offset)
        self.consumer.seek(where, offset)

    def _assign(self, partitions: Iterable[TopicPartition]) -> None:
        """A broker is asked for them from now on."""
        for where in partitions:
            if where not in self.assigned:
                self.assigned[where] = Assigned(self.now.mono_us, self.consumer.positions[where].offset)

    def _unassign(self, where: TopicPartition) -> None:
        self.record(self._assignment_row(where, self.now.mono_us))

    def _assignment_row(self, where: TopicPartition, until_us: int) -> AssignmentRow:
        assigned = self.assigned.pop(where)
        return AssignmentRow(self.process, *where, assigned.from_us, until_us, assigned.from_offset)
