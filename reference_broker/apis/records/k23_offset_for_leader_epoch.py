"""OffsetForLeaderEpoch: tells where a leader epoch ended in the leader's log.

* The answer names the largest epoch that is not above the one asked for, and its end offset.
* It is -1 and -1 for an epoch of which the log knows nothing.

KIPs: 101, 279, 320.
"""

from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest, OffsetForLeaderPartition
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kio.static.primitive import i32, i64

from reference_broker.apis.api import Api
from reference_broker.apis.call import Call
from reference_broker.apis.proposing import NO_THROTTLE
from reference_broker.apis.records.fetch_reading import LooksUpPartitions, led_partition
from reference_broker.wire.errors import Error, ErrorCode


def handle(broker: LooksUpPartitions, call: Call, body: OffsetForLeaderEpochRequest) -> OffsetForLeaderEpochResponse:  # noqa: ARG001
    """Every partition has its own error code."""
    return OffsetForLeaderEpochResponse(
        throttle_time=NO_THROTTLE,
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=tuple(_answer(broker, topic.topic, one) for one in topic.partitions)
            )
            for topic in body.topics
        ),
    )


API = Api.of(OffsetForLeaderEpochRequest, handle)


def _answer(broker: LooksUpPartitions, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = led_partition(broker, topic, wanted.partition, wanted.current_leader_epoch)
    if isinstance(partition, Error):
        return EpochEndOffset(error_code=ErrorCode(partition), partition=wanted.partition)
    end = partition.log.end_offset_for_epoch(wanted.leader_epoch)
    return EpochEndOffset(
        error_code=ErrorCode.none,
        partition=wanted.partition,
        leader_epoch=i32(end.epoch),
        end_offset=i64(end.end_offset),
    )
