"""Codec of Fetch requests, versions 4-18. Source: FetchRequest.json.

A request has the tagged fields ClusterId from version 12 and ReplicaState from 15 (KIP-903). A partition has
ReplicaDirectoryId from 17 (KIP-853) and HighWatermark from 18 (KIP-1166). A tagged field is written only if the version
has it and its value is not the default. In an older version its tag is unknown and is skipped.
"""

from collections.abc import Callable, Mapping
from functools import partial
from struct import Struct
from typing import Final, TypeAlias

from reference_broker.ports.slicing import WIRE_UNITS_PER_SLICE, run_to_end
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import (
    NO_DIRECTORY_ID,
    NO_HIGH_WATERMARK,
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchTopic,
    ForgottenTopic,
)
from reference_broker.wire.primitives import (
    Buffers,
    Frame,
    Output,
    Reader,
    compact_string,
    end_of,
    legacy_string,
    read_compact_count,
    read_compact_nullable_string,
    read_compact_string,
    read_known_tags,
    read_legacy_count,
    read_legacy_string,
    skip_tagged_fields,
    tag_buffer,
    tagged,
    uvarint,
)
from reference_broker.wire.request_limits import Decoding, UnitBudget

_INT64: Final = Struct(">q")
_REPLICA_STATE: Final = Struct(">iq")
_REPLICA_STATE_AND_NO_TAGS: Final = Struct(">iqB")


def _read_replica_state(frame: Frame, offset: int) -> tuple[tuple[int, int], int]:
    """The replica's ID and epoch."""
    replica_id, replica_epoch = _REPLICA_STATE.unpack_from(frame, offset)
    return (replica_id, replica_epoch), skip_tagged_fields(frame, offset + _REPLICA_STATE.size)


def _read_directory_id(frame: Frame, offset: int) -> tuple[bytes, int]:
    end = end_of(frame, offset, 16, "a directory ID")
    return bytes(frame[offset:end]), end


def _read_high_watermark(frame: Frame, offset: int) -> tuple[int, int]:
    return _INT64.unpack_from(frame, offset)[0], offset + _INT64.size


REQUEST_TAGS_12: Final[Mapping[int, Reader]] = {0: read_compact_nullable_string}
REQUEST_TAGS_15: Final[Mapping[int, Reader]] = {**REQUEST_TAGS_12, 1: _read_replica_state}
"""The readers of a request's tagged fields, by tag, from version 12 and from version 15 on."""
PARTITION_TAGS: Final[Mapping[int, Mapping[int, Reader]]] = {
    17: {0: _read_directory_id},
    18: {0: _read_directory_id, 1: _read_high_watermark},
}
"""The readers of a partition's tagged fields, by version and tag. Versions before 17 have none."""


def write_request_tags(version: int, request: FetchRequest) -> bytes:
    """Return the tag buffer at the end of the body."""
    fields = []
    if request.cluster_id is not None:
        fields.append(tagged(0, compact_string(request.cluster_id)))
    if version >= 15 and (request.replica_id, request.replica_epoch) != (-1, -1):
        state = _REPLICA_STATE_AND_NO_TAGS.pack(request.replica_id, request.replica_epoch, 0)
        fields.append(tagged(1, state))
    return tag_buffer(fields)


def write_partition_tags(version: int, partition: FetchPartition) -> bytes:
    """Return the tag buffer of one partition. ``version`` is 17 or later."""
    fields = []
    if partition.replica_directory_id != NO_DIRECTORY_ID:
        fields.append(tagged(0, partition.replica_directory_id))
    if version >= 18 and partition.high_watermark != NO_HIGH_WATERMARK:
        fields.append(tagged(1, _INT64.pack(partition.high_watermark)))
    return tag_buffer(fields)


