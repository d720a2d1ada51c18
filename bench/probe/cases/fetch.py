"""Fetch without sessions: offsets, unknown topics, versions, leader epochs, how long it waits, and its limits."""

import time
from collections.abc import Mapping

from bench.probe.case import ANY, SHOULD, case, since_version
from bench.probe.context import ProbeContext, Topic, single
from bench.probe.data import (
    FETCH,
    PLENTY,
    PRODUCE,
    batch,
    fetch,
    fetch_one,
    fetch_request,
    headers,
    produce,
    rows,
    send_fetch,
    values,
    wanted,
    write,
)
from reference_broker.records.compression import Compression
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchRequest, PartitionData

NEEDS = {FETCH: since_version(4), PRODUCE: since_version(3), ApiKey.CREATE_TOPICS: ANY}
DELETES = {**NEEDS, ApiKey.DELETE_RECORDS: ANY}
SCHEMA = "FetchRequest.json, FetchResponse.json"
KIP_74 = "KIP-74"
KIP_320 = "KIP-320"
WAIT_MS = 400
LONG_MS = 5_000
SOON_S = 2.0
"""Long for an immediate response, and short beside LONG_MS."""
NO_NODE = 1_999_999


def _log(at: ProbeContext, batches: int = 3, count: int = 2, partitions: int = 1) -> tuple[Topic, bytes]:
    """A topic whose partitions have the same batches of equal size. Returns one of the batches, too."""
    topic = at.topic(partitions)
    data = batch(*[bytes(50)] * count)
    for index in range(partitions):
        write(at, topic, *[data] * batches, partition=index)
    return topic, data


# Offsets


@case("fetch/offsets/start", SCHEMA, NEEDS, since="0.8")
def start(at: ProbeContext) -> None:
    """A fetch from the start returns the records in the order in which they were written."""
    topic = at.topic()
    write(at, topic, batch(b"1", b"2"), batch(b"3"))
    data = fetch_one(at, topic)
    at.expect_no_error(data)
    at.expect("values", values(data), [b"1", b"2", b"3"])
    at.expect("base offsets of the batches", [header.base_offset for header in headers(data)], [0, 2])


@case("fetch/offsets/middle-of-batch", SCHEMA, NEEDS, since="0.8")
def middle_of_batch(at: ProbeContext) -> None:
    """A fetch from an offset inside a batch returns that batch whole."""
    topic = at.topic()
    write(at, topic, batch(b"1", b"2", b"3"), batch(b"4"))
    data = fetch_one(at, topic, wanted(offset=1))
    at.expect_no_error(data)
    at.expect("base offsets of the batches", [header.base_offset for header in headers(data)], [0, 3])


@case("fetch/offsets/middle-of-compressed-batch", SCHEMA, NEEDS, since="0.8")
def middle_of_compressed(at: ProbeContext) -> None:
    """The same holds for the last record of a compressed batch."""
    topic = at.topic()
    write(at, topic, batch(b"1", b"2", b"3", compression=Compression.GZIP))
    data = fetch_one(at, topic, wanted(offset=2))
    at.expect("base offsets of the batches", [header.base_offset for header in headers(data)], [0])


@case("fetch/offsets/next-batch", SCHEMA, NEEDS, since="0.8")
def next_batch(at: ProbeContext) -> None:
    """A fetch from the first offset of a batch returns nothing before it."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, wanted(offset=2))
    at.expect("base offsets of the batches", [header.base_offset for header in headers(data)], [2, 4])


@case("fetch/offsets/end", SCHEMA, NEEDS, since="0.8")
def end(at: ProbeContext) -> None:
    """A fetch from the end of the log is no error and returns no records."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, wanted(offset=6))
    at.expect_no_error(data)
    at.expect("number of batches", len(headers(data)), 0)
    at.expect("high watermark", data.high_watermark, 6)


