"""Produce: appends record batches to partitions.

* The header and the CRC of a batch are checked. Its bytes are appended as they came, unless ``compression.type`` of
  its topic names another codec. Then they are recompressed.
* The records themselves are decoded for compacted topics only: keys, offsets and timestamps. There a batch of more than
  100,000 records or 16 MiB, uncompressed, is MESSAGE_TOO_LARGE, also where it must be recompressed for
  ``compression.type``.
* Of a partition that is named more than once the last batch counts, and there is one result. A topic without
  partitions is not in the response.
* acks=0 has no response. An error closes the connection, as in Kafka.
* acks=1 gets its response when the batch is appended, acks=all when the high watermark has passed the batch, or at the
  timeout of the request.
* Both also wait for a sync where ``flush.messages`` requires one.
* A retry of a batch that is written already waits for the first writing.
* The first batch of a transaction in a partition waits until the transaction's coordinator has confirmed that it knows
  the partition (``produce_verification.py``).
* A partition that does not know a producer takes its batch with whatever sequence (KIP-360), if
  ``crucible.unknown.producer.id.policy`` is ``accept``, the default.

What Kafka does otherwise is at the end of this file.

Version notes:
* v7: batches may be compressed with zstd. In older versions they are UNSUPPORTED_COMPRESSION_TYPE.
* v10: NOT_LEADER_OR_FOLLOWER names the leader and its address.
* v11: TRANSACTION_ABORTABLE. Older versions get INVALID_TXN_STATE.
* v12: a partition that is written to is added to the transaction (version 2 of transactions).
* v13: topics are named by ID.

KIPs: 98, 101, 110, 360, 467, 497, 516, 890, 951, 966, 1050.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback, run_in_slices
from reference_broker.apis.records.partition_errors import endpoints_of
from reference_broker.apis.records.produce_verification import (
    VerificationResults,
    is_transactional,
    topic_name,
    verify_transaction,
)
from reference_broker.apis.registry import Api
from reference_broker.log.transaction_verification import VerificationGuard
from reference_broker.log.unified_log import RecordsRefused
from reference_broker.metadata.identifiers import is_internal
from reference_broker.ports.disk import DiskError
from reference_broker.ports.slicing import PRODUCED_UNITS_PER_SLICE, Sliced
from reference_broker.records.batch import COMPRESSION_MASK, HEADER_BYTES
from reference_broker.records.compression import Compression
from reference_broker.replication.partitions import Partition
from reference_broker.replication.syncing import must_sync, nobody_waits, plan_timed_flush, sync_led_then
from reference_broker.wire.errors import Error, ErrorCode, error_name
from reference_broker.wire.fetch import NO_TOPIC_ID, LeaderIdAndEpoch
from reference_broker.wire.produce import (
    ProducePartition,
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopic,
    ProduceTopicResponse,
    RecordError,
)

ALL = -1
"""acks=all: every replica in sync must have the records, and there must be ``min.insync.replicas`` of them."""

ZSTD_FROM = 7
"""The version from which batches may be compressed with zstd (KIP-110)."""

LEADERS_FROM = 10
"""The version from which NOT_LEADER_OR_FOLLOWER names the leader (KIP-951)."""

WITHOUT_LOG_START = (
    ErrorCode.corrupt_message,
    ErrorCode.message_too_large,
    ErrorCode.record_list_too_large,
    ErrorCode.unsupported_for_message_format,
)
"""The errors that Kafka returns without having read the partition's state (ReplicaManager.appendToLocalLog). All other
errors of a batch come with the log start offset."""

UNIT_BYTES = 1 << 14
"""Bytes of a batch that cost one unit of work (PRODUCED_UNITS_PER_SLICE). Each batch costs one more."""

SMALL_BYTES = 4096
"""An uncompressed batch of this size is decoded at once. It holds 576 records at most."""

PACKED_UNIT_BYTES = 1 << 7
"""Number of bytes whose compression takes a unit. Decoding a record takes a unit, too."""

WrittenBatch: TypeAlias = tuple[Partition, bool, int]
"""A batch that is in the log, and may not be replicated yet: its partition, whether it is new, and its end offset. A
retry of a batch that was written before is not new."""
ProducePartitionKey: TypeAlias = tuple[str, bytes, int]
"""Topic name, topic ID and index. A request has each once (``_with_each_partition_once``)."""
ResultChange: TypeAlias = Callable[[ProduceTopicResponse, ProducePartitionResponse], ProducePartitionResponse]


def handle(broker: Broker, call: Call, body: ProduceRequest) -> None:
    """Append the batches of a request, and respond once they are acknowledged.

    Every partition gets its own error code; one refused partition does not stop the others. Large batches whose records
    must be decoded are appended after the others.
    """
    body = _with_each_partition_once(body)
    if body.transactional_id is None:
        append_batches(broker, call, body, {})
    else:
        verify_transaction(broker, call, body, callback(call, partial(append_batches, broker, call, body)))


API = Api.of(ProduceRequest, handle)


def _with_each_partition_once(body: ProduceRequest) -> ProduceRequest:
    topics = body.topics
    if all(map(_names_each_once, topics)) and (
        len(topics) == 1 or len({(topic.topic, topic.topic_id) for topic in topics}) == len(topics)
    ):
        return body
    last_entries: dict[tuple[str, bytes], dict[int, ProducePartition]] = {}
    for topic in body.topics:
        if topic.partitions:
            entries = last_entries.setdefault((topic.topic, topic.topic_id), {})
            entries.update((entry.partition, entry) for entry in topic.partitions)
    return replace(body, topics=[ProduceTopic(*topic, [*entries.values()]) for topic, entries in last_entries.items()])


def _names_each_once(topic: ProduceTopic) -> bool:
    """Whether the topic has partitions, and each of them once."""
    count = len(topic.partitions)
    return count == 1 or (count > 1 and len({entry.partition for entry in topic.partitions}) == count)


@dataclass(frozen=True, slots=True)
class _Postponed:
    """A batch that is appended in a later event: its records must be decoded first, or this event has done enough."""

    topic: ProduceTopic
    entry: ProducePartition
    """The partition's entry in the request, with the batch."""
    partition: Partition
    guard: VerificationGuard | None

    @property
    def key(self) -> ProducePartitionKey:
        return _key(self.topic, self.entry.partition)


