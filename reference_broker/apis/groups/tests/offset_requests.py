"""Requests for committed offsets, as tests send them."""

from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.offset_commit.v9.request import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kio.schema.offset_fetch.v9.response import OffsetFetchResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32, i64

from reference_broker.apis.groups import k10_find_coordinator
from reference_broker.apis.tests.admin_world import AdminWorld
from reference_broker.apis.tests.topic_requests import create_topics_request
from reference_broker.apis.topics import k19_create_topics
from reference_broker.wire.retired_fields import OffsetCommitRequest

NO_COMMITTED_OFFSET = [(0, -1, -1, "", 0)]


def find_coordinators(world: AdminWorld, *groups: str, kind: int = 0) -> list[tuple[str, str, int, str, int]]:
    response = world.request(k10_find_coordinator, FindCoordinatorRequest(key_type=i8(kind), coordinator_keys=groups))
    world.settle()
    return [
        (coordinator.key, coordinator.error_code.name, coordinator.node_id, coordinator.host, coordinator.port)
        for coordinator in response.coordinators
    ]


def world_with_offsets_topic() -> AdminWorld:
    """Return a world with the offsets topic and topic ``t``."""
    world = AdminWorld(offsets_topic_num_partitions="5")
    find_coordinators(world, "g")
    world.request(k19_create_topics, create_topics_request("t"))
    world.settle()
    return world


def commit_request(group: str = "g", offset: int = 5, topic: str = "t", metadata: str = "m") -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=i32(0), committed_offset=i64(offset), committed_leader_epoch=i32(2), committed_metadata=metadata
    )
    topics = (OffsetCommitRequestTopic(name=TopicName(topic), partitions=(partition,)),)
    return OffsetCommitRequest(group_id=GroupId(group), member_id="", topics=topics)


def fetch_request(*groups: str, topic: str | None = "t") -> OffsetFetchRequest:
    topics = None if topic is None else (OffsetFetchRequestTopics(name=TopicName(topic), partition_indexes=(i32(0),)),)
    return OffsetFetchRequest(
        groups=tuple(OffsetFetchRequestGroup(group_id=GroupId(group), topics=topics) for group in groups)
    )


def offsets_of(response: OffsetFetchResponse, at: int = 0) -> list[tuple[int, int, int, str | None, int]]:
    return [
        (
            partition.partition_index,
            partition.committed_offset,
            partition.committed_leader_epoch,
            partition.metadata,
            int(partition.error_code),
        )
        for topic in response.groups[at].topics
        for partition in topic.partitions
    ]
