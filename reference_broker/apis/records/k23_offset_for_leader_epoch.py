"""OffsetForLeaderEpoch: where a leader epoch ended in the leader's log (KIP-101, KIP-279, KIP-320)."""

from datetime import timedelta

from kio.schema.errors import ErrorCode
from kio.schema.offset_for_leader_epoch.v4.request import OffsetForLeaderEpochRequest, OffsetForLeaderPartition
from kio.schema.offset_for_leader_epoch.v4.response import (
    EpochEndOffset,
    OffsetForLeaderEpochResponse,
    OffsetForLeaderTopicResult,
)
from kio.static.primitive import i32, i32Timedelta, i64

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.records.fetch_lookup import led_partition
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error

CARD = Card(
    api_key=ApiKey.OFFSET_FOR_LEADER_EPOCH,
    min_version=2,
    max_version=4,
    behaviour="The largest epoch not above the one asked for, and its end offset; -1 and -1 for an epoch that the log "
    "knows nothing of.",
    kips=(101, 279, 320),
)


def handle(broker: Broker, call: Call, body: object) -> OffsetForLeaderEpochResponse:  # noqa: ARG001
    """Every partition has its own error code."""
    assert isinstance(body, OffsetForLeaderEpochRequest)
    return OffsetForLeaderEpochResponse(
        throttle_time=i32Timedelta.parse(timedelta(0)),
        topics=tuple(
            OffsetForLeaderTopicResult(
                topic=topic.topic, partitions=tuple(_answer(broker, topic.topic, one) for one in topic.partitions)
            )
            for topic in body.topics
        ),
    )


def _answer(broker: Broker, topic: str, wanted: OffsetForLeaderPartition) -> EpochEndOffset:
    partition = led_partition(broker, topic, wanted.partition, wanted.current_leader_epoch)
    if isinstance(partition, Error):
        return EpochEndOffset(error_code=ErrorCode(int(partition)), partition=wanted.partition)
    end = partition.log.end_offset_for_epoch(wanted.leader_epoch)
    return EpochEndOffset(
        error_code=ErrorCode.none,
        partition=wanted.partition,
        leader_epoch=i32(end.epoch),
        end_offset=i64(end.end_offset),
    )
