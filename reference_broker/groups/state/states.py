"""The states of a group of the classic protocol, and the steps between them (Kafka's ClassicGroupState).

A group without members is Empty. Whatever changes who its members are begins a rebalance: every member is asked to join
again (PreparingRebalance). When all have joined, or the time for it is over, a generation begins. Its leader decides
which member gets what (CompletingRebalance). Once that assignment is stored the group is Stable, until the next
rebalance. ``TRANSITIONS`` is the whole table; a step that is not in it is a bug of ours.
"""

from collections.abc import Mapping
from enum import Enum
from typing import Final


class GroupState(Enum):
    """The value is the name that DescribeGroups and ListGroups tell."""

    EMPTY = "Empty"
    """The group has no members. It may have committed offsets."""
    PREPARING_REBALANCE = "PreparingRebalance"
    """Members are asked to join again. A generation begins when all have, or when the rebalance timeout is over."""
    COMPLETING_REBALANCE = "CompletingRebalance"
    """The generation has begun. Its leader has not said yet who gets what."""
    STABLE = "Stable"
    """Every member can ask for its part of the assignment."""
    DEAD = "Dead"
    """The group is deleted, or another node coordinates it now. Nothing follows."""


class Step(Enum):
    """What may happen to a group. The value completes the sentence "the group ..."."""

    REBALANCE = "begins a rebalance"
    GENERATION = "begins a generation"
    LAST_MEMBER_GONE = "begins a generation without members"
    ASSIGNMENT = "gets its assignment"
    END = "ends"


TRANSITIONS: Final[Mapping[tuple[GroupState, Step], GroupState]] = {
    (GroupState.EMPTY, Step.REBALANCE): GroupState.PREPARING_REBALANCE,
    (GroupState.COMPLETING_REBALANCE, Step.REBALANCE): GroupState.PREPARING_REBALANCE,
    (GroupState.STABLE, Step.REBALANCE): GroupState.PREPARING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, Step.GENERATION): GroupState.COMPLETING_REBALANCE,
    (GroupState.PREPARING_REBALANCE, Step.LAST_MEMBER_GONE): GroupState.EMPTY,
    (GroupState.COMPLETING_REBALANCE, Step.ASSIGNMENT): GroupState.STABLE,
    **{(each, Step.END): GroupState.DEAD for each in GroupState},
}
"""The state that follows, by state and step."""
