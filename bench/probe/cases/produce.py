"""Produce: acknowledgements, offsets, the validation of batches, timestamps and compression."""

from dataclasses import replace

from bench.probe.case import ANY, SHOULD, ProbeCase, case, since_version
from bench.probe.context import ProbeContext, Topic, single
from bench.probe.data import (
    ALL_REPLICAS,
    FETCH,
    PRODUCE,
    altered,
    batch,
    fetch_one,
    headers,
    log_end,
    now_ms,
    produce,
    produce_request,
    records,
    values,
    write,
)
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.produce import ProducePartition

WRITE = {PRODUCE: since_version(3), ApiKey.CREATE_TOPICS: ANY}
BOTH = {**WRITE, FETCH: since_version(4)}
BY_ID = {PRODUCE: since_version(13), ApiKey.CREATE_TOPICS: ANY}
SCHEMA = "ProduceRequest.json, ProduceResponse.json"
KIP_98 = "KIP-98, the record batch"
HOUR_MS = 3_600_000
DAMAGED = (ErrorCode.corrupt_message, ErrorCode.invalid_record, ErrorCode.unsupported_for_message_format)


@case("produce/acks/all", SCHEMA, BOTH, since="0.8")
def acks_all(at: ProbeContext) -> None:
    """With acks=all a batch is acknowledged with its offset, and can be fetched at once."""
    topic = at.topic()
    result = produce(at, topic, batch(b"a"))
    at.expect_no_error(result)
    at.expect("base offset", result.base_offset, 0)
    at.expect("values that are fetched", values(fetch_one(at, topic)), [b"a"])


@case("produce/acks/leader", SCHEMA, WRITE, since="0.8")
def acks_leader(at: ProbeContext) -> None:
    """With acks=1 a batch is acknowledged with its offset."""
    result = produce(at, at.topic(), batch(), acks=1)
    at.expect_no_error(result)
    at.expect("base offset", result.base_offset, 0)


@case("produce/acks/none", SCHEMA, BOTH, since="0.8")
def acks_none(at: ProbeContext) -> None:
    """With acks=0 there is no response, and the batch is written."""
    topic = at.topic()
    at.send(PRODUCE, produce_request(topic, at.version(PRODUCE), {0: batch(b"quiet")}, 0))
    at.call(ApiKey.API_VERSIONS, {}, 0)
    at.expect("values that are fetched", values(fetch_one(at, topic)), [b"quiet"])


@case("produce/acks/invalid", SCHEMA, BOTH, since="0.9")
def acks_invalid(at: ProbeContext) -> None:
    """Other numbers of acknowledgements are refused with INVALID_REQUIRED_ACKS, and nothing is written."""
    topic = at.topic()
    result = produce(at, topic, batch(), acks=2)
    at.expect_error(result, ErrorCode.invalid_required_acks)
    at.expect("log end", log_end(at, topic), 0)


@case("produce/offsets/consecutive", SCHEMA, WRITE, since="0.8")
def consecutive(at: ProbeContext) -> None:
    """A batch begins where the one before it ended."""
    topic = at.topic()
    found = [produce(at, topic, each).base_offset for each in (batch(b"1", b"2", b"3"), batch(b"4", b"5"), batch())]
    at.expect("base offsets", found, [0, 3, 5])


@case("produce/offsets/epoch-of-client", KIP_98, BOTH, since="0.11")
def epoch_of_client(at: ProbeContext) -> None:
    """The leader epoch that a client writes into its batch does not count."""
    topic = at.topic()
    write(at, topic, batch(b"a", leader_epoch=77))
    found = [header.leader_epoch == 77 for header in headers(fetch_one(at, topic))]
    at.expect("the client's leader epoch is fetched", found, [False])


@case("produce/offsets/offset-of-client", "Apache Kafka's UnifiedLog", BOTH, since="1.1", level=SHOULD)
def offset_of_client(at: ProbeContext) -> None:
    """A batch whose base offset is not 0 is refused with INVALID_RECORD."""
    _refused(at, batch(base_offset=1_000), ErrorCode.invalid_record)


