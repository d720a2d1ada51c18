"""ListOffsets in all its kinds, OffsetForLeaderEpoch and DeleteRecords."""

from typing import Any

from bench.probe.case import ANY, SHOULD, case, since_version
from bench.probe.context import ByKey, ProbeContext, Topic, single
from bench.probe.data import PRODUCE, write
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode

LIST, EPOCHS, DELETE = int(ApiKey.LIST_OFFSETS), int(ApiKey.OFFSET_FOR_LEADER_EPOCH), int(ApiKey.DELETE_RECORDS)
NEEDS = {LIST: since_version(1), PRODUCE: since_version(3), ApiKey.CREATE_TOPICS: ANY}
WITH_EPOCH = {**NEEDS, LIST: since_version(4), ApiKey.METADATA: since_version(7)}
FOR_EPOCH = {EPOCHS: since_version(2), PRODUCE: since_version(3), ApiKey.METADATA: since_version(7)}
DELETES = {**NEEDS, DELETE: ANY}
SCHEMA = "ListOffsetsRequest.json, KIP-79"
EPOCH_SCHEMA = "KIP-101, KIP-320"
LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
BEGAN_MS = 1_700_000_000_000
"""When the first record of the cases' logs was made. The later ones follow after 10 ms each."""
FOR_EVER = {"retention.ms": "-1"}
TIER_LIMIT_MS = 10_000
"""So long a broker may look into its tier (KIP-1075)."""


def _log(at: ProbeContext, compression: Compression = Compression.NONE) -> Topic:
    """A log of two batches with records at 0, 10, 20 and 30, 40, 50 ms after BEGAN_MS."""
    topic = at.topic(configs=FOR_EVER)
    for first in (0, 3):
        made = [Record(timestamp_ms=BEGAN_MS + 10 * number, value=b"v") for number in range(first, first + 3)]
        write(at, topic, build(made, compression=compression))
    return topic


def offset_at(
    at: ProbeContext, topic: Topic, timestamp: int, partition: int = 0, *, seen: bool = True, **more: object
) -> Any:
    """Return the result of ListOffsets for a timestamp, or for one of the kinds above. ``seen``: see
    ``call_unseen``."""
    body = {"partition_index": partition, "timestamp": timestamp, **more}
    request = {"replica_id": -1, "timeout": TIER_LIMIT_MS, "topics": [{"name": topic.name, "partitions": [body]}]}
    response = at.call(LIST, request) if seen else at.call_unseen(LIST, request, at.main)
    return single(response, "topics", "partitions")


def expect_offset(at: ProbeContext, response: Any, offset: int) -> None:
    at.expect_no_error(response)
    at.expect("offset", response.offset, offset)


@case("offsets/list/latest", SCHEMA, NEEDS, since="0.10.1")
def latest(at: ProbeContext) -> None:
    """Timestamp -1 requests the end of the log. No timestamp belongs to it."""
    result = offset_at(at, _log(at), LATEST)
    expect_offset(at, result, 6)
    at.expect("timestamp", result.timestamp, -1)


@case("offsets/list/earliest", SCHEMA, NEEDS, since="0.10.1")
def earliest(at: ProbeContext) -> None:
    """Timestamp -2 requests the start of the log."""
    expect_offset(at, offset_at(at, _log(at), EARLIEST), 0)


@case("offsets/list/empty-log", SCHEMA, NEEDS, since="0.10.1")
def empty_log(at: ProbeContext) -> None:
    """A log without records starts and ends at 0, and has no offset for any time."""
    topic = at.topic()
    expect_offset(at, offset_at(at, topic, EARLIEST), 0)
    expect_offset(at, offset_at(at, topic, LATEST), 0)
    expect_offset(at, offset_at(at, topic, BEGAN_MS), -1)


@case("offsets/list/time-exact", SCHEMA, NEEDS, since="0.10.1")
def time_exact(at: ProbeContext) -> None:
    """A timestamp gives the first record with that time, also inside a batch, and the time of the record."""
    result = offset_at(at, _log(at), BEGAN_MS + 40)
    expect_offset(at, result, 4)
    at.expect("timestamp", result.timestamp, BEGAN_MS + 40)


