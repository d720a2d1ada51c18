"""Codecs of the drafts of Fetch: 1000 and 1002 (KIP-227's first revision), and 1001 (the tombstone horizon).

Source of Fetch 1000: the page's FetchRequest and FetchResponse, on the layout of Fetch 6. As there, replica_id comes
first and max_bytes is present. partition_id is INT32, though the page says STRING. error_string is nullable. Only full
requests change the set of partitions, so there is no list of forgotten ones. The layout is never flexible.

Replication needs fields that Fetch has from versions 9, 12, 13 and 15 on (KIP-320, KIP-595, KIP-516, KIP-903). Fetch
1002 has them in these places:
- In a request, a UUID topic_id follows each topic's name; it is zero if not given. It distinguishes a topic from one
that was
  deleted and created again with the same name and leader epoch.
- In a request, each partition ends with INT32 current_leader_epoch and INT32 last_fetched_epoch, -1 if not given.
- A request ends with INT64 replica_epoch, the broker epoch of the follower (KIP-903), -1 if not given.
- In a response, each partition's records are followed by INT32 diverging_epoch and the INT64 end offset of that epoch.
  Both are -1 if the logs do not diverge.

Fetch 1001 is the tombstone horizon marker, the alternative that KIP-630's page rejects (H-1). The page gives no layout.
This one has the fields of Fetch 15 that fetchers here use, and each partition of a response ends with the marker.
Nothing in it is flexible, and topics are named by their IDs alone.
- Request: INT32 replica_id, max_wait_ms, min_bytes, max_bytes; INT8 isolation_level; INT32 session_id, session_epoch;
  INT64 replica_epoch (KIP-903), -1 if not given; topics, each a UUID and its partitions; forgotten topics, each a UUID
  and its partitions' numbers. A partition is INT32 partition, current_leader_epoch; INT64 fetch_offset; INT32
  last_fetched_epoch; INT64 log_start_offset; INT32 partition_max_bytes.
- Response: INT32 throttle_time_ms; INT16 error_code; INT32 session_id; topics, each a UUID and its partitions. A
  partition is as in Fetch 11. INT32 diverging_epoch and INT64, the offset where that epoch ends, follow, both -1 if the
  logs do not diverge. INT64 tombstone_horizon is last, -1 in an error.
"""

from dataclasses import replace
from struct import Struct
from typing import Final

from reference_broker.ports.slicing import run_to_end
from reference_broker.wire.apis import FETCH_FIRST_REVISION_REPLICAS, FETCH_TOMBSTONE_HORIZON
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    PartitionData,
)
from reference_broker.wire.fetch_requests import Partitions, fetch_work, indexes, partitions_in_slices
from reference_broker.wire.fetch_responses import (
    MIN_PARTITION_5,
    MIN_PARTITION_11,
    read_legacy_partition,
    write_legacy_partition,
)
from reference_broker.wire.primitives import (
    Buffers,
    Frame,
    Output,
    legacy_string,
    read_legacy_count,
    read_legacy_nullable_string,
    read_legacy_string,
)
from reference_broker.wire.request_limits import Decoding, UnitBudget

_INT64: Final = Struct(">q")
_INT32: Final = Struct(">i")
_REQUEST: Final = Struct(">iiiibbqq")
"""replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, fetch_type, session ID, sequence number."""
_RESPONSE: Final = Struct(">iiih")
"""Length (filled in later), correlation ID, throttle_time_ms, error_code."""
_THROTTLE_AND_ERROR: Final = Struct(">ih")
_SESSION: Final = Struct(">qb")
"""Session ID, response_flags."""
_UUID: Final = Struct("16s")
_PARTITION: Final = Struct(">iqqi")
"""partition, fetch_offset, log_start_offset, max_bytes."""
_REPLICAS_PARTITION: Final = Struct(">iqqiii")
"""partition, fetch_offset, log_start_offset, max_bytes, current_leader_epoch, last_fetched_epoch."""
_DIVERGING: Final = Struct(">iq")
"""diverging_epoch, and the offset where it ends."""
_NO_DIVERGENCE: Final = (-1, -1)
_AS_IN: Final = 6
"""The version of Fetch whose layout the partitions of a response have."""


