"""Hypothesis strategies for messages: kio's classes by their schema, Fetch and Produce values by version."""

from datetime import UTC, datetime, timedelta
from functools import cache
from io import BytesIO
from typing import Any
from uuid import UUID

from hypothesis import strategies as st
from kio.serial import entity_writer

from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    NO_DIRECTORY_ID,
    NO_HIGH_WATERMARK,
    NO_TOPIC_ID,
    AbortedTransaction,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from reference_broker.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
    RecordError,
)
from reference_broker.wire.schema import SchemaField, schema_fields


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


INT8, INT16, INT32, INT64 = integers(8), integers(16), integers(32), integers(64)
TEXT = st.text(max_size=8)
BYTES = st.binary(max_size=20) | st.integers(4000, 5000).map(lambda size: b"r" * size)
UUIDS = st.none() | st.uuids(allow_nil=False)

PRIMITIVES: dict[str, st.SearchStrategy[Any]] = {
    "int8": INT8,
    "int16": INT16,
    "int32": INT32,
    "int64": INT64,
    "uint16": st.integers(0, 2**16 - 1),
    "uint32": st.integers(0, 2**32 - 1),
    "float64": st.floats(allow_nan=False, allow_infinity=False),
    "bool": st.booleans(),
    "string": TEXT,
    "bytes": BYTES,
    "records": BYTES,
    "uuid": UUIDS,
    "error_code": st.sampled_from(sorted(ErrorCode)),
    "timedelta_i32": INT32.map(lambda ms: timedelta(milliseconds=ms)),
    "timedelta_i64": st.integers(-(2**40), 2**40).map(lambda ms: timedelta(milliseconds=ms)),
    "datetime_i64": st.integers(0, 2**41).map(lambda ms: datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=ms)),
}


@cache
def entities(entity: type) -> st.SearchStrategy[Any]:
    """Instances of a kio dataclass; tagged fields have their default about half of the time."""
    return st.builds(entity, **{field.name: _values(field) for field in schema_fields(entity)})


def _values(field: SchemaField) -> st.SearchStrategy[Any]:
    value = entities(field.struct) if field.struct is not None else PRIMITIVES[field.kind]
    if field.is_array:
        value = st.lists(value, max_size=3).map(tuple)
    if field.nullable and (field.kind != "uuid" or field.is_array):
        value = st.none() | value
    return value if field.tag is None else st.just(field.default) | value


def kio_bytes(entity: Any) -> bytes:
    """Return the bytes that kio writes for a message."""
    out = BytesIO()
    entity_writer(type(entity))(out, entity)
    return out.getvalue()


def topics(version: int, with_ids_from: int = 13) -> st.SearchStrategy[tuple[str, bytes]]:
    if version >= with_ids_from:
        return st.tuples(st.just(""), st.binary(min_size=16, max_size=16))
    return st.tuples(TEXT, st.just(NO_TOPIC_ID))


def since(first: int, version: int, value: st.SearchStrategy[Any], default: object) -> st.SearchStrategy[Any]:
    return value if version >= first else st.just(default)


@st.composite
def fetch_requests(draw: st.DrawFn, version: int) -> FetchRequest:
    partitions = st.builds(
        FetchPartition,
        INT32,
        INT64,
        INT32,
        since(9, version, INT32, -1),
        since(12, version, INT32, -1),
        since(5, version, INT64, -1),
        since(17, version, st.just(NO_DIRECTORY_ID) | st.binary(min_size=16, max_size=16), NO_DIRECTORY_ID),
        since(18, version, st.just(NO_HIGH_WATERMARK) | INT64, NO_HIGH_WATERMARK),
    )
    topic = st.builds(
        lambda name, parts: FetchTopic(name[0], name[1], parts), topics(version), st.lists(partitions, max_size=3)
    )
    forgotten = st.builds(
        lambda name, parts: ForgottenTopic(name[0], name[1], parts), topics(version), st.lists(INT32, max_size=3)
    )
    return draw(
        st.builds(
            FetchRequest,
            replica_id=st.just(-1) | INT32,
            max_wait_ms=INT32,
            min_bytes=INT32,
            max_bytes=INT32,
            isolation_level=INT8,
            session_id=since(7, version, INT32, 0),
            session_epoch=since(7, version, INT32, -1),
            topics=st.lists(topic, max_size=3),
            forgotten=since(7, version, st.lists(forgotten, max_size=2), []).map(list),
            rack_id=since(11, version, TEXT, ""),
            cluster_id=since(12, version, st.none() | TEXT, None),
            replica_epoch=since(15, version, st.just(-1) | INT64, -1),
        )
    )


LEADERS = st.none() | st.builds(LeaderIdAndEpoch, st.integers(0, 2**31 - 1), INT32)
ENDPOINTS = st.lists(st.builds(NodeEndpoint, INT32, TEXT, INT32, st.none() | TEXT), max_size=2)