@case("produce/offsets/log-start", "KIP-107", {PRODUCE: since_version(5), ApiKey.CREATE_TOPICS: ANY}, since="1.0")
def log_start(at: ProbeContext) -> None:
    """From version 5 on the response has the log start offset."""
    at.expect("log start offset", produce(at, at.topic(), batch()).log_start_offset, 0)


@case(
    "produce/offsets/log-start-of-refused",
    "Apache Kafka's ReplicaManager",
    {PRODUCE: since_version(8), ApiKey.CREATE_TOPICS: ANY},
    since="2.4",
    level=SHOULD,
)
def log_start_of_refused(at: ProbeContext) -> None:
    """The response has it, too, where the state of the log or the settings of its topic forbid a batch, but not where
    the batch is damaged."""
    topic = at.topic(configs={"cleanup.policy": "compact"})
    at.expect("log start offset without a key", produce(at, topic, batch(b"no key")).log_start_offset, 0)
    damaged = altered(batch(), crc=1)
    at.expect("log start offset with a wrong checksum", produce(at, topic, damaged).log_start_offset, -1)


@case("produce/offsets/partitions", SCHEMA, WRITE, since="0.8")
def several_partitions(at: ProbeContext) -> None:
    """One request writes to several partitions, and each has a result of its own."""
    topic = at.topic(3)
    response = at.call(PRODUCE, produce_request(topic, at.version(PRODUCE), {0: batch(), 2: batch(), 1: batch()}))
    rows = single(response, "responses").partitions
    found = sorted((row.partition, row.error_code, row.base_offset) for row in rows)
    at.expect("partition, error code and base offset", found, [(0, 0, 0), (1, 0, 0), (2, 0, 0)])


@case("produce/offsets/named-twice", "Apache Kafka's KafkaApis", BOTH, since="0.11", level=SHOULD)
def named_twice(at: ProbeContext) -> None:
    """Of a partition that a request names twice the last batch is written, and there is one result."""
    topic = at.topic()
    request = produce_request(topic, at.version(PRODUCE), {0: batch(b"last")})
    (once,) = request.topics
    first = replace(once, partitions=[ProducePartition(0, batch(b"first")), *once.partitions])
    response = at.call(PRODUCE, replace(request, topics=[first]))
    found = [partition for part in response.responses for partition in part.partitions]
    at.expect(
        "error codes and base offsets", [(partition.error_code, partition.base_offset) for partition in found], [(0, 0)]
    )
    at.expect("values", values(fetch_one(at, topic)), [b"last"])


@case("produce/offsets/partial", SCHEMA, WRITE, since="0.8")
def partial(at: ProbeContext) -> None:
    """A partition that is refused does not affect the others of the request."""
    topic = at.topic()
    response = at.call(PRODUCE, produce_request(topic, at.version(PRODUCE), {0: batch(), 9: batch()}))
    codes = {partition.partition: partition.error_code for partition in single(response, "responses").partitions}
    at.expect("error code of the partition that exists", codes.get(0), ErrorCode.none)
    at.expect("error code of the one that does not", codes.get(9), ErrorCode.unknown_topic_or_partition)


@case("produce/topics/unknown", SCHEMA, {PRODUCE: (3, 12)}, since="0.8")
def unknown_topic(at: ProbeContext) -> None:
    """A topic that does not exist is refused with UNKNOWN_TOPIC_OR_PARTITION."""
    topic = Topic(at.topic_name(), bytes(16), 1)
    at.expect_error(produce(at, topic, batch()), ErrorCode.unknown_topic_or_partition)


@case("produce/topics/unknown-id", "KIP-516", {PRODUCE: since_version(13)}, since="4.1")
def unknown_id(at: ProbeContext) -> None:
    """A topic ID that does not exist is refused with UNKNOWN_TOPIC_ID."""
    topic = Topic("", bytes(range(1, 17)), 1)
    at.expect_error(produce(at, topic, batch()), ErrorCode.unknown_topic_id)


@case(
    "produce/topics/recreated", "KIP-516", {**BY_ID, ApiKey.DELETE_TOPICS: ANY, FETCH: since_version(13)}, since="4.1"
)
def recreated(at: ProbeContext) -> None:
    """The ID of a deleted topic is refused with UNKNOWN_TOPIC_ID, and nothing lands in the new topic of its name."""
    old = at.topic()
    at.delete(old)
    new = at.create(old.name)
    at.expect_error(produce(at, old, batch()), ErrorCode.unknown_topic_id)
    at.expect("log end of the new topic", log_end(at, new), 0)