@case("offsets/list/time-between", SCHEMA, NEEDS, since="0.10.1")
def time_between(at: ProbeContext) -> None:
    """A time between two records gives the later one."""
    result = offset_at(at, _log(at), BEGAN_MS + 11)
    expect_offset(at, result, 2)
    at.expect("timestamp", result.timestamp, BEGAN_MS + 20)


@case("offsets/list/time-before", SCHEMA, NEEDS, since="0.10.1")
def time_before(at: ProbeContext) -> None:
    """A time before the first record gives the first one."""
    expect_offset(at, offset_at(at, _log(at), 1), 0)


@case("offsets/list/time-after", SCHEMA, NEEDS, since="0.10.1")
def time_after(at: ProbeContext) -> None:
    """A time after the last record gives offset -1 and is no error."""
    result = offset_at(at, _log(at), BEGAN_MS + 51)
    expect_offset(at, result, -1)
    at.expect("timestamp", result.timestamp, -1)


@case("offsets/list/time-in-compressed", SCHEMA, NEEDS, since="0.10.1")
def time_in_compressed(at: ProbeContext) -> None:
    """A timestamp gives the record itself in a compressed batch, too."""
    expect_offset(at, offset_at(at, _log(at, Compression.GZIP), BEGAN_MS + 40), 4)


@case("offsets/list/time-out-of-order", SCHEMA, NEEDS, since="0.10.1")
def time_out_of_order(at: ProbeContext) -> None:
    """Where times are not in order, the first offset counts whose time is late enough."""
    topic = at.topic(configs=FOR_EVER)
    write(at, topic, build([Record(timestamp_ms=BEGAN_MS + each, value=b"v") for each in (50, 10, 30, 50)]))
    expect_offset(at, offset_at(at, topic, BEGAN_MS + 20), 0)


@case("offsets/list/max-timestamp", "KIP-734", {**NEEDS, LIST: since_version(7)}, since="3.0")
def max_timestamp(at: ProbeContext) -> None:
    """Timestamp -3 requests the record with the largest timestamp, which need not be the last."""
    topic = at.topic(configs=FOR_EVER)
    write(at, topic, build([Record(timestamp_ms=BEGAN_MS + each, value=b"v") for each in (10, 50, 30)]))
    result = offset_at(at, topic, MAX_TIMESTAMP)
    expect_offset(at, result, 1)
    at.expect("timestamp", result.timestamp, BEGAN_MS + 50)


@case("offsets/list/max-timestamp-empty", "KIP-734", {**NEEDS, LIST: since_version(7)}, since="3.0")
def max_timestamp_empty(at: ProbeContext) -> None:
    """In a log without records there is none."""
    expect_offset(at, offset_at(at, at.topic(), MAX_TIMESTAMP), -1)


@case("offsets/list/earliest-local", "KIP-405", {**NEEDS, LIST: since_version(8)}, since="3.4")
def earliest_local(at: ProbeContext) -> None:
    """Timestamp -4 requests the start of the local log, which is that of the log where nothing is tiered."""
    expect_offset(at, offset_at(at, _log(at), EARLIEST_LOCAL), 0)


@case("offsets/list/latest-tiered", "KIP-1005", {**NEEDS, LIST: since_version(9)}, since="3.8")
def latest_tiered(at: ProbeContext) -> None:
    """Timestamp -5 requests the last tiered offset, which is -1 where nothing is tiered."""
    expect_offset(at, offset_at(at, _log(at), LATEST_TIERED), -1)


@case("offsets/list/unknown-kind", "KafkaApis.scala", NEEDS, since="0.10.1", level=SHOULD)
def unknown_kind(at: ProbeContext) -> None:
    """A negative timestamp without a meaning is refused with UNSUPPORTED_VERSION."""
    at.expect_error(offset_at(at, _log(at), -99), ErrorCode.unsupported_version)


