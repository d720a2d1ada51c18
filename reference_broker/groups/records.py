"""The records of ``__consumer_offsets`` as bytes. The layouts are Kafka's (group-coordinator/src/main/resources, 4.1).

Each key and value begins with its version (int16). Key versions 0 and 1 are OffsetCommitKey, 2 is GroupMetadataKey.
Both values are written in version 3, as Kafka 4.1 writes them, and read in versions 0-4; version 4 is flexible. An
offset with an expiration is written in version 1, as in Kafka: no other version has a field for that. The metadata
epoch is tagged field 10000 (int64) of OffsetCommitValue 4, which Kafka's readers skip (M-8, M-14). A commit with both
has its expiration in tagged field 10001 (int64) there. Keys of Kafka's newer kinds of groups (consumer, share, streams)
are known by their version only.
"""

from dataclasses import dataclass
from struct import Struct
from typing import Final, TypeAlias

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.coordination.record_fields import MAX_TEXT_BYTES, DamagedRecord, FieldReader, FieldWriter, fits
from reference_broker.groups.classic_requests import MemberProtocol
from reference_broker.groups.committed_offsets import NO_EPOCH, NO_METADATA_EPOCH, NO_TIMESTAMP, CommitOffset, OffsetKey
from reference_broker.groups.group import Group, Member
from reference_broker.metadata.identifiers import OFFSETS_TOPIC
from reference_broker.metadata.image import MetadataImage
from reference_broker.wire.decoding import primitive_reader

METADATA_EPOCH_TAG: Final = 10_000
EXPIRE_TIMESTAMP_TAG: Final = 10_001

OFFSET_KEYS: Final = (0, 1)
"""The versions of OffsetCommitKey, which have the same layout. Version 1 is written."""
GROUP_KEY: Final = 2
CLASSIC_VALUE: Final = 3
"""The version in which Kafka writes both values."""
EXPIRING_VALUE: Final = 1
"""The version of an offset's value that says when it expires, unless it has a metadata epoch. It has neither epoch."""
EPOCH_VALUE: Final = 4
"""The version of an offset's value where the metadata epoch is switched on. It is the first flexible one."""

_INT64_READER: Final = primitive_reader("int64", flexible=True, nullable=False)
_TAGGED_READERS: Final = {METADATA_EPOCH_TAG: _INT64_READER, EXPIRE_TIMESTAMP_TAG: _INT64_READER}
_INT16 = Struct(">h")
_INT32 = Struct(">i")
_INT64 = Struct(">q")
_TWO_INT16 = Struct(">hh")
_TWO_INT64 = Struct(">qq")
_OFFSET_HEAD = Struct(">hqi")
_EXPIRING_HEAD = Struct(">hqh")


@dataclass(frozen=True, slots=True)
class GroupKey:
    """The key of a group's members and generation."""

    group: str


@dataclass(frozen=True, slots=True)
class UnknownKey:
    """The key of a record that is not read here."""

    kind: int
    """The version number of the key."""


RecordKey: TypeAlias = OffsetKey | GroupKey | UnknownKey

# --- keys -------------------------------------------------------------------------------------------------------------


def offset_key(group: str, topic: str, partition: int) -> bytes:
    """OffsetCommitKey 1. It is written for every committed partition, hence without a FieldWriter."""
    of, at = group.encode(), topic.encode()
    head = _TWO_INT16.pack(OFFSET_KEYS[-1], len(of))
    return b"".join((head, of, _INT16.pack(len(at)), at, _INT32.pack(partition)))


def group_key(group: str) -> bytes:
    """GroupMetadataKey 2."""
    out = FieldWriter(GROUP_KEY)
    out.string(group)
    return bytes(out.data)


def read_key(data: bytes) -> RecordKey:
    """Raise DamagedRecord. The key of a kind of record that is not read here is an UnknownKey."""
    fields = FieldReader(data)
    if fields.version in OFFSET_KEYS:
        return OffsetKey(fields.string(), fields.string(), fields.int32())
    if fields.version == GROUP_KEY:
        return GroupKey(fields.string())
    return UnknownKey(fields.version)


# --- committed offsets ------------------------------------------------------------------------------------------------


def offset_value(commit: CommitOffset, version: int) -> bytes:
    """OffsetCommitValue. Version CLASSIC_VALUE has no metadata epoch; EPOCH_VALUE has it, unless it is -1. A commit
    that says when it expires and has no metadata epoch becomes EXPIRING_VALUE, whatever ``version`` is."""
    epoch, expires = commit.metadata_epoch, commit.expire_timestamp_ms != NO_TIMESTAMP
    if expires and (version < EPOCH_VALUE or epoch == NO_METADATA_EPOCH):
        text = commit.metadata.encode()
        times = _TWO_INT64.pack(commit.commit_timestamp_ms, commit.expire_timestamp_ms)
        return b"".join((_EXPIRING_HEAD.pack(EXPIRING_VALUE, commit.offset, len(text)), text, times))
    head = _OFFSET_HEAD.pack(version, commit.offset, commit.leader_epoch)
    if version < EPOCH_VALUE:
        text = commit.metadata.encode()
        return b"".join((head, _INT16.pack(len(text)), text, _INT64.pack(commit.commit_timestamp_ms)))
    out = FieldWriter(version, flexible_from=EPOCH_VALUE)
    out.data[:] = head
    out.string(commit.metadata)
    out.int64(commit.commit_timestamp_ms)
    tagged = {} if epoch == NO_METADATA_EPOCH else {METADATA_EPOCH_TAG: _INT64.pack(epoch)}
    if expires:
        tagged[EXPIRE_TIMESTAMP_TAG] = _INT64.pack(commit.expire_timestamp_ms)
    out.tagged(tagged)
    return bytes(out.data)


