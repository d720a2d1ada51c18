"""A topic whose tier is disabled: ``remote.storage.enable`` becomes false, with ``remote.log.delete.on.disable``."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.log.tests.log_world import appended, at, batch_of
from reference_broker.log.tests.tiered_world import TIERED, filled, synced
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.ports.disk import MemoryDisk
from reference_broker.remote_log.expiring.expirer import SWEEP_INTERVAL_US
from reference_broker.remote_log.metadata.events import RemoteLogSegmentState, lineage_of, update_of
from reference_broker.remote_log.tests.tier_world import UNAVAILABLE, Tier, TierNode, check_whole
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import ErrorCode

OFF = replace(TIERED, remote_storage_enable=False, remote_log_delete_on_disable=True)
KEPT = replace(TIERED, local_retention_bytes=-1)
HOUR_MS = SWEEP_INTERVAL_US // 1000


def tiered_here() -> tuple[Tier, TierNode, Partition]:
    """Six segments, of which all but the last are in the tier only."""
    tier, disk = Tier(), MemoryDisk()
    node = TierNode(tier, disk=disk, expires=True)
    partition = node.lead(filled(disk, TIERED, 18))
    tier.pass_ms(3000)
    synced(partition.log)
    partition.log.enforce_retention(at(100))
    synced(partition.log)
    assert (partition.log.log_start_offset, partition.log.local_log_start_offset) == (0, 30)
    return tier, node, partition


def configure(node: TierNode, partition: Partition, config: Any) -> None:
    partition.log.config = config
    node.manager.reconfigured(partition)


def test_log_starts_at_local_records_at_once() -> None:
    """As in Kafka (TopicConfigHandler), so no reader gets an offset that it cannot read."""
    tier, node, partition = tiered_here()
    node.metadata.not_ready.add((partition.topic_id, 0))
    configure(node, partition, OFF)
    assert partition.log.log_start_offset == partition.log.local_log_start_offset == 30
    assert tier.store_memory.objects, "nothing is deleted before it is known what there is"


@pytest.mark.clause("RemoteLogManagerTest.testStopPartitionsWithDeletion")
def test_remote_objects_are_removed_and_partition_is_unwatched() -> None:
    tier, node, partition = tiered_here()
    configure(node, partition, OFF)
    tier.pass_ms(3000)
    assert not tier.store_memory.objects
    assert not tier.listed(partition)
    assert node.metadata.is_ready(partition.topic_id, 0)
    tier.pass_ms(HOUR_MS + 3000)
    assert not node.metadata.is_ready(partition.topic_id, 0)
    assert partition.log.copied_end_offset == 0
    partition.log.check_invariants()


def test_objects_in_flight_are_removed_by_next_sweep() -> None:
    tier, node, partition = tiered_here()
    (key, *_), data = tier.store_memory.objects, b"late"
    configure(node, partition, OFF)
    tier.pass_ms(3000)
    tier.store_memory.objects[key] = data
    tier.pass_ms(HOUR_MS + 3000)
    assert not tier.store_memory.objects
    assert not node.metadata.is_ready(partition.topic_id, 0)


@pytest.mark.parametrize("act", range(12))
def test_next_leader_continues_removal(act: int) -> None:
    tier, node, partition = tiered_here()
    acts: list[str] = []

    def die(name: str) -> None:
        acts.append(name)
        if len(acts) == act + 1:
            node.ports.die()

    node.ports.after = die
    configure(node, partition, OFF)
    tier.pass_ms(3000)
    assert node.ports.is_dead
    again = TierNode(tier, 2, node.disk, expires=True)
    log = partition.log
    log.config = OFF
    again.lead(log, leader_epoch=6)
    tier.pass_ms(3000)
    assert not tier.store_memory.objects
    assert not tier.listed(partition)


@pytest.mark.thorough
@pytest.mark.parametrize("after_ms", [0, 1, 2, 3, 4, 5, 7, 10, 15, 3000, HOUR_MS + 9000])
def test_tier_can_be_enabled_again_at_any_time(after_ms: int) -> None:
    """The log has all that is listed here. Segments that the tier loses must not count as copied."""
    tier, disk = Tier(), MemoryDisk()
    node = TierNode(tier, disk=disk, expires=True)
    log = filled(disk, KEPT, 18)
    partition = node.lead(log)
    tier.pass_ms(3000)
    assert len(tier.listed(partition)) == 5
    configure(node, partition, OFF)
    tier.pass_ms(after_ms)
    configure(node, partition, KEPT)
    grow(log)
    for _ in range(6000):
        tier.pass_ms(1)
        listed = {each.start_offset for each in tier.listed(partition)}
        missing = [base for base in log.bases if base < log.copied_end_offset and base not in listed]
        assert not missing, "the log takes for copied what is not listed"
    check_whole(tier, partition)
    assert log.copied_end_offset == log.bases[-1] > 30
    assert node.metadata.is_ready(partition.topic_id, 0)


@pytest.mark.parametrize("after_ms", [1, 2, 5, 30, 300, 500])
def test_follower_keeps_objects_that_leader_removes(after_ms: int) -> None:
    """Segments that are still listed when the tier is enabled again stay listed."""
    tier, disk = Tier(), MemoryDisk()
    node = TierNode(tier, disk=disk, expires=True)
    partition = node.lead(filled(disk, KEPT, 18))
    tier.pass_ms(3000)
    log = filled(MemoryDisk(), TIERED, 18)
    log.topic_id, log.copied_end_offset = partition.topic_id, 12
    synced(log)
    log.enforce_retention(at(100))
    synced(log)
    second: Any = log.disk
    follower = TierNode(tier, 2, second)
    node.ports.delay_us = lambda _: 200_000
    configure(node, partition, OFF)
    tier.pass_ms(after_ms)
    configure(node, partition, KEPT)
    image = TopicImage("events", partition.topic_id, (PartitionImage((1, 2), (1,), 1, 5, 0),))
    tier.pass_ms(2)
    follower.manager.follows(image, 0, log)
    for _ in range(8000):
        tier.pass_ms(1)
        listed = tier.known(partition).listed_until(lineage_of(log), 12)
        if tier.mono_us % 1_000_000 == 0:
            log.enforce_retention(at(100))
            synced(log)
        assert log.local_log_start_offset <= listed
    assert log.local_log_start_offset == 30
    check_whole(tier, partition)


def test_copied_end_of_follower_falls_with_listed_segments() -> None:
    tier, disk = Tier(), MemoryDisk()
    node = TierNode(tier, disk=disk)
    partition = node.lead(filled(disk, KEPT, 18))
    tier.pass_ms(3000)
    log = filled(MemoryDisk(), KEPT, 18)
    log.topic_id = partition.topic_id
    second: Any = log.disk
    follower = TierNode(tier, 2, second)
    image = TopicImage("events", partition.topic_id, (PartitionImage((1, 2), (1,), 1, 5, 0),))
    follower.manager.follows(image, 0, log)
    tier.pass_ms(1500)
    assert log.copied_end_offset == 30
    third = tier.listed(partition)[2]
    tier.known(partition).apply(update_of(third, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1, 5, 0))
    tier.pass_ms(1500)
    assert log.copied_end_offset == third.start_offset == 12


def grow(log: UnifiedLog) -> None:
    for number in range(12):
        appended(log, batch_of(2, timestamps=[number, number]), epoch=5)
    synced(log)


def test_tier_enabled_again_during_metadata_wait_is_used() -> None:
    """The wait for the metadata of the disabled tier ends."""
    tier, disk = Tier(), MemoryDisk()
    node = TierNode(tier, disk=disk)
    node.metadata.refusals = [ErrorCode.request_timed_out] * 3
    node.ports.before = lambda _: UNAVAILABLE
    partition = node.lead(filled(disk, KEPT, 18))
    tier.pass_ms(1)
    configure(node, partition, replace(OFF, remote_log_delete_on_disable=False))
    tier.pass_ms(1)
    node.ports.before = lambda _: None
    configure(node, partition, KEPT)
    tier.pass_ms(5000)
    check_whole(tier, partition)
