"""DeleteRecords: moves the start of partitions' logs forward (KIP-107)."""

from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest
from kio.schema.delete_records.v2.response import (
    DeleteRecordsPartitionResult,
    DeleteRecordsResponse,
    DeleteRecordsTopicResult,
)
from kio.schema.errors import ErrorCode
from kio.static.primitive import i32, i64

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.flushing import sync_in_background
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.log.disk import DiskError
from reference_broker.model.partitions import Partition
from reference_broker.wire.apis import ApiKey

CARD = Card(
    api_key=ApiKey.DELETE_RECORDS,
    min_version=0,
    max_version=2,
    behaviour="Records below the offset are gone for readers at once; whole segments below it are deleted. "
    "The new start becomes durable soon after the answer, as in Kafka.",
    simplifications="The timeout is not used: nothing waits for other replicas.",
    kips=(107,),
)

TO_HIGH_WATERMARK = -1
_NO_LOW_WATERMARK = -1


def handle(broker: Broker, call: Call, body: object) -> DeleteRecordsResponse:  # noqa: ARG001
    """One result for each partition, in the request's order."""
    assert isinstance(body, DeleteRecordsRequest)
    return DeleteRecordsResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            DeleteRecordsTopicResult(
                name=topic.name, partitions=tuple(_delete(broker, topic.name, entry) for entry in topic.partitions)
            )
            for topic in body.topics
        ),
    )


def _delete(broker: Broker, topic: str, entry: DeleteRecordsPartition) -> DeleteRecordsPartitionResult:
    partition = broker.partitions.by_name.get((topic, entry.partition_index))
    if partition is None:
        return _result(entry, ErrorCode.unknown_topic_or_partition, _NO_LOW_WATERMARK)
    offset = partition.log.high_watermark if entry.offset == TO_HIGH_WATERMARK else entry.offset
    error = _refused(partition, offset)
    if error is not None:
        return _result(entry, error, _NO_LOW_WATERMARK)
    before = partition.log.log_start_offset
    try:
        partition.log.delete_records_before(offset)
    except DiskError:
        return _result(entry, ErrorCode.kafka_storage_error, _NO_LOW_WATERMARK)
    if partition.log.log_start_offset != before:
        partition.changed()
        sync_in_background(broker, partition)
    return _result(entry, ErrorCode.none, partition.log.log_start_offset)


def _refused(partition: Partition, offset: int) -> ErrorCode | None:
    if not partition.log.config.is_deleted:
        return ErrorCode.policy_violation
    if not 0 <= offset <= partition.log.high_watermark:
        return ErrorCode.offset_out_of_range
    return None


def _result(entry: DeleteRecordsPartition, error: ErrorCode, low_watermark: int) -> DeleteRecordsPartitionResult:
    return DeleteRecordsPartitionResult(
        partition_index=i32(entry.partition_index), low_watermark=i64(low_watermark), error_code=error
    )
