"""The records of ``__consumer_offsets``, as Kafka's schemas declare them (group-coordinator/src/main/resources, 4.1).

OffsetCommitKey and OffsetCommitValue, GroupMetadataKey and GroupMetadataValue: the classic protocol's. Their bytes are
in ``group_record_codec``. Keys of Kafka's newer kinds of groups (consumer, share, streams) are known by their
type only.
"""

from dataclasses import dataclass
from typing import NamedTuple, TypeAlias

NO_METADATA_EPOCH = -1
"""None was recorded: an older value, or a client that knows of none (M-11)."""

NO_EPOCH = -1
NO_TIMESTAMP = -1


class OffsetKey(NamedTuple):
    """Whose offset it is: one group's, of one partition. A tuple, since each commit looks it up several times."""

    group: str
    topic: str
    partition: int


@dataclass(frozen=True, slots=True)
class GroupKey:
    """A group's members and generation."""

    group: str


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """A record of a kind that is not read here. ``kind``: the key's version number."""

    kind: int


RecordKey: TypeAlias = OffsetKey | GroupKey | UnknownKey


@dataclass(frozen=True, slots=True)
class CommitOffset:
    """One partition's committed offset.

    ``leader_epoch``: of the last record before it, -1 unknown. ``metadata``: the client's text.
    ``metadata_epoch``: of the client's last accepted metadata, -1 where none was recorded (M-6, M-11).
    ``expire_timestamp_ms``: told by a client of long ago, in place of the broker's retention; -1: none.
    """

    topic: str
    partition: int
    offset: int
    leader_epoch: int
    metadata: str
    commit_timestamp_ms: int
    metadata_epoch: int = NO_METADATA_EPOCH
    expire_timestamp_ms: int = NO_TIMESTAMP


@dataclass(frozen=True, slots=True)
class MemberValue:
    """A member of a recorded group. ``subscription`` and ``assignment`` are bytes of the clients' own protocol."""

    member_id: str
    group_instance_id: str | None
    client_id: str
    client_host: str
    rebalance_timeout_ms: int
    session_timeout_ms: int
    subscription: bytes
    assignment: bytes


@dataclass(frozen=True, slots=True)
class GroupValue:
    """A recorded generation. ``protocol_type`` is empty and ``protocol`` and ``leader`` are None where there is none.

    ``current_state_timestamp_ms``: since when the group has been in its state; -1 unknown.
    """

    protocol_type: str
    generation: int
    protocol: str | None
    leader: str | None
    current_state_timestamp_ms: int
    members: tuple[MemberValue, ...]


RecordValue: TypeAlias = CommitOffset | GroupValue | None
"""None: a tombstone."""