Partitions: TypeAlias = tuple[list[FetchPartition], int]
_Lists: TypeAlias = tuple[list[FetchTopic], list[ForgottenTopic]]
RowReader: TypeAlias = Callable[[Frame, int, int], Partitions]
"""Reads a number of partitions from an offset on. Returns them and the offset behind them."""

MAX_TOPICS_AND_PARTITIONS: Final = 100_000
"""A request that holds more, with those that it forgets, is refused before they are read."""

_FETCH: Final = int(ApiKey.FETCH)
_INT32: Final = Struct(">i")
_HEAD_4: Final = Struct(">iiiib")
_HEAD_7: Final = Struct(">iiiibii")
_HEAD_15: Final = Struct(">iiibii")
_PARTITION_4: Final = Struct(">iqi")
_PARTITION_5: Final = Struct(">iqqi")
_PARTITION_9: Final = Struct(">iiqqi")
_PARTITION_12: Final = Struct(">iiqiqi")
_PARTITION_12_AND_TAGS: Final = Struct(">iiqiqiB")


def fetch_work() -> UnitBudget:
    """Return the budget of one Fetch request."""
    return UnitBudget(_FETCH, MAX_TOPICS_AND_PARTITIONS)


def decode_fetch_request(version: int, frame: Frame, offset: int) -> tuple[FetchRequest, int]:
    """Return the body and the offset behind it. Raise ProtocolError, or one of BAD_BYTES."""
    lists_at = offset + _head_of(version).size
    # Most requests of a fetch session name no partition or one topic, so those cases have a fast path.
    if version >= 12 and frame[lists_at] == frame[lists_at + 1] == 1:
        return _request(version, frame, offset, ([], []), lists_at + 2)
    lists, end = _one_topic(version, frame, lists_at) or run_to_end(_lists(version, frame, lists_at, fetch_work()))
    return _request(version, frame, offset, lists, end)


def _one_topic(version: int, frame: Frame, offset: int) -> tuple[_Lists, int] | None:
    """Read the lists of a request that names a single topic with at most 126 partitions, and forgets none. Return
    None for any other."""
    if version < 12 or frame[offset] != 2:
        return None
    topic, topic_id, at = read_topic(version >= 13, frame, offset + 1)
    count = frame[at] - 1
    if not 0 <= count < 127:
        return None
    partitions, at = _ROWS_FROM_12[version](frame, at + 1, count)
    if frame[at] != 0 or frame[at + 1] != 1:
        return None
    return ([FetchTopic(topic, topic_id, partitions)], []), at + 2


def fetch_request_in_slices(version: int, frame: Frame, offset: int, work: UnitBudget) -> Decoding[FetchRequest]:
    """As ``decode_fetch_request``, for large requests, which take several events."""
    lists, end = yield from _lists(version, frame, offset + _head_of(version).size, work)
    return _request(version, frame, offset, lists, end)


def _head_of(version: int) -> Struct:
    return _HEAD_15 if version >= 15 else _HEAD_7 if version >= 7 else _HEAD_4


def _lists(version: int, frame: Frame, offset: int, work: UnitBudget) -> Decoding[_Lists]:
    forgotten: list[ForgottenTopic] = []
    if version >= 12:
        topics, offset = yield from _flexible_topics(version, frame, offset, work)
        if frame[offset] == 1:  # None, as in most requests.
            offset += 1
        else:
            forgotten, offset = yield from _flexible_forgotten(version, frame, offset, work)
    else:
        topics, offset = yield from _legacy_topics(version, frame, offset, work)
        if version >= 7:
            forgotten, offset = yield from _legacy_forgotten(frame, offset, work)
    return (topics, forgotten), offset