@dataclass(slots=True)
class ProduceInProgress:
    """A request whose batches are being appended."""

    broker: Broker
    call: Call
    request: ProduceRequest
    verifications: VerificationResults
    """The results for the batches that begin a transaction in their partitions."""
    written: list[WrittenBatch] = field(default_factory=list)
    """The batches that are in the log."""
    postponed: list[_Postponed] = field(default_factory=list)
    units: int = PRODUCED_UNITS_PER_SLICE
    """The remaining work of this event. Once it is negative, all further batches are postponed."""


def append_batches(broker: Broker, call: Call, request: ProduceRequest, verifications: VerificationResults) -> None:
    """Append the batches in this event, and postpone those that it has no time for. Then respond.

    Only the broker itself writes to its own topics: their records become its state at the next start."""
    progress = ProduceInProgress(broker, call, request, verifications)
    responses = []
    for topic in request.topics:
        if is_internal(topic_name(broker, topic)):
            results = [_internal(broker, topic, entry.partition) for entry in topic.partitions]
        else:
            results = [_append_or_postpone(progress, topic, entry) for entry in topic.partitions]
        responses.append(ProduceTopicResponse(topic.topic, topic.topic_id, results))
    _notify(progress.written)
    if progress.postponed:
        run_in_slices(broker, call, _append_postponed_then_respond(progress, responses))
    else:
        _sync_then_respond(progress, responses)


def _key(topic: ProduceTopic | ProduceTopicResponse, index: int) -> ProducePartitionKey:
    return topic.topic, topic.topic_id, index


def _append_or_postpone(
    progress: ProduceInProgress, topic: ProduceTopic, entry: ProducePartition
) -> ProducePartitionResponse:
    """Append one batch, or return why not. Return a result without error for a batch that is postponed,
    which is replaced later."""
    guard, records = None, entry.records or b""
    if progress.verifications:
        verification = progress.verifications.get((topic_name(progress.broker, topic), entry.partition))
        if isinstance(verification, ProducePartitionResponse):
            return verification
        guard = verification
    if progress.call.api_version < ZSTD_FROM and _codec(records) == Compression.ZSTD:
        error = ErrorCode.unsupported_compression_type
        return _refused(entry.partition, error, f"zstd needs Produce {ZSTD_FROM} or newer")
    partition = _writable(progress, topic, entry)
    if isinstance(partition, ProducePartitionResponse):
        return partition
    progress.units -= 1 + len(records) // UNIT_BYTES
    is_large = False
    if partition.log.must_decode_records:
        is_large = len(records) > SMALL_BYTES or _codec(records) != Compression.NONE
        if not is_large:
            progress.units -= _units_to_decode(records)
    if progress.units < 0 or is_large:  # Decision batch-postponed
        progress.postponed.append(_Postponed(topic, entry, partition, guard))
        return ProducePartitionResponse(entry.partition, ErrorCode.none)
    return _append(progress, partition, entry, records, guard)