def read_offset_value(key: OffsetKey, data: bytes) -> CommitOffset:
    """Read OffsetCommitValue 0-4. Raise DamagedRecord, also for other versions."""
    fields = FieldReader(data, flexible_from=EPOCH_VALUE, greatest=EPOCH_VALUE)
    version = fields.version
    offset = fields.int64()
    leader_epoch = fields.int32() if version >= 3 else NO_EPOCH
    metadata = fields.string()
    commit_ms = fields.int64()
    expire_ms = fields.int64() if version == EXPIRING_VALUE else NO_TIMESTAMP
    _check_texts(metadata)
    tagged = fields.tagged(_TAGGED_READERS)
    epoch = tagged.get(METADATA_EPOCH_TAG, NO_METADATA_EPOCH)
    expire_ms = tagged.get(EXPIRE_TIMESTAMP_TAG, expire_ms)
    return CommitOffset(
        topic=key.topic,
        partition=key.partition,
        offset=offset,
        leader_epoch=leader_epoch,
        metadata=metadata,
        commit_timestamp_ms=commit_ms,
        metadata_epoch=epoch,
        expire_timestamp_ms=expire_ms,
    )


# --- groups -----------------------------------------------------------------------------------------------------------


def group_value(group: Group) -> bytes:
    """GroupMetadataValue 3, as the group is now. It has the selected one of each member's protocols. Without members
    only the generation counts, as in Kafka. Raise TextTooLong."""
    out = FieldWriter(CLASSIC_VALUE)
    out.string(group.protocol_type or "")
    out.int32(group.generation)
    out.string(group.protocol if group.members else None)
    out.string(group.leader if group.members else None)
    out.int64(group.state_since_ms)
    out.length(len(group.members))
    for member in group.members.values():
        _write_member(out, member, group.protocol)
    return bytes(out.data)


def _write_member(out: FieldWriter, member: Member, protocol: str | None) -> None:
    out.string(member.member_id)
    out.string(member.group_instance_id)
    out.string(member.client_id)
    out.string(member.client_host)
    out.int32(member.rebalance_timeout_ms)
    out.int32(member.session_timeout_ms)
    out.blob(member.metadata(protocol))
    out.blob(member.assignment)


def read_group(group_id: str, data: bytes) -> Group:
    """Read GroupMetadataValue 0-4. Raise DamagedRecord, also where two members have the same ID or instance."""
    fields = FieldReader(data, flexible_from=4, greatest=4)
    protocol_type, generation = fields.string(), fields.int32()
    protocol, leader = fields.nullable_string(), fields.nullable_string()
    since_ms = fields.int64() if fields.version >= 2 else NO_TIMESTAMP
    members = tuple(_read_member(fields, protocol) for _ in range(fields.length()))
    fields.tagged({})
    instances = [each.group_instance_id for each in members if each.group_instance_id is not None]
    if len({each.member_id for each in members}) < len(members) or len(set(instances)) < len(instances):
        raise DamagedRecord(f"group {group_id} has a member twice")
    _check_texts(protocol_type, protocol, *instances)
    for each in members:
        _check_texts(each.member_id, each.client_id, each.client_host)
    return Group.loaded(group_id, generation, protocol_type, protocol, leader, since_ms, members)


def _check_texts(*texts: str | None) -> None:
    """A flexible version may hold texts that can neither be written again nor be sent to older clients. Raise
    DamagedRecord."""
    if not all(map(fits, texts)):
        raise DamagedRecord(f"a text of more than {MAX_TEXT_BYTES} bytes")


def _read_member(fields: FieldReader, protocol: str | None) -> Member:
    """A member knows the one protocol that was selected. A rebalance timeout that was not recorded is the session
    timeout."""
    version = fields.version
    member_id = fields.string()
    instance_id = fields.nullable_string() if version >= 3 else None
    client_id, client_host = fields.string(), fields.string()
    rebalance_ms = fields.int32() if version >= 1 else -1
    session_ms = fields.int32()
    subscription, assignment = fields.blob(), fields.blob()
    fields.tagged({})
    return Member(
        member_id=member_id,
        group_instance_id=instance_id,
        client_id=client_id,
        client_host=client_host,
        rebalance_timeout_ms=session_ms if rebalance_ms < 0 else rebalance_ms,
        session_timeout_ms=session_ms,
        protocols=() if protocol is None else (MemberProtocol(protocol, subscription),),
        assignment=assignment,
    )


def partition_count(image: MetadataImage, config: BrokerConfig) -> int:
    """The topic keeps the count with which it was created. Until it exists, ``offsets.topic.num.partitions`` counts."""
    topic = image.topics.get(OFFSETS_TOPIC)
    return config.offsets_topic_num_partitions if topic is None else len(topic.partitions)


def offsets_topic_configs(config: BrokerConfig) -> tuple[tuple[str, str], ...]:
    """The topic's own settings, which are those that Kafka gives it."""
    return (
        ("cleanup.policy", "compact"),
        ("compression.type", "producer"),
        ("segment.bytes", str(config.offsets_topic_segment_bytes)),
    )