def _request(version: int, frame: Frame, head_at: int, lists: _Lists, offset: int) -> tuple[FetchRequest, int]:
    """``offset`` is behind the lists."""
    replica_id, session_id, session_epoch = -1, 0, -1
    if version >= 15:
        numbers = _HEAD_15.unpack_from(frame, head_at)
        max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = numbers
    elif version >= 7:
        numbers = _HEAD_7.unpack_from(frame, head_at)
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level, session_id, session_epoch = numbers
    else:
        replica_id, max_wait_ms, min_bytes, max_bytes, isolation_level = _HEAD_4.unpack_from(frame, head_at)
    rack_id, cluster_id, replica_epoch = "", None, -1
    if version >= 12:
        if frame[offset] == 1:
            offset += 1
        else:
            rack_id, offset = read_compact_string(frame, offset)
        if frame[offset] == 0:
            offset += 1
        else:
            tags, offset = read_known_tags(frame, offset, REQUEST_TAGS_15 if version >= 15 else REQUEST_TAGS_12)
            cluster_id = tags.get(0)
            replica_id, replica_epoch = tags.get(1, (replica_id, -1))
    elif version == 11:
        rack_id, offset = read_legacy_string(frame, offset)
    topics, forgotten = lists
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
        rack_id,
        cluster_id,
        replica_epoch,
    )
    return request, offset


def _legacy_topics(version: int, frame: Frame, offset: int, work: UnitBudget) -> Decoding[list[FetchTopic]]:
    read_rows, row_bytes = _LEGACY_ROWS[version]
    topics = []
    count, offset = read_legacy_count(frame, offset, 6)
    work.announce(count, False)
    for _ in range(count):
        topic, offset = read_legacy_string(frame, offset)
        partition_count, offset = read_legacy_count(frame, offset, row_bytes)
        partitions, offset = yield from partitions_in_slices(read_rows, frame, offset, partition_count, work)
        topics.append(FetchTopic(topic, NO_TOPIC_ID, partitions))
    return topics, offset


def _legacy_forgotten(frame: Frame, offset: int, work: UnitBudget) -> Decoding[list[ForgottenTopic]]:
    forgotten = []
    count, offset = read_legacy_count(frame, offset, 6)
    work.announce(count, False)
    for _ in range(count):
        topic, offset = read_legacy_string(frame, offset)
        forgotten_ones, offset = indexes(frame, *read_legacy_count(frame, offset, 4), work)
        forgotten.append(ForgottenTopic(topic, NO_TOPIC_ID, forgotten_ones))
        if work.spend(1):
            yield
    return forgotten, offset


def _flexible_topics(version: int, frame: Frame, offset: int, work: UnitBudget) -> Decoding[list[FetchTopic]]:
    by_id = version >= 13
    read_rows = _ROWS_FROM_12[version]
    topics = []
    count, offset = read_compact_count(frame, offset, 18 if by_id else 3)
    work.announce(count, False)
    for _ in range(count):
        topic, topic_id, offset = read_topic(by_id, frame, offset)
        partition_count, offset = read_compact_count(frame, offset, 33)
        if partition_count <= WIRE_UNITS_PER_SLICE:  # A generator for each topic would cost as much as its partitions.
            work.announce(partition_count, False)
            partitions, offset = read_rows(frame, offset, partition_count)
            if work.spend(partition_count + 1):
                yield
        else:
            partitions, offset = yield from partitions_in_slices(read_rows, frame, offset, partition_count, work)
        topics.append(FetchTopic(topic, topic_id, partitions))
        offset = offset + 1 if frame[offset] == 0 else skip_tagged_fields(frame, offset)
    return topics, offset


def _flexible_forgotten(version: int, frame: Frame, offset: int, work: UnitBudget) -> Decoding[list[ForgottenTopic]]:
    by_id = version >= 13
    forgotten = []
    count, offset = read_compact_count(frame, offset, 18 if by_id else 3)
    work.announce(count, False)
    for _ in range(count):
        topic, topic_id, offset = read_topic(by_id, frame, offset)
        forgotten_ones, offset = indexes(frame, *read_compact_count(frame, offset, 4), work)
        forgotten.append(ForgottenTopic(topic, topic_id, forgotten_ones))
        offset = skip_tagged_fields(frame, offset)
        if work.spend(1):
            yield
    return forgotten, offset


