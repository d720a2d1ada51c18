"""Messages of all other APIs: against kio in each version, and through the greatest version's class."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from kio.index import load_request_schema, load_response_schema
from kio.schema.types import BrokerId
from kio.serial import entity_reader
from kio.static.primitive import i32

from reference_broker.wire import version_conversions
from reference_broker.wire.apis import VERSIONS, ApiKey, is_flexible
from reference_broker.wire.decoding import decoder
from reference_broker.wire.encoding import encoder
from reference_broker.wire.errors import DraftError, ErrorCode, ProtocolError, known_error
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import (
    Direction,
    body_class,
    decode_request,
    decode_response,
    encode_request,
    encode_response,
)
from reference_broker.wire.schema import EPOCH, MILLISECOND, schema_fields
from reference_broker.wire.tests.strategies import entities, kio_bytes

SERVED = (
    ApiKey.LIST_OFFSETS,
    ApiKey.METADATA,
    ApiKey.API_VERSIONS,
    ApiKey.CREATE_TOPICS,
    ApiKey.DELETE_TOPICS,
    ApiKey.CREATE_PARTITIONS,
    ApiKey.DELETE_RECORDS,
    ApiKey.DESCRIBE_CONFIGS,
    ApiKey.DESCRIBE_CLUSTER,
    ApiKey.INIT_PRODUCER_ID,
    ApiKey.OFFSET_FOR_LEADER_EPOCH,
    ApiKey.FIND_COORDINATOR,
    ApiKey.JOIN_GROUP,
    ApiKey.HEARTBEAT,
    ApiKey.LEAVE_GROUP,
    ApiKey.SYNC_GROUP,
    ApiKey.DESCRIBE_GROUPS,
    ApiKey.LIST_GROUPS,
    ApiKey.DELETE_GROUPS,
    ApiKey.VOTE,
    ApiKey.BEGIN_QUORUM_EPOCH,
    ApiKey.END_QUORUM_EPOCH,
    ApiKey.FETCH_SNAPSHOT,
    ApiKey.DESCRIBE_QUORUM,
    ApiKey.ALTER_PARTITION,
    ApiKey.ALTER_CONFIGS,
    ApiKey.INCREMENTAL_ALTER_CONFIGS,
    ApiKey.UPDATE_FEATURES,
    ApiKey.BROKER_REGISTRATION,
    ApiKey.BROKER_HEARTBEAT,
    ApiKey.UNREGISTER_BROKER,
    ApiKey.ALLOCATE_PRODUCER_IDS,
    ApiKey.ASSIGN_REPLICAS_TO_DIRS,
)
DIRECTIONS: tuple[Direction, ...] = ("request", "response")
OTHERS = [key for key in VERSIONS if key not in (ApiKey.FETCH, ApiKey.PRODUCE)]
SERVED_VERSIONS = [
    (key, version, direction)
    for key in SERVED
    for version in range(VERSIONS[key][0], VERSIONS[key][1] + 1)
    for direction in DIRECTIONS
]
ALL = list(HealthCheck)


def schema_of(key: int, version: int, direction: Direction) -> type:
    return (load_request_schema if direction == "request" else load_response_schema)(key, version)


def check_equal_to_kio(schema: type, value: Any) -> None:
    expected = kio_bytes(value)
    out = bytearray()
    encoder(schema, schema)(out, value)
    assert bytes(out) == expected
    assert decoder(schema, schema)(memoryview(expected), 0) == entity_reader(schema)(expected, 0)


@pytest.mark.thorough
@pytest.mark.parametrize("key", OTHERS)
@settings(max_examples=5, deadline=None, derandomize=True, suppress_health_check=ALL)
@given(data=st.data())
def test_every_api_is_coded_as_kio_codes_it(key: ApiKey, data: st.DataObject) -> None:
    version = data.draw(st.integers(*VERSIONS[key][:2]))
    direction = data.draw(st.sampled_from(DIRECTIONS))
    schema = schema_of(key, version, direction)
    check_equal_to_kio(schema, data.draw(entities(schema)))


def through_the_wire(key: int, version: int, direction: Direction, body: object) -> tuple[bytes, object]:
    if direction == "request":
        frame = b"".join(encode_request(key, version, 3, None, body))[4:]
        header, offset = read_request_header(frame)
        assert header == (key, version, 3, None)
        return frame, decode_request(key, version, memoryview(frame), offset)
    frame = b"".join(encode_response(key, version, 3, body))[4:]
    correlation_id, decoded = decode_response(key, version, frame)
    assert correlation_id == 3
    return frame, decoded


@pytest.mark.thorough
@pytest.mark.parametrize(("key", "version", "direction"), SERVED_VERSIONS)
@settings(max_examples=3, deadline=None, derandomize=True, suppress_health_check=ALL)
@given(data=st.data())
def test_served_versions_round_trip(key: ApiKey, version: int, direction: Direction, data: st.DataObject) -> None:
    """A message of each version, as kio writes it, becomes the one class and turns back into the same bytes."""
    schema = schema_of(key, version, direction)
    wire = data.draw(entities(schema))
    # The response to an unknown version of ApiVersions has the layout of version 0 (KIP-511).
    assume(key != ApiKey.API_VERSIONS or getattr(wire, "error_code", 0) != ErrorCode.unsupported_version)
    changes = version_conversions.REQUESTS if direction == "request" else version_conversions.RESPONSES
    change = changes.get((key, version))
    read = decoder(schema, body_class(key, direction))
    expected = kio_bytes(wire)
    target = body_class(key, direction)
    body = read(expected, 0)[0] if change is None else version_conversions.converted(wire, target, change.up)
    check_classes(body, body_class(key, direction))
    frame, decoded = through_the_wire(key, version, direction, body)
    assert decoded == body
    if not says_what_only_this_version_can(key, version):
        assert frame.endswith(expected)


def check_classes(value: object, expected: type) -> None:
    """All structs inside are those of the greatest version: handlers see no other."""
    known = schema_fields(expected)
    assert type(value) is expected
    for each in known:
        inner = getattr(value, each.name)
        if each.struct is not None and inner is not None:
            for item in inner if each.is_array else (inner,):
                check_classes(item, each.struct)


def says_what_only_this_version_can(key: ApiKey, version: int) -> bool:
    """Metadata 8-10 can request the cluster's authorised operations; the greatest version cannot."""
    return key == ApiKey.METADATA and 8 <= version <= 10


