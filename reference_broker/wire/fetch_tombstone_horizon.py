"""Codec of Fetch 1001: the tombstone horizon marker, the alternative that KIP-630's page rejects (H-1).

The page gives no layout. This one has the fields of Fetch 15 that fetchers here use, and each partition of a response
ends with the marker. Nothing in it is flexible, and topics are named by their IDs alone.

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

from reference_broker.wire.fetch import (
    EpochEndOffset,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    FetchTopicResponse,
    ForgottenTopic,
    PartitionData,
)
from reference_broker.wire.fetch_requests import Partitions, indexes, partitions_in_slices
from reference_broker.wire.fetch_responses import MIN_PARTITION_11, read_legacy_partition, write_legacy_partition
from reference_broker.wire.items import Decoding, Work
from reference_broker.wire.reading import Frame, read_legacy_count
from reference_broker.wire.writing import Buffers, Output

_INT32: Final = Struct(">i")
_UUID: Final = Struct("16s")
_REQUEST: Final = Struct(">iiiibiiq")
_PARTITION: Final = Struct(">iiqiqi")
_RESPONSE: Final = Struct(">iiihi")
"""Length (filled in later), correlation ID, throttle_time_ms, error_code, session ID."""
_RESPONSE_BODY: Final = Struct(">ihi")
_DIVERGING_AND_HORIZON: Final = Struct(">iqq")
_NO_DIVERGENCE: Final = (-1, -1)
_MIN_TOPIC_BYTES: Final = _UUID.size + _INT32.size
_AS_IN: Final = 11
"""The version of Fetch whose layout the partitions of a response have."""


def encode_request(start: bytes, request: FetchRequest) -> Buffers:
    """Returns the whole frame. ``start`` is four bytes for the length, and the header."""
    output = Output(start)
    out, r = output.small, request
    out += _REQUEST.pack(
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
            out += _PARTITION.pack(
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


def request_in_slices(frame: Frame, offset: int, work: Work) -> Decoding[FetchRequest]:
    """Returns the body and the offset behind it, and yields after each slice. Raises ProtocolError, or one of
    BAD_BYTES."""
    replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch, replica_epoch = (
        _REQUEST.unpack_from(frame, offset)
    )
    topics: list[FetchTopic] = []
    count, offset = read_legacy_count(frame, offset + _REQUEST.size, _MIN_TOPIC_BYTES)
    work.announce(count, False)
    for _ in range(count):
        (topic_id,) = _UUID.unpack_from(frame, offset)
        partition_count, offset = read_legacy_count(frame, offset + _UUID.size, _PARTITION.size)
        partitions, offset = yield from partitions_in_slices(_rows, frame, offset, partition_count, work)
        topics.append(FetchTopic("", topic_id, partitions))
    forgotten, offset = yield from _read_forgotten(frame, offset, work)
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


def _rows(frame: Frame, offset: int, count: int) -> Partitions:
    end = offset + _PARTITION.size * count
    rows = _PARTITION.iter_unpack(frame[offset:end])
    return [FetchPartition(at, start, most, known, fetched, log) for at, known, start, fetched, log, most in rows], end


def _read_forgotten(frame: Frame, offset: int, work: Work) -> Decoding[list[ForgottenTopic]]:
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


def encode_response(correlation_id: int, response: FetchResponse) -> Buffers:
    """Returns the whole frame. Records of 4 KiB or more become buffers of their own and are not copied."""
    head = _RESPONSE.pack(0, correlation_id, response.throttle_time_ms, response.error_code, response.session_id)
    output = Output(head)
    output.small += _INT32.pack(len(response.responses))
    for topic in response.responses:
        output.small += topic.topic_id + _INT32.pack(len(topic.partitions))
        for partition in topic.partitions:
            write_legacy_partition(_AS_IN, output, partition)
            end = partition.diverging_epoch
            diverging = _NO_DIVERGENCE if end is None else (end.epoch, end.end_offset)
            output.small += _DIVERGING_AND_HORIZON.pack(*diverging, partition.tombstone_horizon)
    return output.finish()


def decode_response(frame: Frame, offset: int) -> tuple[FetchResponse, int]:
    """Returns the body and the offset behind it. The body's records are views into the frame. Raises ProtocolError, or
    one of BAD_BYTES."""
    throttle_time_ms, error_code, session_id = _RESPONSE_BODY.unpack_from(frame, offset)
    topics = []
    count, offset = read_legacy_count(frame, offset + _RESPONSE_BODY.size, _MIN_TOPIC_BYTES)
    for _ in range(count):
        (topic_id,) = _UUID.unpack_from(frame, offset)
        partitions, offset = _read_partitions(frame, offset + _UUID.size)
        topics.append(FetchTopicResponse("", topic_id, partitions))
    return FetchResponse(error_code, session_id, topics, throttle_time_ms), offset


def _read_partitions(frame: Frame, offset: int) -> tuple[list[PartitionData], int]:
    count, offset = read_legacy_count(frame, offset, MIN_PARTITION_11 + _DIVERGING_AND_HORIZON.size)
    partitions = []
    for _ in range(count):
        data, offset = read_legacy_partition(_AS_IN, frame, offset)
        epoch, end_offset, horizon = _DIVERGING_AND_HORIZON.unpack_from(frame, offset)
        offset += _DIVERGING_AND_HORIZON.size
        end = None if (epoch, end_offset) == _NO_DIVERGENCE else EpochEndOffset(epoch, end_offset)
        partitions.append(replace(data, diverging_epoch=end, tombstone_horizon=horizon))
    return partitions, offset
