"""What a coordinator counts, under Kafka's names (GroupMetadataManager, group-coordinator-metrics)."""

from reference_broker.groups.state.states import GroupState
from reference_broker.metrics.metrics import Counter, Gauge, Histogram, Metrics

_MANAGER = ("kafka.coordinator.group", "GroupMetadataManager")
_COORDINATOR = ("kafka.server", "group-coordinator-metrics")


class GroupMetrics:
    """The parts of the coordinator count here themselves."""

    def __init__(self, metrics: Metrics) -> None:
        self.offsets: Gauge = metrics.gauge(*_MANAGER, "NumOffsets")
        """Visible commits of all partitions that are led here."""
        self.commits: Counter = metrics.counter(*_COORDINATOR, "offset-commit-count")
        self.expirations: Counter = metrics.counter(*_COORDINATOR, "offset-expiration-count")
        self.deletions: Counter = metrics.counter(*_COORDINATOR, "offset-deletion-count")
        self.loading: Gauge = metrics.gauge(*_COORDINATOR, "num-partitions", state="loading")
        self.load_time_ms: Histogram = metrics.histogram(*_COORDINATOR, "partition-load-time")
        self.groups: Gauge = metrics.gauge(*_MANAGER, "NumGroups")
        self.rebalances: Counter = metrics.counter(*_COORDINATOR, "group-completed-rebalance-count")
        """Generations that became Stable."""
        self.by_state = {state: metrics.gauge(*_MANAGER, f"NumGroups{state.value}") for state in GroupState}

    def count(self, state: GroupState, change: int) -> None:
        """One group more (1) or less (-1) is in this state."""
        self.groups.value += change
        self.by_state[state].value += change