# Batches


def _refused(at: ProbeContext, data: bytes, *codes: ErrorCode, configs: dict[str, str] | None = None) -> None:
    """The batch must be refused with one of the codes, and nothing may be written."""
    topic = at.topic(configs=configs)
    at.expect("error code", produce(at, topic, data).error_code, *codes)
    at.expect("log end", log_end(at, topic), 0)


@case("produce/batch/wrong-checksum", KIP_98, BOTH, since="0.11")
def wrong_checksum(at: ProbeContext) -> None:
    """A batch whose checksum is wrong is refused with CORRUPT_MESSAGE."""
    data = batch(b"some value")
    _refused(at, data[:-3] + bytes([data[-3] ^ 1]) + data[-2:], ErrorCode.corrupt_message)


@case("produce/batch/unknown-magic", KIP_98, BOTH, since="0.11")
def unknown_magic(at: ProbeContext) -> None:
    """A batch of a format that does not exist is refused."""
    _refused(at, altered(batch(), magic=3), *DAMAGED)


@case("produce/batch/old-magic", "KIP-724", BOTH, since="4.0")
def old_magic(at: ProbeContext) -> None:
    """From version 3 of Produce on, batches of the formats before magic 2 are refused."""
    _refused(at, altered(batch(), magic=1), *DAMAGED)


@case("produce/batch/two", KIP_98, BOTH, since="0.11")
def two_batches(at: ProbeContext) -> None:
    """From version 3 on a partition gets one batch in a request, and two are refused with INVALID_RECORD (before Apache
    Kafka 2.4: CORRUPT_MESSAGE)."""
    _refused(at, batch(b"a") + batch(b"b"), *DAMAGED)


@case("produce/batch/none", KIP_98, BOTH, since="0.11")
def no_batch(at: ProbeContext) -> None:
    """A partition without a batch is refused."""
    _refused(at, b"", *DAMAGED)


@case("produce/batch/cut-off", KIP_98, BOTH, since="0.11")
def cut_off(at: ProbeContext) -> None:
    """A batch that claims more bytes than are there is refused."""
    _refused(at, batch(b"some value")[:-4], *DAMAGED)


@case("produce/batch/wrong-count", KIP_98, BOTH, since="0.11")
def wrong_count(at: ProbeContext) -> None:
    """A batch whose number of records does not fit its last offset is refused."""
    _refused(at, altered(batch(b"a", b"b", b"c"), record_count=2), *DAMAGED)


@case("produce/batch/wrong-last-offset", KIP_98, BOTH, since="0.11")
def wrong_last_offset(at: ProbeContext) -> None:
    """A batch that takes more offsets than it has records is refused."""
    _refused(at, altered(batch(b"a", b"b"), last_offset_delta=7), *DAMAGED)


@case("produce/batch/negative-count", KIP_98, BOTH, since="0.11")
def negative_count(at: ProbeContext) -> None:
    """A batch with a negative number of records is refused."""
    _refused(at, altered(batch(), record_count=-1), *DAMAGED)


@case("produce/batch/control", KIP_98, BOTH, since="0.11")
def control(at: ProbeContext) -> None:
    """Clients may not write control batches. They are refused with INVALID_RECORD."""
    _refused(at, batch(is_control=True), ErrorCode.invalid_record)


@case("produce/batch/too-large", SCHEMA, BOTH, since="0.8")
def too_large(at: ProbeContext) -> None:
    """A batch of more than max.message.bytes of its topic is refused with MESSAGE_TOO_LARGE."""
    _refused(at, batch(bytes(2_000)), ErrorCode.message_too_large, configs={"max.message.bytes": "1000"})


@case("produce/batch/just-fits", SCHEMA, BOTH, since="0.8")
def just_fits(at: ProbeContext) -> None:
    """A batch of exactly max.message.bytes is taken."""
    data = batch(bytes(900))
    topic = at.topic(configs={"max.message.bytes": str(len(data))})
    at.expect_no_error(produce(at, topic, data))


