"""Produce: appends record batches to partitions.

* The header and the CRC of a batch are checked. Its bytes are appended as they came, unless ``compression.type`` of
  its topic names another codec. Then they are packed anew, in slices.
* The records themselves are decoded for compacted topics only: keys, offsets and timestamps. There a batch of more than
  100,000 records or 16 MiB, uncompressed, is MESSAGE_TOO_LARGE. So is one that would have to be packed anew.
* Unlike Kafka: for other topics, bytes that are no records, wrong offsets in a batch, and timestamps that the header
  does not tell are let through. Nothing of the broker relies on them. A count of records that the bytes cannot hold
  with their codec is refused.
* acks=0 is not answered. An error closes the connection, as in Kafka.
* acks=1 is answered when the batch is appended. acks=all is answered when the high watermark has passed the batch, or
  when the timeout of the request is over.
* Both also wait for a sync where ``flush.messages`` asks for one.
* A retry of a batch that is written already waits for the first writing.
* Unlike Kafka: transactional batches are refused, because transactions are not served. Nobody may write to internal
  topics. Kafka lets any client do so that calls itself ``__admin_client``, and anybody can.

Version notes:
* v7: batches may be compressed with zstd. In older versions they are UNSUPPORTED_COMPRESSION_TYPE.
* v10: NOT_LEADER_OR_FOLLOWER names the leader and its address.
* v13: topics are named by ID.

KIPs: 98, 101, 110, 467, 497, 516, 951, 966.
"""

from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Protocol, TypeAlias

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call, contained
from reference_broker.apis.parts import HasController, HasNow, HasOutside, HasPartitions, HasReplication, HasTraffic
from reference_broker.apis.records.produce_answers import changed, marked_response, not_led, refused_answer, response_of
from reference_broker.apis.sliced import contained_slices
from reference_broker.log.partition_log import RecordsRefused
from reference_broker.metadata.topic_names import is_internal
from reference_broker.ports.disk import DiskError
from reference_broker.ports.timing import Slices, run_slices
from reference_broker.records.batch import COMPRESSION_MASK, HEADER_BYTES, TRANSACTIONAL
from reference_broker.records.compression import Compression
from reference_broker.replication.durable import must_be_durable, nobody_waits, plan_timed_flush, sync_led_then
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode, error_name
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

ALL = -1
"""acks=all: every replica in sync must have the records, and there must be ``min.insync.replicas`` of them."""


SMALL_BYTES = 4096
"""An uncompressed batch of this size is looked into at once. It holds 576 records at most."""

Written: TypeAlias = tuple[Partition, bool, int]
"""The partition, whether something new was written, and where that ends."""


UNITS_PER_SLICE = 600
"""The work of one event, in units of about 8 us. A batch costs one, and one more for every UNIT_BYTES."""
UNIT_BYTES = 1 << 14
PACKED_UNIT_BYTES = 1 << 7
"""To pack so many bytes anew takes a unit. So does looking into a record."""


@dataclass(frozen=True, slots=True)
class _Postponed:
    """A batch that is appended in a later slice. ``postponed`` stands for its answer."""

    topic: ProduceTopic
    wanted: ProducePartition
    partition: Partition
    postponed: ProducePartitionResponse


@dataclass(slots=True)
class _Later:
    """What a request leaves for later slices: batches that must be looked into first, and all that come once the slice
    is used up. ``units`` is what is left of it."""

    batches: list[_Postponed] = field(default_factory=list)
    units: int = UNITS_PER_SLICE


class Needs(HasPartitions, HasNow, HasOutside, HasReplication, HasController, HasTraffic, Protocol):
    """What this API uses of its broker."""


_Appends: TypeAlias = Callable[
    [Needs, ProduceRequest, ProduceTopic, ProducePartition, list[Written], _Later], ProducePartitionResponse
]
"""Appends one batch, or says why not."""


