"""Produce: appends record batches to partitions.

* The header and the CRC of a batch are checked. Its bytes are appended as they came, unless ``compression.type`` of
  its topic names another codec. Then they are packed anew, in slices.
* The records themselves are decoded for compacted topics only: keys, offsets and timestamps. There a batch of more than
  100,000 records or 16 MiB, uncompressed, is MESSAGE_TOO_LARGE. So is one that would have to be packed anew.
* Unlike Kafka: for other topics, bytes that are no records, wrong offsets in a batch, and timestamps that the header
  does not tell are let through. Nothing of the broker relies on them. A count of records that the bytes cannot hold
  with their codec is refused.
* Unlike Kafka: some batches that no client library writes are refused: with a delete horizon or an append time, with a
  transaction but no producer ID, with a producer ID but a negative epoch, and with timestamps in the header that are
  below -1, or too far ahead where those of the records are not.
* Of a partition that is named more than once the last batch counts, and there is one result. A topic without
  partitions is not in the response. Unlike Kafka: this also holds where an earlier batch is invalid. Kafka then writes
  the last one all the same, and returns the error of the earlier one.
* acks=0 is not answered. An error closes the connection, as in Kafka.
* acks=1 is answered when the batch is appended. acks=all is answered when the high watermark has passed the batch, or
  when the timeout of the request is over.
* Both also wait for a sync where ``flush.messages`` asks for one.
* A retry of a batch that is written already waits for the first writing.
* The first batch of a transaction in a partition waits until the transaction's coordinator has said that it knows the
  partition (``produce_transactions.py``).
* A partition that does not know a producer takes its batch with whatever sequence (KIP-360), if
  ``crucible.unknown.producer.id.policy`` is ``accept``, the default. Unlike Kafka: ``reject`` demands sequence 0, and
  responds UNKNOWN_PRODUCER_ID to another one.
* Unlike Kafka: nobody may write to internal topics. Kafka lets any client do so that calls itself ``__admin_client``,
  and anybody can. A transactional batch without a transactional ID is refused alone, not with the whole request.

Version notes:
* v7: batches may be compressed with zstd. In older versions they are UNSUPPORTED_COMPRESSION_TYPE.
* v10: NOT_LEADER_OR_FOLLOWER names the leader and its address.
* v11: TRANSACTION_ABORTABLE. Older versions get INVALID_TXN_STATE.
* v12: a partition that is written to is added to the transaction (version 2 of transactions).
* v13: topics are named by ID.

KIPs: 98, 101, 110, 360, 467, 497, 516, 890, 951, 966, 1050.
"""

from collections import deque
from collections.abc import Generator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call, contained
from reference_broker.apis.parts import HasTraffic
from reference_broker.apis.records.produce_acknowledging import ALL, Acknowledges, Written, finish, tell
from reference_broker.apis.records.produce_answers import changed, leader_of, not_led, refused_answer
from reference_broker.apis.records.produce_bytes import (
    batch_bytes,
    is_large,
    is_transactional,
    units_to_look_into,
)
from reference_broker.apis.records.produce_transactions import JudgesTransactions, Verdicts, judge_transaction, name_of
from reference_broker.apis.sliced import contained_slices
from reference_broker.log.partition_log import RecordsRefused
from reference_broker.log.verification import Guard
from reference_broker.metadata.topic_names import is_internal
from reference_broker.ports.disk import DiskError
from reference_broker.ports.timing import Slices, run_slices
from reference_broker.records.batch import COMPRESSION_MASK, HEADER_BYTES
from reference_broker.records.compression import Compression
from reference_broker.replication.durable import must_be_durable, nobody_waits, plan_timed_flush, sync_led_then
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
    RecordError,
)

ZSTD_FROM = 7
"""The version from which batches may be compressed with zstd (KIP-110)."""

WITHOUT_LOG_START = (
    ErrorCode.corrupt_message,
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.unsupported_for_message_format,
)
"""What Kafka refuses without a look at the partition's state (ReplicaManager.appendToLocalLog). All other refusals of a
batch tell where the log starts."""

UNITS_PER_SLICE = 600
"""The work of one event, in units of about 8 us. A batch costs one, and one more for every UNIT_BYTES."""
UNIT_BYTES = 1 << 14


@dataclass(frozen=True, slots=True)
class _Postponed:
    """A batch that is appended in a later slice. ``postponed`` stands for its answer."""

    topic: ProduceTopic
    wanted: ProducePartition
    partition: Partition
    postponed: ProducePartitionResponse
    guard: Guard | None


@dataclass(slots=True)
class _Later:
    """What a request leaves for later slices: batches that must be looked into first, and all that come once the slice
    is used up. ``units`` is what is left of it."""

    batches: list[_Postponed] = field(default_factory=list)
    units: int = UNITS_PER_SLICE


class Needs(JudgesTransactions, Acknowledges, HasTraffic, Protocol):
    """What this API uses of its broker."""


_Found: TypeAlias = bytes | memoryview | RecordsRefused
"""What looking into a batch gave: what is to be appended, or why nothing may be."""


