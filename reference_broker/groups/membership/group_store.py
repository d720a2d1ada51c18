"""What membership asks of the coordinator's other half: where a group lives, and that it be written."""

from collections.abc import Callable, Iterable
from typing import Protocol, TypeAlias

from reference_broker.groups.membership.group import Group
from reference_broker.wire.errors import Error

Written: TypeAlias = Callable[[Error], None]
"""Told once: NONE when the record is replicated, else an error that clients are told as it is."""


class Coordinated(Protocol):
    """One partition of ``__consumer_offsets`` that is led here and loaded."""

    @property
    def partition(self) -> int:
        """Its index."""
        ...

    @property
    def groups(self) -> dict[str, Group]:
        """All its groups by ID. Membership adds and removes them; whoever commits offsets of an unknown group without
        members (generation below 0) adds ``Group(group_id, now_ms)``."""
        ...

    def write_group(self, group: Group, written: Written) -> None:
        """Appends the group as it is at this moment: generation, leader, members with their selected metadata and
        assignment.

        ``written`` may be told before this returns, and is told even when the partition is unloaded meanwhile
        (NOT_COORDINATOR). Errors are mapped: UNKNOWN_TOPIC_OR_PARTITION, NOT_ENOUGH_REPLICAS (also after the append)
        and REQUEST_TIMED_OUT are COORDINATOR_NOT_AVAILABLE; NOT_LEADER_OR_FOLLOWER and KAFKA_STORAGE_ERROR
        NOT_COORDINATOR; too large batches UNKNOWN_SERVER_ERROR.
        """
        ...

    def remove_group(self, group_id: str, written: Written) -> bool:
        """Appends tombstones of the group and of all its committed offsets. Whether they are in the log: only then the
        group is to be dropped from ``groups``. ``written`` as above."""
        ...


class GroupStore(Protocol):
    """All that this node coordinates."""

    def find(self, group_id: str) -> Coordinated | Error:
        """INVALID_GROUP_ID, NOT_COORDINATOR, COORDINATOR_LOAD_IN_PROGRESS or COORDINATOR_NOT_AVAILABLE if it is not
        coordinated here now. The empty group ID is refused by the caller where Kafka refuses it."""
        ...

    def active(self) -> Iterable[Coordinated]:
        """Every loaded partition, by index."""
        ...

    def loading(self) -> bool:
        """Whether a partition that is led here is not loaded yet."""
        ...
