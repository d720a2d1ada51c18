"""Private drafts: their bytes, and that nothing of them shows to those who do not know them."""

from typing import Any
from uuid import UUID

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference_broker.wire.apis import DRAFTS, FIRST_DRAFT_VERSION, VERSIONS, ApiKey, api_name, is_flexible, is_known
from reference_broker.wire.drafts import (
    LAYOUTS,
    OWN_REQUESTS,
    FetchSnapshotResponse1000,
    MetadataBroker1000,
    MetadataPartition1000,
    MetadataResponse1000,
    MetadataTopic1000,
    OffsetCommitRequest1000,
    OffsetCommitRequest1001,
    OffsetCommitRequestPartition1000,
    OffsetCommitRequestPartition1001,
    OffsetCommitRequestTopic1000,
    OffsetCommitRequestTopic1001,
    OffsetFetchResponse1000,
    OffsetFetchResponsePartition1000,
    OffsetFetchResponseTopic1000,
    PartitionSnapshots,
    TopicSnapshots,
    UpdateMetadataBroker1000,
    UpdateMetadataEndpoint1000,
    UpdateMetadataPartition1000,
    UpdateMetadataPartition1001,
    UpdateMetadataRequest1000,
    UpdateMetadataRequest1001,
    UpdateMetadataResponse1000,
)
from reference_broker.wire.errors import ErrorCode, ProtocolError
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import (
    body_class,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from reference_broker.wire.schema import is_flexible_entity
from reference_broker.wire.tests.strategies import entities

KEY = ApiKey.FETCH_SNAPSHOT
QUICK = settings(max_examples=50, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))


def request(text: str) -> Any:
    return decode_request(KEY, 1000, bytes.fromhex(text), 0)


@pytest.mark.clause("D-1")
@pytest.mark.clause("S-17")
def test_fetch_snapshot_1000_request() -> None:
    text = "00000003 00000064 00000001 0001 74 00000001 00000000 00000004 0000000000000005 00000002 0000000000000007"
    body = request(text)
    expected: Any = body_class(KEY, "request")
    assert type(body) is expected
    (partition,) = body.topics[0].partitions
    assert body.replica_id == 3
    assert body.max_bytes == 100
    assert body.topics[0].name == "t"
    assert body.cluster_id is None
    assert (partition.partition, partition.current_leader_epoch, partition.position) == (0, 4, 7)
    assert (partition.snapshot_id.end_offset, partition.snapshot_id.epoch) == (5, 2)
    frame = b"".join(encode_request(KEY, 1000, 9, "me", body))
    header_v1 = "0000003b 003b 03e8 00000009 0002 6d65"
    assert frame.hex(" ", 1) == bytes.fromhex(header_v1 + text).hex(" ", 1)


@pytest.mark.clause("S-17")
def test_fetch_snapshot_1000_response() -> None:
    first = PartitionSnapshots(partition_index=0, media_type="a/b", more=True, data=b"xyz")
    later = PartitionSnapshots(partition_index=1, error_code=ErrorCode.snapshot_not_found, position=3)
    body = FetchSnapshotResponse1000(topics=(TopicSnapshots(name="t", partitions=(first, later)),))
    frame = b"".join(encode_response(KEY, 1000, 9, body))
    assert frame[4:].hex(" ", 1) == bytes.fromhex(
        "00000009 00000000 0000 00000001 0001 74 00000002"
        "00000000 0000 0003 612f62 01 0000000000000000 00000003 78797a"
        "00000001 0062 0000 00 0000000000000003 00000000"
    ).hex(" ", 1)
    assert decode_response(KEY, 1000, frame[4:]) == (9, body)


@pytest.mark.clause("D-1")
def test_drafts_have_layouts_and_are_never_flexible() -> None:
    assert {draft for draft in DRAFTS if draft[0] != ApiKey.FETCH} == set(LAYOUTS)  # Fetch has a codec of its own.
    for api_key, version in DRAFTS:
        assert version >= FIRST_DRAFT_VERSION
        assert is_known(api_key, version)
        assert not is_flexible(api_key, version)
        assert not any(is_flexible_entity(each) for each in LAYOUTS.get((api_key, version), ()))


@pytest.mark.clause("D-3")
def test_drafts_lie_outside_the_announced_versions_and_have_a_name_each() -> None:
    for (api_key, version), feature in DRAFTS.items():
        assert version > VERSIONS.get(api_key, (0, -1))[1]
        assert feature == f"crucible.{api_name(api_key)}.{version}"
    assert len(set(DRAFTS.values())) == len(DRAFTS)
    assert not is_known(KEY, 1001)
    assert not is_known(ApiKey.UPDATE_METADATA, 1002)
    assert not is_known(ApiKey.METADATA, 1002)
    assert not is_known(ApiKey.VOTE, 1000)


