"""Keys and values of ``__consumer_offsets`` <-> bytes, in Kafka's layouts.

Each begins with its version (int16). Key versions 0 and 1 are OffsetCommitKey, 2 is GroupMetadataKey. Values are
written as Kafka 4.1 writes them (version 3 of both) and read in versions 0-4; version 4 is flexible. The metadata epoch
is tagged field 10000 (int64) of OffsetCommitValue 4, which Kafka's readers skip (M-8, M-14).
"""

from struct import Struct
from typing import Final

from reference_broker.groups.offsets.group_records import (
    NO_EPOCH,
    NO_METADATA_EPOCH,
    NO_TIMESTAMP,
    CommitOffset,
    GroupKey,
    GroupValue,
    MemberValue,
    OffsetKey,
    RecordKey,
    UnknownKey,
)
from reference_broker.groups.offsets.record_fields import DamagedRecord, FieldReader, FieldWriter

__all__ = [
    "CLASSIC_VALUE",
    "EPOCH_VALUE",
    "METADATA_EPOCH_TAG",
    "DamagedRecord",
    "group_key",
    "group_value",
    "offset_key",
    "offset_value",
    "read_group_value",
    "read_key",
    "read_offset_value",
]

METADATA_EPOCH_TAG: Final = 10_000

OFFSET_KEYS: Final = (0, 1)
"""Versions of OffsetCommitKey: the same layout. Version 1 is written."""
GROUP_KEY: Final = 2
CLASSIC_VALUE: Final = 3
"""Kafka's own version of both values."""
EPOCH_VALUE: Final = 4
"""Of an offset's value, where the metadata epoch is switched on; the first flexible one."""

_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_TWO_INT16 = Struct(">hh")
_OFFSET_HEAD = Struct(">hqi")


def offset_key(group: str, topic: str, partition: int) -> bytes:
    """OffsetCommitKey 1. Written for every committed partition, so in one go."""
    of, at = group.encode(), topic.encode()
    head = _TWO_INT16.pack(OFFSET_KEYS[-1], len(of))
    return b"".join((head, of, _INT16.pack(len(at)), at, _INT32.pack(partition)))


def group_key(group: str) -> bytes:
    """GroupMetadataKey 2."""
    out = FieldWriter(GROUP_KEY)
    out.string(group)
    return bytes(out.data)


def read_key(data: bytes) -> RecordKey:
    """Raises DamagedRecord. A key of a kind that is not read here is an UnknownKey."""
    fields = FieldReader(data)
    if fields.version in OFFSET_KEYS:
        return OffsetKey(fields.string(), fields.string(), fields.int32())
    if fields.version == GROUP_KEY:
        return GroupKey(fields.string())
    return UnknownKey(fields.version)


def offset_value(commit: CommitOffset, version: int) -> bytes:
    """OffsetCommitValue: ``version`` CLASSIC_VALUE has no metadata epoch, EPOCH_VALUE has it (unless it is -1)."""
    head = _OFFSET_HEAD.pack(version, commit.offset, commit.leader_epoch)
    if version < EPOCH_VALUE:
        text = commit.metadata.encode()
        return b"".join((head, _INT16.pack(len(text)), text, _INT64.pack(commit.commit_timestamp_ms)))
    out = FieldWriter(version, flexible_from=EPOCH_VALUE)
    out.data[:] = head
    out.string(commit.metadata)
    out.int64(commit.commit_timestamp_ms)
    epoch = commit.metadata_epoch
    out.tagged({} if epoch == NO_METADATA_EPOCH else {METADATA_EPOCH_TAG: _INT64.pack(epoch)})
    return bytes(out.data)


def read_offset_value(key: OffsetKey, data: bytes) -> CommitOffset:
    """OffsetCommitValue 0-4. Raises DamagedRecord, also for other versions."""
    fields = FieldReader(data, flexible_from=EPOCH_VALUE, greatest=EPOCH_VALUE)
    version = fields.version
    offset = fields.int64()
    leader_epoch = fields.int32() if version >= 3 else NO_EPOCH
    metadata = fields.string()
    commit_ms = fields.int64()
    expire_ms = fields.int64() if version == 1 else NO_TIMESTAMP
    epoch = fields.tagged().get(METADATA_EPOCH_TAG)
    return CommitOffset(
        topic=key.topic,
        partition=key.partition,
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=commit_ms,
        metadata_epoch=NO_METADATA_EPOCH if epoch is None else _epoch_of(epoch),
        expire_timestamp_ms=expire_ms,
    )


def _epoch_of(content: bytes) -> int:
    if len(content) != _INT64.size:
        raise DamagedRecord(f"a metadata epoch has 8 bytes, not {len(content)}")
    return int(_INT64.unpack(content)[0])


def group_value(value: GroupValue) -> bytes:
    """GroupMetadataValue 3. Raises TextTooLong."""
    out = FieldWriter(CLASSIC_VALUE)
    out.string(value.protocol_type)
    out.int32(value.generation)
    out.nullable_string(value.protocol)
    out.nullable_string(value.leader)
    out.int64(value.current_state_timestamp_ms)
    out.length(len(value.members))
    for member in value.members:
        out.string(member.member_id)
        out.nullable_string(member.group_instance_id)
        out.string(member.client_id)
        out.string(member.client_host)
        out.int32(member.rebalance_timeout_ms)
        out.int32(member.session_timeout_ms)
        out.blob(member.subscription)
        out.blob(member.assignment)
    return bytes(out.data)


def read_group_value(data: bytes) -> GroupValue:
    """GroupMetadataValue 0-4. A rebalance timeout that was not recorded is the session timeout. Raises
    DamagedRecord."""
    fields = FieldReader(data, flexible_from=4, greatest=4)
    value = GroupValue(
        protocol_type=fields.string(),
        generation=fields.int32(),
        protocol=fields.nullable_string(),
        leader=fields.nullable_string(),
        current_state_timestamp_ms=fields.int64() if fields.version >= 2 else NO_TIMESTAMP,
        members=tuple(_read_member(fields) for _ in range(fields.length())),
    )
    fields.tagged()
    return value


def _read_member(fields: FieldReader) -> MemberValue:
    version = fields.version
    member_id = fields.string()
    instance_id = fields.nullable_string() if version >= 3 else None
    client_id, client_host = fields.string(), fields.string()
    rebalance_ms = fields.int32() if version >= 1 else -1
    session_ms = fields.int32()
    subscription, assignment = fields.blob(), fields.blob()
    fields.tagged()
    return MemberValue(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_ms if rebalance_ms < 0 else rebalance_ms,
        session_timeout_ms=session_ms,
        subscription=subscription,
        assignment=assignment,
    )