class _Appends(Protocol):
    """Appends one batch, or says why not. The parameters are those of ``_append``."""

    def __call__(
        self,
        broker: Needs,
        request: ProduceRequest,
        topic: ProduceTopic,
        wanted: ProducePartition,
        written: list[Written],
        later: _Later,
        guard: Guard | None = None,
        /,
    ) -> ProducePartitionResponse: ...


def handle(broker: Needs, call: Call, body: ProduceRequest) -> ProduceResponse | None:
    """Every partition of the request gets its own error code; one refused partition does not stop the others. Large
    batches that must be looked into go in slices, and are appended when the others are."""
    body = _with_each_partition_once(body)
    append = _append if call.api_version >= ZSTD_FROM else _append_without_zstd
    if body.transactional_id is None:
        return _produce(broker, call, body, append)

    def produce(verdicts: Verdicts) -> None:
        response = _produce(broker, call, body, partial(_append_judged, verdicts, append) if verdicts else append)
        if response is not None:
            call.respond(response)

    judge_transaction(broker, call, body, contained(call, produce))
    return None


def _with_each_partition_once(body: ProduceRequest) -> ProduceRequest:
    topics = body.topics
    if all(map(_names_each_once, topics)) and (
        len(topics) == 1 or len({(topic.topic, topic.topic_id) for topic in topics}) == len(topics)
    ):
        return body
    last: dict[tuple[str, bytes], dict[int, ProducePartition]] = {}
    for topic in body.topics:
        if topic.partitions:
            named = last.setdefault((topic.topic, topic.topic_id), {})
            named.update((each.partition, each) for each in topic.partitions)
    return replace(body, topics=[ProduceTopic(*topic, [*named.values()]) for topic, named in last.items()])


def _names_each_once(topic: ProduceTopic) -> bool:
    """Whether the topic has partitions, and each of them once."""
    count = len(topic.partitions)
    return count == 1 or (count > 1 and len({each.partition for each in topic.partitions}) == count)


def _produce(broker: Needs, call: Call, body: ProduceRequest, append: _Appends) -> ProduceResponse | None:
    written: list[Written] = []
    later = _Later()
    responses = [_append_topic(broker, body, topic, written, later, append) for topic in body.topics]
    if not later.batches:
        return finish(broker, call, body, responses, written, written)
    tell(written)

    def look_into() -> Slices:
        """A partition may be led elsewhere when its turn comes."""
        new: list[Written] = []
        told = [*written]
        answers: deque[tuple[ProducePartitionResponse, ProducePartitionResponse]] = deque()
        units = UNITS_PER_SLICE if later.units < 0 else 0
        for each in later.batches:
            # What is looked into takes slices of its own.
            looks = each.partition.log.looks_into_records
            cost = UNITS_PER_SLICE if looks else 1 + len(each.wanted.records or b"") // UNIT_BYTES
            units += cost
            if units > UNITS_PER_SLICE:
                units = cost
                tell(new)
                told += new
                new.clear()
                yield
            found = yield from _looked_into(broker, each)
            answers.append(
                (each.postponed, _append(broker, body, each.topic, each.wanted, new, None, each.guard, found))
            )
        told += new

        def settled(_: ProduceTopicResponse, answer: ProducePartitionResponse) -> ProducePartitionResponse:
            """Postponed answers come in the order of their batches."""
            return answers.popleft()[1] if answers and answers[0][0] is answer else answer

        response = finish(broker, call, body, changed(responses, settled), new, told)
        if response is not None:
            call.respond(response)

    run_slices(broker.outside, contained_slices(call, look_into()))
    return None


def _looked_into(broker: Needs, large: _Postponed) -> Generator[None, None, _Found]:
    if not large.partition.log.looks_into_records:
        return large.wanted.records or b""
    try:
        return (yield from large.partition.log.look_into(broker.now, large.wanted.records or b""))
    except RecordsRefused as refused:
        return refused


API = Api.of(ProduceRequest, handle)


def _append_topic(
    broker: Needs,
    request: ProduceRequest,
    topic: ProduceTopic,
    written: list[Written],
    later: _Later,
    append: _Appends,
) -> ProduceTopicResponse:
    """Only the broker itself writes to its own topics: what stands there becomes its state at the next start."""
    name = name_of(broker, topic)
    if is_internal(name):
        answers = [_internal(broker, topic, wanted.partition) for wanted in topic.partitions]
    else:
        answers = [append(broker, request, topic, wanted, written, later) for wanted in topic.partitions]
    return ProduceTopicResponse(topic.topic, topic.topic_id, answers)


def _internal(broker: Needs, topic: ProduceTopic, index: int) -> ProducePartitionResponse:
    if leader_of(broker, topic.topic, topic.topic_id, index) is None:
        return not_led(broker, topic, index)
    return refused_answer(index, ErrorCode.invalid_topic_exception, "the topic is internal")


