"""The values of Produce (API key 0), and their codec.

Schema: Kafka's ProduceRequest.json and ProduceResponse.json, versions 3-13. A topic has a name up to version 12 and an
ID (16 raw bytes) from version 13 on. Whichever it lacks is empty.
"""

from collections.abc import Mapping, Sequence
from dataclasses import field
from struct import Struct
from typing import Final

from reference_broker.wire.fetch import NO_TOPIC_ID, LeaderIdAndEpoch, NodeEndpoint, value
from reference_broker.wire.fetch_requests import read_topic
from reference_broker.wire.fetch_responses import (
    ENDPOINT_TAGS,
    read_leader,
    read_records,
    write_endpoints,
    write_leader,
)
from reference_broker.wire.primitives import (
    Buffers,
    Frame,
    Output,
    Reader,
    compact_string,
    legacy_string,
    read_compact_count,
    read_compact_length,
    read_compact_nullable_string,
    read_known_tags,
    read_legacy_count,
    read_legacy_length32,
    read_legacy_nullable_string,
    read_legacy_string,
    skip_tagged_fields,
    uvarint,
)
from reference_broker.wire.request_limits import TooMuchError


@value
class ProducePartition:
    """``records`` holds the batches as they arrived, as a view into the frame. It is None for null."""

    partition: int
    records: bytes | memoryview | None


@value
class ProduceTopic:
    topic: str
    topic_id: bytes
    partitions: Sequence[ProducePartition]


@value
class ProduceRequest:
    acks: int
    timeout_ms: int
    topics: Sequence[ProduceTopic]
    transactional_id: str | None = None


@value
class RecordError:
    batch_index: int
    message: str | None = None


@value
class ProducePartitionResponse:
    partition: int
    error_code: int
    base_offset: int = -1
    log_append_time_ms: int = -1
    log_start_offset: int = -1
    record_errors: Sequence[RecordError] = field(default_factory=list)
    error_message: str | None = None
    current_leader: LeaderIdAndEpoch | None = None


@value
class ProduceTopicResponse:
    topic: str
    topic_id: bytes
    partitions: Sequence[ProducePartitionResponse]


@value
class ProduceResponse:
    responses: Sequence[ProduceTopicResponse]
    throttle_time_ms: int = 0
    node_endpoints: Sequence[NodeEndpoint] = field(default_factory=list)


MAX_TOPICS_AND_PARTITIONS: Final = 14_000
"""A request that holds more is refused, because a request is decoded in one event, and this many take some 10 ms.
Kafka's Java producer sends a megabyte at most by default, which has room for 13,000 batches of one record."""
_INT32: Final = Struct(">i")
_HEAD: Final = Struct(">hi")


def decode_produce_request(version: int, frame: Frame, offset: int) -> tuple[ProduceRequest, int]:
    """Return the body and the offset behind it. The body's records are views into the frame. Raise ProtocolError, or
    one of BAD_BYTES."""
    return _decode_flexible_request(version, frame, offset) if version >= 9 else _decode_legacy_request(frame, offset)


def _decode_legacy_request(frame: Frame, offset: int) -> tuple[ProduceRequest, int]:
    transactional_id, offset = read_legacy_nullable_string(frame, offset)
    acks, timeout_ms = _HEAD.unpack_from(frame, offset)
    count, offset = read_legacy_count(frame, offset + 6, 6)
    held = count
    if held > MAX_TOPICS_AND_PARTITIONS:
        raise _too_much(held)
    topics = []
    for _ in range(count):
        topic, offset = read_legacy_string(frame, offset)
        partition_count, offset = read_legacy_count(frame, offset, 8)
        held += partition_count
        if held > MAX_TOPICS_AND_PARTITIONS:
            raise _too_much(held)
        partitions = []
        for _ in range(partition_count):
            (index,) = _INT32.unpack_from(frame, offset)
            size, offset = read_legacy_length32(frame, offset + 4)
            records, offset = read_records(frame, offset, size)
            partitions.append(ProducePartition(index, records))
        topics.append(ProduceTopic(topic, NO_TOPIC_ID, partitions))
    return ProduceRequest(acks, timeout_ms, topics, transactional_id), offset


def _too_much(held: int) -> TooMuchError:
    limit = MAX_TOPICS_AND_PARTITIONS
    return TooMuchError(f"a Produce request holds {held} topics and partitions or more; the limit is {limit}")