@case("fetch/offsets/beyond-end", SCHEMA, NEEDS, since="0.8")
def beyond_end(at: ProbeContext) -> None:
    """A fetch from beyond the end gets OFFSET_OUT_OF_RANGE."""
    topic, _ = _log(at)
    at.expect_error(fetch_one(at, topic, wanted(offset=7)), ErrorCode.offset_out_of_range)


@case("fetch/offsets/negative", SCHEMA, NEEDS, since="0.8")
def negative(at: ProbeContext) -> None:
    """A fetch from a negative offset gets OFFSET_OUT_OF_RANGE."""
    topic, _ = _log(at)
    at.expect_error(fetch_one(at, topic, wanted(offset=-1)), ErrorCode.offset_out_of_range)


def _delete_before(at: ProbeContext, topic: Topic, offset: int) -> None:
    partitions = [{"partition_index": 0, "offset": offset}]
    request = {"topics": [{"name": topic.name, "partitions": partitions}], "timeout": 5_000}
    result = single(at.call(ApiKey.DELETE_RECORDS, request), "topics", "partitions")
    at.expect("error code of DeleteRecords", result.error_code, ErrorCode.none)


@case("fetch/offsets/deleted", "KIP-107", DELETES, since="0.11")
def deleted(at: ProbeContext) -> None:
    """A fetch from before the log start gets OFFSET_OUT_OF_RANGE, also inside a batch."""
    topic, _ = _log(at)
    _delete_before(at, topic, 3)
    at.expect(
        "error code before the start", fetch_one(at, topic, wanted(offset=2)).error_code, ErrorCode.offset_out_of_range
    )
    at.expect("error code at the start", fetch_one(at, topic, wanted(offset=3)).error_code, ErrorCode.none)


@case("fetch/offsets/log-start", "KIP-107", {**DELETES, FETCH: since_version(5)}, since="1.0")
def log_start(at: ProbeContext) -> None:
    """From version 5 on the response has the log start offset."""
    topic, _ = _log(at)
    at.expect("log start offset", fetch_one(at, topic).log_start_offset, 0)
    _delete_before(at, topic, 3)
    at.expect("log start offset", fetch_one(at, topic, wanted(offset=3)).log_start_offset, 3)


