"""Metrics of a group coordinator, under Kafka's names: GroupMetadataManager and group-coordinator-metrics."""

from reference_broker.groups.group import GroupState
from reference_broker.metrics.metrics import Metrics

_MANAGER = ("kafka.coordinator.group", "GroupMetadataManager")
_COORDINATOR = ("kafka.server", "group-coordinator-metrics")


class GroupMetrics:
    """The counters and gauges of a group coordinator, which its parts change themselves."""

    def __init__(self, metrics: Metrics) -> None:
        self.offsets = metrics.gauge(*_MANAGER, "NumOffsets")
        """Visible commits of all partitions that are led here."""
        self.commits = metrics.counter(*_COORDINATOR, "offset-commit-count")
        self.expirations = metrics.counter(*_COORDINATOR, "offset-expiration-count")
        self.deletions = metrics.counter(*_COORDINATOR, "offset-deletion-count")
        self.loading = metrics.gauge(*_COORDINATOR, "num-partitions", state="loading")
        self.load_time_ms = metrics.histogram(*_COORDINATOR, "partition-load-time")
        self.groups = metrics.gauge(*_MANAGER, "NumGroups")
        self.rebalances = metrics.counter(*_COORDINATOR, "group-completed-rebalance-count")
        """Generations that became Stable."""
        self.by_state = {state: metrics.gauge(*_MANAGER, f"NumGroups{state.value}") for state in GroupState}

    def count(self, state: GroupState, change: int) -> None:
        """Count one group more (1) or less (-1) in this state."""
        self.groups.value += change
        self.by_state[state].value += change
