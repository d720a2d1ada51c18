"""Remote segments are removed by retention, and garbage is removed, whatever fails or dies between two steps."""

from copy import deepcopy
from dataclasses import replace
from typing import Any

import pytest

from reference_broker.coordination.scheduling import Slots
from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import opened
from reference_broker.log.tests.tiered_world import TIERED, filled
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.store import StoreFailure
from reference_broker.remote_log.expiring.expirer import Expirer, ExpiringSetting, SegmentRemoval
from reference_broker.remote_log.leader_epoch_fencing import LeaderEpochFencing
from reference_broker.remote_log.metadata.events import RemoteLogEvent, RemoteLogSegmentMetadata, RemoteLogSegmentState
from reference_broker.remote_log.metadata.remote_log_metadata_cache import Applied, RemoteLogMetadataCache
from reference_broker.remote_log.metrics import RemoteLogMetrics
from reference_broker.remote_log.objects import ObjectKind, key_of, keys_of
from reference_broker.remote_log.tests.tier_world import (
    UNAVAILABLE,
    NodeMetadata,
    NodePorts,
    Tier,
    TierNode,
    check_whole,
)
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error

KEPT = replace(TIERED, local_retention_bytes=-1)
SEGMENTS = 18
BYTES = 800
"""Between two and three segments, of which there are six."""
SMALL = replace(KEPT, retention_bytes=BYTES)
OLD = replace(KEPT, retention_ms=1000)


def led(config: object = SMALL, tier: Tier | None = None) -> tuple[Tier, TierNode, UnifiedLog]:
    tier = tier or Tier()
    disk = MemoryDisk()
    log = filled(disk, config, SEGMENTS)  # type: ignore[arg-type]
    return tier, TierNode(tier, disk=disk, expires=True), log


@pytest.fixture(autouse=True)
def frequent_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reference_broker.remote_log.expiring.expirer.SWEEP_INTERVAL_US", 20_000_000)


def check_nothing_else_is_stored(tier: Tier, partition: Partition) -> None:
    """Assert that the store has the objects of listed segments, and no others."""
    wanted = {key for segment in tier.listed(partition) for key in keys_of(segment)}
    assert set(tier.store_memory.objects) <= wanted
    assert not tier.known(partition).unfinished()


def check_expired(tier: Tier, partition: Partition, first: int) -> None:
    """Assert that segments from offset ``first`` on are listed and whole, no others exist, and the log starts there."""
    listed = tier.listed(partition)
    assert [each.start_offset for each in listed] == list(range(first, 30, 6))
    assert partition.log.log_start_offset == first
    check_nothing_else_is_stored(tier, partition)
    for segment in listed:
        stored = tier.store_memory.objects[key_of(segment, ObjectKind.LOG)]
        assert len(stored) == segment.size_bytes


@pytest.mark.clause("RemoteLogManagerTest.testDeleteLogSegmentDueToRetentionSizeBreach")
def test_oldest_segments_are_removed_by_bytes_retention() -> None:
    tier, node, log = led()
    sizes = [segment.size_bytes for segment in log.segments]
    partition = node.lead(log)
    tier.pass_ms(10_000)
    first = next(at for at in range(6) if sum(sizes[at + 1 :]) < BYTES) * 6
    assert first > 0
    check_expired(tier, partition, first)
    tier.pass_ms(10_000)
    check_expired(tier, partition, first)


@pytest.mark.clause("RemoteLogManagerTest.testDeleteLogSegmentDueToRetentionTimeBreach")
def test_segments_are_removed_by_time_retention() -> None:
    tier, node, log = led(OLD)
    partition = node.lead(log)
    tier.pass_ms(10_000)
    assert not tier.listed(partition)
    assert log.log_start_offset == 30
    check_nothing_else_is_stored(tier, partition)


def test_unlimited_retention_removes_nothing() -> None:
    tier, node, log = led(KEPT)
    partition = node.lead(log)
    tier.pass_ms(10_000)
    check_whole(tier, partition)
    check_expired(tier, partition, 0)


@pytest.mark.clause("RemoteLogManagerTest.testDeletionOnRetentionBreachedSegments")
def test_log_start_moves_before_deletion() -> None:
    tier, node, log = led()
    partition = node.lead(log)
    seen: list[tuple[str, int]] = []

    def look(name: str) -> None:
        if name.startswith("Delete") or "DELETE" in name:
            seen.append((name, log.log_start_offset))

    node.ports.before = look
    tier.pass_ms(10_000)
    steps = [name.partition(" ")[0] for name, _ in seen[1:4]]
    assert steps == ["Write", "Delete", "Write"], "it is written, deleted, and written again"
    assert {start for _, start in seen[1:]} == {partition.log.log_start_offset}
    reopened = opened(node.disk, SMALL, clean=False)
    assert reopened.log_start_offset == partition.log.log_start_offset


