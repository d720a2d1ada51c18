"""What clients ask of committed offsets and what they are told, apart from any version of the messages."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

from reference_broker.groups.offsets.committed_offsets import CommitOffset
from reference_broker.wire.errors import Error

BROKERS_RETENTION = -1


@dataclass(frozen=True, slots=True)
class WantedOffset:
    """One partition of an OffsetCommit."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str | None
    metadata_epoch: int | None = None
    """None means that the version of the request has no such field (M-11)."""


@dataclass(frozen=True, slots=True)
class CommitRequest:
    """OffsetCommit."""

    group_id: str
    generation: int
    """Tools and consumers that assign themselves send -1, with an empty member ID."""
    member_id: str
    group_instance_id: str | None
    offsets: tuple[WantedOffset, ...]
    knows_missing_groups: bool = False
    """The client can be told GROUP_ID_NOT_FOUND (version 9 on). Others are told ILLEGAL_GENERATION."""
    retention_ms: int = BROKERS_RETENTION
    """Replaces ``offsets.retention.minutes`` for these offsets, if it is not BROKERS_RETENTION (versions 2 to 4)."""


@dataclass(frozen=True, slots=True)
class FetchedOffset:
    """One partition of the answer to OffsetFetch. ``commit`` is None if nothing is committed."""

    topic: str
    partition: int
    commit: CommitOffset | None


Committed: TypeAlias = Callable[[list[Error]], None]
"""Told an error for each offset of the request."""
Fetched: TypeAlias = Callable[[Error, list[FetchedOffset]], None]
"""Told an error for the whole group, or what was found."""
Deleted: TypeAlias = Callable[[Error, list[Error]], None]
"""Told an error for the whole group, or one for each partition of the request."""
