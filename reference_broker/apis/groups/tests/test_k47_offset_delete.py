"""OffsetDelete of one node, through handlers and codecs."""

from types import SimpleNamespace

from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kio.schema.offset_delete.v0.response import OffsetDeleteResponseTopic
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i32

from reference_broker.apis.groups import k08_offset_commit, k09_offset_fetch, k47_offset_delete
from reference_broker.apis.groups.tests.offset_requests import (
    NO_COMMITTED_OFFSET,
    commit_request,
    fetch_request,
    offsets_of,
    world_with_offsets_topic,
)
from reference_broker.apis.responses import topics_with_errors
from reference_broker.ports.slicing import ERRORS_PER_SLICE
from reference_broker.wire.errors import ErrorCode


def test_offsets_of_empty_group_id_are_committed_but_not_deletable() -> None:
    world = world_with_offsets_topic()
    world.request(k08_offset_commit, commit_request(""))
    assert offsets_of(world.request(k09_offset_fetch, fetch_request(""))) == [(0, 5, 2, "m", 0)]
    topics = (
        OffsetDeleteRequestTopic(
            name=TopicName("t"), partitions=(OffsetDeleteRequestPartition(partition_index=i32(0)),)
        ),
    )
    response = world.request(k47_offset_delete, OffsetDeleteRequest(group_id=GroupId(""), topics=topics))
    assert response.error_code == ErrorCode.invalid_group_id


def test_offset_delete_removes_committed_offset() -> None:
    world = world_with_offsets_topic()
    world.request(k08_offset_commit, commit_request())
    topics = (
        OffsetDeleteRequestTopic(
            name=TopicName("t"), partitions=(OffsetDeleteRequestPartition(partition_index=i32(0)),)
        ),
    )
    response = world.request(k47_offset_delete, OffsetDeleteRequest(group_id=GroupId("g"), topics=topics))
    assert int(response.error_code) == ErrorCode.none
    assert [int(partition.error_code) for topic in response.topics for partition in topic.partitions] == [
        ErrorCode.none
    ]
    assert offsets_of(world.request(k09_offset_fetch, fetch_request("g"))) == NO_COMMITTED_OFFSET
    response = world.request(k47_offset_delete, OffsetDeleteRequest(group_id=GroupId("nobody"), topics=topics))
    assert (int(response.error_code), response.topics) == (int(ErrorCode.group_id_not_found), ())


def test_offset_delete_with_many_offsets_takes_slices() -> None:
    world = world_with_offsets_topic()
    partitions = tuple(OffsetDeleteRequestPartition(partition_index=i32(at)) for at in range(ERRORS_PER_SLICE + 1))
    topics = (OffsetDeleteRequestTopic(name=TopicName("t"), partitions=partitions),)
    building = topics_with_errors(
        topics, [ErrorCode.none] * len(partitions), OffsetDeleteResponseTopic, SimpleNamespace
    )
    assert len(list(building)) == 1
    world.request(k08_offset_commit, commit_request())
    call = world.send(k47_offset_delete, OffsetDeleteRequest(group_id=GroupId("g"), topics=topics))
    assert call.responses == []
    assert world.ports.run_steps() >= 4  # Three remove offsets, and one completes the response.
    (partitions,) = (topic.partitions for topic in call.responses[0].topics)
    unknown = [ErrorCode.unknown_topic_or_partition] * ERRORS_PER_SLICE
    assert [partition.error_code for partition in partitions] == [ErrorCode.none, *unknown]
    assert world.request(k09_offset_fetch, fetch_request("g", topic=None)).groups[0].topics == ()
