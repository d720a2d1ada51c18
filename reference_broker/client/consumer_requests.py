"""Bodies of the requests that a consumer sends outside its group, except Fetch: Metadata and ListOffsets."""

from collections.abc import Iterable, Mapping
from datetime import timedelta
from typing import TYPE_CHECKING, Final, cast

from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from reference_broker.client.group_requests import error_of
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error
from reference_broker.wire.retired_fields import MetadataRequest

if TYPE_CHECKING:
    from kio.schema.list_offsets.v10.response import ListOffsetsResponse

METADATA: Final = int(ApiKey.METADATA)
LIST_OFFSETS: Final = int(ApiKey.LIST_OFFSETS)
FETCH: Final = int(ApiKey.FETCH)
EARLIEST: Final = -2
LATEST: Final = -1
_NO_REPLICA: Final = BrokerId(-1)


def metadata_request(topics: Iterable[str]) -> MetadataRequest:
    """A Metadata request for these topics. It does not create topics."""
    return MetadataRequest(
        topics=tuple(MetadataRequestTopic(topic_id=None, name=TopicName(each)) for each in topics),
        allow_auto_topic_creation=False,
        include_topic_authorized_operations=False,
    )


def list_offsets_request(
    partitions: Mapping[TopicPartition, int], timestamp_ms: int, timeout_us: int, isolation_level: int = 0
) -> ListOffsetsRequest:
    """``partitions`` maps each to its current leader epoch, or -1. ``timestamp_ms`` is EARLIEST, LATEST or a time.
    LATEST is the last stable offset if ``isolation_level`` is read_committed."""
    topics: dict[str, list[ListOffsetsPartition]] = {}
    for (topic, number), leader_epoch in partitions.items():
        topics.setdefault(topic, []).append(
            ListOffsetsPartition(
                partition_index=i32(number), current_leader_epoch=i32(leader_epoch), timestamp=i64(timestamp_ms)
            )
        )
    return ListOffsetsRequest(
        replica_id=_NO_REPLICA,
        isolation_level=i8(isolation_level),
        topics=tuple(ListOffsetsTopic(name=TopicName(name), partitions=tuple(each)) for name, each in topics.items()),
        timeout=i32Timedelta.parse(timedelta(milliseconds=timeout_us // 1000)),
    )


def listed_offsets(body: object) -> dict[TopicPartition, tuple[Error | int, int, int]]:
    """Returns error, offset and leader epoch of each partition in the answer."""
    return {
        TopicPartition(str(topic.name), int(each.partition_index)): (
            error_of(each.error_code),
            int(each.offset),
            int(each.leader_epoch),
        )
        for topic in cast("ListOffsetsResponse", body).topics
        for each in topic.partitions
    }
