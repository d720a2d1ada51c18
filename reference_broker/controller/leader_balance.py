"""Elections of preferred leaders, and of unclean ones where a topic allows them (KIP-460).

It checks all partitions every ``leader.imbalance.check.interval.seconds``, but only if topics, brokers or settings have
changed since the last check. So a cluster at rest costs nothing. A new active controller checks at once for partitions
without a leader. Where metadata.version has no transactions, its predecessor may have unfenced a broker and stopped
before it elected that broker.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.controller.changes import ActiveController, Planning, Refusal, Situation
from reference_broker.controller.planning.brokers import cost_of, looks
from reference_broker.controller.planning.partition_changes import Election, PartitionChanges, election_of
from reference_broker.metadata.image import NO_LEADER, MetadataImage, TopicImage
from reference_broker.metadata.records import MetadataRecord, PartitionChangeRecord
from reference_broker.ports.node_ports import Surroundings

MOST_ELECTIONS_AT_ONCE = 1000
"""The limit for one change. Other changes have their turn between two of them."""


@dataclass(slots=True)
class LeaderBalance:
    """Runs on the active controller. ``_asked`` says that a change is queued."""

    surroundings: Surroundings
    config: BrokerConfig
    controller: ActiveController
    _seen: MetadataImage | None = None
    """The metadata at the last check that did not reach the limit."""
    _asked: bool = False
    _timer: int | None = None

    def activated(self) -> None:
        self._seen, self._asked = None, False
        self._timer = self.surroundings.after(0, self._begin)

    def deactivated(self) -> None:
        if self._timer is not None:
            self.surroundings.ports.cancel_timer(self._timer)
            self._timer = None

    def _begin(self) -> None:
        """Elects leaders for partitions without one, after the first records of a new active controller."""
        self._elect(leaderless_only=True)
        self._plan_check()

    def _plan_check(self) -> None:
        interval_us = self.config.leader_imbalance_check_interval_seconds * 1_000_000
        self._timer = self.surroundings.after(interval_us, self._check)

    def _check(self) -> None:
        if not self._asked and not _is_same(self._seen, self.controller.latest):
            self._elect(leaderless_only=False)
        self._plan_check()

    def _elect(self, *, leaderless_only: bool) -> None:
        self._asked = True
        found: list[MetadataRecord] = []

        def plan() -> Planning:
            situation = self.controller.situation()
            latest = situation.latest
            changes = PartitionChanges.of(latest)
            for topic in latest.topics.values():
                for indexes in looks(topic):
                    changed = list(self._elections(changes, situation, topic, indexes, leaderless_only))
                    found.extend(changed)
                    if situation.spend(cost_of(indexes, changed)):
                        yield
                    if len(found) >= MOST_ELECTIONS_AT_ONCE:
                        return found
            self._seen = self._seen if leaderless_only else latest
            return found

        def answered(refusal: Refusal | None) -> None:
            self._asked = False
            if refusal is None and len(found) >= MOST_ELECTIONS_AT_ONCE:
                self._elect(leaderless_only=leaderless_only)

        self.controller.submit(plan, answered, name="balance leaders", atomic=False)

    def _elections(
        self, changes: PartitionChanges, situation: Situation, topic: TopicImage, indexes: range, leaderless_only: bool
    ) -> Iterator[PartitionChangeRecord]:
        allowed = election_of(situation.latest, situation.config, topic.name)
        for index in indexes:
            partition = topic.partitions[index]
            record = None
            if partition.leader == NO_LEADER or changes.lacks_directories(partition):
                record = changes.change(topic, index, election=allowed)
            elif leaderless_only or not self.config.auto_leader_rebalance_enable:
                continue
            elif partition.leader != partition.replicas[0]:
                record = changes.change(topic, index, election=Election.PREFERRED)
            if record is not None:
                yield record


def _is_same(seen: MetadataImage | None, now: MetadataImage) -> bool:
    return (
        seen is not None and seen.topics is now.topics and seen.brokers is now.brokers and seen.configs is now.configs
    )
