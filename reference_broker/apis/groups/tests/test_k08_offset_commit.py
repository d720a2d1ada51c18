"""OffsetCommit of one node, through handlers and codecs."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from kio.static.primitive import i32, i64Timedelta

from reference_broker.apis.groups import k08_offset_commit, k09_offset_fetch
from reference_broker.apis.groups.tests.offset_requests import (
    NO_COMMITTED_OFFSET,
    commit_request,
    fetch_request,
    offsets_of,
    world_with_offsets_topic,
)
from reference_broker.apis.records import k00_produce
from reference_broker.apis.tests.admin_world import NOW, AdminCall, AdminWorld
from reference_broker.groups.classic_requests import MemberProtocol
from reference_broker.groups.group import Member
from reference_broker.groups.group_coordinator_shard import GroupCoordinatorShard
from reference_broker.metadata.features import METADATA_EPOCH_FEATURE
from reference_broker.metadata.identifiers import OFFSETS_TOPIC
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


@pytest.mark.parametrize("client", ["client", "__admin_client"])
def test_produce_to_offsets_topic_is_rejected_for_any_client_id(client: str) -> None:
    world = world_with_offsets_topic()
    call = AdminCall(9)
    call.client_id = client
    batch = build([Record(timestamp_ms=NOW.wall_ms, key=b"k", value=b"v")])
    topic = ProduceTopic(OFFSETS_TOPIC, NO_TOPIC_ID, [ProducePartition(0, batch)])
    k00_produce.handle(world.broker, call, ProduceRequest(1, 1000, [topic]))
    (response,) = call.responses
    assert response.responses[0].partitions[0].error_code == ErrorCode.invalid_topic_exception


def test_committed_offset_is_visible_to_its_group_only() -> None:
    world = world_with_offsets_topic()
    response = world.request(k08_offset_commit, commit_request())
    assert [int(partition.error_code) for topic in response.topics for partition in topic.partitions] == [
        ErrorCode.none
    ]
    response = world.request(k09_offset_fetch, fetch_request("g", "h"))
    assert [group.group_id for group in response.groups] == ["g", "h"]
    assert offsets_of(response) == [(0, 5, 2, "m", 0)]
    assert offsets_of(response, 1) == NO_COMMITTED_OFFSET
    assert offsets_of(world.request(k09_offset_fetch, fetch_request("g", topic=None))) == [(0, 5, 2, "m", 0)]
    assert world.request(k09_offset_fetch, fetch_request("h", topic=None)).groups[0].topics == ()


@pytest.mark.parametrize(("version", "lasts"), [(2, False), (3, False), (4, False), (5, True), (9, True)])
def test_offset_commit_versions_2_to_4_set_retention_time(version: int, lasts: bool) -> None:
    world = world_with_offsets_topic()
    minute = i64Timedelta.parse(timedelta(minutes=1))
    frame = memoryview(b"".join(encode_request(8, version, 1, "c", replace(commit_request(), retention_time=minute))))[
        4:
    ]
    _, offset = read_request_header(frame)
    world.request(k08_offset_commit, decode_request(8, version, frame, offset), version)
    (partition,) = (each for each in world.broker.groups.active() if each.offsets.count)
    stored = partition.offsets.of("g")["t"][0].commit
    assert stored.expire_timestamp_ms == (-1 if lasts else stored.commit_timestamp_ms + 60_000)


def test_errors_are_top_level_or_per_partition_by_version() -> None:
    """Version 1 has no top-level error."""
    world = AdminWorld()
    code = int(ErrorCode.not_coordinator)
    newest = world.request(k09_offset_fetch, fetch_request("g"))
    assert (int(newest.groups[0].error_code), newest.groups[0].topics) == (code, ())
    assert offsets_of(world.request(k09_offset_fetch, fetch_request("g"), 1)) == [(0, -1, -1, "", code)]
    response = world.request(k08_offset_commit, commit_request())
    assert [int(partition.error_code) for topic in response.topics for partition in topic.partitions] == [code]


@pytest.mark.parametrize(("version", "code"), [(8, ErrorCode.illegal_generation), (9, ErrorCode.group_id_not_found)])
def test_commit_to_deleted_group_returns_error_of_version(version: int, code: Error) -> None:
    response = world_with_offsets_topic().request(
        k08_offset_commit, replace(commit_request(), generation_id_or_member_epoch=i32(1), member_id="m"), version
    )
    assert response.topics[0].partitions[0].error_code == code


@pytest.mark.parametrize("version", range(2, 10))
def test_offset_commit_in_every_version(version: int) -> None:
    world = world_with_offsets_topic()
    data = b"".join(bytes(each) for each in encode_request(8, version, 1, "c", commit_request()))
    decoded: Any = decode_request(8, version, data[4:], 8 + 2 + 1 + (version >= 8))
    response = world.request(k08_offset_commit, decoded, version)
    frame = b"".join(bytes(each) for each in encode_response(8, version, 1, response))
    assert decode_response(8, version, frame[4:])[1] == response
    epoch = 2 if version >= 6 else -1
    assert offsets_of(world.request(k09_offset_fetch, fetch_request("g"))) == [(0, 5, epoch, "m", 0)]


@pytest.mark.clause("D-1")
@pytest.mark.parametrize("level", [0, 1])
@pytest.mark.parametrize(("epoch", "retention_ms"), [(7, 60_000), (7, -1), (-1, 60_000), (7, 2**63 - 1)])
def test_offset_commit_1000_sets_retention_time_like_versions_2_to_4(epoch: int, retention_ms: int, level: int) -> None:
    world = world_with_offsets_topic()
    image = replace(world.metadata.loader.image, features={METADATA_EPOCH_FEATURE: level})
    world.broker.groups.offset_manager._image = lambda: image
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
    world = world_with_offsets_topic()
    image = replace(world.metadata.loader.image, features={METADATA_EPOCH_FEATURE: 1})
    world.broker.groups.offset_manager._image = lambda: image  # The feature level alone, without its broadcasts.

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
    world = world_with_offsets_topic()
    image = replace(world.metadata.loader.image, features={METADATA_EPOCH_FEATURE: 1})
    world.broker.groups.offset_manager._image = lambda: image

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
    assert isinstance(partition, GroupCoordinatorShard)
    group = partition.groups["g"]
    newer = Member("newer", "s", "c", "h", 1000, 1000, (MemberProtocol("range", b""),))
    group.add(newer)
    assert put("older", "s", 1) == [int(ErrorCode.fenced_instance_id)]
