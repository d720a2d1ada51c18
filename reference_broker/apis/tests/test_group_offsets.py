"""FindCoordinator, OffsetCommit, OffsetFetch, OffsetDelete of one node, through handlers and codecs."""

from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.find_coordinator.v6.request import FindCoordinatorRequest
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.offset_commit.v9.request import OffsetCommitRequestPartition, OffsetCommitRequestTopic
from kio.schema.offset_delete.v0.request import (
    OffsetDeleteRequest,
    OffsetDeleteRequestPartition,
    OffsetDeleteRequestTopic,
)
from kio.schema.offset_delete.v0.response import OffsetDeleteResponseTopic
from kio.schema.offset_fetch.v9.request import OffsetFetchRequest, OffsetFetchRequestGroup, OffsetFetchRequestTopics
from kio.schema.offset_fetch.v9.response import OffsetFetchResponse
from kio.schema.types import GroupId, TopicName
from kio.static.primitive import i8, i32, i64, i64Timedelta

from reference_broker.apis.groups import k08_offset_commit, k09_offset_fetch, k10_find_coordinator, k47_offset_delete
from reference_broker.apis.metadata import k03_metadata
from reference_broker.apis.records import k00_produce
from reference_broker.apis.responses import topics_with_errors
from reference_broker.apis.tests.admin_world import NOW, AdminCall, AdminWorld
from reference_broker.apis.tests.test_metadata_apis import creation_of
from reference_broker.apis.topics import k19_create_topics
from reference_broker.groups.classic_requests import MemberProtocol
from reference_broker.groups.group import Member
from reference_broker.groups.offsets_partition import OffsetsPartition
from reference_broker.metadata.features import METADATA_EPOCH_FEATURE
from reference_broker.metadata.identifiers import OFFSETS_TOPIC
from reference_broker.ports.slicing import ERRORS_PER_SLICE
from reference_broker.records.record import Record, build
from reference_broker.wire.drafts import (
    OffsetCommitRequest1000,
    OffsetCommitRequest1001,
    OffsetCommitRequestPartition1000,
    OffsetCommitRequestPartition1001,
    OffsetCommitRequestTopic1000,
    OffsetCommitRequestTopic1001,
    OffsetCommitResponse1000,
    OffsetFetchRequest1000,
    OffsetFetchRequest1001,
    OffsetFetchRequestTopic1000,
    OffsetFetchResponse1000,
    OffsetFetchResponse1001,
)
from reference_broker.wire.errors import DraftError, Error, ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.retired_fields import MetadataRequest, OffsetCommitRequest

NOTHING = [(0, -1, -1, "", 0)]


def find(world: AdminWorld, *groups: str, kind: int = 0) -> list[tuple[str, str, int, str, int]]:
    response = world.request(k10_find_coordinator, FindCoordinatorRequest(key_type=i8(kind), coordinator_keys=groups))
    world.settle()
    return [
        (coordinator.key, coordinator.error_code.name, coordinator.node_id, coordinator.host, coordinator.port)
        for coordinator in response.coordinators
    ]


def led() -> AdminWorld:
    """Return a world with the offsets topic and topic ``t``."""
    world = AdminWorld(offsets_topic_num_partitions="5")
    find(world, "g")
    world.request(k19_create_topics, creation_of("t"))
    world.settle()
    return world


def commit(group: str = "g", offset: int = 5, topic: str = "t", metadata: str = "m") -> OffsetCommitRequest:
    partition = OffsetCommitRequestPartition(
        partition_index=i32(0), committed_offset=i64(offset), committed_leader_epoch=i32(2), committed_metadata=metadata
    )
    topics = (OffsetCommitRequestTopic(name=TopicName(topic), partitions=(partition,)),)
    return OffsetCommitRequest(group_id=GroupId(group), member_id="", topics=topics)


def fetch(*groups: str, topic: str | None = "t") -> OffsetFetchRequest:
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


def test_find_coordinator_creates_offsets_topic_then_returns_coordinator() -> None:
    world = AdminWorld(offsets_topic_num_partitions="7", offsets_topic_segment_bytes="12345")
    assert find(world, "g", "h") == [
        ("g", "coordinator_not_available", -1, "", -1),
        ("h", "coordinator_not_available", -1, "", -1),
    ]
    assert find(world, "g", "h") == [("g", "none", 1, "127.0.0.1", 9092), ("h", "none", 1, "127.0.0.1", 9092)]
    image = world.controller.image
    topic = image.topics[OFFSETS_TOPIC]
    assert (len(topic.partitions), topic.partitions[0].replicas) == (7, (1,))
    assert image.topic_configs(OFFSETS_TOPIC) == {
        "cleanup.policy": "compact",
        "compression.type": "producer",
        "segment.bytes": "12345",
    }


