"""Fetching: batches of every kind, positions that are gone, errors of partitions, and leaders that move."""

from dataclasses import replace
from typing import Any, Final

from crucible_kafka.clients.application import Consumer
from crucible_kafka.clients.case import MUST, SHOULD, ClientCase, case
from crucible_kafka.clients.fetch_changes import (
    TIMESTAMP_MS,
    error_of,
    marker,
    next_fetch,
    on_data,
    rewritten,
    transactional,
    without_records,
)
from crucible_kafka.clients.play import Play, at_least
from crucible_kafka.library import Rule
from reference_broker.records.batch import iterate
from reference_broker.records.compression import Compression
from reference_broker.records.record import Record, build
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import AbortedTransaction

COLLECTOR: Final = "FetchCollector.java"
COMPLETED: Final = "CompletedFetch.java"
KIP_98: Final = "KIP-98; CompletedFetch.java, consumeAbortedTransactionsUpTo"
KIP_320: Final = "KIP-320; OffsetsForLeaderEpochUtils.java; SubscriptionState.java, maybeCompleteValidation"
RESET: Final = "auto.offset.reset; FetchCollector.java, handleInitializeErrors"
OFFSET: Final = 4
DELETED: Final = 5
OF_MARKER: Final = 5
"""The offset of the marker of the first transaction."""
NO_EPOCHS: Final = "The client sends no leader epochs (KIP-320)"
EMPTY_TIMES: Final = 5
LIMIT_BYTES: Final = 1000
LARGE_BYTES: Final = 10_000
LATE_S: Final = 1.0
POLLS_AFTER: Final = 2
NO_SUCH_NODE: Final = 99
REPLICA_SINCE: Final = 11
"""The version of Fetch that has preferred replicas."""


def _reads_after_error(at: Play, code: ErrorCode, of_epochs: bool = False) -> tuple[Consumer, Rule]:
    """Let a consumer read, respond with an error once instead of the next records, and judge that it reads them. With
    ``of_epochs`` only a client that sends leader epochs can get this error from a broker."""
    topic = at.topic()
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, at.write(topic, 5))
    at.supported(not of_epochs or _leader_epoch(consumer) >= 0, NO_EPOCHS)
    rule = on_data(at, error_of(code))
    next_fetch(consumer)
    at.reads(consumer, at.write(topic, 5), from_record=5)
    at.error("errors of the application", consumer.errors, [])
    return consumer, rule


# Batches


@case("fetching/inside-batch", MUST, f"KIP-98, record batches; {COMPLETED}, nextFetchedRecord")
def inside_batch(at: Play) -> None:
    """The position is inside a batch, so that the response begins with records below it: the client skips these."""
    topic = at.topic()
    written = at.write(topic)
    consumer = at.consumer()
    consumer.assign(topic, offset=OFFSET)
    at.reads(consumer, written[OFFSET:])
    at.error("errors of the application", consumer.errors, [])


@case("fetching/gaps", MUST, f"KIP-58 (compaction keeps offsets); {COMPLETED}, nextFetchOffset")
def gaps(at: Play) -> None:
    """The log is compacted: offsets are missing between records, at the ends of batches and as whole batches. The
    client reads all that is left, with its offsets, and goes on."""
    topic = at.topic(cleanup_policy="compact")
    keys = ["01234", "04", "77", "0247"]
    for number, batch in enumerate(keys):
        made = [Record(-1, TIMESTAMP_MS, key.encode(), f"{number}-{key}".encode()) for key in batch]
        at.append(topic, build(made))
    at.kafka.compact(topic)
    left = [(record.offset, record.value.decode()) for record in at.kafka.records(topic) if record.value]
    at.require(len(left) < sum(map(len, keys)), "The log was not compacted")
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, [value for _, value in left])
    at.data("offsets and values read", [(record.offset, record.value) for record in consumer.records], left)
    at.append(topic, build([Record(timestamp_ms=TIMESTAMP_MS, key=b"9", value=b"last")]))
    at.reads(consumer, ["last"], from_record=len(left))