def test_find_coordinator_has_one_shape() -> None:
    old = load_request_schema(10, 3)(key="group", key_type=0)  # type: ignore[call-arg]
    body: Any = decode_request(10, 3, kio_bytes(old), 0)
    assert body.coordinator_keys == ("group",)
    response_class: Any = body_class(10, "response")
    from kio.schema.find_coordinator.v6.response import Coordinator

    coordinator: Any = Coordinator(
        key="group",
        node_id=BrokerId(1),
        host="h",
        port=i32(9),
        error_code=ErrorCode.none,
        error_message=None,
    )
    reply = response_class(throttle_time=read_default(response_class, "throttle_time"), coordinators=(coordinator,))
    frame = b"".join(encode_response(10, 0, 1, reply))
    assert frame == bytes.fromhex("00000011 00000001 0000 00000001 0001 68 00000009")


def read_default(entity: type, name: str) -> Any:
    return next(field.default for field in schema_fields(entity) if field.name == name)


def test_downgrade_in_update_features_0_is_a_safe_one() -> None:
    """KIP-778: what the flag meant before there were types of upgrade."""
    frame = bytes.fromhex("0000ea60 02 0266 0005 01 00 00")
    body: Any = decode_request(ApiKey.UPDATE_FEATURES, 0, frame, 0)
    assert (body.validate_only, body.feature_updates[0].upgrade_type) == (False, 2)
    assert b"".join(encode_request(ApiKey.UPDATE_FEATURES, 0, 1, None, body)).endswith(frame)
    upgrade: Any = decode_request(ApiKey.UPDATE_FEATURES, 0, frame.replace(b"\1\0\0", bytes(3)), 0)
    assert upgrade.feature_updates[0].upgrade_type == 1


def test_update_features_in_old_versions_lists_each_feature() -> None:
    """Version 2 has no results per feature, so the class that handlers fill is that of version 1."""
    from kio.schema.update_features.v1.response import UpdatableFeatureResult

    response: Any = body_class(ApiKey.UPDATE_FEATURES, "response")
    result = UpdatableFeatureResult(feature="f", error_code=ErrorCode.none, error_message=None)
    body = response(throttle_time=timedelta(0), error_code=0, error_message=None, results=(result,))
    key = ApiKey.UPDATE_FEATURES
    assert b"".join(encode_response(key, 2, 5, body)).endswith(bytes.fromhex("00000000 0000 00 00"))
    assert b"".join(encode_response(key, 1, 5, body)).endswith(bytes.fromhex("00000000 0000 00 02 0266 0000 00 00 00"))