def test_many_find_coordinator_requests_create_topic_once() -> None:
    world = AdminWorld()
    world.auto = False
    for _ in range(3):
        world.send(k10_find_coordinator, FindCoordinatorRequest(key_type=i8(0), coordinator_keys=("g",)))
    assert world.broker.groups.is_creating
    world.settle()
    assert not world.broker.groups.is_creating
    assert len(world.controller.image.topics[OFFSETS_TOPIC].partitions) == 50


def test_metadata_request_creates_offsets_topic_with_configured_partitions() -> None:
    """Automatic creation by Metadata: another number of partitions would separate groups from their coordinators."""
    world = AdminWorld(offsets_topic_num_partitions="7", num_partitions="3")
    topic = MetadataRequestTopic(topic_id=None, name=TopicName(OFFSETS_TOPIC))
    world.request(k03_metadata, MetadataRequest(topics=(topic,), include_topic_authorized_operations=False))
    world.settle()
    assert len(world.controller.image.topics[OFFSETS_TOPIC].partitions) == 7
    assert world.controller.image.topic_configs(OFFSETS_TOPIC)["cleanup.policy"] == "compact"


@pytest.mark.parametrize("client", ["client", "__admin_client"])
def test_produce_to_offsets_topic_is_rejected_for_any_client_id(client: str) -> None:
    world = led()
    call = AdminCall(9)
    call.client_id = client
    batch = build([Record(timestamp_ms=NOW.wall_ms, key=b"k", value=b"v")])
    topic = ProduceTopic(OFFSETS_TOPIC, NO_TOPIC_ID, [ProducePartition(0, batch)])
    response = k00_produce.handle(world.broker, call, ProduceRequest(1, 1000, [topic]))
    assert response is not None
    assert response.responses[0].partitions[0].error_code == ErrorCode.invalid_topic_exception


@pytest.mark.parametrize(("kind", "error"), [(2, "invalid_request"), (9, "invalid_request")])
def test_find_coordinator_for_other_key_types_creates_nothing(kind: int, error: str) -> None:
    world = AdminWorld()
    assert find(world, "g", kind=kind) == [("g", error, -1, "", -1)]
    assert world.controller.image.topics == {}


def test_committed_offset_is_visible_to_its_group_only() -> None:
    world = led()
    response = world.request(k08_offset_commit, commit())
    assert [int(partition.error_code) for topic in response.topics for partition in topic.partitions] == [
        ErrorCode.none
    ]
    response = world.request(k09_offset_fetch, fetch("g", "h"))
    assert [group.group_id for group in response.groups] == ["g", "h"]
    assert offsets_of(response) == [(0, 5, 2, "m", 0)]
    assert offsets_of(response, 1) == NOTHING
    assert offsets_of(world.request(k09_offset_fetch, fetch("g", topic=None))) == [(0, 5, 2, "m", 0)]
    assert world.request(k09_offset_fetch, fetch("h", topic=None)).groups[0].topics == ()


def test_offset_fetch_of_topic_without_partitions_returns_topic() -> None:
    world = led()
    topics = tuple(OffsetFetchRequestTopics(name=TopicName(name), partition_indexes=()) for name in ("t", "u", "t"))
    request = OffsetFetchRequest(groups=(OffsetFetchRequestGroup(group_id=GroupId("g"), topics=topics),))
    (group,) = world.request(k09_offset_fetch, request).groups
    assert [(topic.name, topic.partitions) for topic in group.topics] == [("t", ()), ("u", ())]


@pytest.mark.parametrize(("version", "lasts"), [(2, False), (3, False), (4, False), (5, True), (9, True)])
def test_offset_commit_versions_2_to_4_set_retention_time(version: int, lasts: bool) -> None:
    world = led()
    minute = i64Timedelta.parse(timedelta(minutes=1))
    frame = memoryview(b"".join(encode_request(8, version, 1, "c", replace(commit(), retention_time=minute))))[4:]
    _, offset = read_request_header(frame)
    world.request(k08_offset_commit, decode_request(8, version, frame, offset), version)
    (partition,) = (each for each in world.broker.groups.active() if each.offsets.count)
    stored = partition.offsets.of("g")["t"][0].commit
    assert stored.expire_timestamp_ms == (-1 if lasts else stored.commit_timestamp_ms + 60_000)