@case("fetching/empty-batch", MUST, f"KIP-98: compaction keeps a producer's last batch without records; {COMPLETED}")
def empty_batch(at: Play) -> None:
    """A batch has offsets and no records, as compaction leaves it: the client goes on behind its last offset."""
    topic = at.topic()
    at.write(topic, 5)
    rule = on_data(at, lambda one: replace(one, records=rewritten(one.records, {0: without_records})), None)
    consumer = at.consumer()
    consumer.assign(topic)
    consumer.poll_until(lambda: rule.fired, consumer.bound_s())
    at.reads(consumer, at.write(topic, 5))
    at.error("errors of the application", consumer.errors, [])


@case("fetching/control-batch", MUST, KIP_98)
def control_batch(at: Play) -> None:
    """The marker of a transaction lies between batches: the application does not get it, and the client goes on
    behind it."""
    topic = at.topic()
    before, _, after = at.write(topic, 5), at.write(topic, 1), at.write(topic, 5)
    on_data(at, lambda one: replace(one, records=rewritten(one.records, {5: marker(7, commit=True)})), None)
    consumer = at.consumer(isolation="read_uncommitted")
    consumer.assign(topic)
    at.reads(consumer, [*before, *after])
    at.error("errors of the application", consumer.errors, [])


@case(
    "fetching/aborted-unsorted",
    MUST,
    f"{KIP_98} (a queue ordered by first offset); franz-go 1.21.4's changelog",
    needs=("consumer", "transactions"),
)
def aborted_unsorted(at: Play) -> None:
    """Two transactions are aborted, and the response lists the later one first: a consumer with read_committed gets
    neither, and reads what comes behind them."""
    topic = at.topic()
    at.write(topic, 5)
    at.write(topic, 5)
    at.write(topic, 1)
    at.write(topic, 1)
    committed = at.write(topic, 5)
    rewrites = {0: transactional(1), 5: transactional(2), 10: marker(1, commit=False), 11: marker(2, commit=False)}
    aborted = [AbortedTransaction(2, 5), AbortedTransaction(1, 0)]
    on_data(at, lambda one: replace(one, records=rewritten(one.records, rewrites), aborted_transactions=aborted), None)
    _reads_committed(at, topic, committed)


@case("fetching/aborted-twice", MUST, KIP_98, needs=("consumer", "transactions"))
def aborted_twice(at: Play) -> None:
    """One producer aborts two transactions, and both come in one response: a consumer with read_committed gets neither,
    and reads what comes behind them."""
    topic = at.topic()
    at.write(topic, 5)
    at.write(topic, 1)
    at.write(topic, 5)
    at.write(topic, 1)
    committed = at.write(topic, 5)
    of_one, aborted_one = transactional(1), marker(1, commit=False)
    rewrites = {0: of_one, 5: aborted_one, 6: of_one, 11: aborted_one}
    aborted = [AbortedTransaction(1, 0), AbortedTransaction(1, 6)]
    on_data(at, lambda one: replace(one, records=rewritten(one.records, rewrites), aborted_transactions=aborted), None)
    _reads_committed(at, topic, committed)


@case("fetching/abort-marker-later", MUST, KIP_98, needs=("consumer", "transactions"))
def abort_marker_later(at: Play) -> None:
    """The records of an aborted transaction come in one response, and its marker in the next one, as with any
    transaction that is larger than a response: a consumer with read_committed does not get them."""
    topic = at.topic()
    at.write(topic, 5)
    at.write(topic, 1)
    committed = at.write(topic, 5)
    rewrites = {0: transactional(1), 5: marker(1, commit=False)}

    def change(one: Any) -> Any:
        records = rewritten(one.records, rewrites)
        _, first = next(iterate(records))
        is_begin = first.base_offset == 0
        aborted = [AbortedTransaction(1, 0)] if first.base_offset <= OF_MARKER else []
        return replace(one, records=records[: first.size_bytes] if is_begin else records, aborted_transactions=aborted)

    on_data(at, change, None)
    _reads_committed(at, topic, committed)


