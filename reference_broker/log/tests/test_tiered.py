"""A log that starts in a remote tier: its local records, the state that a start finds, restarts of replicas."""

from dataclasses import replace

import pytest

from reference_broker.log.producer_state import encode_snapshot
from reference_broker.log.tests.log_world import NOW, appended, at, batch_of, opened
from reference_broker.log.tests.tiered_world import NOT_TIERED, TIERED, filled, log_names, shortened, synced
from reference_broker.log.unified_log import MovedToRemote, OffsetOutOfRange
from reference_broker.ports.disk import MemoryDisk

HERE = "local-log-start-checkpoint"


@pytest.mark.clause("UnifiedLogTest.testNoOpWhenRemoteLogStorageIsDisabled")
def test_log_without_tier_has_one_start_and_no_extra_files() -> None:
    disk = MemoryDisk()
    log = filled(disk, replace(NOT_TIERED, retention_bytes=400))
    log.enforce_retention(NOW)
    log.mark_synced(log.sync_point())
    assert log.log_start_offset == log.local_log_start_offset > 0
    assert not [path for path in disk.files if HERE in path]


@pytest.mark.clause("UnifiedLogTest.testIncrementLocalLogStartOffsetAfterLocalLogDeletion")
def test_only_copied_segments_are_deleted_locally() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    synced(log)
    assert log.enforce_retention(NOW) == 0
    log.copied_end_offset = 11
    assert log.enforce_retention(NOW) == 1
    synced(log)
    assert (log.log_start_offset, log.local_log_start_offset, log.bases[0]) == (0, 6, 6)
    assert log_names(disk)[0] == f"{6:020d}.log"
    log.check_invariants()


@pytest.mark.clause(
    "UnifiedLogTest.testRetentionOnLocalLogDeletionWhenRemoteLogCopyEnabledAndDefaultLocalRetentionBytes",
    "UnifiedLogTest.testRetentionOnLocalLogDeletionWhenRemoteLogCopyEnabledAndDefaultLocalRetentionMs",
)
def test_local_retention_applies_only_with_remote_copies() -> None:
    limits = replace(TIERED, local_retention_bytes=600, retention_bytes=100_000)
    assert (limits.effective_local_retention_bytes, limits.effective_local_retention_ms) == (600, -1)
    for config in (replace(limits, remote_storage_enable=False), replace(limits, remote_log_copy_disable=True)):
        assert config.effective_local_retention_bytes == 100_000
    assert replace(limits, local_retention_bytes=-2).effective_local_retention_bytes == 100_000


@pytest.mark.clause("UnifiedLogTest.testRetentionOnLocalLogDeletionWhenRemoteLogCopyDisabled")
def test_retention_without_copies_moves_log_start() -> None:
    log = shortened(MemoryDisk())
    log.config = replace(TIERED, remote_log_copy_disable=True, retention_bytes=0)
    log.enforce_retention(NOW)
    assert log.log_start_offset == log.local_log_start_offset == log.log_end_offset


@pytest.mark.clause("UnifiedLogTest.testActiveSegmentDeletionDueToRetentionTimeBreachWithRemoteStorage")
def test_expired_active_segment_is_rolled_for_copy() -> None:
    log = filled(MemoryDisk(), replace(TIERED, local_retention_bytes=-2, local_retention_ms=50))
    synced(log)
    assert (log.enforce_retention(at(100)), log.bases[-1]) == (0, log.log_end_offset)
    assert log.enforce_retention(at(100)) == 0


def test_local_deletion_waits_for_durable_rest() -> None:
    """Records after the deleted segments must be durable, and so must the producers before them."""
    log = filled(MemoryDisk())
    log.copied_end_offset = 12
    assert log.enforce_retention(NOW) == 0


@pytest.mark.clause("P-10")
def test_local_deletion_needs_whole_producer_snapshot() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    synced(log)
    log.copied_end_offset = 12
    disk.write(log.segments.snapshots.path(12), b"torn")
    assert log.enforce_retention(NOW) == 1
    assert log.local_log_start_offset == 6
    assert log.segments.snapshots.damaged[0][0] == log.segments.snapshots.path(12)


def test_read_below_local_start_distinguishes_tier_from_out_of_range() -> None:
    log = shortened(MemoryDisk())
    log.delete_records_before(3)
    for offset in (3, 11):
        with pytest.raises(MovedToRemote):
            log.read(offset, 1000)
    for offset in (2, log.log_end_offset + 1):
        with pytest.raises(OffsetOutOfRange):
            log.read(offset, 1000)
    assert log.read(12, 10_000)
    assert log.bytes_between(3, 12) == 0