@case("offsets/list/after-deletion", "KIP-107", DELETES, since="0.11")
def after_deletion(at: ProbeContext) -> None:
    """Records that were deleted are not found by time, and the earliest offset is behind them."""
    topic = _log(at)
    delete_records(at, topic, 2)
    expect_offset(at, offset_at(at, topic, EARLIEST), 2)
    expect_offset(at, offset_at(at, topic, BEGAN_MS), 2)


@case("offsets/list/read-committed", "KIP-98", {**NEEDS, LIST: since_version(2)}, since="0.11")
def read_committed(at: ProbeContext) -> None:
    """With isolation level 1 the end is the last stable offset, which is the same where no transaction is open."""
    partitions = [{"partition_index": 0, "timestamp": LATEST}]
    topics = [{"name": _log(at).name, "partitions": partitions}]
    result = single(at.call(LIST, {"replica_id": -1, "isolation_level": 1, "topics": topics}), "topics", "partitions")
    expect_offset(at, result, 6)


@case("offsets/list/unknown-topic", SCHEMA, {LIST: since_version(1)}, since="0.10.1")
def unknown_topic(at: ProbeContext) -> None:
    """A topic that does not exist gets UNKNOWN_TOPIC_OR_PARTITION."""
    code = offset_at(at, Topic(at.topic_name(), bytes(16), 1), LATEST).error_code
    at.expect("error code", code, ErrorCode.unknown_topic_or_partition)


@case("offsets/list/unknown-partition", SCHEMA, NEEDS, since="0.10.1")
def unknown_partition(at: ProbeContext) -> None:
    """A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, and the others their offsets."""
    topic = _log(at)
    partitions = [{"partition_index": each, "timestamp": LATEST} for each in (0, 9)]
    response = at.call(LIST, {"replica_id": -1, "topics": [{"name": topic.name, "partitions": partitions}]})
    results = ByKey({partition.partition_index: partition for partition in single(response, "topics").partitions})
    at.expect("error code of the one", results[9].error_code, ErrorCode.unknown_topic_or_partition)
    expect_offset(at, results[0], 6)


@case("offsets/list/named-twice", "KafkaApis.scala", NEEDS, since="0.10.1", level=SHOULD)
def named_twice(at: ProbeContext) -> None:
    """A partition that is named twice is refused with INVALID_REQUEST."""
    partitions = [{"partition_index": 0, "timestamp": each} for each in (LATEST, EARLIEST)]
    response = at.call(LIST, {"replica_id": -1, "topics": [{"name": _log(at).name, "partitions": partitions}]})
    codes = {int(partition.error_code) for partition in single(response, "topics").partitions}
    at.expect("error codes", sorted(codes), [int(ErrorCode.invalid_request)])


@case("offsets/list/returned-once", "ReplicaManager.scala", NEEDS, since="4.0", level=SHOULD)
def returned_once(at: ProbeContext) -> None:
    """Each topic and each partition is returned once, however often it is named."""
    name = at.topic(2).name
    named = [[(0, LATEST), (0, LATEST)], [(1, LATEST), (0, EARLIEST)]]
    topics = [
        {"name": name, "partitions": [{"partition_index": index, "timestamp": kind} for index, kind in each]}
        for each in named
    ]
    response = at.call(LIST, {"replica_id": -1, "topics": topics})
    at.expect("number of topics", len(response.topics), 1)
    found = sorted(
        (partition.partition_index, int(partition.error_code)) for partition in single(response, "topics").partitions
    )
    at.expect("partitions and error codes", found, [(0, int(ErrorCode.invalid_request)), (1, 0)])


@case("offsets/list/leader-epoch", "KIP-320; redpanda#9850", WITH_EPOCH, since="2.1")
def leader_epoch(at: ProbeContext) -> None:
    """From version 4 on an offset is returned with the leader epoch of its record."""
    topic = _log(at)
    epoch = epoch_of(at, topic)
    for kind in (EARLIEST, LATEST, BEGAN_MS):
        at.expect("the leader epoch is that of the leader", offset_at(at, topic, kind).leader_epoch == epoch, True)