@case("fetching/abort-marker-alone", MUST, f"{KIP_98}; platformatic/kafka#391", needs=("consumer", "transactions"))
def abort_marker_alone(at: Play) -> None:
    """The markers of two aborted transactions come, and the response lists one of them, because the other has no
    records in this partition: a consumer with read_committed reads on behind them."""
    topic = at.topic()
    at.write(topic, 5)
    at.write(topic, 1)
    at.write(topic, 1)
    committed = at.write(topic, 5)
    rewrites = {0: transactional(1), 5: marker(1, commit=False), 6: marker(2, commit=False)}
    aborted = [AbortedTransaction(1, 0)]
    on_data(at, lambda one: replace(one, records=rewritten(one.records, rewrites), aborted_transactions=aborted), None)
    _reads_committed(at, topic, committed)


def _reads_committed(at: Play, topic: str, wanted: list[str]) -> None:
    consumer = at.consumer(isolation="read_committed")
    consumer.assign(topic)
    at.reads(consumer, wanted)
    at.error("errors of the application", consumer.errors, [])


def _compressed(codec: Compression) -> ClientCase:
    name = codec.name.lower()

    @case(f"fetching/compression/{name}", MUST, "Compression.java", needs=("consumer", name))
    def compressed(at: Play) -> None:
        """Batches are compressed with this codec, one with a single record and one with many: the client reads all."""
        topic = at.topic()
        texts = [f"{name}-{index}-{'x' * index}" for index in range(200)]
        for part in (texts[:1], texts[1:]):
            made = [Record(timestamp_ms=TIMESTAMP_MS, value=each.encode()) for each in part]
            at.append(topic, build(made, compression=codec))
        consumer = at.consumer()
        consumer.assign(topic)
        at.reads(consumer, texts)
        at.error("errors of the application", consumer.errors, [])

    return compressed


gzip = _compressed(Compression.GZIP)
snappy = _compressed(Compression.SNAPPY)
lz4 = _compressed(Compression.LZ4)
zstd = _compressed(Compression.ZSTD)


@case("fetching/large-batch", MUST, "KIP-74: a batch above the limit is returned if it is the first")
def large_batch(at: Play) -> None:
    """Each batch is larger than the client's limit of a partition: the client reads them all."""
    topic = at.topic()
    written = [value for _ in range(3) for value in at.write(topic, 5, size_bytes=LARGE_BYTES)]
    consumer = at.consumer(partition_max_bytes=LIMIT_BYTES)
    consumer.assign(topic)
    at.reads(consumer, written)
    at.error("errors of the application", consumer.errors, [])


@case("fetching/partial-batch", MUST, "FetchResponse.json; ByteBufferLogInputStream.java, nextBatch")
def partial_batch(at: Play) -> None:
    """The last batch of a response is cut off, as the limits of a Fetch may do: the client reads the whole batches,
    and the other one from its next Fetch."""
    topic = at.topic()
    written = [*at.write(topic, 5), *at.write(topic, 5)]

    def cut(one: Any) -> Any:
        starts = [position for position, _ in iterate(bytes(one.records))]
        end = (starts[-1] + len(one.records)) // 2
        return replace(one, records=bytes(one.records)[:end]) if len(starts) > 1 else one

    on_data(at, cut)
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, written)
    at.error("errors of the application", consumer.errors, [])