@case("produce/batch/key-for-compaction", "KIP-467", BOTH, since="0.8")
def key_for_compaction(at: ProbeContext) -> None:
    """A record without a key is refused with INVALID_RECORD by a compacted topic."""
    _refused(at, batch(b"no key"), ErrorCode.invalid_record, configs={"cleanup.policy": "compact"})


@case("produce/batch/record-errors", "KIP-467", {**BOTH, PRODUCE: since_version(8)}, since="2.4")
def record_errors(at: ProbeContext) -> None:
    """From version 8 on the response names the records that are wrong."""
    topic = at.topic(configs={"cleanup.policy": "compact"})
    two = [Record(timestamp_ms=now_ms(), key=b"k", value=b"v"), Record(timestamp_ms=now_ms(), value=b"v")]
    result = produce(at, topic, build(two))
    at.expect_error(result, ErrorCode.invalid_record)
    at.expect("indexes of the wrong records", [error.batch_index for error in result.record_errors], [1])


@case("produce/batch/keys-and-headers", KIP_98, BOTH, since="0.11")
def keys_and_headers(at: ProbeContext) -> None:
    """Keys, values and headers come back as they were written, and null is not the same as empty."""
    topic, at_ms = at.topic(), now_ms()
    sent = [
        Record(timestamp_ms=at_ms, key=None, value=b""),
        Record(timestamp_ms=at_ms, key=b"", value=None),
        Record(timestamp_ms=at_ms, key=b"k", value=b"v", headers=(("h", b"1"), ("h", None), ("", b""))),
    ]
    write(at, topic, build(sent))
    found = [(record.key, record.value, record.headers) for record in records(fetch_one(at, topic))]
    at.expect("keys, values and headers", found, [(each.key, each.value, each.headers) for each in sent])


@case("produce/batch/unchanged", KIP_98, BOTH, since="0.11", level=SHOULD)
def unchanged(at: ProbeContext) -> None:
    """A batch is fetched with the bytes with which it was written, but for base offset and leader epoch."""
    topic, data = at.topic(), batch(b"a", b"b")
    write(at, topic, data)
    at.expect("the bytes are the same", bytes(fetch_one(at, topic).records or b"")[16:] == data[16:], True)


# Timestamps


@case("produce/timestamps/of-client", "KIP-32", BOTH, since="0.10.0")
def time_of_client(at: ProbeContext) -> None:
    """A topic with CreateTime keeps the client's timestamps, and the response has no append time."""
    topic, sent = at.topic(configs={"message.timestamp.type": "CreateTime"}), now_ms() - 5_000
    result = produce(at, topic, batch(timestamp_ms=sent))
    at.expect("append time of the response", result.log_append_time_ms, -1)
    kept = [record.timestamp_ms == sent for record in records(fetch_one(at, topic))]
    at.expect("the timestamp is the client's", kept, [True])


@case("produce/timestamps/append-time", "KIP-32", BOTH, since="0.10.0")
def append_time(at: ProbeContext) -> None:
    """A topic with LogAppendTime gives records the time of the broker, which the response has."""
    topic = at.topic(configs={"message.timestamp.type": "LogAppendTime"})
    result = produce(at, topic, batch(timestamp_ms=12_345))
    at.expect("an append time is returned", result.log_append_time_ms > 12_345, True)
    data = fetch_one(at, topic)
    at.expect("the batch says that it has append time", [header.is_log_append_time for header in headers(data)], [True])
    same = [record.timestamp_ms == result.log_append_time_ms for record in records(data)]
    at.expect("the record has the time of the response", same, [True])


@case("produce/timestamps/flag-of-client", "KIP-32", BOTH, since="0.10.0")
def flag_of_client(at: ProbeContext) -> None:
    """A client may not claim append time, which is the broker's. A topic with LogAppendTime refuses such a batch with
    INVALID_TIMESTAMP."""
    flagged = altered(batch(), attributes=0x08)
    _refused(at, flagged, ErrorCode.invalid_timestamp, configs={"message.timestamp.type": "LogAppendTime"})