@case("offsets/list/newer-epoch", "KIP-320", WITH_EPOCH, since="2.1")
def newer_epoch(at: ProbeContext) -> None:
    """A client with a newer leader epoch than the broker's gets UNKNOWN_LEADER_EPOCH."""
    topic = _log(at)
    result = offset_at(at, topic, LATEST, current_leader_epoch=epoch_of(at, topic) + 1)
    at.expect_error(result, ErrorCode.unknown_leader_epoch)


@case("offsets/list/right-epoch", "KIP-320", WITH_EPOCH, since="2.1")
def right_epoch(at: ProbeContext) -> None:
    """A client with the right leader epoch gets its offset."""
    topic = _log(at)
    expect_offset(at, offset_at(at, topic, LATEST, current_leader_epoch=epoch_of(at, topic)), 6)


# OffsetForLeaderEpoch


def epoch_of(at: ProbeContext, topic: Topic) -> int:
    result = single(at.call(ApiKey.METADATA, {"topics": [{"name": topic.name}]}), "topics")
    return int(single(result, "partitions").leader_epoch)


def end_of_epoch(at: ProbeContext, name: str, epoch: int, current: int = -1, partition: int = 0) -> Any:
    request = {"partition": partition, "current_leader_epoch": current, "leader_epoch": epoch}
    response = at.call(EPOCHS, {"replica_id": -1, "topics": [{"topic": name, "partitions": [request]}]})
    return single(response, "topics", "partitions")


@case("offsets/epoch/last", EPOCH_SCHEMA, FOR_EPOCH, since="0.11")
def last_epoch(at: ProbeContext) -> None:
    """The leader's own epoch ends where the log ends."""
    topic = _log(at)
    epoch = epoch_of(at, topic)
    result = end_of_epoch(at, topic.name, epoch)
    at.expect_no_error(result)
    at.expect("end offset", result.end_offset, 6)
    at.expect("the epoch is the requested one", result.leader_epoch == epoch, True)


@case("offsets/epoch/future", EPOCH_SCHEMA, FOR_EPOCH, since="0.11")
def future_epoch(at: ProbeContext) -> None:
    """An epoch that has not come yet has no end: -1 and -1, and no error."""
    topic = _log(at)
    result = end_of_epoch(at, topic.name, epoch_of(at, topic) + 5)
    at.expect_no_error(result)
    at.expect("epoch and end offset", (int(result.leader_epoch), int(result.end_offset)), (-1, -1))


@case("offsets/epoch/undefined", EPOCH_SCHEMA, FOR_EPOCH, since="0.11")
def undefined_epoch(at: ProbeContext) -> None:
    """Epoch -1, which means none, has no end."""
    result = end_of_epoch(at, _log(at).name, -1)
    at.expect("end offset", result.end_offset, -1)


@case("offsets/epoch/newer-current", EPOCH_SCHEMA, FOR_EPOCH, since="2.1")
def newer_current(at: ProbeContext) -> None:
    """A client with a newer leader epoch than the broker's gets UNKNOWN_LEADER_EPOCH."""
    topic = _log(at)
    epoch = epoch_of(at, topic)
    result = end_of_epoch(at, topic.name, epoch, epoch + 1)
    at.expect_error(result, ErrorCode.unknown_leader_epoch)


@case("offsets/epoch/unknown-topic", EPOCH_SCHEMA, {EPOCHS: since_version(2)}, since="0.11")
def epoch_of_unknown(at: ProbeContext) -> None:
    """A topic that does not exist gets UNKNOWN_TOPIC_OR_PARTITION."""
    result = end_of_epoch(at, at.topic_name(), 0)
    at.expect_error(result, ErrorCode.unknown_topic_or_partition)


@case("offsets/epoch/unknown-partition", EPOCH_SCHEMA, FOR_EPOCH, since="0.11")
def epoch_of_unknown_partition(at: ProbeContext) -> None:
    """A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION."""
    result = end_of_epoch(at, _log(at).name, 0, partition=9)
    at.expect_error(result, ErrorCode.unknown_topic_or_partition)


# DeleteRecords


def delete_records(at: ProbeContext, topic: Topic, offset: int, partition: int = 0) -> Any:
    request = {"topics": [{"name": topic.name, "partitions": [{"partition_index": partition, "offset": offset}]}]}
    return single(at.call(DELETE, {**request, "timeout": 5_000}), "topics", "partitions")


