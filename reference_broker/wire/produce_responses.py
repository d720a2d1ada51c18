"""Codec of Produce responses, versions 3-13. Source: ProduceResponse.json."""

from collections.abc import Mapping
from struct import Struct
from typing import Final

from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.fetch_requests import read_topic
from reference_broker.wire.node_endpoints import ENDPOINT_TAGS, read_leader, write_endpoints, write_leader
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceResponse,
    ProduceTopicResponse,
    RecordError,
)
from reference_broker.wire.reading import (
    Frame,
    Reader,
    read_compact_count,
    read_compact_nullable_string,
    read_known_tags,
    read_legacy_count,
    read_legacy_nullable_string,
    read_legacy_string,
    skip_tagged_fields,
)
from reference_broker.wire.writing import Buffers, Output, compact_string, legacy_string, uvarint

_INT32: Final = Struct(">i")
_START: Final = Struct(">ii")
_START_9: Final = Struct(">iiB")
_PARTITION_3: Final = Struct(">ihqq")
_PARTITION_5: Final = Struct(">ihqqq")
_PLAIN_PARTITION_9: Final = Struct(">ihqqqBBB")
_PARTITION_TAGS: Final[Mapping[int, Reader]] = {0: read_leader}


def encode_produce_response(version: int, correlation_id: int, response: ProduceResponse) -> Buffers:
    """The whole frame."""
    if version < 9:
        return _encode_legacy(version, correlation_id, response)
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
    for each in p.record_errors:
        out += _INT32.pack(each.batch_index) + compact_string(each.message) + b"\0"
    out += compact_string(p.error_message)
    leader = write_leader(0, p.current_leader) if version >= 10 and p.current_leader is not None else b""
    out += b"\x01" + leader if leader else b"\0"
    return out


def _encode_legacy(version: int, correlation_id: int, response: ProduceResponse) -> Buffers:
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
                for each in p.record_errors:
                    out += _INT32.pack(each.batch_index) + legacy_string(each.message)
                out += legacy_string(p.error_message)
    out += _INT32.pack(response.throttle_time_ms)
    return output.finish()


def decode_produce_response(version: int, frame: Frame, offset: int) -> tuple[ProduceResponse, int]:
    """Returns the body and the offset behind it. Raises ProtocolError, or one of BAD_BYTES."""
    return (_decode_flexible if version >= 9 else _decode_legacy)(version, frame, offset)


def _decode_legacy(version: int, frame: Frame, offset: int) -> tuple[ProduceResponse, int]:
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


def _decode_flexible(version: int, frame: Frame, offset: int) -> tuple[ProduceResponse, int]:
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
    answer = ProducePartitionResponse(index, error_code, *offsets, record_errors, error_message, tags.get(0))
    return answer, offset