@st.composite
def fetch_responses(draw: st.DrawFn, version: int) -> FetchResponse:
    aborted = st.none() | st.lists(st.builds(AbortedTransaction, INT64, INT64), max_size=2)
    partition = st.builds(
        PartitionData,
        partition=INT32,
        error_code=st.integers(-1, 133),
        high_watermark=INT64,
        last_stable_offset=INT64,
        log_start_offset=since(5, version, INT64, -1),
        aborted_transactions=aborted,
        preferred_read_replica=since(11, version, INT32, -1),
        records=st.none() | BYTES,
        diverging_epoch=since(
            12, version, st.none() | st.builds(EpochEndOffset, st.integers(0, 2**31 - 1), INT64), None
        ),
        current_leader=since(12, version, LEADERS, None),
        snapshot_id=since(12, version, st.none() | st.builds(SnapshotId, st.integers(0, 2**63 - 1), INT32), None),
    )
    topic = st.builds(
        lambda name, parts: FetchTopicResponse(name[0], name[1], parts),
        topics(version),
        st.lists(partition, max_size=3),
    )
    return draw(
        st.builds(
            FetchResponse,
            error_code=since(7, version, st.integers(-1, 133), 0),
            session_id=since(7, version, INT32, 0),
            responses=st.lists(topic, max_size=2),
            throttle_time_ms=INT32,
            node_endpoints=since(16, version, ENDPOINTS, []).map(list),
        )
    )


@st.composite
def produce_requests(draw: st.DrawFn, version: int) -> ProduceRequest:
    partition = st.builds(ProducePartition, INT32, st.none() | BYTES)
    topic = st.builds(
        lambda name, parts: ProduceTopic(name[0], name[1], parts), topics(version), st.lists(partition, max_size=3)
    )
    return draw(st.builds(ProduceRequest, INT16, INT32, st.lists(topic, max_size=3), st.none() | TEXT))


@st.composite
def produce_responses(draw: st.DrawFn, version: int) -> ProduceResponse:
    errors = st.lists(st.builds(RecordError, INT32, st.none() | TEXT), max_size=2)
    partition = st.builds(
        ProducePartitionResponse,
        partition=INT32,
        error_code=st.integers(-1, 133),
        base_offset=INT64,
        log_append_time_ms=st.just(-1) | st.integers(0, 2**41),
        log_start_offset=since(5, version, INT64, -1),
        record_errors=since(8, version, errors, []).map(list),
        error_message=since(8, version, st.none() | TEXT, None),
        current_leader=since(10, version, LEADERS, None),
    )
    topic = st.builds(
        lambda name, parts: ProduceTopicResponse(name[0], name[1], parts),
        topics(version),
        st.lists(partition, max_size=3),
    )
    return draw(
        st.builds(ProduceResponse, st.lists(topic, max_size=2), INT32, since(10, version, ENDPOINTS, []).map(list))
    )


_RENAMED = {
    "max_wait_ms": "max_wait",
    "throttle_time_ms": "throttle_time",
    "timeout_ms": "timeout",
    "forgotten": "forgotten_topics_data",
    "log_append_time_ms": "log_append_time",
    "message": "batch_index_error_message",
}
_PRODUCE_RENAMED = {"topics": "topic_data", "partition": "index", "topic": "name"}
_RESPONSE_RENAMED = {"partitions": "partition_responses"}


def to_kio(value: Any, target: type, *, produce: bool) -> Any:
    """A Fetch or Produce value as kio's class of one version; asserts that nothing was left over."""
    values: dict[str, Any] = {}
    names = {field.name: field for field in schema_fields(target)}
    for ours in type(value).__dataclass_fields__:
        given = getattr(value, ours)
        for name in _kio_names(ours, produce):
            if name in names:
                values[name] = _kio_value(given, names[name], produce)
    if "replica_state" in names:
        struct = names["replica_state"].struct
        assert struct is not None
        values["replica_state"] = struct(replica_id=value.replica_id, replica_epoch=value.replica_epoch)
    return target(**{name: values.get(name, each.default) for name, each in names.items()})


def _kio_names(ours: str, produce: bool) -> list[str]:
    names = [ours, _RENAMED.get(ours, ours)]
    if produce:
        names += [_PRODUCE_RENAMED.get(ours, ours), _RESPONSE_RENAMED.get(ours, ours)]
        if ours == "partitions":
            names.append("partition_data")
    if ours == "partition":
        names.append("partition_index")
    return names


def _kio_value(given: Any, field: SchemaField, produce: bool) -> Any:
    if field.struct is not None and field.is_array:
        return None if given is None else tuple(to_kio(item, field.struct, produce=produce) for item in given)
    if field.struct is not None:
        return field.default if given is None else to_kio(given, field.struct, produce=produce)
    if field.is_array:
        return tuple(given)
    match field.kind:
        case "uuid":
            return None if given == NO_TOPIC_ID else UUID(bytes=given)
        case "error_code":
            return ErrorCode(given)
        case "timedelta_i32":
            return timedelta(milliseconds=given)
        case "datetime_i64":
            return None if given == -1 else datetime(1970, 1, 1, tzinfo=UTC) + timedelta(milliseconds=given)
    return given
