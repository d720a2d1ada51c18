"""Elections of preferred leaders (KIP-460). Unclean elections take place where they are allowed.

It checks all partitions every ``leader.imbalance.check.interval.seconds``, but only if topics, brokers or settings have
changed since the last check. So a cluster at rest costs nothing. A new active controller checks at once for partitions
without a leader. Where metadata.version has no transactions, its predecessor may have unfenced a broker and stopped
before it elected that broker.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.planning.brokers import cost_of, partition_ranges
from reference_broker.controller.planning.partition_changes import Election, PartitionChangeBuilder, election_of
from reference_broker.controller.write_operations import (
    ActiveController,
    ApiError,
    ControllerWriteOperation,
    PlanContext,
    Records,
    raise_bug,
)
from reference_broker.metadata.image import NO_LEADER, MetadataImage, TopicImage
from reference_broker.metadata.records import MetadataRecord, PartitionChangeRecord
from reference_broker.ports.node_ports import NodeContext
from reference_broker.ports.slicing import Sliced

MAX_ELECTIONS_AT_ONCE = 1000
"""The limit for one change. Other changes have their turn between two of them."""


@dataclass(slots=True)
class LeaderBalancer:
    """The periodic elections of preferred leaders, and of leaders for partitions without one, on the active
    controller."""

    node: NodeContext
    config: BrokerConfig
    controller: ActiveController
    _checked: MetadataImage | None = None
    """The metadata of the last check that covered all partitions."""
    _is_queued: bool = False
    """A change is queued, and not completed yet."""
    _timer: int | None = None

    def activated(self) -> None:
        self._checked, self._is_queued = None, False
        self._timer = self.node.after(0, self._begin)

    def deactivated(self) -> None:
        if self._timer is not None:
            self.node.ports.cancel_timer(self._timer)
            self._timer = None

    def _begin(self) -> None:
        """Elect leaders for partitions without one, after the first records of a new active controller."""
        self._elect(leaderless_only=True)
        self._plan_check()

    def _plan_check(self) -> None:
        interval_us = self.config.leader_imbalance_check_interval_seconds * 1_000_000
        self._timer = self.node.after(interval_us, self._check)

    def _check(self) -> None:
        if not self._is_queued and not _is_same(self._checked, self.controller.latest):  # Decision leader-balance-due
            self._elect(leaderless_only=False)
        self._plan_check()

    def _elect(self, *, leaderless_only: bool) -> None:
        self._is_queued = True
        elections = LeaderElections(leaderless_only, self.config.auto_leader_rebalance_enable)

        def completed(refusal: ApiError | None) -> None:
            self._is_queued = False
            if elections.checked is not None and not leaderless_only:
                self._checked = elections.checked
            if refusal is None and len(elections.records) >= MAX_ELECTIONS_AT_ONCE:
                self._elect(leaderless_only=leaderless_only)

        self.controller.append_write_event(elections, completed, raise_bug)


@dataclass(slots=True)
class LeaderElections(ControllerWriteOperation[ApiError | None]):
    """Elections in all partitions that need one, up to the limit."""

    name = "balance leaders"
    atomic = False

    leaderless_only: bool
    """Whether only partitions without a leader get one."""
    prefers_first: bool
    """Whether the first replica becomes leader where another one leads (``auto.leader.rebalance.enable``)."""
    records: list[MetadataRecord] = field(default_factory=list)
    checked: MetadataImage | None = None
    """The metadata that was checked, or None if the limit was reached."""

    def plan(self, context: PlanContext) -> Sliced[Records]:
        latest = context.latest
        changes = PartitionChangeBuilder.of(latest)
        for topic in latest.topics.values():
            for indexes in partition_ranges(topic):
                changed = list(self._elections(changes, context, topic, indexes))
                self.records.extend(changed)
                if context.spend(cost_of(indexes, changed)):
                    yield
                if len(self.records) >= MAX_ELECTIONS_AT_ONCE:
                    return self.records
        self.checked = latest
        return self.records

    def outcome(self, refused: ApiError | None) -> ApiError | None:
        return refused

    def _elections(
        self, changes: PartitionChangeBuilder, context: PlanContext, topic: TopicImage, indexes: range
    ) -> Iterator[PartitionChangeRecord]:
        allowed = election_of(context.latest, context.config, topic.name)
        for index in indexes:
            partition = topic.partitions[index]
            record = None
            # Decision partition-needs-election
            if partition.leader == NO_LEADER or changes.lacks_directories(partition):
                record = changes.change(topic, index, election=allowed)
            elif self.leaderless_only or not self.prefers_first:
                continue
            elif partition.leader != partition.replicas[0]:  # Decision preferred-leader
                record = changes.change(topic, index, election=Election.PREFERRED)
            if record is not None:
                yield record


def _is_same(seen: MetadataImage | None, now: MetadataImage) -> bool:
    return (
        seen is not None and seen.topics is now.topics and seen.brokers is now.brokers and seen.configs is now.configs
    )