@case("fetching/damaged", MUST, "check.crcs; CompletedFetch.java, maybeEnsureValid")
def damaged(at: Play) -> None:
    """A byte of a record is changed on its way, so that the batch's CRC does not fit, and check_crcs is set: the
    application gets an error or the true record, never the changed one, and can poll again."""
    topic = at.topic()
    written = at.write(topic, 5)

    def change(one: Any) -> Any:
        records = bytearray(one.records)
        records[-2] ^= 1  # The last byte of the last value; the number of its headers is behind it.
        return replace(one, records=bytes(records))

    rule = on_data(at, change)
    consumer = at.consumer(check_crcs=True)
    consumer.assign(topic)
    bound_s = consumer.bound_s(3)
    consumer.poll_until(lambda: rule.fired, bound_s)
    ended = consumer.poll_until(lambda: consumer.errors or len(consumer.records) >= len(written), bound_s)
    at.progress("an error, or the true records", ended, bound_s, "3 x request_timeout_ms")
    for _ in range(POLLS_AFTER):
        consumer.poll()  # It returns, with whatever comes: one that hangs violates progress.
    at.data("values that nobody wrote", [value for value in consumer.values if value not in written], [])


@case("fetching/empty-responses", MUST, "FetchResponse.json: records may be null")
def empty_responses(at: Play) -> None:
    """Several responses have no records although there are some, null or of no bytes: the client goes on asking."""
    topic = at.topic()
    written = at.write(topic, 5)
    sent: list[bytes | None] = []

    def without(one: Any) -> Any:
        sent.append(None if len(sent) % 2 else b"")
        return replace(one, records=sent[-1])

    on_data(at, without, EMPTY_TIMES)
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, written)
    at.require(len(sent) >= EMPTY_TIMES, f"Only {len(sent)} responses were without records")
    at.error("errors of the application", consumer.errors, [])


# Positions


def _below_log_start(at: Play, reset: str) -> tuple[Consumer, str, list[str]]:
    """Return a consumer at an offset that was deleted, its topic, and what is left."""
    topic = at.topic()
    at.write(topic, DELETED)
    left = at.write(topic, 5)
    at.kafka.delete_records(topic, before=DELETED)
    consumer = at.consumer(reset=reset)
    consumer.assign(topic, offset=1)
    return consumer, topic, left


def _refused(consumer: Consumer) -> list[Any]:
    """Return the partitions of Fetch responses that have OFFSET_OUT_OF_RANGE."""
    code = int(ErrorCode.offset_out_of_range)
    bodies = [exchange.response.body for exchange in consumer.exchanges("Fetch") if exchange.response is not None]
    partitions = [
        partition for body in bodies if body for response in body["responses"] for partition in response["partitions"]
    ]
    return [partition for partition in partitions if partition["error_code"] in (code, "OFFSET_OUT_OF_RANGE")]


@case("fetching/log-start/earliest", MUST, RESET)
def log_start_earliest(at: Play) -> None:
    """The position is below the log's start (OFFSET_OUT_OF_RANGE), and the reset policy is earliest: the client reads
    from the log's start."""
    consumer, _, left = _below_log_start(at, "earliest")
    at.reads(consumer, left)
    at.require(_refused(consumer), "The client has got no OFFSET_OUT_OF_RANGE")
    at.error("errors of the application", consumer.errors, [])


@case("fetching/log-start/latest", MUST, RESET)
def log_start_latest(at: Play) -> None:
    """As fetching/log-start/earliest, and the policy is latest: the client reads only what is written afterwards."""
    consumer, topic, left = _below_log_start(at, "latest")
    end = DELETED + len(left)

    def is_at_end() -> bool:
        places = [
            partition
            for exchange in consumer.exchanges("Fetch")
            for topic in exchange.body["topics"]
            for partition in topic["partitions"]
        ]
        return any(place["fetch_offset"] == end for place in places)

    bound_s = consumer.bound_s(3)
    reset = consumer.poll_until(lambda: consumer.records or is_at_end(), bound_s)
    at.require(_refused(consumer), "The client has got no OFFSET_OUT_OF_RANGE")
    at.progress("a Fetch at the end of the log", reset, bound_s, "3 x request_timeout_ms")
    at.reads(consumer, at.write(topic, 5))


