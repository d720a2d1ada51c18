"""OffsetForLeaderEpoch: returns where a leader epoch ended in the leader's log.

* The response has the largest epoch that is not above the requested one, and its end offset.
* It has -1 and -1 for an epoch that the log does not know.

KIPs: 101, 279, 320.
"""

from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest, OffsetForLeaderPartition
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kio.static.primitive import i32, i64

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call, respond_in_slices
from reference_broker.apis.records.partition_errors import led_partition
from reference_broker.apis.registry import Api
from reference_broker.apis.responses import NO_THROTTLE
from reference_broker.ports.slicing import LOOKUP_US_PER_SLICE, Budget, Sliced
from reference_broker.wire.errors import Error, ErrorCode

UNITS_PER_NAME = 3
"""The cost of one topic or partition in microseconds."""


def handle(broker: Broker, call: Call, body: OffsetForLeaderEpochRequest) -> None:
    """Every partition has its own error code."""
    respond_in_slices(broker, call, _build_response(broker, body))


def _build_response(broker: Broker, body: OffsetForLeaderEpochRequest) -> Sliced[OffsetForLeaderEpochResponse]:
    work = Budget(LOOKUP_US_PER_SLICE)
    topics: list[OffsetForLeaderTopicResult] = []
    for topic in body.topics:
        ends: list[EpochEndOffset] = []
        if work.spend(UNITS_PER_NAME):
            yield
        for query in topic.partitions:
            if work.spend(UNITS_PER_NAME):
                yield
            ends.append(_end_offset(broker, topic.topic, query))
        topics.append(OffsetForLeaderTopicResult(topic=topic.topic, partitions=tuple(ends)))
    return OffsetForLeaderEpochResponse(throttle_time=NO_THROTTLE, topics=tuple(topics))


API = Api.of(OffsetForLeaderEpochRequest, handle)


def _end_offset(broker: Broker, topic: str, query: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = led_partition(broker, topic, query.partition, query.current_leader_epoch)
    if isinstance(partition, Error):
        return EpochEndOffset(error_code=ErrorCode(partition), partition=query.partition)
    end = partition.log.end_offset_for_epoch(query.leader_epoch)
    return EpochEndOffset(
        error_code=ErrorCode.none,
        partition=query.partition,
        leader_epoch=i32(end.epoch),
        end_offset=i64(end.end_offset),
    )