def _append_without_zstd(
    broker: Needs,
    request: ProduceRequest,
    topic: ProduceTopic,
    wanted: ProducePartition,
    written: list[Written],
    later: _Later,
    guard: Guard | None = None,
) -> ProducePartitionResponse:
    """For versions whose consumers may not know zstd. The codec's number is in the attributes, as in ``is_large``."""
    records = wanted.records or b""
    if len(records) >= HEADER_BYTES and records[22] & COMPRESSION_MASK == Compression.ZSTD:
        error = ErrorCode.unsupported_compression_type
        return refused_answer(wanted.partition, error, f"zstd needs Produce {ZSTD_FROM} or newer")
    return _append(broker, request, topic, wanted, written, later, guard)


def _append_judged(
    verdicts: Verdicts,
    append: _Appends,
    broker: Needs,
    request: ProduceRequest,
    topic: ProduceTopic,
    wanted: ProducePartition,
    written: list[Written],
    later: _Later,
) -> ProducePartitionResponse:
    """For a request with batches that begin a transaction in their partitions."""
    verdict = verdicts.get((name_of(broker, topic), wanted.partition))
    if isinstance(verdict, ProducePartitionResponse):
        return verdict
    return append(broker, request, topic, wanted, written, later, verdict)


def _append(
    broker: Needs,
    request: ProduceRequest,
    topic: ProduceTopic,
    wanted: ProducePartition,
    written: list[Written],
    later: _Later | None,
    guard: Guard | None = None,
    found: _Found | None = None,
) -> ProducePartitionResponse:
    """``written`` gets what was written. A duplicate changes nothing, but it is not acknowledged before its first
    writing may be. ``later`` gets a batch whose turn has not come. It is None once the turn has come, and ``found`` is
    what looking into the batch gave. ``guard`` is that of the first batch of a transaction in the partition.
    """
    index = wanted.partition
    if request.acks not in (-1, 0, 1):
        return refused_answer(index, ErrorCode.invalid_required_acks, f"acks must be -1, 0 or 1, not {request.acks}")
    if topic.topic_id != NO_TOPIC_ID:
        partition = broker.partitions.by_id.get((topic.topic_id, index))
    else:
        partition = broker.partitions.by_name.get((topic.topic, index))
    if partition is None:
        return not_led(broker, topic, index)
    traffic = broker.traffic
    if wanted.records is None or len(wanted.records) == 0:
        return refused_answer(index, ErrorCode.invalid_record, "each partition needs a record batch")
    if batch_bytes(wanted.records) < len(wanted.records):
        return refused_answer(index, ErrorCode.invalid_record, "each partition may have only one record batch")
    if request.transactional_id is None and is_transactional(wanted.records):
        return refused_answer(
            index, ErrorCode.transactional_id_authorization_failed, "the request names no transactional ID"
        )
    log, followers = partition.log, partition.followers
    if followers is not None and request.acks == ALL and followers.is_under_min_isr(log.config.min_insync_replicas):
        here = f"in sync: {len(followers.isr)} of {len(followers.states) + 1} replicas"
        return ProducePartitionResponse(
            index, ErrorCode.not_enough_replicas, log_start_offset=log.log_start_offset, error_message=here
        )
    if later is not None:
        later.units -= 1 + len(wanted.records) // UNIT_BYTES
        looks_large = log.looks_into_records and is_large(wanted.records)
        if log.looks_into_records and not looks_large:
            later.units -= units_to_look_into(wanted.records)
        if later.units < 0 or looks_large:
            postponed = ProducePartitionResponse(index, ErrorCode.none)
            later.batches.append(_Postponed(topic, wanted, partition, postponed, guard))
            return postponed
    try:
        if isinstance(found, RecordsRefused):
            raise found
        records = wanted.records if found is None else found
        appended = log.append(broker.now, records, partition.leader_epoch, is_looked_into=later is None, guard=guard)
    except RecordsRefused as refused:
        traffic.failed_produce_requests.value += 1
        return ProducePartitionResponse(
            index,
            refused.error,
            log_start_offset=-1 if refused.error in WITHOUT_LOG_START else log.log_start_offset,
            record_errors=[RecordError(at, text) for at, text in refused.record_errors],
            error_message=refused.message,
        )
    except DiskError as failure:
        broker.outside.note("append_failed", ("partition", f"{partition.topic}-{index}"), ("reason", str(failure)))
        return refused_answer(index, ErrorCode.kafka_storage_error, str(failure))
    written.append((partition, not appended.duplicate, appended.last_offset + 1))
    if not appended.duplicate:
        if followers is None:
            if not must_be_durable(log):  # Else the sync moves it: what is read must not be lost with the power.
                log.advance_high_watermark(log.log_end_offset)
        else:
            broker.replication.leaders.appended(partition)
        plan_timed_flush(broker.outside, partition)
        if appended.rolled:
            sync_led_then(broker.outside, [partition], nobody_waits)
        traffic.bytes_in.value += len(wanted.records)
        traffic.messages_in.value += appended.last_offset - appended.first_offset + 1
    return ProducePartitionResponse(
        index,
        ErrorCode.none,
        base_offset=appended.first_offset,
        log_append_time_ms=appended.log_append_time_ms,
        log_start_offset=appended.log_start_offset,
    )