def _decode_flexible_request(version: int, frame: Frame, offset: int) -> tuple[ProduceRequest, int]:
    by_id = version >= 13
    transactional_id, offset = read_compact_nullable_string(frame, offset)
    acks, timeout_ms = _HEAD.unpack_from(frame, offset)
    count, offset = read_compact_count(frame, offset + 6, 18 if by_id else 3)
    held = count
    if held > MAX_TOPICS_AND_PARTITIONS:
        raise _too_much(held)
    topics = []
    for _ in range(count):
        topic, topic_id, offset = read_topic(by_id, frame, offset)
        partition_count, offset = read_compact_count(frame, offset, 6)
        held += partition_count
        if held > MAX_TOPICS_AND_PARTITIONS:
            raise _too_much(held)
        partitions = []
        for _ in range(partition_count):
            (index,) = _INT32.unpack_from(frame, offset)
            size, offset = read_compact_length(frame, offset + 4)
            records, offset = read_records(frame, offset, size)
            offset = offset + 1 if frame[offset] == 0 else skip_tagged_fields(frame, offset)
            partitions.append(ProducePartition(index, records))
        offset = offset + 1 if frame[offset] == 0 else skip_tagged_fields(frame, offset)
        topics.append(ProduceTopic(topic, topic_id, partitions))
    offset = offset + 1 if frame[offset] == 0 else skip_tagged_fields(frame, offset)
    return ProduceRequest(acks, timeout_ms, topics, transactional_id), offset


def encode_produce_request(version: int, start: bytes, request: ProduceRequest) -> Buffers:
    """Return the whole frame. ``start`` is four bytes for the length, and the header. Records of 4 KiB or more become
    buffers of their own and are not copied."""
    output = Output(start)
    if version >= 9:
        _encode_flexible_request(version, output, request)
    else:
        _encode_legacy_request(output, request)
    return output.finish()


def _encode_legacy_request(output: Output, request: ProduceRequest) -> None:
    output.small += legacy_string(request.transactional_id) + _HEAD.pack(request.acks, request.timeout_ms)
    output.small += _INT32.pack(len(request.topics))
    for topic in request.topics:
        output.small += legacy_string(topic.topic) + _INT32.pack(len(topic.partitions))
        for partition in topic.partitions:
            records = partition.records
            output.small += _INT32.pack(partition.partition) + _INT32.pack(-1 if records is None else len(records))
            if records is not None:
                output.add_large(records)


def _encode_flexible_request(version: int, output: Output, request: ProduceRequest) -> None:
    by_id = version >= 13
    output.small += compact_string(request.transactional_id) + _HEAD.pack(request.acks, request.timeout_ms)
    output.small += uvarint(len(request.topics) + 1)
    for topic in request.topics:
        output.small += topic.topic_id if by_id else compact_string(topic.topic)
        output.small += uvarint(len(topic.partitions) + 1)
        for partition in topic.partitions:
            records = partition.records
            output.small += _INT32.pack(partition.partition) + uvarint(0 if records is None else len(records) + 1)
            if records is not None:
                output.add_large(records)
            output.small.append(0)
        output.small.append(0)
    output.small.append(0)


_START: Final = Struct(">ii")
_START_9: Final = Struct(">iiB")
_PARTITION_3: Final = Struct(">ihqq")
_PARTITION_5: Final = Struct(">ihqqq")
_PLAIN_PARTITION_9: Final = Struct(">ihqqqBBB")
_PARTITION_TAGS: Final[Mapping[int, Reader]] = {0: read_leader}


def encode_produce_response(version: int, correlation_id: int, response: ProduceResponse) -> Buffers:
    """The whole frame."""
    if version < 9:
        return _encode_legacy_response(version, correlation_id, response)
    output = Output(_START_9.pack(0, correlation_id, 0))
    out = output.small
    out += uvarint(len(response.responses) + 1)
    for topic in response.responses:
        out += topic.topic_id if version >= 13 else compact_string(topic.topic)
        out += uvarint(len(topic.partitions) + 1)
        for p in topic.partitions:
            if p.record_errors or p.error_message is not None or p.current_leader is not None:
                out += _partition_9(version, p)
            else:
                out += _PLAIN_PARTITION_9.pack(
                    p.partition, p.error_code, p.base_offset, p.log_append_time_ms, p.log_start_offset, 1, 0, 0
                )
        out.append(0)
    out += _INT32.pack(response.throttle_time_ms)
    out += write_endpoints(0, response.node_endpoints if version >= 10 else ())
    return output.finish()


def _partition_9(version: int, p: ProducePartitionResponse) -> bytearray:
    out = bytearray(
        _PARTITION_5.pack(p.partition, p.error_code, p.base_offset, p.log_append_time_ms, p.log_start_offset)
    )
    out += uvarint(len(p.record_errors) + 1)
    for error in p.record_errors:
        out += _INT32.pack(error.batch_index) + compact_string(error.message) + b"\0"
    out += compact_string(p.error_message)
    leader = write_leader(0, p.current_leader) if version >= 10 and p.current_leader is not None else b""
    out += b"\x01" + leader if leader else b"\0"
    return out