def handle(broker: Needs, call: Call, body: ProduceRequest) -> ProduceResponse | None:
    """Every partition of the request gets its own error code; one refused partition does not stop the others. Large
    batches that must be looked into go in slices, and are appended when the others are."""
    written: list[Written] = []
    later = _Later()
    append = _append if call.api_version >= ZSTD_FROM else _append_without_zstd
    responses = [_append_topic(broker, body, topic, written, later, append) for topic in body.topics]
    if not later.batches:
        return _finish(broker, call, body, responses, written, written)
    _tell(written)

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
                _tell(new)
                told += new
                new.clear()
                yield
            found = yield from _looked_into(broker, each)
            refusal = found if isinstance(found, RecordsRefused) else None
            wanted = each.wanted if isinstance(found, RecordsRefused) else found
            answers.append((each.postponed, _append(broker, body, each.topic, wanted, new, None, refusal)))
        told += new

        def settled(_: ProduceTopicResponse, answer: ProducePartitionResponse) -> ProducePartitionResponse:
            """Postponed answers come in the order of their batches."""
            return answers.popleft()[1] if answers and answers[0][0] is answer else answer

        response = _finish(broker, call, body, changed(responses, settled), new, told)
        if response is not None:
            call.respond(response)

    run_slices(broker.outside, contained_slices(call, look_into()))
    return None


def _looked_into(broker: Needs, large: _Postponed) -> Generator[None, None, ProducePartition | RecordsRefused]:
    """What is to be appended, or why nothing may be."""
    if not large.partition.log.looks_into_records:
        return large.wanted
    try:
        records = yield from large.partition.log.look_into(broker.now, large.wanted.records or b"")
    except RecordsRefused as refused:
        return refused
    return replace(large.wanted, records=records)


def _tell(written: Sequence[Written]) -> None:
    for partition, is_new, _ in written:
        if is_new:
            partition.changed()


def _finish(
    broker: Needs,
    call: Call,
    body: ProduceRequest,
    responses: list[ProduceTopicResponse],
    new: Sequence[Written],
    written: Sequence[Written],
) -> ProduceResponse | None:
    """Answers once it may. ``new`` is the part of ``written`` of which nobody knows yet."""
    response = response_of(broker, responses, call)
    due: list[Partition] = []
    replicated: list[tuple[Partition, int]] = []
    _tell(new)
    for partition, _, end in written:
        if partition.followers is not None:
            replicated.append((partition, end))
        if must_be_durable(partition.log):
            due.append(partition)
        elif partition.followers is None and partition.log.high_watermark < end and not partition.deleted:
            # When it was appended a sync was due, which another one has made needless.
            partition.log.advance_high_watermark(partition.log.log_end_offset)
            partition.changed()
    if body.acks == 0:
        for partition in due:
            sync_led_then(broker.outside, [partition], nobody_waits)
        _finish_unacknowledged(call, response)
        return None
    if replicated and body.acks == ALL:
        acknowledge = contained(call, partial(_acknowledge, broker, call, body.timeout_ms, response, replicated))
        if due:
            sync_led_then(broker.outside, due, acknowledge)
        else:
            acknowledge()
        return None
    if not due:
        return response
    sync_led_then(broker.outside, due, lambda: call.respond(response))
    return None


API = Api.of(ProduceRequest, handle)


def _acknowledge(
    broker: Needs, call: Call, timeout_ms: int, response: ProduceResponse, replicated: list[tuple[Partition, int]]
) -> None:
    """Responds once all replicas in sync have what was written."""

    def answered(errors: dict[Partition, Error]) -> None:
        call.respond(marked_response(broker, call, response, errors) if errors else response)

    abandon = broker.replication.leaders.acknowledge(replicated, timeout_ms, contained(call, answered))
    if abandon is not None:
        call.on_closed(abandon)


def _append_topic(
    broker: Needs,
    request: ProduceRequest,
    topic: ProduceTopic,
    written: list[Written],
    later: _Later,
    append: _Appends,
) -> ProduceTopicResponse:
    """Only the broker itself writes to its own topics: what stands there becomes its state at the next start."""
    name = topic.topic or broker.partitions.topic_names.get(topic.topic_id, "")
    if is_internal(name):
        error, text = ErrorCode.invalid_topic_exception, "the topic is internal"
        answers = [refused_answer(wanted.partition, error, text) for wanted in topic.partitions]
    else:
        answers = [append(broker, request, topic, wanted, written, later) for wanted in topic.partitions]
    return ProduceTopicResponse(topic.topic, topic.topic_id, answers)


