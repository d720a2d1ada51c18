"""What a committed offset says, and whose it is."""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

NO_METADATA_EPOCH = -1
"""No metadata epoch was recorded: the value is older, or the client knows of none (M-11)."""
NO_EPOCH = -1
NO_TIMESTAMP = -1
MAX_TIMESTAMP_MS = 2**63 - 1


class OffsetKey(NamedTuple):
    """Whose offset it is: that of one group, for one partition. It is a tuple, since each commit looks it up often."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class CommitOffset:
    """The committed offset of one partition."""

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    """The leader epoch of the last record before the offset, -1 if it is unknown."""
    metadata: str
    """A text of the client."""
    commit_timestamp_ms: int
    metadata_epoch: int = NO_METADATA_EPOCH
    """The epoch of the last metadata that the client had accepted (M-6, M-11)."""
    expire_timestamp_ms: int = NO_TIMESTAMP
    """Clients of long ago set it. It replaces the broker's retention; -1 stands for none."""

    def due_ms(self, retention_ms: int) -> int:
        """Returns the earliest Unix time at which it may expire, if the broker's retention is ``retention_ms``."""
        given_ms = self.expire_timestamp_ms
        return self.commit_timestamp_ms + retention_ms if given_ms == NO_TIMESTAMP else given_ms


Change: TypeAlias = tuple[OffsetKey, CommitOffset | None]
"""None means that the offset is removed."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A commit that is visible."""

    commit: CommitOffset
    end_offset: int
    """One past the last record of the batch with which the commit came."""