def _append_postponed_then_respond(progress: ProduceInProgress, responses: list[ProduceTopicResponse]) -> Sliced[None]:
    """Append the postponed batches in slices of one event each, replace their places in ``responses`` by the results,
    and respond.

    The watchers of a slice's partitions are notified at its end, so that consumers need not wait for later slices."""
    results: dict[ProducePartitionKey, ProducePartitionResponse] = {}
    notified = len(progress.written)
    units = PRODUCED_UNITS_PER_SLICE if progress.units < 0 else 0
    for batch in progress.postponed:
        cost = 1 + len(batch.entry.records or b"") // UNIT_BYTES
        if batch.partition.log.must_decode_records:
            cost = PRODUCED_UNITS_PER_SLICE  # Decoding takes slices of its own.
        units += cost
        if units > PRODUCED_UNITS_PER_SLICE:
            units = cost
            _notify(progress.written[notified:])
            notified = len(progress.written)
            yield
        results[batch.key] = yield from _decode_and_append(progress, batch)
    _notify(progress.written[notified:])

    def result_of(topic: ProduceTopicResponse, response: ProducePartitionResponse) -> ProducePartitionResponse:
        return results.get(_key(topic, response.partition), response)

    _sync_then_respond(progress, _replaced(responses, result_of))


def _decode_and_append(progress: ProduceInProgress, batch: _Postponed) -> Sliced[ProducePartitionResponse]:
    """Append a postponed batch, or return why not. The checks are repeated: the partition may be led elsewhere by
    now."""
    records, refused = batch.entry.records or b"", None
    if batch.partition.log.must_decode_records:
        try:
            records = yield from batch.partition.log.validate_records(progress.broker.now, records)
        except RecordsRefused as refusal:
            refused = refusal
    partition = _writable(progress, batch.topic, batch.entry)
    if isinstance(partition, ProducePartitionResponse):
        return partition
    if refused is not None:
        return _refused_by_log(progress, partition, refused)
    return _append(progress, partition, batch.entry, records, batch.guard, is_validated=True)


def _writable(
    progress: ProduceInProgress, topic: ProduceTopic, entry: ProducePartition
) -> Partition | ProducePartitionResponse:
    """Return the partition that the batch may be appended to, or why not."""
    broker, request, index = progress.broker, progress.request, entry.partition
    if request.acks not in (-1, 0, 1):
        return _refused(index, ErrorCode.invalid_required_acks, f"acks must be -1, 0 or 1, not {request.acks}")
    if topic.topic_id != NO_TOPIC_ID:
        partition = broker.partitions.by_id.get((topic.topic_id, index))
    else:
        partition = broker.partitions.by_name.get((topic.topic, index))
    if partition is None:  # Decision produced-partition-led
        return _not_led(broker, topic, index)
    records = entry.records
    if not records:
        return _refused(index, ErrorCode.invalid_record, "each partition needs a record batch")
    # The size of the first batch is in its length field. The log checks whether that is right.
    if int.from_bytes(records[8:12], "big", signed=True) + 12 < len(records):
        return _refused(index, ErrorCode.invalid_record, "each partition may have only one record batch")
    if request.transactional_id is None and is_transactional(records):
        return _refused(index, ErrorCode.transactional_id_authorization_failed, "the request names no transactional ID")
    log, followers = partition.log, partition.followers
    # Decision produce-below-min-isr
    if followers is not None and request.acks == ALL and followers.is_under_min_isr(log.config.min_insync_replicas):
        message = f"in sync: {len(followers.isr)} of {len(followers.states) + 1} replicas"
        return ProducePartitionResponse(
            index, ErrorCode.not_enough_replicas, log_start_offset=log.log_start_offset, error_message=message
        )
    return partition