def encode_draft_request(version: int, start: bytes, request: FetchRequest) -> Buffers:
    """Return the whole frame. ``start`` is four bytes for the length, and the header."""
    if version == FETCH_TOMBSTONE_HORIZON:
        return _encode_horizon_request(start, request)
    output = Output(start)
    out, r = output.small, request
    out += _REQUEST.pack(
        r.replica_id,
        r.max_wait_ms,
        r.min_bytes,
        r.max_bytes,
        r.isolation_level,
        r.fetch_type,
        r.session_id,
        r.session_epoch,
    )
    out += _INT32.pack(len(r.topics))
    of_replica = version == FETCH_FIRST_REVISION_REPLICAS
    for topic in r.topics:
        out += legacy_string(topic.topic) + (topic.topic_id if of_replica else b"") + _INT32.pack(len(topic.partitions))
        for partition in topic.partitions:
            out += _packed(partition, of_replica)
    if of_replica:
        out += _INT64.pack(r.replica_epoch)
    return output.finish()


def _packed(p: FetchPartition, of_replica: bool) -> bytes:
    fields = p.partition, p.fetch_offset, p.log_start_offset, p.partition_max_bytes
    if of_replica:
        return _REPLICAS_PARTITION.pack(*fields, p.current_leader_epoch, p.last_fetched_epoch)
    return _PARTITION.pack(*fields)


def decode_draft_request(version: int, frame: Frame, offset: int) -> tuple[FetchRequest, int]:
    """Return the body and the offset behind it. Raise ProtocolError, or one of BAD_BYTES."""
    return run_to_end(draft_request_in_slices(version, frame, offset, fetch_work()))


def draft_request_in_slices(version: int, frame: Frame, offset: int, work: UnitBudget) -> Decoding[FetchRequest]:
    """As ``decode_draft_request``, for large requests, which take several events."""
    if version == FETCH_TOMBSTONE_HORIZON:
        return (yield from _horizon_request_in_slices(frame, offset, work))
    replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, fetch_type, session_id, number = (
        _REQUEST.unpack_from(frame, offset)
    )
    of_replica = version == FETCH_FIRST_REVISION_REPLICAS
    topics, offset = yield from _read_topics(frame, offset + _REQUEST.size, of_replica, work)
    replica_epoch = -1
    if of_replica:
        (replica_epoch,) = _INT64.unpack_from(frame, offset)
        offset += _INT64.size
    request = FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        number,
        topics,
        replica_epoch=replica_epoch,
        fetch_type=fetch_type,
    )
    return request, offset


def _read_topics(frame: Frame, offset: int, of_replica: bool, work: UnitBudget) -> Decoding[list[FetchTopic]]:
    topics = []
    layout, read_rows = (_REPLICAS_PARTITION, _replicas_rows) if of_replica else (_PARTITION, _rows)
    count, offset = read_legacy_count(frame, offset, 6 + of_replica * len(NO_TOPIC_ID))
    work.announce(count, False)
    for _ in range(count):
        topic, offset = read_legacy_string(frame, offset)
        topic_id = NO_TOPIC_ID
        if of_replica:
            (topic_id,) = _UUID.unpack_from(frame, offset)
            offset += _UUID.size
        partition_count, offset = read_legacy_count(frame, offset, layout.size)
        partitions, offset = yield from partitions_in_slices(read_rows, frame, offset, partition_count, work)
        topics.append(FetchTopic(topic, topic_id, partitions))
    return topics, offset


def _rows(frame: Frame, offset: int, count: int) -> Partitions:
    end = offset + _PARTITION.size * count
    rows = _PARTITION.iter_unpack(frame[offset:end])
    return [FetchPartition(at, start, most, log_start_offset=log) for at, start, log, most in rows], end


def _replicas_rows(frame: Frame, offset: int, count: int) -> Partitions:
    end = offset + _REPLICAS_PARTITION.size * count
    rows = _REPLICAS_PARTITION.iter_unpack(frame[offset:end])
    return [FetchPartition(at, start, most, known, fetched, log) for at, start, log, most, known, fetched in rows], end


def encode_draft_response(version: int, correlation_id: int, response: FetchResponse) -> Buffers:
    """Return the whole frame. Records of 4 KiB or more become buffers of their own and are not copied."""
    if version == FETCH_TOMBSTONE_HORIZON:
        return _encode_horizon_response(correlation_id, response)
    output = Output(_RESPONSE.pack(0, correlation_id, response.throttle_time_ms, response.error_code))
    output.small += legacy_string(response.error_string)
    output.small += _SESSION.pack(response.session_id, response.response_flags)
    output.small += _INT32.pack(len(response.responses))
    for topic in response.responses:
        output.small += legacy_string(topic.topic) + _INT32.pack(len(topic.partitions))
        for partition in topic.partitions:
            write_legacy_partition(_AS_IN, output, partition)
            if version != FETCH_FIRST_REVISION_REPLICAS:
                continue
            end = partition.diverging_epoch
            output.small += _DIVERGING.pack(*(_NO_DIVERGENCE if end is None else (end.epoch, end.end_offset)))
    return output.finish()