@case("fetch/offsets/stable", "KIP-98", NEEDS, since="0.11")
def stable(at: ProbeContext) -> None:
    """Without transactions the last stable offset is the high watermark, and no transaction was aborted."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, isolation_level=1)
    at.expect("last stable offset", data.last_stable_offset, 6)
    at.expect("aborted transactions", list(data.aborted_transactions or ()), [])
    at.expect("number of batches", len(headers(data)), 3)


# What does not exist


@case("fetch/unknown/topic", SCHEMA, {FETCH: (4, 12)}, since="0.8")
def unknown_topic(at: ProbeContext) -> None:
    """A topic that does not exist gets UNKNOWN_TOPIC_OR_PARTITION."""
    data = fetch_one(at, Topic(at.topic_name(), bytes(16), 1), max_wait_ms=LONG_MS)
    at.expect_error(data, ErrorCode.unknown_topic_or_partition)


@case("fetch/unknown/topic-at-once", "Apache Kafka's ReplicaManager", {FETCH: (4, 12)}, since="0.8", level=SHOULD)
def unknown_topic_at_once(at: ProbeContext) -> None:
    """A fetch of a topic that does not exist gets its response at once, however long it would wait for records."""
    topic = Topic(at.topic_name(), bytes(16), 1)
    began = time.monotonic()
    fetch_one(at, topic, max_wait_ms=LONG_MS)
    at.expect("at once", time.monotonic() - began < SOON_S, True)


@case("fetch/unknown/topic-id", "KIP-516", {FETCH: since_version(13)}, since="3.1")
def unknown_id(at: ProbeContext) -> None:
    """A topic ID that does not exist gets UNKNOWN_TOPIC_ID."""
    data = fetch_one(at, Topic("", bytes(range(1, 17)), 1))
    at.expect_error(data, ErrorCode.unknown_topic_id)


@case("fetch/unknown/partition", SCHEMA, NEEDS, since="0.8")
def unknown_partition(at: ProbeContext) -> None:
    """A partition that does not exist gets UNKNOWN_TOPIC_OR_PARTITION, and the others return records."""
    topic, _ = _log(at)
    results = rows(fetch(at, topic, wanted(9), wanted(0)))
    at.expect("error code of the one", results[9].error_code, ErrorCode.unknown_topic_or_partition)
    at.expect("batches of the other", len(headers(results[0])), 3)


@case("fetch/unknown/recreated", "KIP-516", {**NEEDS, FETCH: since_version(13)}, since="3.1")
def recreated(at: ProbeContext) -> None:
    """The ID of a deleted topic gets UNKNOWN_TOPIC_ID, though a new topic has its name."""
    old = at.topic()
    at.delete(old)
    new = at.create(old.name)
    at.expect("error code of the old ID", fetch_one(at, old).error_code, ErrorCode.unknown_topic_id)
    at.expect("error code of the new ID", fetch_one(at, new).error_code, ErrorCode.none)


@case("fetch/unknown/nothing-requested", SCHEMA, {FETCH: since_version(4)}, since="0.8", level=SHOULD)
def no_partitions(at: ProbeContext) -> None:
    """A fetch of no partitions gets its response at once."""
    began = time.monotonic()
    response = at.call(FETCH, FetchRequest(max_wait_ms=LONG_MS))
    at.expect_no_error(response)
    at.expect("number of topics", len(response.responses), 0)
    at.expect("at once", time.monotonic() - began < SOON_S, True)


# Versions and epochs


@case("fetch/versions/zstd-too-old", "KIP-110", {**NEEDS, FETCH: (4, 9)}, since="2.1", level=SHOULD)
def zstd_too_old(at: ProbeContext) -> None:
    """Before version 10, a topic with compression.type=zstd gets UNSUPPORTED_COMPRESSION_TYPE."""
    topic = at.topic(configs={"compression.type": "zstd"})
    at.expect_error(fetch_one(at, topic), ErrorCode.unsupported_compression_type)


@case("fetch/versions/same-records", SCHEMA, NEEDS, since="0.11")
def same_records(at: ProbeContext) -> None:
    """Each version returns the same records."""
    topic, _ = _log(at, 2)
    results = {}
    for version in [common_version for common_version in at.broker.common_versions(FETCH) if common_version < 13]:
        request = fetch_request(at, [(topic, [wanted()])])
        request.topics[0].topic = topic.name  # type: ignore[misc]
        data = single(at.call(FETCH, request, version), "responses", "partitions")
        results[version] = bytes(data.records or b"")
    now = bytes(fetch_one(at, topic).records or b"")
    differ = [version for version, result in results.items() if result != now]
    at.expect_that("versions that return other bytes than the highest", differ, not differ, "none")


@case("fetch/epochs/of-batch", KIP_320, {**NEEDS, ApiKey.METADATA: since_version(7)}, since="0.11")
def epoch_of_batch(at: ProbeContext) -> None:
    """A batch carries the epoch of the leader that took it."""
    topic, _ = _log(at, 1)
    epoch = _leader_epoch(at, topic)
    found = [header.leader_epoch == epoch for header in headers(fetch_one(at, topic))]
    at.expect("the leader epoch of the batch is that of metadata", found, [True])


def _leader_epoch(at: ProbeContext, topic: Topic) -> int:
    result = single(at.call(ApiKey.METADATA, {"topics": [{"name": topic.name}]}), "topics")
    return int(single(result, "partitions").leader_epoch)


EPOCHS = {**NEEDS, FETCH: since_version(9), ApiKey.METADATA: since_version(7)}
DIVERGING = {**EPOCHS, FETCH: since_version(12)}


@case("fetch/epochs/right", KIP_320, EPOCHS, since="2.1")
def right_epoch(at: ProbeContext) -> None:
    """A fetch with the right leader epoch succeeds."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, wanted(current_leader_epoch=_leader_epoch(at, topic)))
    at.expect_no_error(data)
    at.expect("number of batches", len(headers(data)), 3)