@pytest.mark.clause("E-7", "P-11")
def test_log_start_of_delete_records_is_durable_before_deletion() -> None:
    tier, node, log = led(KEPT)
    node.lead(log)
    tier.pass_ms(5_000)
    log.delete_records_before(13)
    assert not log.is_start_durable
    durable: list[bool] = []

    def look(name: str) -> None:
        if name.startswith("Delete"):
            durable.append(log.is_start_durable)

    node.ports.before = look
    tier.pass_ms(5_000)
    assert durable
    assert all(durable)


def test_delete_records_removes_remote_segments() -> None:
    tier, node, log = led(KEPT)
    partition = node.lead(log)
    tier.pass_ms(5_000)
    log.delete_records_before(13)
    tier.pass_ms(5_000)
    listed = tier.listed(partition)
    assert [each.start_offset for each in listed] == [12, 18, 24], "a segment with a record that is left stays"
    check_nothing_else_is_stored(tier, partition)
    assert log.log_start_offset == 13


def deaths() -> int:
    """Return the number of acts of a copy and an expiry of everything."""
    tier, node, log = led()
    node.lead(log)
    tier.pass_ms(10_000)
    return len(tier.acts)


ACTS = deaths()


@pytest.mark.thorough
@pytest.mark.clause("P-11", "RemoteLogManagerTest.testFailedDeleteExpiredSegments")
@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("at", range(ACTS))
def test_each_failed_act_is_retried(at: int, happens: bool) -> None:
    """``happens``: the act was done, and only its response is lost."""
    tier, node, log = led()
    acts = []

    def fail_once(name: str) -> StoreFailure | None:
        acts.append(name)
        return UNAVAILABLE if len(acts) == at + 1 else None

    if happens:
        node.ports.after = fail_once
    else:
        node.ports.before = fail_once
    partition = node.lead(log)
    tier.pass_ms(30_000)
    check_expired(tier, partition, 18)


@pytest.mark.thorough
@pytest.mark.clause("P-11", "RemoteLogManagerTest.testDeleteRetentionMsBeingCancelledBeforeSecondDelete")
@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("at", range(ACTS))
def test_next_leader_cleans_up_after_death_at_each_act(at: int, happens: bool) -> None:
    """Whatever the dead leader was copying or deleting. The next one is the same node, or a replica whose log starts
    where
    it started at first: it knows no more."""
    tier, node, log = led()
    acts = []

    def die(name: str) -> StoreFailure | None:
        acts.append(name)
        if len(acts) == at + 1:
            node.ports.die()
            return None if happens else UNAVAILABLE
        return None

    if happens:
        node.ports.after = die
    else:
        node.ports.before = die
    node.lead(log)
    tier.pass_ms(20_000)
    assert node.ports.is_dead
    if at % 2:
        again, disk = opened(node.disk, SMALL, clean=False), node.disk
        again.advance_high_watermark(again.log_end_offset)
    else:
        disk = MemoryDisk()
        again = filled(disk, SMALL, SEGMENTS)
    partition = TierNode(tier, 2, disk, expires=True).lead(again, leader_epoch=6)
    tier.pass_ms(30_000)
    check_expired(tier, partition, 18)


# --- garbage --------------------------------------------------------------------------------------------------------


@pytest.mark.clause("P-11")
@pytest.mark.parametrize("at", range(14))
def test_objects_of_resumed_former_leader_are_removed(at: int) -> None:
    """The former leader continues a copy that was removed, and deletions. The next sweep finds the objects that it
    stores."""
    tier, node, log = led(KEPT)
    acts = []

    def sleep(name: str) -> None:
        acts.append(name)
        if len(acts) == at + 1:
            node.ports.asleep = []

    node.ports.after = sleep
    former = node.lead(log)
    tier.pass_ms(1_000)
    other = MemoryDisk()
    partition = TierNode(tier, 2, other, expires=True).lead(filled(other, KEPT, SEGMENTS), leader_epoch=9)
    tier.pass_ms(5_000)
    check_whole(tier, partition)
    listed = tier.listed(partition)
    node.ports.wake()
    tier.pass_ms(30_000)
    node.resign(former)
    assert tier.listed(partition) == listed
    check_whole(tier, partition)
    tier.pass_ms(25_000)
    assert tier.listed(partition) == listed
    check_nothing_else_is_stored(tier, partition)


