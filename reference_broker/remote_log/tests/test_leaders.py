"""Copies during leader changes, and of many partitions at once."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.log.tests.log_world import NOW
from reference_broker.log.tests.tiered_world import TIERED, filled, synced
from reference_broker.metadata.image import PartitionImage, TopicImage
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.store import StoreOperation
from reference_broker.remote_log.metadata.events import RemoteLogSegmentState, update_of
from reference_broker.remote_log.tests.copying_world import ACTS, FENCE, KEPT, SIX_SEGMENTS, copied
from reference_broker.remote_log.tests.tier_world import UNAVAILABLE, Tier, TierNode, check_whole
from reference_broker.wire.errors import ErrorCode

# --- leaders --------------------------------------------------------------------------------------------------------


@pytest.mark.clause(
    "P-11",
    "RemoteLogManagerTest.testCopyLogSegmentToRemoteForStaleTopic",
    "RemoteLogManagerTest.testStopPartitionsWithoutDeletion",
)
@pytest.mark.parametrize("at", range(2 * ACTS))
def test_resigned_leader_starts_no_further_step(at: int) -> None:
    tier, node, log = copied()
    acts = []

    def resign(name: str) -> None:
        acts.append(name)
        if len(acts) == at + 1:
            node.resign(partition)

    node.ports.after = resign
    partition = node.lead(log)
    tier.pass_ms(10_000)
    assert len(tier.acts) == at + 1
    assert node.manager.copied_now(partition.topic_id, 0) is None
    assert not node.ports.under_way


@pytest.mark.clause("P-11")
@pytest.mark.parametrize("at", range(2 * ACTS))
def test_events_of_resumed_former_leader_are_ignored(at: int) -> None:
    """The leader sleeps between two steps while another node takes over and copies all. Then it continues, because it
    does not know that it leads no more."""
    tier, node, log = copied()
    acts = []

    def sleep(name: str) -> None:
        acts.append(name)
        if len(acts) == at + 1:
            node.ports.asleep = []

    node.ports.after = sleep
    node.lead(log)
    tier.pass_ms(1000)
    other = filled(MemoryDisk(), KEPT, SIX_SEGMENTS)
    later = TierNode(tier, 2, other.disk).lead(other, leader_epoch=9)  # type: ignore[arg-type]
    tier.pass_ms(5000)
    check_whole(tier, later)
    listed = tier.listed(later)
    node.ports.wake()
    tier.pass_ms(60_000)
    assert tier.listed(later) == listed
    check_whole(tier, later)
    mine = {segment.segment_id for segment in tier.known(later).unfinished()}
    assert all(segment.uploader_epoch == 5 for segment in tier.known(later).unfinished())
    assert mine.isdisjoint(segment.segment_id for segment in listed)


def test_new_epoch_of_same_leader_restarts_copy() -> None:
    tier, node, log = copied()
    partition = node.lead(log)
    tier.pass_ms(3)
    partition.leader_epoch = 6
    log.assign_leader_epoch(6)
    node.manager.leads(partition)
    tier.pass_ms(2000)
    check_whole(tier, partition)
    assert {segment.uploader_epoch for segment in tier.listed(partition)} == {6}


def test_new_leader_continues_inside_its_own_segment() -> None:
    """The new leader's segments are split elsewhere, so the first one that it copies starts before the listed end."""
    tier, node, log = copied()
    partition = node.lead(log)
    tier.pass_ms(2000)
    node.resign(partition)
    other = filled(MemoryDisk(), replace(KEPT, segment_bytes=400), 24)
    second = TierNode(tier, 2, other.disk).lead(other, leader_epoch=9)  # type: ignore[arg-type]
    tier.pass_ms(5000)
    assert 30 not in other.bases
    starts = [segment.start_offset for segment in tier.listed(second)]
    assert starts == [0, 6, 12, 18, 24, *(base for base in other.bases[:-1] if base > 24)]
    assert tier.known(second).listed_until([(5, 0)], 0) == 0
    assert other.copied_end_offset == other.bases[-1]


# --- many partitions ------------------------------------------------------------------------------------------------


def test_slow_store_of_one_partition_delays_no_other() -> None:
    tier, disk = Tier(), MemoryDisk()
    node = TierNode(tier, disk=disk)

    def delay_us(operation: StoreOperation) -> int:
        return 3_600_000_000 if str(operation[0]).startswith("events-0-") else 1000

    node.ports.delay_us = delay_us
    log = filled(disk, KEPT, SIX_SEGMENTS)
    slow, quick = (node.lead(log, index) for index in range(2))
    tier.pass_ms(2000)
    check_whole(tier, quick)
    assert tier.listed(slow) == []


def test_concurrent_copies_are_limited_and_partitions_take_turns() -> None:
    tier, disk = Tier(), MemoryDisk()
    node = TierNode(tier, disk=disk, remote_log_manager_copier_thread_pool_size="2")
    logs = [filled(disk, KEPT, SIX_SEGMENTS), *(filled(MemoryDisk(), KEPT, SIX_SEGMENTS) for _ in range(4))]
    partitions = [node.lead(log, index) for index, log in enumerate(logs)]
    tier.pass_ms(25)
    assert {len(tier.listed(partition)) for partition in partitions} <= {1, 2}
    tier.pass_ms(2000)
    assert node.ports.most_under_way == 2
    for partition in partitions:
        check_whole(tier, partition)


@pytest.mark.thorough
def test_thousand_partitions_resign_while_waiting() -> None:
    tier = Tier()
    disk = MemoryDisk()
    node = TierNode(tier, disk=disk, remote_log_manager_copier_thread_pool_size="1")
    log = filled(disk, KEPT, SIX_SEGMENTS)
    partitions = [node.lead(log, index) for index in range(1500)]
    tier.pass_ms(2)
    for partition in partitions:
        node.resign(partition)
    tier.pass_ms(1000)
    last = node.lead(log, 7000)
    tier.pass_ms(1000)
    check_whole(tier, last)


@pytest.mark.clause("P-11")
@pytest.mark.parametrize("follows", [False, True])
def test_former_leader_removes_no_only_copy(follows: bool) -> None:
    """The former leader writes before the new leader has written anything, so it counts. Listed segments are kept here
    until then."""
    tier, former, log = copied()
    old = former.lead(log)
    tier.pass_ms(2000)
    (first, *_) = tier.listed(old)
    local = filled(MemoryDisk(), TIERED, SIX_SEGMENTS)
    synced(local)
    disk: Any = local.disk
    node = TierNode(tier, 2, disk)
    node.ports.before = lambda name: UNAVAILABLE if name == FENCE else None
    if follows:
        local.topic_id = log.topic_id
        node.manager.follows(TopicImage("events", log.topic_id, (PartitionImage((2, 3), (2,), 3, 6, 0),)), 0, local)
    else:
        new = node.lead(local, leader_epoch=6)
    tier.pass_ms(3000)
    local.enforce_retention(NOW)
    removal = update_of(first, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1, old.leader_epoch, 0)
    assert tier.known(old).apply(removal) is ErrorCode.none
    assert local.local_log_start_offset == 0, "the only copy of the first records is here"
    if not follows:
        node.ports.before = lambda _: None
        tier.pass_ms(40_000)
        check_whole(tier, new)
        assert tier.known(new).apply(replace(removal, uploader_epoch=5)) is ErrorCode.fenced_leader_epoch
