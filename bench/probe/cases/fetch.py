"""Fetch without sessions: offsets, topics that do not exist, versions and leader epochs."""

import time

from bench.probe.case import ANY, SHOULD, case, since_version
from bench.probe.context import ProbeContext, Topic, single
from bench.probe.data import (
    FETCH,
    PRODUCE,
    batch,
    fetch,
    fetch_one,
    fetch_request,
    headers,
    rows,
    values,
    wanted,
    write,
)
from reference_broker.records.compression import Compression
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchRequest

NEEDS = {FETCH: since_version(4), PRODUCE: since_version(3), ApiKey.CREATE_TOPICS: ANY}
DELETES = {**NEEDS, ApiKey.DELETE_RECORDS: ANY}
SCHEMA = "FetchRequest.json, FetchResponse.json"
KIP_74 = "KIP-74"
KIP_320 = "KIP-320"
WAIT_MS = 400
LONG_MS = 5_000
SOON_S = 2.0
"""Long for an answer at once, and short beside LONG_MS."""
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
    at.expect("error code", data.error_code, ErrorCode.none)
    at.expect("values", values(data), [b"1", b"2", b"3"])
    at.expect("base offsets of the batches", [each.base_offset for each in headers(data)], [0, 2])


@case("fetch/offsets/middle-of-batch", SCHEMA, NEEDS, since="0.8")
def middle_of_batch(at: ProbeContext) -> None:
    """A fetch from an offset inside a batch returns that batch whole."""
    topic = at.topic()
    write(at, topic, batch(b"1", b"2", b"3"), batch(b"4"))
    data = fetch_one(at, topic, wanted(offset=1))
    at.expect("error code", data.error_code, ErrorCode.none)
    at.expect("base offsets of the batches", [each.base_offset for each in headers(data)], [0, 3])


@case("fetch/offsets/middle-of-compressed-batch", SCHEMA, NEEDS, since="0.8")
def middle_of_compressed(at: ProbeContext) -> None:
    """The same holds for the last record of a compressed batch."""
    topic = at.topic()
    write(at, topic, batch(b"1", b"2", b"3", compression=Compression.GZIP))
    data = fetch_one(at, topic, wanted(offset=2))
    at.expect("base offsets of the batches", [each.base_offset for each in headers(data)], [0])


@case("fetch/offsets/next-batch", SCHEMA, NEEDS, since="0.8")
def next_batch(at: ProbeContext) -> None:
    """A fetch from the first offset of a batch returns nothing before it."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, wanted(offset=2))
    at.expect("base offsets of the batches", [each.base_offset for each in headers(data)], [2, 4])


@case("fetch/offsets/end", SCHEMA, NEEDS, since="0.8")
def end(at: ProbeContext) -> None:
    """A fetch from the end of the log is no error and returns no records."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, wanted(offset=6))
    at.expect("error code", data.error_code, ErrorCode.none)
    at.expect("number of batches", len(headers(data)), 0)
    at.expect("high watermark", data.high_watermark, 6)


@case("fetch/offsets/beyond-end", SCHEMA, NEEDS, since="0.8")
def beyond_end(at: ProbeContext) -> None:
    """A fetch from beyond the end is answered with OFFSET_OUT_OF_RANGE."""
    topic, _ = _log(at)
    at.expect("error code", fetch_one(at, topic, wanted(offset=7)).error_code, ErrorCode.offset_out_of_range)


@case("fetch/offsets/negative", SCHEMA, NEEDS, since="0.8")
def negative(at: ProbeContext) -> None:
    """A fetch from a negative offset is answered with OFFSET_OUT_OF_RANGE."""
    topic, _ = _log(at)
    at.expect("error code", fetch_one(at, topic, wanted(offset=-1)).error_code, ErrorCode.offset_out_of_range)