@case("fetch/epochs/unknown", KIP_320, EPOCHS, since="2.1")
def unknown_epoch(at: ProbeContext) -> None:
    """A fetch with a newer leader epoch than the broker's gets UNKNOWN_LEADER_EPOCH."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, wanted(current_leader_epoch=_leader_epoch(at, topic) + 1))
    at.expect_error(data, ErrorCode.unknown_leader_epoch)


@case("fetch/epochs/diverging", "KIP-595, KIP-320", DIVERGING, since="2.7")
def diverging(at: ProbeContext) -> None:
    """A fetcher that was further in its last epoch than the leader gets the end of that epoch."""
    topic, _ = _log(at)
    epoch = _leader_epoch(at, topic)
    data = fetch_one(at, topic, wanted(offset=60, last_fetched_epoch=epoch))
    at.expect_no_error(data)
    found = data.diverging_epoch
    at.expect("the diverging epoch is the last one", found is not None and found.epoch == epoch, True)
    at.expect("its end offset", found.end_offset if found else -1, 6)
    at.expect("number of batches", len(headers(data)), 0)


@case("fetch/epochs/not-diverging", "KIP-595, KIP-320", DIVERGING, since="2.7")
def not_diverging(at: ProbeContext) -> None:
    """A fetcher whose last epoch is right gets records."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, wanted(offset=2, last_fetched_epoch=_leader_epoch(at, topic)))
    at.expect("diverging epoch", data.diverging_epoch, None)
    at.expect("number of batches", len(headers(data)), 2)


@case("fetch/replica/none", "Apache Kafka's Partition", EPOCHS, since="2.4", level=SHOULD)
def no_replica(at: ProbeContext) -> None:
    """A node that has no replica of the partition may not fetch as a follower. With the leader epoch the error is
    UNKNOWN_LEADER_EPOCH, since the node may know of a newer assignment than the leader."""
    topic, _ = _log(at)
    for epoch, error in (
        (-1, ErrorCode.not_leader_or_follower),
        (_leader_epoch(at, topic), ErrorCode.unknown_leader_epoch),
    ):
        data = fetch_one(at, topic, wanted(current_leader_epoch=epoch), replica_id=NO_NODE)
        at.expect(f"error code with leader epoch {epoch}", data.error_code, error)
        at.expect("number of batches", len(headers(data)), 0)


@case("fetch/replica/none-preferred", "KIP-392", {**NEEDS, FETCH: since_version(11)}, since="2.4")
def none_preferred(at: ProbeContext) -> None:
    """A client without a rack is sent to no other replica."""
    topic, _ = _log(at)
    at.expect("preferred read replica", fetch_one(at, topic).preferred_read_replica, -1)