def decode_draft_response(version: int, frame: Frame, offset: int) -> tuple[FetchResponse, int]:
    """Return the body and the offset behind it. The body's records are views into the frame. Raise ProtocolError, or
    one of BAD_BYTES."""
    if version == FETCH_TOMBSTONE_HORIZON:
        return _decode_horizon_response(frame, offset)
    topics: list[FetchTopicResponse] = []
    throttle_time_ms, error_code = _THROTTLE_AND_ERROR.unpack_from(frame, offset)
    error_string, offset = read_legacy_nullable_string(frame, offset + _THROTTLE_AND_ERROR.size)
    session_id, flags = _SESSION.unpack_from(frame, offset)
    count, offset = read_legacy_count(frame, offset + _SESSION.size, 6)
    for _ in range(count):
        topic, offset = read_legacy_string(frame, offset)
        partitions, offset = _read_response_partitions(frame, offset, version == FETCH_FIRST_REVISION_REPLICAS)
        topics.append(FetchTopicResponse(topic, NO_TOPIC_ID, partitions))
    response = FetchResponse(
        error_code, session_id, topics, throttle_time_ms, error_string=error_string, response_flags=flags
    )
    return response, offset


def _read_response_partitions(frame: Frame, offset: int, of_replica: bool) -> tuple[list[PartitionData], int]:
    count, offset = read_legacy_count(frame, offset, MIN_PARTITION_5 + of_replica * _DIVERGING.size)
    partitions = []
    for _ in range(count):
        data, offset = read_legacy_partition(_AS_IN, frame, offset)
        if of_replica:
            end = _DIVERGING.unpack_from(frame, offset)
            if end != _NO_DIVERGENCE:
                data = replace(data, diverging_epoch=EpochEndOffset(*end))
            offset += _DIVERGING.size
        partitions.append(data)
    return partitions, offset


_HORIZON_REQUEST: Final = Struct(">iiiibiiq")
_HORIZON_PARTITION: Final = Struct(">iiqiqi")
_HORIZON_RESPONSE: Final = Struct(">iiihi")
"""Length (filled in later), correlation ID, throttle_time_ms, error_code, session ID."""
_HORIZON_RESPONSE_BODY: Final = Struct(">ihi")
_DIVERGING_AND_HORIZON: Final = Struct(">iqq")
_MIN_TOPIC_BYTES: Final = _UUID.size + _INT32.size
_HORIZON_AS_IN: Final = 11
"""The version of Fetch whose layout the partitions of a response have."""


def _encode_horizon_request(start: bytes, request: FetchRequest) -> Buffers:
    """Return the whole frame. ``start`` is four bytes for the length, and the header."""
    output = Output(start)
    out, r = output.small, request
    out += _HORIZON_REQUEST.pack(
        r.replica_id,
        r.max_wait_ms,
        r.min_bytes,
        r.max_bytes,
        r.isolation_level,
        r.session_id,
        r.session_epoch,
        r.replica_epoch,
    )
    out += _INT32.pack(len(r.topics))
    for topic in r.topics:
        out += topic.topic_id + _INT32.pack(len(topic.partitions))
        for p in topic.partitions:
            out += _HORIZON_PARTITION.pack(
                p.partition,
                p.current_leader_epoch,
                p.fetch_offset,
                p.last_fetched_epoch,
                p.log_start_offset,
                p.partition_max_bytes,
            )
    out += _INT32.pack(len(r.forgotten))
    for forgotten in r.forgotten:
        out += forgotten.topic_id + _INT32.pack(len(forgotten.partitions))
        for index in forgotten.partitions:
            out += _INT32.pack(index)
    return output.finish()