def _delete_before(at: ProbeContext, topic: Topic, offset: int) -> None:
    partitions = [{"partition_index": 0, "offset": offset}]
    asked = {"topics": [{"name": topic.name, "partitions": partitions}], "timeout": 5_000}
    told = single(at.ask(ApiKey.DELETE_RECORDS, asked), "topics", "partitions")
    at.expect("error code of DeleteRecords", told.error_code, ErrorCode.none)


@case("fetch/offsets/deleted", "KIP-107", DELETES, since="0.11")
def deleted(at: ProbeContext) -> None:
    """A fetch from before the log start is answered with OFFSET_OUT_OF_RANGE, also inside a batch."""
    topic, _ = _log(at)
    _delete_before(at, topic, 3)
    at.expect(
        "error code before the start", fetch_one(at, topic, wanted(offset=2)).error_code, ErrorCode.offset_out_of_range
    )
    at.expect("error code at the start", fetch_one(at, topic, wanted(offset=3)).error_code, ErrorCode.none)


@case("fetch/offsets/log-start", "KIP-107", {**DELETES, FETCH: since_version(5)}, since="1.0")
def log_start(at: ProbeContext) -> None:
    """From version 5 on the answer tells where the log starts."""
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
    """A topic that does not exist is answered with UNKNOWN_TOPIC_OR_PARTITION."""
    data = fetch_one(at, Topic(at.topic_name(), bytes(16), 1), max_wait_ms=LONG_MS)
    at.expect("error code", data.error_code, ErrorCode.unknown_topic_or_partition)


@case("fetch/unknown/topic-at-once", "Apache Kafka's ReplicaManager", {FETCH: (4, 12)}, since="0.8", level=SHOULD)
def unknown_topic_at_once(at: ProbeContext) -> None:
    """A fetch of a topic that does not exist is answered at once, however long it would wait for records."""
    topic = Topic(at.topic_name(), bytes(16), 1)
    began = time.monotonic()
    fetch_one(at, topic, max_wait_ms=LONG_MS)
    at.expect("at once", time.monotonic() - began < SOON_S, True)


@case("fetch/unknown/topic-id", "KIP-516", {FETCH: since_version(13)}, since="3.1")
def unknown_id(at: ProbeContext) -> None:
    """A topic ID that does not exist is answered with UNKNOWN_TOPIC_ID."""
    data = fetch_one(at, Topic("", bytes(range(1, 17)), 1))
    at.expect("error code", data.error_code, ErrorCode.unknown_topic_id)


@case("fetch/unknown/partition", SCHEMA, NEEDS, since="0.8")
def unknown_partition(at: ProbeContext) -> None:
    """A partition that does not exist is answered with UNKNOWN_TOPIC_OR_PARTITION, and the others with records."""
    topic, _ = _log(at)
    told = rows(fetch(at, topic, wanted(9), wanted(0)))
    at.expect("error code of the one", told[9].error_code, ErrorCode.unknown_topic_or_partition)
    at.expect("batches of the other", len(headers(told[0])), 3)


@case("fetch/unknown/recreated", "KIP-516", {**NEEDS, FETCH: since_version(13)}, since="3.1")
def recreated(at: ProbeContext) -> None:
    """The ID of a deleted topic is answered with UNKNOWN_TOPIC_ID, though its name is there again."""
    old = at.topic()
    at.delete(old)
    new = at.create(old.name)
    at.expect("error code of the old ID", fetch_one(at, old).error_code, ErrorCode.unknown_topic_id)
    at.expect("error code of the new ID", fetch_one(at, new).error_code, ErrorCode.none)


@case("fetch/unknown/nothing-asked", SCHEMA, {FETCH: since_version(4)}, since="0.8", level=SHOULD)
def nothing_asked(at: ProbeContext) -> None:
    """A fetch of no partitions is answered at once."""
    began = time.monotonic()
    answer = at.ask(FETCH, FetchRequest(max_wait_ms=LONG_MS))
    at.expect("error code", answer.error_code, ErrorCode.none)
    at.expect("number of topics", len(answer.responses), 0)
    at.expect("at once", time.monotonic() - began < SOON_S, True)