@case("offsets/delete/to-offset", "KIP-107", DELETES, since="0.11")
def delete_to_offset(at: ProbeContext) -> None:
    """Records before an offset are deleted, also inside a batch, and the response has the new start."""
    topic = _log(at)
    result = delete_records(at, topic, 4)
    at.expect_no_error(result)
    at.expect("low watermark", result.low_watermark, 4)
    expect_offset(at, offset_at(at, topic, EARLIEST), 4)


@case("offsets/delete/to-end", "KIP-107", DELETES, since="0.11")
def delete_to_end(at: ProbeContext) -> None:
    """Offset -1 deletes all records."""
    topic = _log(at)
    result = delete_records(at, topic, -1)
    at.expect_no_error(result)
    at.expect("low watermark", result.low_watermark, 6)
    expect_offset(at, offset_at(at, topic, EARLIEST), 6)
    expect_offset(at, offset_at(at, topic, LATEST), 6)


@case("offsets/delete/beyond-end", "KIP-107", DELETES, since="0.11")
def delete_beyond(at: ProbeContext) -> None:
    """An offset beyond the end is refused with OFFSET_OUT_OF_RANGE, and nothing is deleted."""
    topic = _log(at)
    at.expect_error(delete_records(at, topic, 7), ErrorCode.offset_out_of_range)
    expect_offset(at, offset_at(at, topic, EARLIEST), 0)


@case("offsets/delete/already", "KIP-107", DELETES, since="0.11")
def delete_again(at: ProbeContext) -> None:
    """To delete what is deleted already is no error, and the start does not go back."""
    topic = _log(at)
    delete_records(at, topic, 4)
    result = delete_records(at, topic, 2)
    at.expect_no_error(result)
    at.expect("low watermark", result.low_watermark, 4)


@case("offsets/delete/unknown-partition", "KIP-107", DELETES, since="0.11")
def delete_unknown(at: ProbeContext) -> None:
    """A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION."""
    result = delete_records(at, _log(at), 1, 9)
    at.expect_error(result, ErrorCode.unknown_topic_or_partition)


@case(
    "offsets/list/max-timestamp-after-deletion",
    "KIP-734, KIP-107",
    {**DELETES, LIST: since_version(7)},
    since="3.0",
    level=SHOULD,
)
def max_timestamp_after_deletion(at: ProbeContext) -> None:
    """Timestamp -3 requests the largest timestamp among the remaining records, also if a deleted one had a larger
    one."""
    topic = at.topic(configs=FOR_EVER)
    for late_ms in (50, 10, 30):
        write(at, topic, build([Record(timestamp_ms=BEGAN_MS + late_ms, value=b"v")]))
    delete_records(at, topic, 1)
    expect_offset(at, offset_at(at, topic, MAX_TIMESTAMP), 2)


@case("offsets/list/emptied-log", "KIP-107", {**DELETES, LIST: since_version(7)}, since="3.0", level=SHOULD)
def list_emptied_log(at: ProbeContext) -> None:
    """A log whose records were all deleted starts and ends at its end, and has no offset for any time."""
    topic = _log(at)
    delete_records(at, topic, -1)
    expect_offset(at, offset_at(at, topic, EARLIEST), 6)
    expect_offset(at, offset_at(at, topic, LATEST), 6)
    expect_offset(at, offset_at(at, topic, BEGAN_MS), -1)


@case("offsets/epoch/after-deletion", EPOCH_SCHEMA, {**FOR_EPOCH, DELETE: ANY}, since="0.11")
def epoch_after_deletion(at: ProbeContext) -> None:
    """The leader's epoch ends where the log ends, also if records of it were deleted."""
    topic = _log(at)
    delete_records(at, topic, 4)
    epoch = epoch_of(at, topic)
    result = end_of_epoch(at, topic.name, epoch)
    at.expect_no_error(result)
    at.expect("end offset", result.end_offset, 6)
    at.expect("the epoch is the requested one", result.leader_epoch == epoch, True)