@case("produce/timestamps/flag-with-create-time", "KIP-32", BOTH, since="0.10.0", level=SHOULD)
def flag_with_create_time(at: ProbeContext) -> None:
    """A topic with CreateTime refuses it, too."""
    flagged = altered(batch(), attributes=0x08)
    _refused(at, flagged, ErrorCode.invalid_timestamp, configs={"message.timestamp.type": "CreateTime"})


@case("produce/timestamps/too-late", "KIP-937", BOTH, since="3.6")
def too_late(at: ProbeContext) -> None:
    """A timestamp beyond message.timestamp.after.max.ms is refused with INVALID_TIMESTAMP."""
    data = batch(timestamp_ms=now_ms() + HOUR_MS)
    _refused(at, data, ErrorCode.invalid_timestamp, configs={"message.timestamp.after.max.ms": "60000"})


@case("produce/timestamps/too-early", "KIP-937", BOTH, since="3.6")
def too_early(at: ProbeContext) -> None:
    """A timestamp older than message.timestamp.before.max.ms is refused with INVALID_TIMESTAMP."""
    data = batch(timestamp_ms=now_ms() - HOUR_MS)
    _refused(at, data, ErrorCode.invalid_timestamp, configs={"message.timestamp.before.max.ms": "60000"})


@case("produce/timestamps/none", "KIP-32", BOTH, since="0.10.0")
def no_timestamp(at: ProbeContext) -> None:
    """A record without a timestamp (-1) is taken."""
    at.expect_no_error(produce(at, at.topic(), batch(timestamp_ms=-1)))


# Compression


def _compression(codec: Compression) -> ProbeCase:
    def play(at: ProbeContext) -> None:
        topic, sent = at.topic(), [b"value %d" % number * 20 for number in range(10)]
        write(at, topic, batch(*sent, compression=codec))
        result = fetch_one(at, topic)
        at.expect("codec of the batch", [header.compression for header in headers(result)], [int(codec)])
        at.expect("the values are those that were written", values(result) == sent, True)

    name = codec.name.lower()
    play.__doc__ = f"Records that are compressed with {name} come back, and are still compressed with it."
    newest = {**BOTH, PRODUCE: since_version(7), FETCH: since_version(10)}
    is_zstd = codec is Compression.ZSTD
    source = "KIP-110" if is_zstd else KIP_98
    made = case(f"produce/compression/{name}", source, newest if is_zstd else BOTH, since="2.1" if is_zstd else "0.8")
    return made(play)


CODECS = tuple(_compression(each) for each in Compression if each)


@case("produce/compression/by-topic", "Topic setting compression.type", BOTH, since="0.9")
def by_topic(at: ProbeContext) -> None:
    """A topic with compression.type=gzip stores batches with gzip, however they were written."""
    topic = at.topic(configs={"compression.type": "gzip"})
    write(at, topic, batch(*[b"value" * 20] * 10))
    result = fetch_one(at, topic)
    at.expect("codec of the batch", [header.compression for header in headers(result)], [int(Compression.GZIP)])
    at.expect("values that are fetched", values(result) == [b"value" * 20] * 10, True)


@case("produce/compression/zstd-too-old", "KIP-110", {**BOTH, PRODUCE: (3, 6)}, since="2.1")
def zstd_too_old(at: ProbeContext) -> None:
    """Before version 7 of Produce, zstd is refused with UNSUPPORTED_COMPRESSION_TYPE."""
    _refused(at, batch(compression=Compression.ZSTD), ErrorCode.unsupported_compression_type)


@case("produce/compression/unknown", KIP_98, BOTH, since="0.11")
def unknown_codec(at: ProbeContext) -> None:
    """A codec that does not exist is refused."""
    topic = at.topic()
    code = produce(at, topic, altered(batch(), attributes=6)).error_code
    at.expect_that("error code", ErrorCode(code), code != 0, "an error")
    at.expect("log end", log_end(at, topic), 0)


@case("produce/compression/garbage", KIP_98, BOTH, since="0.11", level=SHOULD)
def garbage(at: ProbeContext) -> None:
    """A batch that claims gzip and holds none is refused."""
    topic = at.topic()
    code = produce(at, topic, altered(batch(), attributes=int(Compression.GZIP)), acks=ALL_REPLICAS).error_code
    at.expect_that("error code", ErrorCode(code), code != 0, "an error")
    at.expect("log end", log_end(at, topic), 0)