@pytest.mark.clause("D-1")
@pytest.mark.clause("M-3")
def test_update_metadata_request_of_each_version() -> None:
    """1000 is KIP-232's page on version 4. 1001 adds a topic ID, a broker epoch and a type."""
    state = UpdateMetadataPartition1001(
        topic="t",
        partition=1,
        controller_epoch=2,
        leader=-2,
        leader_epoch=3,
        isr=(4,),
        zk_version=5,
        replicas=(4, 6),
        offline_replicas=(6,),
        topic_id=UUID(int=7),
    )
    endpoint = UpdateMetadataEndpoint1000(port=9092, host="h", listener="P")
    broker = UpdateMetadataBroker1000(id=4, endpoints=(endpoint,))
    shared: dict[str, Any] = {"controller_id": 1, "controller_epoch": 2, "metadata_epoch": 8, "live_brokers": (broker,)}
    plain = UpdateMetadataPartition1000(
        topic="t",
        partition=1,
        controller_epoch=2,
        leader=-2,
        leader_epoch=3,
        isr=(4,),
        zk_version=5,
        replicas=(4, 6),
        offline_replicas=(6,),
    )
    page = UpdateMetadataRequest1000(partition_states=(plain,), **shared)
    ours = UpdateMetadataRequest1001(partition_states=(state,), broker_epoch=9, type=1, **shared)
    head = "00000001 00000002 0000000000000008"
    partition = (
        "00000001 0001 74 00000001 00000002 fffffffe 00000003 00000001 00000004 00000005 00000002 00000004 00000006"
        "00000001 00000006"
    )
    brokers = "00000001 00000004 00000001 00002384 0001 68 0001 50 0000 ffff"
    texts: tuple[tuple[int, Any, str], ...] = (
        (1000, page, head + partition + brokers),
        (1001, ours, f"{head}{partition}00000000000000000000000000000007{brokers}0000000000000009 01"),
    )
    for version, body, text in texts:
        frame = b"".join(encode_request(ApiKey.UPDATE_METADATA, version, 9, "me", body))
        header = b"\x00\x06" + version.to_bytes(2, "big") + bytes.fromhex("00000009 0002 6d65")
        assert frame[4:].hex(" ", 1) == (header + bytes.fromhex(text)).hex(" ", 1)
        assert decode_request(ApiKey.UPDATE_METADATA, version, bytes.fromhex(text), 0) == body
    refused = UpdateMetadataResponse1000(error_code=ErrorCode.stale_controller_epoch)
    assert b"".join(encode_response(ApiKey.UPDATE_METADATA, 1000, 9, refused)).hex() == "0000000600000009000b"


@pytest.mark.clause("D-1")
@pytest.mark.clause("M-4")
def test_metadata_1000_is_version_5_with_the_epoch_behind_the_controllers_id() -> None:
    partition = MetadataPartition1000(partition_index=0, leader_id=1, replica_nodes=(1,), isr_nodes=(1,))
    body = MetadataResponse1000(
        brokers=(MetadataBroker1000(node_id=1, host="h", port=9092),),
        cluster_id="c",
        controller_id=1,
        metadata_epoch=7,
        topics=(MetadataTopic1000(name="t", partitions=(partition,)),),
    )
    frame = b"".join(encode_response(ApiKey.METADATA, 1000, 9, body))
    assert frame[4:].hex(" ", 1) == bytes.fromhex(
        "00000009 00000000 00000001 00000001 0001 68 00002384 ffff 0001 63 00000001 0000000000000007"
        "00000001 0000 0001 74 00 00000001 0000 00000000 00000001 00000001 00000001 00000001 00000001 00000000"
    ).hex(" ", 1)
    assert decode_response(ApiKey.METADATA, 1000, frame[4:]) == (9, body)
    sent: Any = decode_request(ApiKey.METADATA, 1000, bytes.fromhex("00000001 0001 74 00"), 0)
    expected: Any = body_class(ApiKey.METADATA, "request")
    assert type(sent) is expected
    assert ([topic.name for topic in sent.topics], sent.allow_auto_topic_creation) == (["t"], False)