def _append_without_zstd(
    broker: Needs,
    request: ProduceRequest,
    topic: ProduceTopic,
    wanted: ProducePartition,
    written: list[Written],
    later: _Later,
) -> ProducePartitionResponse:
    """For versions whose consumers may not know zstd. The codec's number is in the attributes, as in ``_is_large``."""
    records = wanted.records or b""
    if len(records) >= HEADER_BYTES and records[22] & COMPRESSION_MASK == Compression.ZSTD:
        error = ErrorCode.unsupported_compression_type
        return refused_answer(wanted.partition, error, f"zstd needs Produce {ZSTD_FROM} or newer")
    return _append(broker, request, topic, wanted, written, later)


def _append(
    broker: Needs,
    request: ProduceRequest,
    topic: ProduceTopic,
    wanted: ProducePartition,
    written: list[Written],
    later: _Later | None,
    refusal: RecordsRefused | None = None,
) -> ProducePartitionResponse:
    """``written`` gets what was written. A duplicate changes nothing, but it is not acknowledged before its first
    writing may be. ``later`` gets a batch whose turn has not come. It is None once the turn has come, and ``refusal``
    is what looking into the batch showed.
    """
    index = wanted.partition
    if request.acks not in (-1, 0, 1):
        return refused_answer(index, ErrorCode.invalid_required_acks, f"acks must be -1, 0 or 1, not {request.acks}")
    if request.transactional_id is not None:
        return refused_answer(index, ErrorCode.transactional_id_authorization_failed, "transactions are not served")
    if topic.topic_id != NO_TOPIC_ID:
        partition = broker.partitions.by_id.get((topic.topic_id, index))
    else:
        partition = broker.partitions.by_name.get((topic.topic, index))
    if partition is None:
        return not_led(broker, topic, index)
    traffic = broker.traffic
    if wanted.records is None or len(wanted.records) == 0:
        return refused_answer(index, ErrorCode.invalid_record, "each partition needs a record batch")
    if _batch_bytes(wanted.records) < len(wanted.records):
        return refused_answer(index, ErrorCode.invalid_record, "each partition may have only one record batch")
    if _is_transactional(wanted.records):
        return refused_answer(index, ErrorCode.transactional_id_authorization_failed, "transactions are not served")
    log, followers = partition.log, partition.followers
    if followers is not None and request.acks == ALL and followers.is_under_min_isr(log.config.min_insync_replicas):
        here = f"in sync: {len(followers.isr)} of {len(followers.states) + 1} replicas"
        return ProducePartitionResponse(
            index, ErrorCode.not_enough_replicas, log_start_offset=log.log_start_offset, error_message=here
        )
    if later is not None:
        later.units -= 1 + len(wanted.records) // UNIT_BYTES
        is_large = log.looks_into_records and _is_large(wanted.records)
        if log.looks_into_records and not is_large:
            later.units -= _units_to_look_into(wanted.records)
        if later.units < 0 or is_large:
            postponed = ProducePartitionResponse(index, ErrorCode.none)
            later.batches.append(_Postponed(topic, wanted, partition, postponed))
            return postponed
    try:
        if refusal is not None:
            raise refusal
        appended = log.append(broker.now, wanted.records, partition.leader_epoch, is_looked_into=later is None)
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


def _units_to_look_into(records: bytes | memoryview) -> int:
    """For a small batch. Its header tells the number of records at byte 57. The log refuses one that the bytes cannot
    hold."""
    return int.from_bytes(records[57:HEADER_BYTES], "big") + len(records) // PACKED_UNIT_BYTES


def _is_large(records: bytes | memoryview) -> bool:
    """The codec's number is in the attributes, which are big-endian at byte 21."""
    return len(records) > SMALL_BYTES or (len(records) >= HEADER_BYTES and bool(records[22] & COMPRESSION_MASK))


def _batch_bytes(records: bytes | memoryview) -> int:
    """Returns the size that the first batch's length field tells. The log judges whether that is right."""
    return int.from_bytes(records[8:12], "big", signed=True) + 12


def _is_transactional(records: bytes | memoryview) -> bool:
    """Such a batch would open a transaction that nobody can end. The attributes are big-endian at byte 21."""
    return len(records) >= HEADER_BYTES and bool(records[22] & TRANSACTIONAL)


def _finish_unacknowledged(call: Call, response: ProduceResponse) -> None:
    """With acks=0 there is no answer. The client learns of an error by losing its connection, as in Kafka."""
    for topic in response.responses:
        for answer in topic.partitions:
            if answer.error_code:
                call.close(f"produce with acks=0 to {topic.topic}-{answer.partition}: {error_name(answer.error_code)}")
                return
    call.respond(None)