# Versions and epochs


@case("fetch/versions/zstd-too-old", "KIP-110", {**NEEDS, FETCH: (4, 9)}, since="2.1", level=SHOULD)
def zstd_too_old(at: ProbeContext) -> None:
    """Before version 10, a topic with compression.type=zstd is answered with UNSUPPORTED_COMPRESSION_TYPE."""
    topic = at.topic(configs={"compression.type": "zstd"})
    at.expect("error code", fetch_one(at, topic).error_code, ErrorCode.unsupported_compression_type)


@case("fetch/versions/same-records", SCHEMA, NEEDS, since="0.11")
def same_records(at: ProbeContext) -> None:
    """Each version returns the same records."""
    topic, _ = _log(at, 2)
    told = {}
    for version in [each for each in at.broker.spoken(FETCH) if each < 13]:
        request = fetch_request(at, [(topic, [wanted()])])
        request.topics[0].topic = topic.name  # type: ignore[misc]
        data = single(at.ask(FETCH, request, version), "responses", "partitions")
        told[version] = bytes(data.records or b"")
    now = bytes(fetch_one(at, topic).records or b"")
    differ = [version for version, each in told.items() if each != now]
    at.expect_that("versions that return other bytes than the highest", differ, not differ, "none")


@case("fetch/epochs/of-batch", KIP_320, {**NEEDS, ApiKey.METADATA: since_version(7)}, since="0.11")
def epoch_of_batch(at: ProbeContext) -> None:
    """A batch carries the epoch of the leader that took it."""
    topic, _ = _log(at, 1)
    epoch = _leader_epoch(at, topic)
    told = [each.leader_epoch == epoch for each in headers(fetch_one(at, topic))]
    at.expect("the leader epoch of the batch is that of metadata", told, [True])


def _leader_epoch(at: ProbeContext, topic: Topic) -> int:
    told = single(at.ask(ApiKey.METADATA, {"topics": [{"name": topic.name}]}), "topics")
    return int(single(told, "partitions").leader_epoch)


EPOCHS = {**NEEDS, FETCH: since_version(9), ApiKey.METADATA: since_version(7)}
DIVERGING = {**EPOCHS, FETCH: since_version(12)}


@case("fetch/epochs/right", KIP_320, EPOCHS, since="2.1")
def right_epoch(at: ProbeContext) -> None:
    """A fetch with the right leader epoch is answered."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, wanted(current_leader_epoch=_leader_epoch(at, topic)))
    at.expect("error code", data.error_code, ErrorCode.none)
    at.expect("number of batches", len(headers(data)), 3)


@case("fetch/epochs/unknown", KIP_320, EPOCHS, since="2.1")
def unknown_epoch(at: ProbeContext) -> None:
    """A fetch with a newer leader epoch than the broker's is answered with UNKNOWN_LEADER_EPOCH."""
    topic, _ = _log(at)
    data = fetch_one(at, topic, wanted(current_leader_epoch=_leader_epoch(at, topic) + 1))
    at.expect("error code", data.error_code, ErrorCode.unknown_leader_epoch)


@case("fetch/epochs/diverging", "KIP-595, KIP-320", DIVERGING, since="2.7")
def diverging(at: ProbeContext) -> None:
    """A fetcher that was further in its last epoch than the leader is told where that epoch ends."""
    topic, _ = _log(at)
    epoch = _leader_epoch(at, topic)
    data = fetch_one(at, topic, wanted(offset=60, last_fetched_epoch=epoch))
    at.expect("error code", data.error_code, ErrorCode.none)
    told = data.diverging_epoch
    at.expect("the diverging epoch is the last one", told is not None and told.epoch == epoch, True)
    at.expect("its end offset", told.end_offset if told else -1, 6)
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