def _horizon_request_in_slices(frame: Frame, offset: int, work: UnitBudget) -> Decoding[FetchRequest]:
    """Return the body and the offset behind it. Raise ProtocolError, or one of
    BAD_BYTES."""
    replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, replica_epoch = (
        _HORIZON_REQUEST.unpack_from(frame, offset)
    )
    topics: list[FetchTopic] = []
    count, offset = read_legacy_count(frame, offset + _HORIZON_REQUEST.size, _MIN_TOPIC_BYTES)
    work.announce(count, False)
    for _ in range(count):
        (topic_id,) = _UUID.unpack_from(frame, offset)
        partition_count, offset = read_legacy_count(frame, offset + _UUID.size, _HORIZON_PARTITION.size)
        partitions, offset = yield from partitions_in_slices(_horizon_rows, frame, offset, partition_count, work)
        topics.append(FetchTopic("", topic_id, partitions))
    forgotten, offset = yield from _read_horizon_forgotten(frame, offset, work)
    request = FetchRequest(
        replica_id,
        max_wait_ms,
        min_bytes,
        max_bytes,
        isolation_level,
        session_id,
        session_epoch,
        topics,
        forgotten,
        replica_epoch=replica_epoch,
    )
    return request, offset


def _horizon_rows(frame: Frame, offset: int, count: int) -> Partitions:
    end = offset + _HORIZON_PARTITION.size * count
    rows = _HORIZON_PARTITION.iter_unpack(frame[offset:end])
    return [FetchPartition(at, start, most, known, fetched, log) for at, known, start, fetched, log, most in rows], end


def _read_horizon_forgotten(frame: Frame, offset: int, work: UnitBudget) -> Decoding[list[ForgottenTopic]]:
    found = []
    count, offset = read_legacy_count(frame, offset, _MIN_TOPIC_BYTES)
    work.announce(count, False)
    for _ in range(count):
        (topic_id,) = _UUID.unpack_from(frame, offset)
        partitions, offset = indexes(frame, *read_legacy_count(frame, offset + _UUID.size, _INT32.size), work)
        found.append(ForgottenTopic("", topic_id, partitions))
        if work.spend(1):
            yield
    return found, offset


def _encode_horizon_response(correlation_id: int, response: FetchResponse) -> Buffers:
    """Return the whole frame. Records of 4 KiB or more become buffers of their own and are not copied."""
    head = _HORIZON_RESPONSE.pack(
        0, correlation_id, response.throttle_time_ms, response.error_code, response.session_id
    )
    output = Output(head)
    output.small += _INT32.pack(len(response.responses))
    for topic in response.responses:
        output.small += topic.topic_id + _INT32.pack(len(topic.partitions))
        for partition in topic.partitions:
            write_legacy_partition(_HORIZON_AS_IN, output, partition)
            end = partition.diverging_epoch
            diverging = _NO_DIVERGENCE if end is None else (end.epoch, end.end_offset)
            output.small += _DIVERGING_AND_HORIZON.pack(*diverging, partition.tombstone_horizon)
    return output.finish()


def _decode_horizon_response(frame: Frame, offset: int) -> tuple[FetchResponse, int]:
    """Return the body and the offset behind it. The body's records are views into the frame. Raise ProtocolError, or
    one of BAD_BYTES."""
    throttle_time_ms, error_code, session_id = _HORIZON_RESPONSE_BODY.unpack_from(frame, offset)
    topics = []
    count, offset = read_legacy_count(frame, offset + _HORIZON_RESPONSE_BODY.size, _MIN_TOPIC_BYTES)
    for _ in range(count):
        (topic_id,) = _UUID.unpack_from(frame, offset)
        partitions, offset = _read_horizon_partitions(frame, offset + _UUID.size)
        topics.append(FetchTopicResponse("", topic_id, partitions))
    return FetchResponse(error_code, session_id, topics, throttle_time_ms), offset


def _read_horizon_partitions(frame: Frame, offset: int) -> tuple[list[PartitionData], int]:
    count, offset = read_legacy_count(frame, offset, MIN_PARTITION_11 + _DIVERGING_AND_HORIZON.size)
    partitions = []
    for _ in range(count):
        data, offset = read_legacy_partition(_HORIZON_AS_IN, frame, offset)
        epoch, end_offset, horizon = _DIVERGING_AND_HORIZON.unpack_from(frame, offset)
        offset += _DIVERGING_AND_HORIZON.size
        end = None if (epoch, end_offset) == _NO_DIVERGENCE else EpochEndOffset(epoch, end_offset)
        partitions.append(replace(data, diverging_epoch=end, tombstone_horizon=horizon))
    return partitions, offset