@pytest.mark.clause("D-1")
@pytest.mark.clause("M-6")
@pytest.mark.clause("M-9")
def test_offset_commit_and_offset_fetch_1000_have_the_epoch_behind_each_offset() -> None:
    commit = OffsetCommitRequestPartition1000(
        partition_index=1, committed_offset=2, metadata_epoch=3, committed_metadata="m"
    )
    topic = OffsetCommitRequestTopic1000(name="t", partitions=(commit,))
    body = OffsetCommitRequest1000(group_id="g", generation_id_or_member_epoch=4, member_id="i", topics=(topic,))
    frame = b"".join(encode_request(ApiKey.OFFSET_COMMIT, 1000, 9, "me", body))
    text = (
        "0001 67 00000004 0001 69 ffffffffffffffff"
        "00000001 0001 74 00000001 00000001 0000000000000002 0000000000000003 0001 6d"
    )
    assert frame[4:].hex(" ", 1) == bytes.fromhex("0008 03e8 00000009 0002 6d65" + text).hex(" ", 1)
    partition = OffsetFetchResponsePartition1000(partition_index=1, committed_offset=2, metadata_epoch=3, metadata="m")
    fetched = OffsetFetchResponse1000(topics=(OffsetFetchResponseTopic1000(name="t", partitions=(partition,)),))
    assert b"".join(encode_response(ApiKey.OFFSET_FETCH, 1000, 9, fetched))[8:].hex(" ", 1) == bytes.fromhex(
        "00000000 00000001 0001 74 00000001 00000001 0000000000000002 0000000000000003 0001 6d 0000 0000"
    ).hex(" ", 1)


@pytest.mark.clause("M-6", "M-9")
def test_1001_has_leader_epochs_and_the_instance_id_too() -> None:
    commit = OffsetCommitRequestPartition1001(
        partition_index=1, committed_offset=2, committed_leader_epoch=5, metadata_epoch=3, committed_metadata="m"
    )
    topic = OffsetCommitRequestTopic1001(name="t", partitions=(commit,))
    body = OffsetCommitRequest1001(
        group_id="g", generation_id_or_member_epoch=4, member_id="i", group_instance_id="s", topics=(topic,)
    )
    frame = b"".join(encode_request(ApiKey.OFFSET_COMMIT, 1001, 9, "me", body))
    text = (
        "0001 67 00000004 0001 69 0001 73"
        "00000001 0001 74 00000001 00000001 0000000000000002 00000005 0000000000000003 0001 6d"
    )
    assert frame[4:].hex(" ", 1) == bytes.fromhex("0008 03e9 00000009 0002 6d65" + text).hex(" ", 1)
    assert decode_request(ApiKey.OFFSET_COMMIT, 1001, bytes.fromhex(text), 0) == body


@pytest.mark.thorough
@QUICK
@given(st.data())
def test_drafts_round_trip(data: st.DataObject) -> None:
    body = data.draw(entities(FetchSnapshotResponse1000))
    assert decode_response(KEY, 1000, b"".join(encode_response(KEY, 1000, 1, body))[4:]) == (1, body)
    sent = data.draw(entities(body_class(KEY, "request")))
    frame = b"".join(encode_request(KEY, 1000, 1, None, sent))[4:]
    again: Any = decode_request(KEY, 1000, frame, read_request_header(frame)[1])
    assert b"".join(encode_request(KEY, 1000, 1, None, again))[4:] == frame
    assert (again.replica_id, again.max_bytes, again.cluster_id) == (sent.replica_id, sent.max_bytes, None)
    assert [topic.name for topic in again.topics] == [topic.name for topic in sent.topics]


@pytest.mark.thorough
@QUICK
@pytest.mark.parametrize("draft", sorted(LAYOUTS), ids=lambda draft: f"{api_name(draft[0])}.{draft[1]}")
@given(data=st.data())
def test_every_draft_round_trips(draft: tuple[int, int], data: st.DataObject) -> None:
    api_key, version = draft
    request, response = LAYOUTS[draft]
    entity = data.draw(entities(response))
    assert decode_response(api_key, version, b"".join(encode_response(api_key, version, 1, entity))[4:]) == (1, entity)
    if draft in OWN_REQUESTS:
        sent = data.draw(entities(request))
        frame = b"".join(encode_request(api_key, version, 1, None, sent))[4:]
        assert decode_request(api_key, version, frame, read_request_header(frame)[1]) == sent


@QUICK
@given(st.sampled_from(sorted(LAYOUTS)), st.booleans(), st.binary(max_size=80))
def test_any_bytes_are_a_draft_or_a_protocol_error(draft: tuple[int, int], is_request: bool, frame: bytes) -> None:
    try:
        if is_request:
            decode_request(*draft, frame, 0)
        else:
            decode_response(*draft, frame)
    except ProtocolError:
        pass  # The other outcome that is allowed.