def test_errors_are_top_level_or_per_partition_by_version() -> None:
    """Version 1 has no top-level error."""
    world = AdminWorld()
    code = int(ErrorCode.not_coordinator)
    newest = world.request(k09_offset_fetch, fetch("g"))
    assert (int(newest.groups[0].error_code), newest.groups[0].topics) == (code, ())
    assert offsets_of(world.request(k09_offset_fetch, fetch("g"), 1)) == [(0, -1, -1, "", code)]
    response = world.request(k08_offset_commit, commit())
    assert [int(partition.error_code) for topic in response.topics for partition in topic.partitions] == [code]


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.illegal_generation), (9, ErrorCode.group_id_not_found)])
def test_commit_to_deleted_group_returns_error_of_version(version: int, code: Error) -> None:
    response = led().request(
        k08_offset_commit, replace(commit(), generation_id_or_member_epoch=i32(1), member_id="m"), version
    )
    assert response.topics[0].partitions[0].error_code == code


def test_offsets_of_empty_group_id_are_committed_but_not_deletable() -> None:
    world = led()
    world.request(k08_offset_commit, commit(""))
    assert offsets_of(world.request(k09_offset_fetch, fetch(""))) == [(0, 5, 2, "m", 0)]
    topics = (
        OffsetDeleteRequestTopic(
            name=TopicName("t"), partitions=(OffsetDeleteRequestPartition(partition_index=i32(0)),)
        ),
    )
    response = world.request(k47_offset_delete, OffsetDeleteRequest(group_id=GroupId(""), topics=topics))
    assert response.error_code == ErrorCode.invalid_group_id


def test_offset_delete_removes_committed_offset() -> None:
    world = led()
    world.request(k08_offset_commit, commit())
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
    assert offsets_of(world.request(k09_offset_fetch, fetch("g"))) == NOTHING
    response = world.request(k47_offset_delete, OffsetDeleteRequest(group_id=GroupId("nobody"), topics=topics))
    assert (int(response.error_code), response.topics) == (int(ErrorCode.group_id_not_found), ())


@pytest.mark.parametrize("version", range(1, 10))
def test_offset_fetch_returns_same_offsets_in_every_version(version: int) -> None:
    """One group, as versions below 8 have it. Their responses lack the group's ID, and have the leader epoch from 5
    on."""
    world = led()
    world.request(k08_offset_commit, commit())
    request = fetch("g")
    data = b"".join(bytes(each) for each in encode_request(9, version, 1, "c", request))
    header = 4 + 8 + 2 + 1 + (version >= 6)
    decoded = decode_request(9, version, data[4:], header - 4)
    assert decoded == request
    response = world.request(k09_offset_fetch, decoded, version)
    frame = b"".join(bytes(each) for each in encode_response(9, version, 1, response))
    _, read = decode_response(9, version, frame[4:])
    assert isinstance(read, OffsetFetchResponse)
    assert offsets_of(read) == [(0, 5, 2 if version >= 5 else -1, "m", 0)]


@pytest.mark.parametrize("version", range(2, 10))
def test_offset_commit_in_every_version(version: int) -> None:
    world = led()
    data = b"".join(bytes(each) for each in encode_request(8, version, 1, "c", commit()))
    decoded: Any = decode_request(8, version, data[4:], 8 + 2 + 1 + (version >= 8))
    response = world.request(k08_offset_commit, decoded, version)
    frame = b"".join(bytes(each) for each in encode_response(8, version, 1, response))
    assert decode_response(8, version, frame[4:])[1] == response
    epoch = 2 if version >= 6 else -1
    assert offsets_of(world.request(k09_offset_fetch, fetch("g"))) == [(0, 5, epoch, "m", 0)]


@pytest.mark.clause("D-1")
@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize(("epoch", "retention_ms"), [(7, 60_000), (7, -1), (-1, 60_000), (7, 2**63 - 1)])
def test_offset_commit_1000_sets_retention_time_like_versions_2_to_4(epoch: int, retention_ms: int, level: int) -> None:
    world = led()
    image = replace(world.metadata.loader.image, features={METADATA_EPOCH_FEATURE: level})
    world.broker.groups.commits._image = lambda: image
    partition = OffsetCommitRequestPartition1000(partition_index=0, committed_offset=5, metadata_epoch=epoch)
    topics = (OffsetCommitRequestTopic1000(name="t", partitions=(partition,)),)
    body = OffsetCommitRequest1000(group_id="g", retention_time_ms=retention_ms, topics=topics)
    world.request(k08_offset_commit, body, 1000)
    (partition_of_group,) = (each for each in world.broker.groups.active() if each.offsets.count)
    stored = partition_of_group.offsets.of("g")["t"][0].commit
    expires_ms = -1 if retention_ms < 0 else min(stored.commit_timestamp_ms + retention_ms, 2**63 - 1)
    assert (stored.metadata_epoch, stored.expire_timestamp_ms) == (epoch if level else -1, expires_ms)