def indexes(frame: Frame, count: int, offset: int, work: UnitBudget) -> tuple[list[int], int]:
    """Read the numbers of ``count`` partitions. Return them and the offset behind them."""
    work.announce(count, False)
    return list(Struct(f">{count}i").unpack_from(frame, offset)), offset + 4 * count


def read_topic(by_id: bool, frame: Frame, offset: int) -> tuple[str, bytes, int]:
    """Read a topic of a flexible version. Return its name, its ID and the offset behind it. The version has either
    names or IDs, so the other one is empty."""
    if by_id:
        end = end_of(frame, offset, 16, "a topic ID")
        return "", bytes(frame[offset:end]), end
    topic, offset = read_compact_string(frame, offset)
    return topic, NO_TOPIC_ID, offset


def partitions_in_slices(
    read_rows: RowReader, frame: Frame, offset: int, count: int, work: UnitBudget
) -> Decoding[list[FetchPartition]]:
    """Read the partitions of one topic."""
    work.announce(count, False)
    if count <= WIRE_UNITS_PER_SLICE:
        partitions, offset = read_rows(frame, offset, count)
        if work.spend(count + 1):
            yield
        return partitions, offset
    partitions = []
    for done in range(0, count, WIRE_UNITS_PER_SLICE):
        rows, offset = read_rows(frame, offset, min(WIRE_UNITS_PER_SLICE, count - done))
        partitions += rows
        yield
    return partitions, offset


def _rows_4(frame: Frame, offset: int, count: int) -> Partitions:
    end = offset + 16 * count
    return [FetchPartition(*row) for row in _PARTITION_4.iter_unpack(frame[offset:end])], end


def _rows_5(frame: Frame, offset: int, count: int) -> Partitions:
    end = offset + 24 * count
    return [
        FetchPartition(index, fetch_offset, max_bytes, -1, -1, log_start)
        for index, fetch_offset, log_start, max_bytes in _PARTITION_5.iter_unpack(frame[offset:end])
    ], end


def _rows_9(frame: Frame, offset: int, count: int) -> Partitions:
    end = offset + 28 * count
    return [
        FetchPartition(index, fetch_offset, max_bytes, leader_epoch, -1, log_start)
        for index, leader_epoch, fetch_offset, log_start, max_bytes in _PARTITION_9.iter_unpack(frame[offset:end])
    ], end


def _rows_12(version: int, frame: Frame, offset: int, count: int) -> Partitions:
    end = offset + 33 * count
    rows = _PARTITION_12_AND_TAGS.iter_unpack(frame[offset:end])
    partitions = [
        FetchPartition(index, fetch_offset, max_bytes, leader_epoch, fetched_epoch, log_start)
        for index, leader_epoch, fetch_offset, fetched_epoch, log_start, max_bytes, tags in rows
        if tags == 0
    ]
    if len(partitions) == count:
        return partitions, end
    # The fast path above assumes that no partition has tagged fields. One has, so all rows from there on were cut at
    # the wrong places. The partitions are read again, one by one.
    partitions = []
    for _ in range(count):
        index, leader_epoch, fetch_offset, fetched_epoch, log_start, max_bytes = _PARTITION_12.unpack_from(
            frame, offset
        )
        tags, offset = read_known_tags(frame, offset + 32, PARTITION_TAGS.get(version, {}))
        replica = tags.get(0, NO_DIRECTORY_ID), tags.get(1, NO_HIGH_WATERMARK)
        numbers = (index, fetch_offset, max_bytes, leader_epoch, fetched_epoch, log_start)
        partitions.append(FetchPartition(*numbers, *replica))
    return partitions, offset


