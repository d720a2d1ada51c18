"""What a coordinator counts, under Kafka's names (GroupMetadataManager, group-coordinator-metrics)."""

from reference_broker.groups.membership.counts import MembershipCounts
from reference_broker.groups.membership.transitions import GroupState
from reference_broker.metrics.metrics import Counter, Gauge, Histogram, Metrics

_MANAGER = ("kafka.coordinator.group", "GroupMetadataManager")
_COORDINATOR = ("kafka.server", "group-coordinator-metrics")


class GroupMetrics:
    """``offsets``: visible commits of all loaded partitions."""

    __slots__ = (
        "_by_state",
        "_groups",
        "_rebalances",
        "commits",
        "deletions",
        "expirations",
        "load_time_ms",
        "loading",
        "offsets",
    )

    def __init__(self, metrics: Metrics) -> None:
        self.offsets: Gauge = metrics.gauge(*_MANAGER, "NumOffsets")
        self.commits: Counter = metrics.counter(*_COORDINATOR, "offset-commit-count")
        self.expirations: Counter = metrics.counter(*_COORDINATOR, "offset-expiration-count")
        self.deletions: Counter = metrics.counter(*_COORDINATOR, "offset-deletion-count")
        self.loading: Gauge = metrics.gauge(*_COORDINATOR, "num-partitions", state="loading")
        self.load_time_ms: Histogram = metrics.histogram(*_COORDINATOR, "partition-load-time")
        self._groups = metrics.gauge(*_MANAGER, "NumGroups")
        self._rebalances = metrics.counter(*_COORDINATOR, "group-completed-rebalance-count")
        self._by_state = {state: metrics.gauge(*_MANAGER, f"NumGroups{state.value}") for state in GroupState}

    def take(self, counts: MembershipCounts) -> None:
        """What membership has counted by now."""
        self._groups.value = counts.groups
        self._rebalances.value = counts.completed_rebalances
        for state, gauge in self._by_state.items():
            gauge.value = counts.by_state[state]
