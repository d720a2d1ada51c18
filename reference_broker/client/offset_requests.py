"""Bodies of OffsetCommit and OffsetFetch, in released versions and in KIP-232's draft, and what their answers say."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from kio.schema.offset_commit.v9.request import (
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from kio.schema.offset_fetch.v9.request import (
    OffsetFetchRequest,
    OffsetFetchRequestGroup,
    OffsetFetchRequestTopics,
)
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32, i64

from reference_broker.client.consumer_protocol import by_topic
from reference_broker.client.group_requests import DRAFT_VERSION, PAGE_VERSION, MemberIdentity, error_of
from reference_broker.client.metadata_cache import NO_METADATA_EPOCH
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.drafts import (
    OffsetCommitRequest1000,
    OffsetCommitRequest1001,
    OffsetCommitRequestPartition1000,
    OffsetCommitRequestPartition1001,
    OffsetCommitRequestTopic1000,
    OffsetCommitRequestTopic1001,
    OffsetFetchRequest1000,
    OffsetFetchRequest1001,
    OffsetFetchRequestTopic1000,
)
from reference_broker.wire.errors import Error, ErrorCode
from reference_broker.wire.retired_fields import OffsetCommitRequest

if TYPE_CHECKING:
    from kio.schema.offset_commit.v9.response import OffsetCommitResponse
    from kio.schema.offset_fetch.v9.response import OffsetFetchResponse, OffsetFetchResponseGroup
    from kio.schema.txn_offset_commit.v5.response import TxnOffsetCommitResponse

    from reference_broker.wire.drafts import OffsetFetchResponse1001


@dataclass(frozen=True, slots=True)
class OffsetToCommit:
    """``offset`` is the next one to read. ``leader_epoch`` is that of the last record read, or -1 if unknown (KIP-320).
    ``metadata_epoch`` is that of the last accepted metadata, or -1. Only the draft version carries it. ``metadata`` is
    the application's own text."""

    offset: int
    leader_epoch: int = -1
    metadata_epoch: int = NO_METADATA_EPOCH
    metadata: str | None = ""


@dataclass(frozen=True, slots=True)
class CommittedOffset:
    """``offset`` is -1 if none is committed. ``metadata_epoch`` is -1 if none is recorded."""

    offset: int
    leader_epoch: int = -1
    metadata_epoch: int = NO_METADATA_EPOCH
    metadata: str | None = ""


def commit_request(
    offsets: Mapping[TopicPartition, OffsetToCommit], identity: MemberIdentity, version: int
) -> OffsetCommitRequest | OffsetCommitRequest1000 | OffsetCommitRequest1001:
    """The body of OffsetCommit in that version."""
    topics = by_topic(offsets)
    if version == PAGE_VERSION:
        return OffsetCommitRequest1000(
            group_id=identity.group_id,
            generation_id_or_member_epoch=identity.generation_id,
            member_id=identity.member_id,
            topics=tuple(
                OffsetCommitRequestTopic1000(
                    name=topic,
                    partitions=tuple(_page_partition(each, offsets[TopicPartition(topic, each)]) for each in numbers),
                )
                for topic, numbers in topics.items()
            ),
        )
    if version == DRAFT_VERSION:
        return OffsetCommitRequest1001(
            group_id=identity.group_id,
            generation_id_or_member_epoch=identity.generation_id,
            member_id=identity.member_id,
            group_instance_id=identity.instance_id,
            topics=tuple(
                OffsetCommitRequestTopic1001(
                    name=topic,
                    partitions=tuple(_draft_partition(each, offsets[TopicPartition(topic, each)]) for each in numbers),
                )
                for topic, numbers in topics.items()
            ),
        )
    return OffsetCommitRequest(
        group_id=GroupId(identity.group_id),
        generation_id_or_member_epoch=i32(identity.generation_id),
        member_id=identity.member_id,
        group_instance_id=identity.instance_id,
        topics=tuple(
            OffsetCommitRequestTopic(
                name=TopicName(topic),
                partitions=tuple(_partition(each, offsets[TopicPartition(topic, each)]) for each in numbers),
            )
            for topic, numbers in topics.items()
        ),
    )