_ROWS_FROM_12: Final[dict[int, RowReader]] = {version: partial(_rows_12, version) for version in range(12, 19)}
_LEGACY_ROWS: Final[dict[int, tuple[RowReader, int]]] = {
    4: (_rows_4, 16),
    **dict.fromkeys((5, 6, 7, 8), (_rows_5, 24)),
    **dict.fromkeys((9, 10, 11), (_rows_9, 28)),
}
"""The readers of the partitions of a version before 12, and how many bytes each takes."""


def encode_fetch_request(version: int, start: bytes, request: FetchRequest) -> Buffers:
    """Return the whole frame. ``start`` is four bytes for the length, and the header."""
    output = Output(start)
    out = output.small
    r = request
    if version >= 15:
        out += _HEAD_15.pack(r.max_wait_ms, r.min_bytes, r.max_bytes, r.isolation_level, r.session_id, r.session_epoch)
    elif version >= 7:
        out += _HEAD_7.pack(
            r.replica_id, r.max_wait_ms, r.min_bytes, r.max_bytes, r.isolation_level, r.session_id, r.session_epoch
        )
    else:
        out += _HEAD_4.pack(r.replica_id, r.max_wait_ms, r.min_bytes, r.max_bytes, r.isolation_level)
    if version >= 12:
        _encode_flexible_rest(version, out, request)
    else:
        _encode_legacy_rest(version, out, request)
    return output.finish()


def _encode_legacy_rest(version: int, out: bytearray, request: FetchRequest) -> None:
    pack = _LEGACY_PARTITIONS[version]
    out += _INT32.pack(len(request.topics))
    for topic in request.topics:
        out += legacy_string(topic.topic) + _INT32.pack(len(topic.partitions))
        for partition in topic.partitions:
            out += pack(partition)
    if version >= 7:
        out += _INT32.pack(len(request.forgotten))
        for forgotten in request.forgotten:
            count = len(forgotten.partitions)
            out += legacy_string(forgotten.topic) + Struct(f">{count + 1}i").pack(count, *forgotten.partitions)
    if version >= 11:
        out += legacy_string(request.rack_id)


def _encode_flexible_rest(version: int, out: bytearray, request: FetchRequest) -> None:
    by_id = version >= 13
    out += uvarint(len(request.topics) + 1)
    for topic in request.topics:
        out += topic.topic_id if by_id else compact_string(topic.topic)
        out += uvarint(len(topic.partitions) + 1)
        for p in topic.partitions:
            out += _PARTITION_12.pack(
                p.partition,
                p.current_leader_epoch,
                p.fetch_offset,
                p.last_fetched_epoch,
                p.log_start_offset,
                p.partition_max_bytes,
            )
            out += write_partition_tags(version, p) if version >= 17 else b"\0"
        out.append(0)
    out += uvarint(len(request.forgotten) + 1)
    for forgotten in request.forgotten:
        out += forgotten.topic_id if by_id else compact_string(forgotten.topic)
        count = len(forgotten.partitions)
        out += uvarint(count + 1) + Struct(f">{count}i").pack(*forgotten.partitions) + b"\0"
    out += compact_string(request.rack_id)
    out += write_request_tags(version, request)


def _pack_4(p: FetchPartition) -> bytes:
    return _PARTITION_4.pack(p.partition, p.fetch_offset, p.partition_max_bytes)


def _pack_5(p: FetchPartition) -> bytes:
    return _PARTITION_5.pack(p.partition, p.fetch_offset, p.log_start_offset, p.partition_max_bytes)


def _pack_9(p: FetchPartition) -> bytes:
    return _PARTITION_9.pack(
        p.partition, p.current_leader_epoch, p.fetch_offset, p.log_start_offset, p.partition_max_bytes
    )


_LEGACY_PARTITIONS: Final[dict[int, Callable[[FetchPartition], bytes]]] = {
    4: _pack_4,
    **dict.fromkeys((5, 6, 7, 8), _pack_5),
    **dict.fromkeys((9, 10, 11), _pack_9),
}
