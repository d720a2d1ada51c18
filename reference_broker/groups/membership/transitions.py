"""The states of a group of the classic protocol, and which may follow which (Kafka's ClassicGroupState)."""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class GroupState(Enum):
    """The value is the name that DescribeGroups and ListGroups tell."""

    EMPTY = "Empty"
    """No members; offsets may be there."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are asked to join again; a generation begins when all have, or the rebalance timeout is over."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The generation has begun, its leader has not said yet who gets what."""
    STABLE = "Stable"
    DEAD = "Dead"
    """Deleted, or coordinated by another node now; nothing follows."""


PREVIOUS: Final[Mapping[GroupState, tuple[GroupState, ...]]] = {
    GroupState.EMPTY: (GroupState.PREPARING_REBALANCE,),
    GroupState.PREPARING_REBALANCE: (GroupState.STABLE, GroupState.COMPLETING_REBALANCE, GroupState.EMPTY),
    GroupState.COMPLETING_REBALANCE: (GroupState.PREPARING_REBALANCE,),
    GroupState.STABLE: (GroupState.COMPLETING_REBALANCE,),
    GroupState.DEAD: (
        GroupState.STABLE,
        GroupState.PREPARING_REBALANCE,
        GroupState.COMPLETING_REBALANCE,
        GroupState.EMPTY,
        GroupState.DEAD,
    ),
}
"""Each state with those that it may follow: the whole transition table."""


def may_follow(before: GroupState, after: GroupState) -> bool:
    """Whether a group in ``before`` may enter ``after``."""
    return before in PREVIOUS[after]