def _append(
    progress: ProduceInProgress,
    partition: Partition,
    entry: ProducePartition,
    records: bytes | memoryview,
    guard: VerificationGuard | None,
    *,
    is_validated: bool = False,
) -> ProducePartitionResponse:
    """Append one batch, or return why not. A duplicate changes nothing, but it is not acknowledged before its first
    copy may be. ``guard`` is that of the first batch of a transaction in the partition."""
    broker, log = progress.broker, partition.log
    try:  # Decision produced-append-fails
        result = log.append(broker.now, records, partition.leader_epoch, is_validated=is_validated, guard=guard)
    except RecordsRefused as refused:
        return _refused_by_log(progress, partition, refused)
    except DiskError as failure:
        name = f"{partition.topic}-{entry.partition}"
        broker.ports.note("append_failed", ("partition", name), ("reason", str(failure)))
        return _refused(entry.partition, ErrorCode.kafka_storage_error, str(failure))
    progress.written.append((partition, not result.duplicate, result.last_offset + 1))
    if not result.duplicate:  # Decision produced-batch
        broker.replication.leaders.appended(partition)
        plan_timed_flush(broker.ports, partition)
        if result.rolled:
            sync_led_then(broker.ports, [partition], nobody_waits)
        traffic = broker.traffic
        traffic.bytes_in.value += len(entry.records or b"")
        traffic.messages_in.value += result.last_offset - result.first_offset + 1
    return ProducePartitionResponse(
        entry.partition,
        ErrorCode.none,
        result.first_offset,
        result.log_append_time_ms,
        result.log_start_offset,
    )


def _refused_by_log(
    progress: ProduceInProgress, partition: Partition, refused: RecordsRefused
) -> ProducePartitionResponse:
    progress.broker.traffic.failed_produce_requests.value += 1
    return ProducePartitionResponse(
        partition.index,
        refused.error,
        log_start_offset=-1 if refused.error in WITHOUT_LOG_START else partition.log.log_start_offset,
        record_errors=[RecordError(index_in_batch, text) for index_in_batch, text in refused.record_errors],
        error_message=refused.message,
    )


def _units_to_decode(records: bytes | memoryview) -> int:
    """Return the work of a small batch. Its header has the number of records at byte 57. The log refuses a number that
    the bytes cannot hold."""
    return int.from_bytes(records[57:HEADER_BYTES], "big") + len(records) // PACKED_UNIT_BYTES


def _codec(records: bytes | memoryview) -> int:
    """Return the number of the batch's codec. It is in the attributes, which are big-endian at byte 21."""
    return records[22] & COMPRESSION_MASK if len(records) >= HEADER_BYTES else Compression.NONE


def _notify(written: Sequence[WrittenBatch]) -> None:
    """Wake the parked fetches and other watchers of partitions that have new records."""
    for partition, is_new, _ in written:
        if is_new:
            partition.changed()


def _sync_then_respond(progress: ProduceInProgress, responses: list[ProduceTopicResponse]) -> None:
    """Sync the logs for which ``flush.messages`` requires it, and respond after that. With acks=all, respond when the
    high watermarks have passed the batches, too. A partition with one replica has no other to wait for."""
    broker, call, request = progress.broker, progress.call, progress.request
    response = _response(broker, responses, call)
    unsynced = [partition for partition, _, _ in progress.written if must_sync(partition.log)]
    if request.acks == 0:
        sync_led_then(broker.ports, unsynced, nobody_waits)
        _end_without_response(call, response)
        return
    replicated = []
    if request.acks == ALL:
        replicated = [(partition, end) for partition, _, end in progress.written if partition.followers is not None]
    if unsynced:  # Decision acknowledged-after-sync
        acknowledge = partial(_respond_when_replicated, broker, call, request.timeout_ms, response, replicated)
        sync_led_then(broker.ports, unsynced, callback(call, acknowledge))
    else:
        _respond_when_replicated(broker, call, request.timeout_ms, response, replicated)


def _respond_when_replicated(
    broker: Broker,
    call: Call,
    timeout_ms: int,
    response: ProduceResponse,
    replicated: list[tuple[Partition, int]],
) -> None:
    """Respond when all replicas in sync have the batches that end at these offsets, or at the timeout."""
    if not replicated:  # Decision acks-all
        call.respond(response)
        return

    def completed(errors: dict[Partition, Error]) -> None:
        # Decision acks-all-outcome
        call.respond(response_with_errors(broker, call, response, errors) if errors else response)

    abandon = broker.replication.leaders.acknowledge(replicated, timeout_ms, callback(call, completed))
    if abandon is not None:
        call.on_closed(abandon)


def _end_without_response(call: Call, response: ProduceResponse) -> None:
    """With acks=0 there is no response. An error closes the client's connection, as in Kafka."""
    for topic in response.responses:
        for result in topic.partitions:
            if result.error_code:
                call.close(f"produce with acks=0 to {topic.topic}-{result.partition}: {error_name(result.error_code)}")
                return
    call.respond(None)