@case("fetching/log-start/none", MUST, f"{RESET}: OffsetOutOfRangeException")
def log_start_none(at: Play) -> None:
    """As fetching/log-start/earliest, and there is no policy: the application gets an error, and no record."""
    consumer, _, _ = _below_log_start(at, "none")
    at.supported("reset" not in consumer.ignored, "The client has no such policy")
    bound_s = consumer.bound_s(3)
    failed = consumer.poll_until(lambda: consumer.errors or consumer.records, bound_s)
    at.require(_refused(consumer), "The client has got no OFFSET_OUT_OF_RANGE")
    at.data("records of another position", consumer.values, [])
    at.progress("the application gets an error", failed, bound_s, "3 x request_timeout_ms")


@case("fetching/out-of-range-once", MUST, f"{RESET}; KIP-392: a follower may lag behind")
def out_of_range_once(at: Play) -> None:
    """The broker responds with OFFSET_OUT_OF_RANGE once although the offset exists, and the policy is earliest: no
    record is skipped. Some may be read again."""
    topic = at.topic()
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, at.write(topic, 5))
    on_data(at, error_of(ErrorCode.offset_out_of_range))
    next_fetch(consumer)
    written = at.write(topic, 5)
    bound_s = consumer.bound_s(3)
    read = consumer.poll_until(lambda: set(written) <= set(consumer.values), bound_s)
    at.progress("all records are read", read, bound_s, "3 x request_timeout_ms")
    at.data("offset of the first new record", consumer.records[5].offset in (0, 5), True)
    at.error("errors of the application", consumer.errors, [])


@case(
    "fetching/seek", MUST, f"{COLLECTOR}, fetchRecords: a response for another position is dropped; kafka-python#2575"
)
def seek(at: Play) -> None:
    """The application seeks while a Fetch is on its way: the records of the old position, which come later, are
    dropped, and the client reads from the new one."""
    topic = at.topic()
    written = [*at.write(topic, 5), *at.write(topic, 5)]
    consumer = at.consumer()
    late = at.kafka.on("Fetch", client_id="consumer-*").delay_response(LATE_S, times=1)
    consumer.assign(topic, offset=0)
    consumer.poll_until(lambda: late.fired)
    at.require(not consumer.records, "The records came before the seek")
    consumer.seek(topic, 7)
    at.reads(consumer, written[7:])
    at.error("errors of the application", consumer.errors, [])


@case("fetching/pause", MUST, "Consumer.pause; FetchCollector.java", needs=("consumer", "pause"))
def pause(at: Play) -> None:
    """Records come for a paused partition and for another one: the application gets those of the other one only, and
    the paused ones after it resumes, each once."""
    topic = at.topic(2)
    consumer = at.consumer()
    consumer.assign(topic, 0, 1)
    at.reads(consumer, [*at.write(topic, 5), *at.write(topic, 5, 1)])
    consumer.pause(topic, 0)
    paused = at.write(topic, 5)
    at.reads(consumer, at.write(topic, 5, 1), from_record=10)
    consumer.resume(topic, 0)
    at.reads(consumer, paused, from_record=15)
    at.error("errors of the application", consumer.errors, [])


# Leaders


def _leader_epoch(consumer: Consumer) -> int:
    """Return the highest leader epoch that the client's Fetch requests had, -1 if none had one."""
    topics = [each for exchange in consumer.exchanges("Fetch") for each in exchange.body.get("topics", [])]
    return max(
        (partition.get("current_leader_epoch", -1) for topic in topics for partition in topic["partitions"]), default=-1
    )


@case("fetching/not-leader", MUST, f"{COLLECTOR}, handleInitializeErrors: requestMetadataUpdate")
def not_leader(at: Play) -> None:
    """The broker responds with NOT_LEADER_OR_FOLLOWER once: the client requests metadata and goes on, and the
    application gets no error."""
    consumer, rule = _reads_after_error(at, ErrorCode.not_leader_or_follower)
    at.wire("Metadata requests after the error", len(consumer.exchanges("Metadata", after=rule)), at_least(1))