def _draft_partition(number: int, offset: OffsetToCommit) -> OffsetCommitRequestPartition1001:
    return OffsetCommitRequestPartition1001(
        partition_index=number,
        committed_offset=offset.offset,
        committed_leader_epoch=offset.leader_epoch,
        metadata_epoch=offset.metadata_epoch,
        committed_metadata=offset.metadata,
    )


def _page_partition(number: int, offset: OffsetToCommit) -> OffsetCommitRequestPartition1000:
    draft = _draft_partition(number, offset)
    return OffsetCommitRequestPartition1000(
        partition_index=draft.partition_index,
        committed_offset=draft.committed_offset,
        metadata_epoch=draft.metadata_epoch,
        committed_metadata=draft.committed_metadata,
    )


def _partition(number: int, offset: OffsetToCommit) -> OffsetCommitRequestPartition:
    return OffsetCommitRequestPartition(
        partition_index=i32(number),
        committed_offset=i64(offset.offset),
        committed_leader_epoch=i32(offset.leader_epoch),
        committed_metadata=offset.metadata,
    )


def commit_errors(body: object) -> dict[TopicPartition, Error | int]:
    """The error of each partition, from an answer to OffsetCommit in any version, or to TxnOffsetCommit."""
    return {
        TopicPartition(str(topic.name), int(each.partition_index)): error_of(each.error_code)
        for topic in cast("OffsetCommitResponse | TxnOffsetCommitResponse", body).topics
        for each in topic.partitions
    }


def fetch_request(
    partitions: Iterable[TopicPartition], identity: MemberIdentity, version: int
) -> OffsetFetchRequest | OffsetFetchRequest1000 | OffsetFetchRequest1001:
    """The body of OffsetFetch in that version, for one group. It asks for stable offsets if the version can say so."""
    topics = by_topic(partitions)
    if version in (PAGE_VERSION, DRAFT_VERSION):
        wanted = tuple(
            OffsetFetchRequestTopic1000(name=topic, partition_indexes=tuple(numbers))
            for topic, numbers in topics.items()
        )
        if version == PAGE_VERSION:
            return OffsetFetchRequest1000(group_id=identity.group_id, topics=wanted)
        return OffsetFetchRequest1001(group_id=identity.group_id, topics=wanted, require_stable=True)
    group = OffsetFetchRequestGroup(
        group_id=GroupId(identity.group_id),
        topics=tuple(
            OffsetFetchRequestTopics(name=TopicName(topic), partition_indexes=tuple(i32(each) for each in numbers))
            for topic, numbers in topics.items()
        ),
    )
    return OffsetFetchRequest(groups=(group,), require_stable=True)


def fetched_offsets(body: object) -> dict[TopicPartition, CommittedOffset] | Error | int:
    """The offsets in an answer of any version with one group, or the first error if there is any."""
    group: OffsetFetchResponseGroup | OffsetFetchResponse1001
    if hasattr(body, "groups"):
        groups = cast("OffsetFetchResponse", body).groups
        if not groups:
            return ErrorCode.network_exception  # The answer says nothing about the group that was asked for.
        group = groups[0]
    else:
        group = cast("OffsetFetchResponse1001", body)
    error = error_of(group.error_code)
    if error:
        return error
    found: dict[TopicPartition, CommittedOffset] = {}
    for topic in group.topics:
        for each in topic.partitions:
            error = error_of(each.error_code)
            if error:
                return error
            found[TopicPartition(str(topic.name), int(each.partition_index))] = CommittedOffset(
                int(each.committed_offset),
                int(getattr(each, "committed_leader_epoch", -1)),
                int(getattr(each, "metadata_epoch", NO_METADATA_EPOCH)),
                each.metadata,
            )
    return found