class Behind(NodeMetadata):
    """Metadata as of the start, until an event that the node writes is read back."""

    def __init__(self, tier: Tier, ports: NodePorts) -> None:
        super().__init__(tier, ports)
        self.old: RemoteLogMetadataCache | None = None

    def of(self, topic_id: bytes, partition: int) -> RemoteLogMetadataCache:
        return super().of(topic_id, partition) if self.old is None else self.old

    def write(self, event: RemoteLogEvent, done: Applied) -> None:
        def read_back(error: Error) -> None:
            self.old = None
            done(error)

        super().write(event, read_back)


@pytest.mark.clause("P-11")
def test_former_leader_does_not_remove_objects_of_newer_leader() -> None:
    """The former leader lists them before it has the newer leader's events."""
    tier, node, log = led(KEPT)
    former = node.lead(log)
    metadata = Behind(tier, node.ports)
    metadata.watch(former.topic_id, former.topic, 0)
    ports: Any = node.ports
    slots, fencing = Slots(ports, 1), LeaderEpochFencing(ports, 1, metadata, former)
    expirer = Expirer(ExpiringSetting(1, ports, metadata, RemoteLogMetrics.of(Metrics()), slots), former, fencing)
    tier.pass_ms(5_000)
    expirer.delete_due_segments()
    tier.pass_ms(1_000)
    known = metadata.of(former.topic_id, 0)
    metadata.old = deepcopy(known)
    metadata.old.generation = known.generation
    disk = MemoryDisk()
    partition = TierNode(tier, 2, disk, expires=True).lead(filled(disk, KEPT, SEGMENTS + 6), leader_epoch=9)
    tier.pass_ms(3_000)
    assert len(tier.listed(partition)) == 7
    tier.pass_ms(20_000)
    stray = key_of(stranger(), ObjectKind.LOG)
    tier.store_memory.objects[stray] = b"left by a crash"
    expirer.delete_due_segments()
    tier.pass_ms(900)
    assert "FENCED_LEADER_EPOCH" in str(tier.noted("expiring_failed")[-1]["reason"])
    assert slots.free == 1
    check_whole(tier, partition)
    assert stray in tier.store_memory.objects, "it deletes nothing at all"


@pytest.mark.clause("P-11")
def test_new_epoch_restarts_expiry() -> None:
    """Events of the former epoch might be ignored."""
    tier, node, log = led()
    partition = node.lead(log)
    steps: list[str] = []
    first_event = "Write DELETE_SEGMENT_STARTED"

    def next_epoch(name: str) -> None:
        """The first of these writes changes nothing. The second one starts a deletion."""
        steps.append(name)
        if steps.count(first_event) == 2:
            partition.leader_epoch = 8

    node.ports.after = next_epoch
    tier.pass_ms(20_000)
    assert tier.known(partition).newest_epoch == 8
    deletes = [step for step in steps if step == first_event or step.startswith("Delete ")]
    assert deletes[:3] == [first_event] * 3
    check_expired(tier, partition, 18)


def test_objects_without_events_are_removed_and_others_stay() -> None:
    tier, node, log = led(KEPT)
    stray = key_of(stranger(), ObjectKind.LOG)
    folder = stray.partition("/")[0]
    objects = tier.store_memory.objects
    objects[stray] = b"left by a crash"
    objects[f"{folder}/notes.txt"] = b"not a segment's"
    objects[stray.replace("events-0", "events-1")] = b"another partition's"
    partition = node.lead(log)
    tier.pass_ms(5_000)
    assert stray not in objects
    assert f"{folder}/notes.txt" in objects
    assert stray.replace("events-0", "events-1") in objects
    check_whole(tier, partition)


def stranger() -> RemoteLogSegmentMetadata:
    """Return a segment that was listed in an earlier life."""
    other, node, log = led(KEPT)
    partition = node.lead(log)
    other.pass_ms(5_000)
    return replace(other.listed(partition)[0], segment_id=b"x" * 16)