@pytest.mark.clause(
    "UnifiedLogTest.testStartOffsetsRemoteLogStorageIsEnabled",
    "LogLoaderTest.testLogStartOffsetWhenRemoteStorageIsEnabled",
)
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_start_restores_tiered_log(clean: bool) -> None:
    disk = MemoryDisk()
    log = shortened(disk)
    log.delete_records_before(7)
    synced(log)
    disk.delete(log.epochs.checkpoint.path)  # A power loss may remove it.
    again = opened(disk, TIERED, clean=clean)
    assert (again.log_start_offset, again.local_log_start_offset, again.log_end_offset) == (7, 12, 24)
    assert (again.epochs.epochs, again.epochs.starts) == ([0, 1, 2], [7, 10, 20])
    assert again.quarantine is None
    assert encode_snapshot(again.producers) == encode_snapshot(log.producers)


@pytest.mark.clause("UnifiedLogTest.testSegmentDeletionEnabledBeforeUploadToRemoteTierWhenLogStartOffsetMovedAhead")
def test_log_start_may_pass_local_log_start() -> None:
    disk = MemoryDisk()
    log = shortened(disk)
    log.delete_records_before(15)
    assert (log.log_start_offset, log.local_log_start_offset) == (15, 15)
    synced(log)
    again = opened(disk, TIERED)
    assert (again.log_start_offset, again.local_log_start_offset, again.bases[0]) == (15, 15, 12)


def test_truncation_below_local_start_empties_log() -> None:
    """The leader returns where in the tier the replica starts, and the producers are read from there."""
    disk = MemoryDisk()
    log = shortened(disk)
    assert log.truncate_to(8) == 0
    log.check_invariants()
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 0, 0)
    assert not log.producers.by_id
    synced(log)
    assert opened(disk, TIERED).log_end_offset == 0
    assert not [path for path in disk.files if HERE in path]


def test_truncation_lowers_copied_end() -> None:
    """The tier has other records there, of an older leader epoch."""
    log = shortened(MemoryDisk())
    log.copied_end_offset = 24
    log.truncate_to(18)
    assert log.copied_end_offset == 18
    for _ in range(9):
        appended(log, batch_of(2), epoch=9)
    synced(log)
    log.delete_local(log.log_end_offset)
    assert log.local_log_start_offset == 18


def test_restarted_log_has_no_copied_end() -> None:
    log = shortened(MemoryDisk())
    log.truncate_to(8)
    assert log.copied_end_offset == 0
    log.copied_end_offset = 24
    log.start_from_remote(NOW, 12, 0, [(0, 0)], encode_snapshot(log.producers), log.producers)
    assert log.copied_end_offset == 0


@pytest.mark.clause("P-11", "UnifiedLogTest.testTruncateFullyAndStart")
@pytest.mark.parametrize("before", [0, 12], ids=["a new disk", "an old log"])
def test_replica_starts_at_leaders_local_start(before: int) -> None:
    leader = filled(MemoryDisk())
    disk = MemoryDisk()
    log = filled(disk, batches=before)
    snapshot = encode_snapshot(leader.producers)
    log.start_from_remote(NOW, 24, 3, [(0, 0), (1, 10), (2, 20)], snapshot, leader.producers)
    log.check_invariants()
    for one in (log, opened(disk, TIERED, clean=False)):
        assert (one.log_start_offset, one.local_log_start_offset, one.log_end_offset) == (3, 24, 24)
        assert (one.epochs.epochs, one.epochs.starts) == ([0, 1, 2], [3, 10, 20])
        assert {who: known.last_sequence for who, known in one.producers.by_id.items()} == {0: 11, 1: 11}
    data = batch_of(2, producer_id=0, producer_epoch=0, base_sequence=12, base_offset=24, leader_epoch=2)
    log.append_replicated(NOW, data, 2)
    synced(log)
    again = opened(disk, TIERED, clean=False)
    assert again.read(24, 10_000) == data
    assert again.producers.by_id[0].last_sequence == 13


@pytest.mark.clause("RemoteLogManagerTest.testCandidateLogSegmentsSkipsActiveSegment")
def test_segments_below_last_stable_offset_may_be_copied() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    assert [(each.base_offset, each.next_offset) for each in log.tierable(24, 24, 0)] == [(0, 6), (6, 12), (12, 18)]
    assert [each.base_offset for each in log.tierable(17, 24, 6)] == [6]
    assert [each.base_offset for each in log.tierable(24, 12, 7)] == [6]
    assert log.tierable(24, 24, 18) == ()
    (first, *_) = log.tierable(24, 24, 0)
    assert (first.size_bytes, first.max_timestamp_ms) == (disk.size(first.path), at(2).wall_ms)


def test_copied_segment_has_all_index_files() -> None:
    disk = MemoryDisk()
    log = opened(disk, replace(TIERED, index_interval_bytes=10_000))
    for _ in range(6):
        appended(log, batch_of(2, timestamps=[0, 0]))
    (first, *_) = log.tierable(12, 12, 0)
    assert not disk.exists(first.offset_index_path)
    log.files.write_index_files(first)
    assert disk.exists(first.offset_index_path)
    assert disk.exists(first.time_index_path)
    synced(log)
    assert opened(disk, TIERED).log_end_offset == 12
