"""DeleteRecords, OffsetForLeaderEpoch and ListOffsets of a node whose oldest records are in the tier only."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.offset_for_leader_epoch.v4.request import (
    OffsetForLeaderEpochRequest,
    OffsetForLeaderPartition,
    OffsetForLeaderTopic,
)
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from reference_broker.core.tests.node_world import NodeWorld
from reference_broker.core.tests.test_remote_tier_of_a_node import TIER, TOPIC, produced, read_back
from reference_broker.ports.disk import MemoryDisk
from reference_broker.remote_log.objects import name_of
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchTopic


def tiered(disk: MemoryDisk | None = None) -> NodeWorld:
    world = NodeWorld(disk or MemoryDisk(), **TIER)
    world.create("events", **TOPIC)
    produced(world, 20)
    world.advance(10_000)
    assert world.log("events").local_log_start_offset > 10
    return world


def delete_before(world: NodeWorld, offset: int) -> tuple[int, int]:
    wanted = DeleteRecordsPartition(partition_index=i32(0), offset=i64(offset))
    topic = DeleteRecordsTopic(name=TopicName("events"), partitions=(wanted,))
    request = DeleteRecordsRequest(topics=(topic,), timeout=i32Timedelta.parse(timedelta(seconds=1)))
    (one,) = world.request(ApiKey.DELETE_RECORDS, 2, request).topics[0].partitions
    return one.error_code, one.low_watermark


def bases_in_the_store(world: NodeWorld) -> set[int]:
    return {name.start_offset for key in world.store.objects if (name := name_of(key)) is not None}


def fetched(world: NodeWorld, offset: int) -> Any:
    topic_id = world.node.broker.partitions.by_name["events", 0].topic_id
    topic = FetchTopic("", topic_id, [FetchPartition(0, offset, 1 << 20)])
    return world.request(ApiKey.FETCH, 17, FetchRequest(topics=[topic])).responses[0].partitions[0]


def test_delete_records_deletes_remote_segments() -> None:
    world = tiered()
    log, bases = world.log("events"), sorted(bases_in_the_store(world))
    inside = bases[2] + 1
    assert delete_before(world, inside) == (0, inside)
    assert log.log_start_offset == inside < log.local_log_start_offset
    assert fetched(world, inside - 1).error_code == ErrorCode.offset_out_of_range
    assert fetched(world, inside).records
    world.advance(10_000)
    assert sorted(bases_in_the_store(world)) == bases[2:]
    assert read_back(world, inside)[0] <= inside


def test_deleting_all_records_empties_tier() -> None:
    world = tiered()
    log = world.log("events")
    assert delete_before(world, -1) == (0, log.high_watermark)
    world.advance(10_000)
    assert log.log_start_offset == log.local_log_start_offset == log.log_end_offset
    assert not [base for base in bases_in_the_store(world) if base < log.bases[0]]
    produced(world, 1)
    assert fetched(world, log.log_start_offset).records


def test_delete_records_beyond_log_end_is_rejected() -> None:
    world = tiered()
    log = world.log("events")
    assert delete_before(world, log.high_watermark + 1)[0] == ErrorCode.offset_out_of_range
    assert log.log_start_offset == 0


def test_log_start_in_tier_survives_restart() -> None:
    disk = MemoryDisk()
    world = tiered(disk)
    delete_before(world, 5)
    world.advance(1_000)
    again = NodeWorld(disk, **TIER)
    again.store = world.store
    again.advance(10_000)
    assert again.log("events").log_start_offset == 5 < again.log("events").local_log_start_offset
    assert fetched(again, 4).error_code == ErrorCode.offset_out_of_range
    assert fetched(again, 5).records


def epoch_end(world: NodeWorld, epoch: int) -> tuple[int, int, int]:
    wanted = OffsetForLeaderPartition(partition=i32(0), current_leader_epoch=i32(-1), leader_epoch=i32(epoch))
    topic = OffsetForLeaderTopic(topic=TopicName("events"), partitions=(wanted,))
    response = world.request(ApiKey.OFFSET_FOR_LEADER_EPOCH, 4, OffsetForLeaderEpochRequest(topics=(topic,)))
    (one,) = response.topics[0].partitions
    return one.error_code, one.leader_epoch, one.end_offset


@pytest.mark.thorough
@pytest.mark.parametrize("restarts", [False, True])
def test_offset_for_leader_epoch_covers_records_in_tier(restarts: bool) -> None:
    """The node led in epoch 0, and after a restart in a later one. All records of the first are in the tier only."""
    disk = MemoryDisk()
    first = NodeWorld(disk, **TIER)
    first.create("events", **TOPIC)
    produced(first, 10)
    world = NodeWorld(disk, **TIER)
    world.store = first.store
    before, epoch = world.log("events").log_end_offset, world.node.broker.partitions.by_name["events", 0].leader_epoch
    assert epoch > 0
    produced(world, 20)
    world.advance(10_000)
    assert world.log("events").local_log_start_offset > before
    if restarts:
        again = NodeWorld(disk, **TIER)
        again.store = world.store
        world = again
    end = world.log("events").log_end_offset
    assert epoch_end(world, 0) == (0, 0, before)
    assert epoch_end(world, epoch) == (0, epoch, end)
    delete_before(world, before + 1)
    assert epoch_end(world, 0) == (0, 0, before + 1), "an epoch before the first one ends where that starts"