def response_with_errors(
    broker: Broker, call: Call, response: ProduceResponse, errors: dict[Partition, Error]
) -> ProduceResponse:
    """Add the errors of batches that were appended and may not be replicated. A client that retries may find them
    written."""
    by_name = {(partition.topic, partition.index): error for partition, error in errors.items()}
    by_id = {(partition.topic_id, partition.index): error for partition, error in errors.items()}

    def marked(topic: ProduceTopicResponse, result: ProducePartitionResponse) -> ProducePartitionResponse:
        error = by_id.get((topic.topic_id, result.partition)) or by_name.get((topic.topic, result.partition))
        if error is None or result.error_code:
            return result
        leader = None
        if error == ErrorCode.not_leader_or_follower:
            leader = _leader_of(broker, topic.topic, topic.topic_id, result.partition)
        return replace(result, error_code=error, current_leader=leader)

    return _response(broker, _replaced(response.responses, marked), call)


def _response(broker: Broker, topics: list[ProduceTopicResponse], call: Call) -> ProduceResponse:
    """Make the response. A version that names other leaders also has the addresses of their nodes."""
    leaders: dict[int, None] = {}
    for topic in topics:
        for result in topic.partitions:
            if result.current_leader is not None:
                leaders[result.current_leader.leader_id] = None
    if not leaders:
        return ProduceResponse(topics)
    if call.api_version < LEADERS_FROM:
        return ProduceResponse(_replaced(topics, lambda _, result: replace(result, current_leader=None)))
    return ProduceResponse(topics, node_endpoints=endpoints_of(broker, leaders, call.listener))


def _replaced(topics: Sequence[ProduceTopicResponse], change: ResultChange) -> list[ProduceTopicResponse]:
    """Return the same topics, with each partition's response replaced by what ``change`` returns for it."""
    return [replace(topic, partitions=[change(topic, result) for result in topic.partitions]) for topic in topics]


def _leader_of(broker: Broker, topic: str, topic_id: bytes, index: int) -> LeaderIdAndEpoch | None:
    """Return the partition's leader, as far as this node knows. ``topic_id`` is NO_TOPIC_ID if the request names
    topics."""
    image = broker.controller.image
    topic_image = image.topics.get(topic) if topic_id == NO_TOPIC_ID else image.topic_by_id(topic_id)
    if topic_image is None or not 0 <= index < len(topic_image.partitions):
        return None
    return LeaderIdAndEpoch(topic_image.partitions[index].leader, topic_image.partitions[index].leader_epoch)


def _internal(broker: Broker, topic: ProduceTopic, index: int) -> ProducePartitionResponse:
    if _leader_of(broker, topic.topic, topic.topic_id, index) is None:
        return _not_led(broker, topic, index)
    return _refused(index, ErrorCode.invalid_topic_exception, "the topic is internal")


def _not_led(broker: Broker, topic: ProduceTopic, index: int) -> ProducePartitionResponse:
    """Return the error of a partition that is not led here: its log is damaged, another node leads it, or it does not
    exist."""
    image = broker.controller.image
    topic_image = image.topics.get(topic.topic) if topic.topic_id == NO_TOPIC_ID else image.topic_by_id(topic.topic_id)
    if topic_image is not None and (topic_image.topic_id, index) in broker.partitions.offline:
        return _refused(index, ErrorCode.kafka_storage_error, "the partition's log is damaged, and kept aside")
    leader = _leader_of(broker, topic.topic, topic.topic_id, index)
    if leader is not None:
        return ProducePartitionResponse(index, ErrorCode.not_leader_or_follower, current_leader=leader)
    if topic.topic_id != NO_TOPIC_ID and broker.controller.image.topic_by_id(topic.topic_id) is None:
        return _refused(index, ErrorCode.unknown_topic_id)
    return _refused(index, ErrorCode.unknown_topic_or_partition)


def _refused(index: int, error: Error, message: str | None = None) -> ProducePartitionResponse:
    return ProducePartitionResponse(index, error, error_message=message)


# Unlike Kafka
#
# * For topics that are not compacted, bytes that are no records, wrong offsets in a batch, and timestamps outside those
#   of the header are accepted. No part of the broker relies on them. A count of records that the bytes cannot contain
#   with their codec is refused.
# * Some batches that no client library writes are refused: with a delete horizon or an append time, with a transaction
#   but no producer ID, with a producer ID but a negative epoch, and with timestamps in the header that are below -1, or
#   too far ahead where those of the records are not.
# * Of a partition that is named more than once the last batch counts also where an earlier one is invalid. Kafka then
#   writes the last one all the same, and returns the error of the earlier one.
# * ``crucible.unknown.producer.id.policy=reject`` demands sequence 0 of an unknown producer, and responds
#   UNKNOWN_PRODUCER_ID to another one.
# * No client may write to internal topics. Kafka lets any client do so whose ID is ``__admin_client``.
# * A transactional batch without a transactional ID is refused alone, not with the whole request.
