"""DeleteRecords: moves the start of partitions' logs forward.

* Readers lose the records below the offset at once. Whole segments below it are deleted.
* The response is sent when the log of every live replica starts there, or it is REQUEST_TIMED_OUT.
* The new start becomes durable soon after the response, as in Kafka.
* Internal topics are refused (INVALID_TOPIC_EXCEPTION): their records are the state of the broker.
* Unlike Kafka: a partition that is named twice has two results. Kafka takes the last offset, and has one.

KIPs: 107.
"""

from dataclasses import dataclass

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.static.primitive import i32, i64

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, callback, respond_in_slices, run_in_slices
from reference_broker.apis.records.partition_errors import led_partition
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.metadata.identifiers import is_internal
from reference_broker.ports.disk import DiskError
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced
from reference_broker.replication.partitions import Partition
from reference_broker.replication.syncing import nobody_waits, sync_led_then
from reference_broker.wire.errors import Error, ErrorCode

TO_HIGH_WATERMARK = -1
_NO_LOW_WATERMARK = -1
_NO_EPOCH = -1

UNITS_PER_NAME = 3
"""The cost of one topic or partition in microseconds."""
UNITS_PER_DELETION = 30
"""The cost of moving the start of a log."""


@dataclass(frozen=True, slots=True)
class _Done:
    """The result of one entry at this leader."""

    partition: Partition | None
    error: ErrorCode
    offset: int = _NO_LOW_WATERMARK
    """The logs of all replicas must start here or later."""


def handle(broker: Broker, call: Call, body: DeleteRecordsRequest) -> None:
    """Respond later, with one result for each partition, in the request's order."""
    run_in_slices(broker, call, _handled(broker, call, body))


def _handled(broker: Broker, call: Call, body: DeleteRecordsRequest) -> Sliced[None]:
    done: list[list[_Done]] = []
    work = Budget(LOOKUP_US_PER_SLICE)
    for topic in body.topics:
        results: list[_Done] = []
        done.append(results)
        if work.spend(UNITS_PER_NAME):
            yield
        for entry in topic.partitions:
            results.append(_delete(broker, topic.name, entry))
            if work.spend(UNITS_PER_NAME if results[-1].partition is None else UNITS_PER_DELETION):
                yield
    led = broker.partitions.by_name
    for results in done:  # A partition may have been led elsewhere, or deleted, since then.
        for at, result in enumerate(results):
            # Decision deletion-leader-changed
            if (
                result.partition is not None
                and led.get((result.partition.topic, result.partition.index)) is not result.partition
            ):
                results[at] = _Done(None, ErrorCode.not_leader_or_follower)
    offsets = [
        (result.partition, result.offset) for results in done for result in results if result.partition is not None
    ]

    def respond(errors: dict[Partition, Error]) -> None:
        respond_in_slices(broker, call, _response(broker, body, done, errors))

    if all(partition.followers is None for partition, _ in offsets):
        respond({})
        return
    abandon = broker.replication.leaders.await_deletion(
        offsets, int(body.timeout.total_seconds() * 1000), callback(call, respond)
    )
    if abandon is not None:
        call.on_closed(abandon)


API = Api.of(DeleteRecordsRequest, handle)


def _delete(broker: Broker, topic: str, entry: DeleteRecordsPartition) -> _Done:
    partition = led_partition(broker, topic, entry.partition_index, _NO_EPOCH)
    if is_internal(topic) and partition is not ErrorCode.unknown_topic_or_partition:
        return _Done(None, ErrorCode.invalid_topic_exception)
    if isinstance(partition, Error):
        return _Done(None, ErrorCode(partition))
    offset = partition.log.high_watermark if entry.offset == TO_HIGH_WATERMARK else entry.offset
    error = _refused(partition, offset)
    if error is not None:
        return _Done(None, error)
    before = partition.log.log_start_offset
    try:
        partition.log.delete_records_before(offset)
    except DiskError:
        return _Done(None, ErrorCode.kafka_storage_error)
    if partition.log.log_start_offset != before:  # Decision log-start-moved
        partition.changed()
        sync_led_then(broker.ports, [partition], nobody_waits)
    return _Done(partition, ErrorCode.none, offset)


def _response(
    broker: Broker, request: DeleteRecordsRequest, done: list[list[_Done]], errors: dict[Partition, Error]
) -> Sliced[DeleteRecordsResponse]:
    work = Budget(LOOKUP_US_PER_SLICE)
    topics: list[DeleteRecordsTopicResult] = []
    for topic, results in zip(request.topics, done, strict=True):
        responses: list[DeleteRecordsPartitionResult] = []
        if work.spend(UNITS_PER_NAME):
            yield
        for entry, result in zip(topic.partitions, results, strict=True):
            responses.append(_result(broker, entry, result, errors))
            if work.spend(UNITS_PER_NAME):
                yield
        topics.append(DeleteRecordsTopicResult(name=topic.name, partitions=tuple(responses)))
    return DeleteRecordsResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


def _refused(partition: Partition, offset: int) -> ErrorCode | None:
    if not partition.log.config.has_delete_policy:
        return ErrorCode.policy_violation
    if not 0 <= offset <= partition.log.high_watermark:
        return ErrorCode.offset_out_of_range
    return None


def _result(
    broker: Broker, entry: DeleteRecordsPartition, result: _Done, errors: dict[Partition, Error]
) -> DeleteRecordsPartitionResult:
    error, low_watermark = result.error, _NO_LOW_WATERMARK
    if result.partition is not None:
        error = ErrorCode(errors.get(result.partition, ErrorCode.none))
        low_watermark = result.partition.log.log_start_offset
        if result.partition.followers is not None:
            low_watermark = broker.replication.leaders.low_watermark(result.partition)
    return DeleteRecordsPartitionResult(
        partition_index=i32(entry.partition_index), low_watermark=i64(low_watermark), error_code=error
    )
