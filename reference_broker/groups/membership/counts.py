"""What membership counts, for whoever publishes metrics."""

from dataclasses import dataclass, field

from reference_broker.groups.membership.transitions import GroupState


@dataclass(slots=True)
class MembershipCounts:
    """``by_state``: groups now; the rest since the start (Kafka's group-coordinator-metrics)."""

    by_state: dict[GroupState, int] = field(default_factory=lambda: dict.fromkeys(GroupState, 0))
    completed_rebalances: int = 0
    """Generations that became Stable (group-completed-rebalance-count)."""
    expired_members: int = 0
    """Members whose session ended."""

    @property
    def groups(self) -> int:
        return sum(self.by_state.values())
