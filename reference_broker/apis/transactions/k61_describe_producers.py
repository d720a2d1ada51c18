"""DescribeProducers: returns the producer state of a partition's replica.

* The leader and each follower respond, so that a tool may query any replica.
* An open transaction has its first offset, by which a tool finds hanging transactions.
* Many producers are listed in several events. Each part of the list has the state of its event.

KIPs: 664.
"""

from kio.schema.describe_producers.v0.request import DescribeProducersRequest
from kio.schema.describe_producers.v0.response import (
    DescribeProducersResponse,
    PartitionResponse,
    ProducerState,
    TopicResponse,
)
from kio.schema.types import ProducerId
from kio.static.primitive import i32, i64

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, respond_in_slices
from reference_broker.apis.records.partition_errors import led_partition
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.identifiers import name_problem
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced
from reference_broker.wire.errors import Error, ErrorCode

UNITS_PER_NAME = 3
UNITS_PER_PRODUCER = 5
"""The cost of a producer in the response, in microseconds."""
ANY_EPOCH = -1


def handle(broker: Broker, call: Call, body: DescribeProducersRequest) -> None:
    """Every partition gets its own error code."""
    respond_in_slices(broker, call, _build_response(broker, body))


API = Api.of(DescribeProducersRequest, handle)


def _build_response(broker: Broker, body: DescribeProducersRequest) -> Sliced[DescribeProducersResponse]:
    work = Budget(LOOKUP_US_PER_SLICE)
    topics = []
    for topic in body.topics:
        problem = name_problem(topic.name)
        partitions = []
        for index in topic.partition_indexes:
            if problem is not None:
                described = _refused(int(index), ErrorCode.invalid_topic_exception, problem)
            else:
                described = yield from _describe_partition(broker, topic.name, int(index), work)
            partitions.append(described)
            if work.spend(UNITS_PER_NAME):
                yield
        topics.append(TopicResponse(name=topic.name, partitions=tuple(partitions)))
        if work.spend(UNITS_PER_NAME):
            yield
    return DescribeProducersResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


def _describe_partition(broker: Broker, topic: str, index: int, work: Budget) -> Sliced[PartitionResponse]:
    log = _log_of(broker, topic, index)
    if isinstance(log, Error):
        return _refused(index, log)
    by_id = log.producers.by_id
    producers = []
    for producer_id in tuple(by_id):
        producer = by_id.get(producer_id)
        if producer is not None:
            producers.append(
                ProducerState(
                    producer_id=ProducerId(producer_id),
                    producer_epoch=i32(producer.producer_epoch),
                    last_sequence=i32(producer.last_sequence),
                    last_timestamp=i64(producer.last_timestamp_ms),
                    coordinator_epoch=i32(producer.coordinator_epoch),
                    current_txn_start_offset=i64(producer.current_txn_first_offset),
                )
            )
        if work.spend(UNITS_PER_PRODUCER):
            yield
    return PartitionResponse(partition_index=i32(index), error_code=ErrorCode.none, active_producers=tuple(producers))


def _log_of(broker: Broker, topic: str, index: int) -> UnifiedLog | Error:
    led = led_partition(broker, topic, index, ANY_EPOCH)
    if not isinstance(led, Error):
        return led.log
    image = broker.controller.image.topics.get(topic)
    followed = None if image is None else broker.partitions.followed.get((image.topic_id, index))
    return led if followed is None else followed.log


def _refused(index: int, error: Error, message: str | None = None) -> PartitionResponse:
    return PartitionResponse(
        partition_index=i32(index), error_code=ErrorCode(error), error_message=message, active_producers=()
    )
