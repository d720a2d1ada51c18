"""Private drafts: their bytes, and that nothing of them shows to those who do not know them."""

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from reference_broker.wire import drafts
from reference_broker.wire.apis import DRAFTS, FIRST_DRAFT_VERSION, VERSIONS, ApiKey, api_name, is_flexible, is_known
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.headers import read_request_header
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
def test_a_fetch_snapshot_1000_request() -> None:
    text = "00000003 00000064 00000001 0001 74 00000001 00000000 00000004 0000000000000005 00000002 0000000000000007"
    body = request(text)
    assert type(body) is body_class(KEY, "request")
    (partition,) = body.topics[0].partitions
    assert (body.replica_id, body.max_bytes, body.topics[0].name, body.cluster_id) == (3, 100, "t", None)
    assert (partition.partition, partition.current_leader_epoch, partition.position) == (0, 4, 7)
    assert (partition.snapshot_id.end_offset, partition.snapshot_id.epoch) == (5, 2)
    frame = b"".join(encode_request(KEY, 1000, 9, "me", body))
    header_v1 = "0000003b 003b 03e8 00000009 0002 6d65"
    assert frame.hex(" ", 1) == bytes.fromhex(header_v1 + text).hex(" ", 1)


@pytest.mark.clause("S-17")
def test_a_fetch_snapshot_1000_response() -> None:
    first = drafts.PartitionSnapshots(partition_index=0, media_type="a/b", more=True, data=b"xyz")
    later = drafts.PartitionSnapshots(partition_index=1, error_code=98, position=3)
    body = drafts.FetchSnapshotResponse1000(topics=(drafts.TopicSnapshots(name="t", partitions=(first, later)),))
    frame = b"".join(encode_response(KEY, 1000, 9, body))
    assert frame[4:].hex(" ", 1) == bytes.fromhex(
        "00000009 00000000 0000 00000001 0001 74 00000002"
        "00000000 0000 0003 612f62 01 0000000000000000 00000003 78797a"
        "00000001 0062 0000 00 0000000000000003 00000000"
    ).hex(" ", 1)
    assert decode_response(KEY, 1000, frame[4:]) == (9, body)


@pytest.mark.clause("D-1")
def test_drafts_have_layouts_and_are_never_flexible() -> None:
    assert set(DRAFTS) - {(ApiKey.FETCH, 1000)} == set(drafts.LAYOUTS)  # Fetch has a codec of its own.
    for api_key, version in DRAFTS:
        assert version >= FIRST_DRAFT_VERSION
        assert is_known(api_key, version)
        assert not is_flexible(api_key, version)
        assert not any(is_flexible_entity(each) for each in drafts.LAYOUTS.get((api_key, version), ()))


@pytest.mark.clause("D-3")
def test_drafts_lie_outside_the_announced_versions_and_have_a_name_each() -> None:
    for (api_key, version), feature in DRAFTS.items():
        assert version > VERSIONS[ApiKey(api_key)][1]
        assert feature == f"crucible.{api_name(api_key)}.{version}"
    assert len(set(DRAFTS.values())) == len(DRAFTS)
    assert not is_known(KEY, 1001)
    assert not is_known(ApiKey.VOTE, 1000)


@QUICK
@given(st.data())
def test_drafts_round_trip(data: st.DataObject) -> None:
    body = data.draw(entities(drafts.FetchSnapshotResponse1000))
    assert decode_response(KEY, 1000, b"".join(encode_response(KEY, 1000, 1, body))[4:]) == (1, body)
    asked = data.draw(entities(body_class(KEY, "request")))
    frame = b"".join(encode_request(KEY, 1000, 1, None, asked))[4:]
    again: Any = decode_request(KEY, 1000, frame, read_request_header(frame)[1])
    assert b"".join(encode_request(KEY, 1000, 1, None, again))[4:] == frame
    assert (again.replica_id, again.max_bytes, again.cluster_id) == (asked.replica_id, asked.max_bytes, None)
    assert [topic.name for topic in again.topics] == [topic.name for topic in asked.topics]


@QUICK
@given(st.booleans(), st.binary(max_size=80))
def test_any_bytes_are_a_draft_or_a_protocol_error(asks: bool, frame: bytes) -> None:
    try:
        if asks:
            decode_request(KEY, 1000, frame, 0)
        else:
            decode_response(KEY, 1000, frame)
    except ProtocolError:
        pass  # The other outcome that is allowed.