@pytest.mark.clause("RemoteLogManagerTest.testDeletionSkippedForSegmentsBeingCopied")
def test_copy_in_progress_is_not_garbage() -> None:
    tier, node, log = led(KEPT)
    node.ports.delay_us = lambda operation: 3_000_000 if type(operation).__name__ == "PutFile" else 1000
    partition = node.lead(log)
    tier.pass_ms(100_000)
    check_whole(tier, partition)
    assert not [act for act in tier.acts if act.startswith("Delete")]


@pytest.mark.clause("P-11")
def test_copy_with_late_finish_event_is_not_removed() -> None:
    """The leader does not know that it finished, and has started to remove it. Its log may rely on the copy by then."""
    tier, node, log = led(KEPT)
    partition = node.lead(log)
    tier.pass_ms(5_000)
    segment = tier.listed(partition)[0]
    given_up = replace(segment, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED)

    reasons: list[str] = []
    ports: Any = node.ports
    SegmentRemoval(ports, node.metadata, 1, 5, lambda: True).remove(given_up, reasons.append)
    tier.pass_ms(1_000)
    assert reasons == [""]
    check_whole(tier, partition)


def lagging(disk: MemoryDisk, config: LogConfig) -> UnifiedLog:
    """Return a log with only the records from offset 24 on. It starts at 0, as far as it knows."""
    log = filled(disk, replace(config, local_retention_bytes=0), SEGMENTS)
    log.mark_synced(log.sync_point())
    log.copied_end_offset = 30
    log.delete_local(24)
    assert (log.log_start_offset, log.local_log_start_offset) == (0, 24)
    return log


@pytest.mark.clause("RemoteLogManagerTest.testFindLogStartOffset")
def test_lagging_log_starts_at_first_listed_record() -> None:
    """A former leader had deleted more than this replica knows. Its own old segments are deleted here, too."""
    tier, node, log = led()
    node.lead(log)
    tier.pass_ms(10_000)
    disk = MemoryDisk()
    log = lagging(disk, SMALL)
    partition = TierNode(tier, 2, disk, expires=True).lead(log, leader_epoch=6)
    tier.pass_ms(10_000)
    assert log.log_start_offset == 18
    assert [each.start_offset for each in tier.listed(partition)] == [18, 24]


@pytest.mark.clause("RemoteLogManagerTest.testFindLogStartOffsetFallbackToLocalLogStartOffsetWhenRemoteIsEmpty")
def test_log_without_listed_segments_starts_at_local_records() -> None:
    """A former leader had deleted all of it."""
    tier, node, log = led(OLD)
    former = node.lead(log)
    tier.pass_ms(10_000)
    assert not tier.listed(former)
    node.resign(former)
    disk = MemoryDisk()
    log = lagging(disk, replace(KEPT, remote_log_copy_disable=True))
    TierNode(tier, 2, disk, expires=True).lead(log, leader_epoch=6)
    tier.pass_ms(5_000)
    assert log.log_start_offset == 24


@pytest.mark.clause("RemoteLogManagerTest.testRemoteLogSizeRetentionShouldFilterOutCopySegmentStartState")
def test_unlisted_segments_do_not_count_towards_size() -> None:
    tier, node, log = led(replace(SMALL, retention_bytes=10_000))
    partition = node.lead(log)
    tier.pass_ms(5_000)
    sizes = sum(each.size_bytes for each in tier.listed(partition)) + log.segments[-1].size_bytes
    node.resign(partition)
    known = tier.known(partition)
    copy_started = replace(
        stranger(), attempt=known.last_attempt + 1, size_bytes=10**9, state=RemoteLogSegmentState.COPY_SEGMENT_STARTED
    )
    assert not known.apply(copy_started)
    again = opened(node.disk, replace(KEPT, retention_bytes=sizes), clean=False)
    again.advance_high_watermark(again.log_end_offset)
    partition = TierNode(tier, 2, node.disk, expires=True).lead(again, leader_epoch=6)
    tier.pass_ms(5_000)
    check_expired(tier, partition, 0)


@pytest.mark.parametrize("at", range(ACTS))
def test_tier_disabled_between_steps_stops_expiry(at: int) -> None:
    """The partition's metadata is dropped then."""
    tier, node, log = led()
    acts = []

    def leave(name: str) -> None:
        acts.append(name)
        if len(acts) == at + 1:
            log.config = replace(SMALL, remote_storage_enable=False)
            node.manager.reconfigured(partition)

    node.ports.after = leave
    partition = node.lead(log)
    tier.pass_ms(10_000)
    assert len(acts) > at
    assert node.manager.expiring.slots.free > 0
    tier.pass_ms(10_000)
