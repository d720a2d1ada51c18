"""Codec of Fetch responses, versions 4-18. Produce responses share the tagged fields of the current leader and of the
listeners of nodes (KIP-951). Source: FetchResponse.json.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from struct import Struct
from typing import Final

from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    AbortedTransaction,
    EpochEndOffset,
    FetchResponse,
    FetchTopicResponse,
    LeaderIdAndEpoch,
    NodeEndpoint,
    PartitionData,
    SnapshotId,
)
from reference_broker.wire.fetch_requests import read_topic
from reference_broker.wire.primitives import (
    Buffers,
    Frame,
    Output,
    Reader,
    check_count,
    compact_string,
    end_of,
    legacy_string,
    read_compact_count,
    read_compact_length,
    read_compact_nullable_string,
    read_compact_string,
    read_known_tags,
    read_legacy_count,
    read_legacy_length32,
    read_legacy_string,
    skip_tagged_fields,
    tag_buffer,
    tagged,
    uvarint,
)

_INT32: Final = Struct(">i")
_LEADER = Struct(">ii")
_LEADER_AND_NO_TAGS = Struct(">iiB")
_MIN_ENDPOINT_BYTES = 4 + 1 + 4 + 1 + 1


def write_leader(tag: int, leader: LeaderIdAndEpoch) -> bytes:
    """Return the tagged field. For the default (-1, -1) it is empty."""
    if leader.leader_id == -1 and leader.leader_epoch == -1:
        return b""
    return tagged(tag, _LEADER_AND_NO_TAGS.pack(leader.leader_id, leader.leader_epoch, 0))


def read_leader(frame: Frame, offset: int) -> tuple[LeaderIdAndEpoch, int]:
    leader_id, leader_epoch = _LEADER.unpack_from(frame, offset)
    return LeaderIdAndEpoch(leader_id, leader_epoch), skip_tagged_fields(frame, offset + 8)


def write_endpoints(tag: int, endpoints: Sequence[NodeEndpoint]) -> bytes:
    """Return the tag buffer of a response. ``tag`` is its only tagged field."""
    if not endpoints:
        return b"\0"
    out = bytearray(uvarint(len(endpoints) + 1))
    for endpoint in endpoints:
        out += _INT32.pack(endpoint.node_id) + compact_string(endpoint.host) + _INT32.pack(endpoint.port)
        out += compact_string(endpoint.rack) + b"\0"
    return b"\x01" + tagged(tag, bytes(out))


def read_endpoints(frame: Frame, offset: int) -> tuple[list[NodeEndpoint], int]:
    count, offset = read_compact_count(frame, offset, _MIN_ENDPOINT_BYTES)
    endpoints = []
    for _ in range(count):
        (node_id,) = _INT32.unpack_from(frame, offset)
        host, offset = read_compact_string(frame, offset + 4)
        (port,) = _INT32.unpack_from(frame, offset)
        rack, offset = read_compact_nullable_string(frame, offset + 4)
        offset = skip_tagged_fields(frame, offset)
        endpoints.append(NodeEndpoint(node_id, host, port, rack))
    return endpoints, offset


ENDPOINT_TAGS: Final[Mapping[int, Reader]] = {0: read_endpoints}
"""The readers of the tagged fields at the end of a response, by tag."""


_START: Final = Struct(">ii")
_START_12: Final = Struct(">iiB")
_EMPTY_12: Final = Struct(">iiBihiBB")
_EMPTY_12_BYTES: Final = _EMPTY_12.size - 4
_HEAD_7: Final = Struct(">ihi")
_PARTITION_4: Final = Struct(">ihqq")
_PARTITION_5: Final = Struct(">ihqqq")
MIN_PARTITION_4: Final = _PARTITION_4.size + 8
MIN_PARTITION_5: Final = _PARTITION_5.size + 8
"""The size of a partition that has neither aborted transactions nor records, before version 11."""
MIN_PARTITION_11: Final = MIN_PARTITION_5 + 4
_ABORTED: Final = Struct(">qq")
_ABORTED_AND_TAGS: Final = Struct(">qqB")
_EPOCH_END: Final = Struct(">iq")
_EPOCH_END_AND_TAGS: Final = Struct(">iqB")
_SNAPSHOT: Final = Struct(">qi")
_SNAPSHOT_AND_TAGS: Final = Struct(">qiB")


def encode_fetch_response(version: int, correlation_id: int, response: FetchResponse) -> Buffers:
    """Return the whole frame. Records of 4 KiB or more become buffers of their own and are not copied."""
    throttle_ms, error_code, session_id = response.throttle_time_ms, response.error_code, response.session_id
    if version < 12:
        return _encode_legacy(version, correlation_id, response)
    if not response.responses and not response.node_endpoints:
        return [_EMPTY_12.pack(_EMPTY_12_BYTES, correlation_id, 0, throttle_ms, error_code, session_id, 1, 0)]
    output = Output(_START_12.pack(0, correlation_id, 0))
    output.small += _HEAD_7.pack(throttle_ms, error_code, session_id)
    output.small += uvarint(len(response.responses) + 1)
    by_id = version >= 13
    for topic in response.responses:
        output.small += topic.topic_id if by_id else compact_string(topic.topic)
        output.small += uvarint(len(topic.partitions) + 1)
        for partition in topic.partitions:
            _encode_partition_12(output, partition)
        output.small.append(0)
    output.small += write_endpoints(0, response.node_endpoints if version >= 16 else ())
    return output.finish()


def _encode_partition_12(output: Output, p: PartitionData) -> None:
    aborted = p.aborted_transactions
    records = p.records
    out = output.small
    out += _PARTITION_5.pack(p.partition, p.error_code, p.high_watermark, p.last_stable_offset, p.log_start_offset)
    out += uvarint(0 if aborted is None else len(aborted) + 1)
    for each in aborted or ():
        out += _ABORTED_AND_TAGS.pack(each.producer_id, each.first_offset, 0)
    out += _INT32.pack(p.preferred_read_replica)
    if records is None:
        out.append(0)
    else:
        out += uvarint(len(records) + 1)
        output.add_large(records)
    if p.diverging_epoch is None and p.current_leader is None and p.snapshot_id is None:
        output.small.append(0)
    else:
        output.small += _partition_tags(p)


def _partition_tags(p: PartitionData) -> bytes:
    fields = []
    if (end := p.diverging_epoch) is not None and (end.epoch, end.end_offset) != (-1, -1):
        fields.append(tagged(0, _EPOCH_END_AND_TAGS.pack(end.epoch, end.end_offset, 0)))
    if p.current_leader is not None and (leader := write_leader(1, p.current_leader)):
        fields.append(leader)
    if (snapshot := p.snapshot_id) is not None and (snapshot.end_offset, snapshot.epoch) != (-1, -1):
        fields.append(tagged(2, _SNAPSHOT_AND_TAGS.pack(snapshot.end_offset, snapshot.epoch, 0)))
    return tag_buffer(fields)


def _encode_legacy(version: int, correlation_id: int, response: FetchResponse) -> Buffers:
    output = Output(_START.pack(0, correlation_id))
    if version >= 7:
        output.small += _HEAD_7.pack(response.throttle_time_ms, response.error_code, response.session_id)
    else:
        output.small += _INT32.pack(response.throttle_time_ms)
    output.small += _INT32.pack(len(response.responses))
    for topic in response.responses:
        output.small += legacy_string(topic.topic) + _INT32.pack(len(topic.partitions))
        for partition in topic.partitions:
            write_legacy_partition(version, output, partition)
    return output.finish()


def write_legacy_partition(version: int, output: Output, p: PartitionData) -> None:
    aborted = p.aborted_transactions
    records = p.records
    out = output.small
    if version >= 5:
        out += _PARTITION_5.pack(p.partition, p.error_code, p.high_watermark, p.last_stable_offset, p.log_start_offset)
    else:
        out += _PARTITION_4.pack(p.partition, p.error_code, p.high_watermark, p.last_stable_offset)
    out += _INT32.pack(-1 if aborted is None else len(aborted))
    for each in aborted or ():
        out += _ABORTED.pack(each.producer_id, each.first_offset)
    if version >= 11:
        out += _INT32.pack(p.preferred_read_replica)
    out += _INT32.pack(-1 if records is None else len(records))
    if records is not None:
        output.add_large(records)


def decode_fetch_response(version: int, frame: Frame, offset: int) -> tuple[FetchResponse, int]:
    """Return the body and the offset behind it. The body's records are views into the frame. Raise ProtocolError, or
    one of BAD_BYTES."""
    error_code = session_id = 0
    topics: list[FetchTopicResponse] = []
    if version >= 7:
        throttle_time_ms, error_code, session_id = _HEAD_7.unpack_from(frame, offset)
        offset += 10
    else:
        (throttle_time_ms,) = _INT32.unpack_from(frame, offset)
        offset += 4
    if version < 12:
        count, offset = read_legacy_count(frame, offset, 6)
        for _ in range(count):
            topic, offset = read_legacy_string(frame, offset)
            partitions, offset = _partitions_4(version, frame, offset)
            topics.append(FetchTopicResponse(topic, NO_TOPIC_ID, partitions))
        return FetchResponse(error_code, session_id, topics, throttle_time_ms), offset
    by_id = version >= 13
    count, offset = read_compact_count(frame, offset, 18 if by_id else 3)
    for _ in range(count):
        topic, topic_id, offset = read_topic(by_id, frame, offset)
        partitions, offset = _partitions_12(frame, offset)
        offset = skip_tagged_fields(frame, offset)
        topics.append(FetchTopicResponse(topic, topic_id, partitions))
    tags, offset = read_known_tags(frame, offset, ENDPOINT_TAGS if version >= 16 else {})
    endpoints = tags.get(0, [])
    return FetchResponse(error_code, session_id, topics, throttle_time_ms, endpoints), offset


def _partitions_4(version: int, frame: Frame, offset: int) -> tuple[list[PartitionData], int]:
    count, offset = read_legacy_count(frame, offset, MIN_PARTITION_4 if version == 4 else MIN_PARTITION_5)
    partitions = []
    for _ in range(count):
        data, offset = read_legacy_partition(version, frame, offset)
        partitions.append(data)
    return partitions, offset


def read_legacy_partition(version: int, frame: Frame, offset: int) -> tuple[PartitionData, int]:
    head = _PARTITION_4 if version == 4 else _PARTITION_5
    index, error_code, high_watermark, last_stable_offset, *log_start = head.unpack_from(frame, offset)
    aborted_count, offset = read_legacy_length32(frame, offset + head.size)
    aborted, offset = _aborted(frame, offset, aborted_count, _ABORTED)
    preferred_read_replica = -1
    if version >= 11:
        (preferred_read_replica,) = _INT32.unpack_from(frame, offset)
        offset += 4
    size, offset = read_legacy_length32(frame, offset)
    records, offset = read_records(frame, offset, size)
    log_start_offset = log_start[0] if log_start else -1
    offsets = (high_watermark, last_stable_offset, log_start_offset)
    return PartitionData(index, error_code, *offsets, aborted, preferred_read_replica, records), offset


def _partitions_12(frame: Frame, offset: int) -> tuple[list[PartitionData], int]:
    count, offset = read_compact_count(frame, offset, _PARTITION_5.size + 1 + 4 + 1 + 1)
    partitions = []
    for _ in range(count):
        index, error_code, high_watermark, stable, log_start = _PARTITION_5.unpack_from(frame, offset)
        aborted_count, offset = read_compact_length(frame, offset + _PARTITION_5.size)
        aborted, offset = _aborted(frame, offset, aborted_count, _ABORTED_AND_TAGS)
        (preferred_read_replica,) = _INT32.unpack_from(frame, offset)
        size, offset = read_compact_length(frame, offset + 4)
        records, offset = read_records(frame, offset, size)
        offsets = (high_watermark, stable, log_start)
        data = PartitionData(index, error_code, *offsets, aborted, preferred_read_replica, records)
        if frame[offset] == 0:
            offset += 1
        else:
            data, offset = _with_partition_tags(data, frame, offset)
        partitions.append(data)
    return partitions, offset


def read_records(frame: Frame, offset: int, size: int) -> tuple[Frame | None, int]:
    """Return ``size`` bytes of records as a view, and the offset behind them. A size of -1 gives None."""
    if size < 0:
        return None, offset
    end = end_of(frame, offset, size, "records")
    return frame[offset:end], end


def _aborted(frame: Frame, offset: int, count: int, layout: Struct) -> tuple[Sequence[AbortedTransaction] | None, int]:
    if count < 0:
        return None, offset
    check_count(frame, offset, count, layout.size)
    aborted = []
    for _ in range(count):
        aborted.append(AbortedTransaction(*_ABORTED.unpack_from(frame, offset)))
        offset += 16
        if layout is _ABORTED_AND_TAGS:
            offset = skip_tagged_fields(frame, offset)
    return aborted, offset


def _with_partition_tags(data: PartitionData, frame: Frame, offset: int) -> tuple[PartitionData, int]:
    tags, offset = read_known_tags(frame, offset, _PARTITION_TAGS)
    data = replace(data, diverging_epoch=tags.get(0), current_leader=tags.get(1), snapshot_id=tags.get(2))
    return data, offset


def _read_epoch_end(frame: Frame, offset: int) -> tuple[EpochEndOffset, int]:
    return EpochEndOffset(*_EPOCH_END.unpack_from(frame, offset)), skip_tagged_fields(frame, offset + 12)


def _read_snapshot_id(frame: Frame, offset: int) -> tuple[SnapshotId, int]:
    return SnapshotId(*_SNAPSHOT.unpack_from(frame, offset)), skip_tagged_fields(frame, offset + 12)


_PARTITION_TAGS: Final[Mapping[int, Reader]] = {0: _read_epoch_end, 1: read_leader, 2: _read_snapshot_id}
