"""A log that begins in a remote tier: what stays here, what a start finds, where a replica begins anew."""

from dataclasses import replace

import pytest

from reference_broker.log.partition_log import MovedToRemote, OffsetOutOfRange
from reference_broker.log.producer_state import encoded
from reference_broker.log.tests.log_world import NOW, appended, at, batch_of, opened
from reference_broker.log.tests.tiered_world import NOT_TIERED, TIERED, filled, log_names, shortened, synced
from reference_broker.ports.disk import MemoryDisk

HERE = "local-log-start-checkpoint"


@pytest.mark.clause("UnifiedLogTest.testNoOpWhenRemoteLogStorageIsDisabled")
def test_a_log_without_a_tier_begins_in_one_place_and_has_no_more_files() -> None:
    disk = MemoryDisk()
    log = filled(disk, replace(NOT_TIERED, retention_bytes=400))
    log.enforce_retention(NOW)
    log.mark_synced(log.sync_point())
    assert log.log_start_offset == log.local_log_start_offset > 0
    assert not [path for path in disk.files if HERE in path]


@pytest.mark.clause("UnifiedLogTest.testIncrementLocalLogStartOffsetAfterLocalLogDeletion")
def test_only_segments_whose_copies_are_listed_go() -> None:
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
def test_local_retention_counts_only_where_copies_are_made() -> None:
    limits = replace(TIERED, local_retention_bytes=600, retention_bytes=100_000)
    assert (limits.effective_local_retention_bytes, limits.effective_local_retention_ms) == (600, -1)
    for config in (replace(limits, remote_storage_enable=False), replace(limits, remote_log_copy_disable=True)):
        assert config.effective_local_retention_bytes == 100_000
    assert replace(limits, local_retention_bytes=-2).effective_local_retention_bytes == 100_000


@pytest.mark.clause("UnifiedLogTest.testRetentionOnLocalLogDeletionWhenRemoteLogCopyDisabled")
def test_without_copies_the_whole_log_becomes_shorter() -> None:
    log = shortened(MemoryDisk())
    log.config = replace(TIERED, remote_log_copy_disable=True, retention_bytes=0)
    log.enforce_retention(NOW)
    assert log.log_start_offset == log.local_log_start_offset == log.log_end_offset


@pytest.mark.clause("UnifiedLogTest.testActiveSegmentDeletionDueToRetentionTimeBreachWithRemoteStorage")
def test_an_old_active_segment_is_rolled_so_that_it_can_be_copied() -> None:
    log = filled(MemoryDisk(), replace(TIERED, local_retention_bytes=-2, local_retention_ms=50))
    synced(log)
    assert (log.enforce_retention(at(100)), log.bases[-1]) == (0, log.log_end_offset)
    assert log.enforce_retention(at(100)) == 0


def test_nothing_goes_that_a_power_loss_could_take_from_the_rest() -> None:
    """What is behind the deleted segments must be durable, and so must the producers before it."""
    log = filled(MemoryDisk())
    log.copied_end_offset = 12
    assert log.enforce_retention(NOW) == 0


@pytest.mark.clause("P-10")
def test_nothing_goes_without_a_whole_snapshot_of_the_producers() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    synced(log)
    log.copied_end_offset = 12
    disk.write(log.segments.snapshots.path(12), b"torn")
    assert log.enforce_retention(NOW) == 1
    assert log.local_log_start_offset == 6
    assert log.segments.snapshots.damaged[0][0] == log.segments.snapshots.path(12)


def test_a_read_says_whether_the_record_is_in_the_tier_or_nowhere() -> None:
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
def test_a_start_finds_the_log_as_it_was(clean: bool) -> None:
    disk = MemoryDisk()
    log = shortened(disk)
    log.delete_records_before(7)
    synced(log)
    disk.delete(log.epochs.checkpoint.path)  # A power loss may take it.
    again = opened(disk, TIERED, clean=clean)
    assert (again.log_start_offset, again.local_log_start_offset, again.log_end_offset) == (7, 12, 24)
    assert (again.epochs.epochs, again.epochs.starts) == ([0, 1, 2], [7, 10, 20])
    assert again.quarantine is None
    assert encoded(again.producers) == encoded(log.producers)


@pytest.mark.clause("UnifiedLogTest.testSegmentDeletionEnabledBeforeUploadToRemoteTierWhenLogStartOffsetMovedAhead")
def test_the_log_start_passes_the_local_one() -> None:
    disk = MemoryDisk()
    log = shortened(disk)
    log.delete_records_before(15)
    assert (log.log_start_offset, log.local_log_start_offset) == (15, 15)
    synced(log)
    again = opened(disk, TIERED)
    assert (again.log_start_offset, again.local_log_start_offset, again.bases[0]) == (15, 15, 12)


def test_a_cut_below_the_local_records_empties_the_log() -> None:
    """The leader then says where in the tier the replica begins, and the producers come from there."""
    disk = MemoryDisk()
    log = shortened(disk)
    assert log.truncate_to(8) == 0
    log.check_invariants()
    assert (log.log_start_offset, log.local_log_start_offset, log.log_end_offset) == (0, 0, 0)
    assert not log.producers.by_id
    synced(log)
    assert opened(disk, TIERED).log_end_offset == 0
    assert not [path for path in disk.files if HERE in path]


def test_records_behind_a_cut_are_not_taken_for_copied() -> None:
    """What the tier has there are other records, of an older leader epoch."""
    log = shortened(MemoryDisk())
    log.copied_end_offset = 24
    log.truncate_to(18)
    assert log.copied_end_offset == 18
    for _ in range(9):
        appended(log, batch_of(2), epoch=9)
    synced(log)
    log.delete_local(log.log_end_offset)
    assert log.local_log_start_offset == 18


def test_nothing_is_taken_for_copied_where_a_log_begins_anew() -> None:
    log = shortened(MemoryDisk())
    log.truncate_to(8)
    assert log.copied_end_offset == 0
    log.copied_end_offset = 24
    log.start_from_remote(NOW, 12, 0, [(0, 0)], encoded(log.producers), log.producers)
    assert log.copied_end_offset == 0


@pytest.mark.clause("P-11", "UnifiedLogTest.testTruncateFullyAndStart")
@pytest.mark.parametrize("before", [0, 12], ids=["a new disk", "an old log"])
def test_a_replica_begins_where_its_leader_has_records(before: int) -> None:
    leader = filled(MemoryDisk())
    disk = MemoryDisk()
    log = filled(disk, batches=before)
    snapshot = encoded(leader.producers)
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
def test_closed_segments_below_the_stable_offset_may_be_copied() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    assert [(each.base_offset, each.next_offset) for each in log.tierable(24, 24, 0)] == [(0, 6), (6, 12), (12, 18)]
    assert [each.base_offset for each in log.tierable(17, 24, 6)] == [6]
    assert [each.base_offset for each in log.tierable(24, 12, 7)] == [6]
    assert log.tierable(24, 24, 18) == ()
    (first, *_) = log.tierable(24, 24, 0)
    assert (first.size_bytes, first.max_timestamp_ms) == (disk.size(first.path), at(2).wall_ms)


def test_a_copied_segment_has_its_index_files_whatever_is_in_them() -> None:
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