@case("fetching/fenced-epoch", MUST, f"KIP-320; {COLLECTOR}, handleInitializeErrors: requestMetadataUpdate")
def fenced_epoch(at: Play) -> None:
    """The broker responds with FENCED_LEADER_EPOCH once: the client requests metadata and goes on, and the
    application gets no error."""
    consumer, rule = _reads_after_error(at, ErrorCode.fenced_leader_epoch, of_epochs=True)
    at.wire("Metadata requests after the error", len(consumer.exchanges("Metadata", after=rule)), at_least(1))


@case("fetching/unknown-epoch", MUST, f"KIP-320; {COLLECTOR}, handleInitializeErrors: the client retries")
def unknown_epoch(at: Play) -> None:
    """The broker is behind the client and responds with UNKNOWN_LEADER_EPOCH once: the client tries again, and the
    application gets no error."""
    _reads_after_error(at, ErrorCode.unknown_leader_epoch, of_epochs=True)


@case("fetching/leader-moves", MUST, f"{COLLECTOR}; KIP-951; librdkafka#4804")
def leader_moves(at: Play) -> None:
    """The leader moves to another node, and the old one goes on living: the client fetches from the new one."""
    at.cluster(nodes=3)
    topic = at.topic()
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, at.write(topic, 5))
    leader = at.kafka.move_leader(topic)
    at.reads(consumer, at.write(topic, 5), from_record=5)
    if _leader_epoch(consumer) >= 0:  # Without it the old leader serves the Fetch as a follower does (KIP-392).
        at.wire("node of the last Fetch", consumer.exchanges("Fetch")[-1].request.node, leader)
    at.error("errors of the application", consumer.errors, [])


@case("fetching/replica-gone", MUST, "KIP-392; AbstractFetch.java, selectReadReplica", needs=("consumer", "rack"))
def replica_gone(at: Play) -> None:
    """The leader names a preferred replica that is not in the metadata: the client fetches from the leader again, and
    the application gets no error."""
    topic = at.topic()
    consumer = at.consumer(rack="rack-1")
    consumer.assign(topic)
    at.reads(consumer, at.write(topic, 5))
    version = consumer.exchanges("Fetch")[-1].request.version
    at.supported(version >= REPLICA_SINCE, f"The client's Fetch has version {version}, without preferred replicas")
    rule = on_data(at, lambda one: replace(one, preferred_read_replica=NO_SUCH_NODE, records=b""))
    next_fetch(consumer)
    at.reads(consumer, at.write(topic, 5), from_record=5)
    at.wire("Fetch requests after it", len(consumer.exchanges("Fetch", after=rule)), at_least(1))
    at.error("errors of the application", consumer.errors, [])


@case("fetching/truncated", SHOULD, KIP_320)
def truncated(at: Play) -> None:
    """The log loses its end, which the client has read, and grows beyond the client's position with other records: the
    client finds where its log diverges, and reads from there."""
    topic = at.topic()
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, [*at.write(topic, 5), *at.write(topic, 5)])
    at.kafka.truncate(topic, 0, to=5)
    written = [*at.write(topic, 5), *at.write(topic, 5)]
    consumer.poll_until(lambda: written[-1] in consumer.values)
    looks = consumer.exchanges("OffsetForLeaderEpoch") or any(
        partition.get("last_fetched_epoch", -1) >= 0
        for exchange in consumer.exchanges("Fetch")
        for of in exchange.body["topics"]
        for partition in of["partitions"]
    )
    at.supported(looks, "The client does not look for truncated logs (KIP-320)")
    at.reads(consumer, written, from_record=10)
    at.error("errors of the application", consumer.errors, [])
