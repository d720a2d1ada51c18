"""OffsetFetch of one node, through handlers and codecs."""

import pytest
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kio.schema.offset_fetch.v9.response import OffsetFetchResponse
from kio.schema.types import GroupId, TopicName

from reference_broker.apis.groups import k08_offset_commit, k09_offset_fetch
from reference_broker.apis.groups.tests.offset_requests import (
    commit_request,
    fetch_request,
    offsets_of,
    world_with_offsets_topic,
)
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response


def test_offset_fetch_of_topic_without_partitions_returns_topic() -> None:
    world = world_with_offsets_topic()
    topics = tuple(OffsetFetchRequestTopics(name=TopicName(name), partition_indexes=()) for name in ("t", "u", "t"))
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=GroupId("g"), topics=topics),))
    (group,) = world.request(k09_offset_fetch, request).groups
    assert [(topic.name, topic.partitions) for topic in group.topics] == [("t", ()), ("u", ())]


@pytest.mark.parametrize("version", range(1, 10))
def test_offset_fetch_returns_same_offsets_in_every_version(version: int) -> None:
    """One group, as versions below 8 have it. Their responses lack the group's ID, and have the leader epoch from 5
    on."""
    world = world_with_offsets_topic()
    world.request(k08_offset_commit, commit_request())
    request = fetch_request("g")
    data = b"".join(bytes(each) for each in encode_request(9, version, 1, "c", request))
    header = 4 + 8 + 2 + 1 + (version >= 6)
    decoded = decode_request(9, version, data[4:], header - 4)
    assert decoded == request
    response = world.request(k09_offset_fetch, decoded, version)
    frame = b"".join(bytes(each) for each in encode_response(9, version, 1, response))
    _, read = decode_response(9, version, frame[4:])
    assert isinstance(read, OffsetFetchResponse)
    assert offsets_of(read) == [(0, 5, 2 if version >= 5 else -1, "m", 0)]