@case("fetch/replica/unknown-rack", "KIP-392", {**NEEDS, FETCH: since_version(11)}, since="2.4")
def unknown_rack(at: ProbeContext) -> None:
    """A client in a rack without replicas reads from the leader."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, rack_id="no-such-rack")
    at.expect("preferred read replica", data.preferred_read_replica, -1)
    at.expect("number of batches", len(headers(data)), 3)


def _took_s(at: ProbeContext, topic: Topic, *partitions: object, **fields: object) -> float:
    """Return the time until the response to a fetch."""
    began = time.monotonic()
    fetch(at, topic, *partitions, **fields)  # type: ignore[arg-type]
    return time.monotonic() - began


# Waiting


@case("fetch/waiting/until-max-wait", SCHEMA, NEEDS, since="0.8")
def until_max_wait(at: ProbeContext) -> None:
    """Where there is nothing to read, the response comes after max_wait_ms, without an error."""
    topic = at.topic()
    took_s = _took_s(at, topic, max_wait_ms=WAIT_MS)
    at.expect("max_wait_ms was waited", took_s >= 0.9 * WAIT_MS / 1000, True)
    at.expect("the response came soon after", took_s < WAIT_MS / 1000 + SOON_S, True)


@case("fetch/waiting/no-wait", SCHEMA, NEEDS, since="0.8")
def no_wait(at: ProbeContext) -> None:
    """With max_wait_ms 0 the response comes at once."""
    at.expect("at once", _took_s(at, at.topic(), max_wait_ms=0) < SOON_S, True)


@case("fetch/waiting/no-min-bytes", SCHEMA, NEEDS, since="0.8")
def no_min_bytes(at: ProbeContext) -> None:
    """With min_bytes 0 the response comes at once, even if there is nothing."""
    at.expect("at once", _took_s(at, at.topic(), max_wait_ms=LONG_MS, min_bytes=0) < SOON_S, True)


@case("fetch/waiting/enough", SCHEMA, NEEDS, since="0.8")
def enough(at: ProbeContext) -> None:
    """Where min_bytes are available, the response comes at once."""
    topic, _ = _log(at)
    at.expect("at once", _took_s(at, topic, max_wait_ms=LONG_MS, min_bytes=1) < SOON_S, True)


@case("fetch/waiting/woken", SCHEMA, NEEDS, since="0.8")
def woken(at: ProbeContext) -> None:
    """A parked fetch gets its response when records arrive."""
    topic = at.topic()
    request = send_fetch(at, topic, max_wait_ms=LONG_MS)
    began = time.monotonic()
    time.sleep(0.1)
    produce(at, topic, batch(b"wake"), on=at.connect())
    data = single(at.main.receive(request), "responses", "partitions")
    at.expect("values", values(data), [b"wake"])
    at.expect("before max_wait_ms", time.monotonic() - began < LONG_MS / 1000 - 1, True)


@case("fetch/waiting/too-few", SCHEMA, NEEDS, since="0.8")
def too_few(at: ProbeContext) -> None:
    """With fewer bytes than min_bytes the broker waits for max_wait_ms, and then returns what is there."""
    topic, _ = _log(at)
    began = time.monotonic()
    data = fetch_one(at, topic, max_wait_ms=WAIT_MS, min_bytes=PLENTY)
    took_s = time.monotonic() - began
    at.expect("max_wait_ms was waited", took_s >= 0.9 * WAIT_MS / 1000, True)
    at.expect("number of batches", len(headers(data)), 3)


@case("fetch/waiting/adds-up", SCHEMA, NEEDS, since="0.8")
def adds_up(at: ProbeContext) -> None:
    """min_bytes counts the bytes of all partitions together."""
    topic, data = _log(at, 1, partitions=2)
    both = (wanted(0), wanted(1))
    took_s = _took_s(at, topic, *both, max_wait_ms=LONG_MS, min_bytes=len(data) + 1)
    at.expect("at once", took_s < SOON_S, True)


@case("fetch/waiting/error", SCHEMA, NEEDS, since="0.8")
def error_ends_wait(at: ProbeContext) -> None:
    """An offset out of range ends the wait at once, whatever the other partitions wait for."""
    topic = at.topic(2)
    took_s = _took_s(at, topic, wanted(0), wanted(1, offset=7), max_wait_ms=LONG_MS)
    at.expect("at once", took_s < SOON_S, True)


@case("fetch/waiting/unknown-partition", SCHEMA, NEEDS, since="0.8", level=SHOULD)
def unknown_ends_wait(at: ProbeContext) -> None:
    """A partition that does not exist ends the wait at once, too, since the client needs new metadata."""
    topic = at.topic()
    took_s = _took_s(at, topic, wanted(0), wanted(9), max_wait_ms=LONG_MS // 5)
    at.expect("at once", took_s < LONG_MS / 5 / 1000, True)


# Limits


@case("fetch/limits/first-batch", KIP_74, NEEDS, since="0.10.1")
def first_batch(at: ProbeContext) -> None:
    """The first batch is returned whole, even if it is larger than the limit of its partition."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, wanted(max_bytes=1))
    at.expect("base offsets of the batches", [header.base_offset for header in headers(data)], [0])