def test_no_topics_in_metadata_0_means_all() -> None:
    body: Any = decode_request(3, 0, bytes(4), 0)
    assert body.topics is None
    assert body.allow_auto_topic_creation is True
    assert b"".join(encode_request(3, 0, 1, None, body)).endswith(bytes(4))
    sent: Any = decode_request(3, 1, bytes(4), 0)
    assert sent.topics == ()


def test_leave_group_before_version_3_has_one_member_and_its_error() -> None:
    from kio.schema.leave_group.v5.response import MemberResponse

    frame = bytes.fromhex("0001 67 0001 6d")
    body: Any = decode_request(ApiKey.LEAVE_GROUP, 2, frame, 0)
    assert [(each.member_id, each.group_instance_id, each.reason) for each in body.members] == [("m", None, None)]
    assert b"".join(encode_request(ApiKey.LEAVE_GROUP, 2, 1, None, body)).endswith(frame)
    response: Any = body_class(ApiKey.LEAVE_GROUP, "response")
    unknown: Any = MemberResponse(member_id="m", group_instance_id=None, error_code=ErrorCode.unknown_member_id)
    none, coordinator, member = ErrorCode.none, ErrorCode.not_coordinator, ErrorCode.unknown_member_id
    for top, members, error in (
        (coordinator, (), coordinator),
        (none, (unknown,), member),
        (coordinator, (unknown,), coordinator),
        (none, (), none),
    ):
        reply = response(throttle_time=timedelta(0), error_code=top, members=members)
        sent = b"".join(encode_response(ApiKey.LEAVE_GROUP, 1, 5, reply))
        assert sent.endswith(bytes(4) + error.to_bytes(2, "big"))


@pytest.mark.parametrize("code", [ErrorCode.topic_already_exists, 36])
def test_error_code_may_be_any_number(code: Any) -> None:
    response: Any = body_class(ApiKey.INIT_PRODUCER_ID, "response")
    body = response(throttle_time=timedelta(0), error_code=code, producer_id=1, producer_epoch=2)
    frame = b"".join(encode_response(ApiKey.INIT_PRODUCER_ID, 1, 5, body))
    assert frame == bytes.fromhex("00000014 00000005 00000000 0024 0000000000000001 0002")
    _, decoded = decode_response(ApiKey.INIT_PRODUCER_ID, 1, frame[4:])
    assert decoded.error_code is ErrorCode.topic_already_exists  # type: ignore[attr-defined]


def test_unknown_error_code_reads_as_unknown_server_error() -> None:
    frame = bytes.fromhex("00000005 00000000 2713 0000000000000001 0002")
    _, decoded = decode_response(ApiKey.INIT_PRODUCER_ID, 1, frame)
    assert decoded.error_code is ErrorCode.unknown_server_error  # type: ignore[attr-defined]


def test_no_time_is_read_as_kafka_sends_it() -> None:
    """DescribeTransactions has -1 for a transactional ID that had no transaction yet."""
    frame = bytes.fromhex("00000005 00 00000000 02 0000 0274 06456d707479 00007530")
    frame += bytes.fromhex("ffffffffffffffff 0000000000000007 0000 01 00 00")
    _, decoded = decode_response(ApiKey.DESCRIBE_TRANSACTIONS, 0, frame)
    (response,) = decoded.transaction_states  # type: ignore[attr-defined]
    assert response.transaction_start_time == EPOCH - MILLISECOND
    assert b"".join(encode_response(ApiKey.DESCRIBE_TRANSACTIONS, 0, 5, decoded)).endswith(frame)
    with pytest.raises(ProtocolError, match="a timestamp of -2 ms is out of range"):
        decode_response(ApiKey.DESCRIBE_TRANSACTIONS, 0, frame.replace(b"\xff" * 8, b"\xff" * 7 + b"\xfe"))


@pytest.mark.thorough
def test_flexible_versions_are_kios() -> None:
    for key, (least, greatest, _) in VERSIONS.items():
        for version in range(least, greatest + 1):
            assert is_flexible(key, version) == load_request_schema(key, version).__flexible__
            assert is_flexible(key, version) == load_response_schema(key, version).__flexible__
    assert not is_flexible(ApiKey.FETCH, 1000)


@pytest.mark.parametrize("code", [1024, -2, 32767])
def test_every_number_is_some_error(code: int) -> None:
    assert known_error(code) is ErrorCode.unknown_server_error
    assert known_error(10001) is DraftError.INVALID_FETCH_SESSION