def _encode_legacy_response(version: int, correlation_id: int, response: ProduceResponse) -> Buffers:
    output = Output(_START.pack(0, correlation_id))
    out = output.small
    out += _INT32.pack(len(response.responses))
    for topic in response.responses:
        out += legacy_string(topic.topic) + _INT32.pack(len(topic.partitions))
        for p in topic.partitions:
            out += _PARTITION_3.pack(p.partition, p.error_code, p.base_offset, p.log_append_time_ms)
            if version >= 5:
                out += p.log_start_offset.to_bytes(8, "big", signed=True)
            if version >= 8:
                out += _INT32.pack(len(p.record_errors))
                for error in p.record_errors:
                    out += _INT32.pack(error.batch_index) + legacy_string(error.message)
                out += legacy_string(p.error_message)
    out += _INT32.pack(response.throttle_time_ms)
    return output.finish()


def decode_produce_response(version: int, frame: Frame, offset: int) -> tuple[ProduceResponse, int]:
    """Return the body and the offset behind it. Raise ProtocolError, or one of BAD_BYTES."""
    return (_decode_flexible_response if version >= 9 else _decode_legacy_response)(version, frame, offset)


def _decode_legacy_response(version: int, frame: Frame, offset: int) -> tuple[ProduceResponse, int]:
    count, offset = read_legacy_count(frame, offset, 6)
    topics = []
    for _ in range(count):
        topic, offset = read_legacy_string(frame, offset)
        partition_count, offset = read_legacy_count(frame, offset, _PARTITION_3.size)
        partitions = []
        for _ in range(partition_count):
            partition, offset = _legacy_partition(version, frame, offset)
            partitions.append(partition)
        topics.append(ProduceTopicResponse(topic, NO_TOPIC_ID, partitions))
    (throttle_time_ms,) = _INT32.unpack_from(frame, offset)
    return ProduceResponse(topics, throttle_time_ms), offset + 4


def _legacy_partition(version: int, frame: Frame, offset: int) -> tuple[ProducePartitionResponse, int]:
    layout = _PARTITION_3 if version < 5 else _PARTITION_5
    index, error_code, base_offset, append_time_ms, *log_start = layout.unpack_from(frame, offset)
    offset += layout.size
    record_errors: list[RecordError] = []
    error_message = None
    if version >= 8:
        count, offset = read_legacy_count(frame, offset, 6)
        for _ in range(count):
            (batch_index,) = _INT32.unpack_from(frame, offset)
            message, offset = read_legacy_nullable_string(frame, offset + 4)
            record_errors.append(RecordError(batch_index, message))
        error_message, offset = read_legacy_nullable_string(frame, offset)
    offsets = (base_offset, append_time_ms, log_start[0] if log_start else -1)
    return ProducePartitionResponse(index, error_code, *offsets, record_errors, error_message), offset


def _decode_flexible_response(version: int, frame: Frame, offset: int) -> tuple[ProduceResponse, int]:
    by_id = version >= 13
    count, offset = read_compact_count(frame, offset, 18 if by_id else 3)
    topics = []
    for _ in range(count):
        topic, topic_id, offset = read_topic(by_id, frame, offset)
        partition_count, offset = read_compact_count(frame, offset, _PLAIN_PARTITION_9.size)
        partitions = []
        for _ in range(partition_count):
            partition, offset = _flexible_partition(version, frame, offset)
            partitions.append(partition)
        offset = skip_tagged_fields(frame, offset)
        topics.append(ProduceTopicResponse(topic, topic_id, partitions))
    (throttle_time_ms,) = _INT32.unpack_from(frame, offset)
    tags, offset = read_known_tags(frame, offset + 4, ENDPOINT_TAGS if version >= 10 else {})
    return ProduceResponse(topics, throttle_time_ms, tags.get(0, [])), offset


def _flexible_partition(version: int, frame: Frame, offset: int) -> tuple[ProducePartitionResponse, int]:
    index, error_code, base_offset, append_time_ms, log_start = _PARTITION_5.unpack_from(frame, offset)
    record_errors: list[RecordError] = []
    count, offset = read_compact_count(frame, offset + _PARTITION_5.size, 6)
    for _ in range(count):
        (batch_index,) = _INT32.unpack_from(frame, offset)
        message, offset = read_compact_nullable_string(frame, offset + 4)
        offset = skip_tagged_fields(frame, offset)
        record_errors.append(RecordError(batch_index, message))
    error_message, offset = read_compact_nullable_string(frame, offset)
    tags, offset = read_known_tags(frame, offset, _PARTITION_TAGS if version >= 10 else {})
    offsets = (base_offset, append_time_ms, log_start)
    response = ProducePartitionResponse(index, error_code, *offsets, record_errors, error_message, tags.get(0))
    return response, offset