@case("fetch/limits/first-batch-of-response", KIP_74, NEEDS, since="0.10.1")
def first_batch_of_response(at: ProbeContext) -> None:
    """The same holds for the limit of the whole response."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, max_bytes=1)
    at.expect("base offsets of the batches", [header.base_offset for header in headers(data)], [0])


@case("fetch/limits/one-partition-beyond", KIP_74, NEEDS, since="0.10.1")
def one_partition_beyond(at: ProbeContext) -> None:
    """Only the first partition with records may exceed the limit of the response. The others return none."""
    topic, _ = _log(at, partitions=2)
    results = rows(fetch(at, topic, wanted(0), wanted(1), max_bytes=1))
    at.expect("batches of the first partition", len(headers(results[0])), 1)
    at.expect("batches of the second partition", _batches(results, 1), 0)


@case("fetch/limits/all-returned", "KIP-227; Apache Kafka's FetchSessionHandler", NEEDS, since="1.1", level=SHOULD)
def all_returned(at: ProbeContext) -> None:
    """A full fetch returns each partition, also where the limit leaves no room for records. Apache Kafka's consumer
    discards a response that does not."""
    topic, _ = _log(at, partitions=2)
    results = rows(fetch(at, topic, wanted(0), wanted(1), max_bytes=1))
    at.expect("partitions in the response", sorted(results), [0, 1])


@case("fetch/limits/partition", SCHEMA, NEEDS, since="0.8")
def of_partition(at: ProbeContext) -> None:
    """A partition returns as many batches as fit its limit, and no more bytes than that."""
    topic, data = _log(at, 4)
    result = fetch_one(at, topic, wanted(max_bytes=2 * len(data)))
    at.expect("base offsets of the batches", [header.base_offset for header in headers(result)], [0, 2])
    at.expect("bytes within the limit", len(result.records or b"") <= 2 * len(data), True)


@case("fetch/limits/response", KIP_74, NEEDS, since="0.10.1")
def of_response(at: ProbeContext) -> None:
    """The limit of the response holds for all partitions together."""
    topic, data = _log(at, partitions=3)
    results = rows(fetch(at, topic, *(wanted(number) for number in range(3)), max_bytes=4 * len(data)))
    total = sum(len(result.records or b"") for result in results.values())
    at.expect("batches of all partitions", sum(len(headers(result)) for result in results.values()), 4)
    at.expect("bytes within the limit", total <= 4 * len(data), True)


@case("fetch/limits/order", KIP_74, NEEDS, since="0.10.1")
def order_of_request(at: ProbeContext) -> None:
    """The limit is spent in the order of the request, so that a client can let no partition starve."""
    topic, data = _log(at, partitions=3)
    results = rows(fetch(at, topic, wanted(2), wanted(0), wanted(1), max_bytes=3 * len(data)))
    at.expect("batches of partitions 0, 1, 2", [_batches(results, number) for number in range(3)], [0, 0, 3])


def _batches(response: Mapping[int, PartitionData], partition: int) -> int:
    """The number of batches of a partition, which a response without them may omit."""
    return len(headers(response[partition])) if partition in response else 0


@case("fetch/limits/partition-zero", KIP_74, NEEDS, since="0.10.1", level=SHOULD)
def zero_of_partition(at: ProbeContext) -> None:
    """A limit of 0 for the only partition returns its first batch all the same."""
    topic, _ = _log(at)
    at.expect("number of batches", len(headers(fetch_one(at, topic, wanted(max_bytes=0)))), 1)


@case("fetch/limits/whole-batches", SCHEMA, NEEDS, since="0.8", level=SHOULD)
def whole_batches(at: ProbeContext) -> None:
    """Where the limit falls inside a batch, the response ends before that batch, so that no bytes are sent in vain."""
    topic, data = _log(at)
    result = fetch_one(at, topic, wanted(max_bytes=len(data) + len(data) // 2))
    at.expect("bytes are those of one batch", len(result.records or b"") == len(data), True)