@pytest.mark.clause("M-6")
@pytest.mark.clause("M-7")
@pytest.mark.clause("M-9")
def test_offset_commit_1000_and_fetch_1000_carry_metadata_epoch() -> None:
    world = led()
    image = replace(world.metadata.loader.image, features={METADATA_EPOCH_FEATURE: 1})
    world.broker.groups.commits._image = lambda: image  # The feature level alone, without its broadcasts.

    def put(offset: int, epoch: int) -> list[int]:
        partition = OffsetCommitRequestPartition1000(partition_index=0, committed_offset=offset, metadata_epoch=epoch)
        topics = (OffsetCommitRequestTopic1000(name="t", partitions=(partition,)),)
        response = world.request(k08_offset_commit, OffsetCommitRequest1000(group_id="g", topics=topics), 1000)
        assert isinstance(response, OffsetCommitResponse1000)
        return [topic_partition.error_code for topic in response.topics for topic_partition in topic.partitions]

    def got(topics: tuple[OffsetFetchRequestTopic1000, ...] | None) -> list[tuple[int, int]]:
        response = world.request(k09_offset_fetch, OffsetFetchRequest1000(group_id="g", topics=topics), 1000)
        assert isinstance(response, OffsetFetchResponse1000)
        return [
            (topic_partition.committed_offset, topic_partition.metadata_epoch)
            for topic in response.topics
            for topic_partition in topic.partitions
        ]

    assert put(5, 7) == [0]
    assert put(6, 6) == [int(DraftError.INVALID_METADATA_EPOCH)]
    assert got(None) == [(5, 7)]
    wanted = (OffsetFetchRequestTopic1000(name="t", partition_indexes=(0, 1)),)
    assert got(wanted) == [(5, 7), (-1, -1)]


@pytest.mark.clause("M-6", "M-9")
def test_drafts_1001_keep_leader_epochs_and_fence_static_members() -> None:
    world = led()
    image = replace(world.metadata.loader.image, features={METADATA_EPOCH_FEATURE: 1})
    world.broker.groups.commits._image = lambda: image

    def put(member_id: str = "", instance_id: str | None = None, generation: int = -1) -> list[int]:
        partition = OffsetCommitRequestPartition1001(
            partition_index=0, committed_offset=5, committed_leader_epoch=3, metadata_epoch=7
        )
        body = OffsetCommitRequest1001(
            group_id="g",
            generation_id_or_member_epoch=generation,
            member_id=member_id,
            group_instance_id=instance_id,
            topics=(OffsetCommitRequestTopic1001(name="t", partitions=(partition,)),),
        )
        response = world.request(k08_offset_commit, body, 1001)
        return [topic_partition.error_code for topic in response.topics for topic_partition in topic.partitions]

    assert put() == [0]
    request = OffsetFetchRequest1001(group_id="g", topics=None, require_stable=True)
    response = world.request(k09_offset_fetch, request, 1001)
    assert isinstance(response, OffsetFetchResponse1001)
    ((one,),) = (topic.partitions for topic in response.topics)
    assert (one.committed_offset, one.committed_leader_epoch, one.metadata_epoch) == (5, 3, 7)
    partition = world.broker.groups.find("g")
    assert isinstance(partition, OffsetsPartition)
    group = partition.groups["g"]
    newer = Member("newer", "s", "c", "h", 1000, 1000, (MemberProtocol("range", b""),))
    group.add(newer)
    assert put("older", "s", 1) == [int(ErrorCode.fenced_instance_id)]


def test_offset_delete_with_many_offsets_takes_slices() -> None:
    world = led()
    partitions = tuple(OffsetDeleteRequestPartition(partition_index=i32(at)) for at in range(ERRORS_PER_SLICE + 1))
    topics = (OffsetDeleteRequestTopic(name=TopicName("t"), partitions=partitions),)
    building = topics_with_errors(
        topics, [ErrorCode.none] * len(partitions), OffsetDeleteResponseTopic, SimpleNamespace
    )
    assert len(list(building)) == 1
    world.request(k08_offset_commit, commit())
    call = world.send(k47_offset_delete, OffsetDeleteRequest(group_id=GroupId("g"), topics=topics))
    assert call.responses == []
    assert world.ports.run_steps() >= 4  # Three remove offsets, and one completes the response.
    (partitions,) = (topic.partitions for topic in call.responses[0].topics)
    unknown = [ErrorCode.unknown_topic_or_partition] * ERRORS_PER_SLICE
    assert [partition.error_code for partition in partitions] == [ErrorCode.none, *unknown]
    assert world.request(k09_offset_fetch, fetch("g", topic=None)).groups[0].topics == ()
