"""A follower's append writes adjacent batches at once, and its result equals appends one by one."""

from typing import Any

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import RecordsRefused, UnifiedLog
from reference_broker.ports.disk import DiskError, MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.record import Record, build

NOW = Now(0, 0)


def opened(disk: MemoryDisk, **config: Any) -> UnifiedLog:
    return run_to_end(open_log(disk, "t-0", LogConfig(**config), NOW, True))


def one(offset: int, epoch: int = 0) -> bytes:
    """Timestamps go up and down."""
    record = Record(timestamp_ms=5 * offset % 7, value=b"v" * 20)
    return bytes(build([record], base_offset=offset, leader_epoch=epoch))


def test_batches_of_one_segment_are_one_write() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    before = disk.appends
    assert log.append_replicated(NOW, b"".join(one(offset) for offset in range(50))) == 50
    assert disk.appends == before + 1


@pytest.mark.clause(
    "UnifiedLogTest.followerShouldSaveEpochInformationFromReplicatedMessagesToTheEpochCache",
    "LogSegmentTest.testIndexForMultipleBatchesInMemoryRecords",
    "LogSegmentTest.testNonMonotonicTimestampForMultipleBatchesInMemoryRecords",
)
@pytest.mark.parametrize("segment_bytes", [100, 250, 1000, 1 << 20])
def test_log_equals_one_by_one_appends(segment_bytes: int) -> None:
    epochs = [0, 0, 0, 1, 1, 3, 3, 3, 3, 3, 4]
    batches = [one(offset, epoch) for offset, epoch in enumerate(epochs)]
    together, alone = MemoryDisk(), MemoryDisk()
    log = opened(together, segment_bytes=segment_bytes, index_interval_bytes=1)
    log.append_replicated(NOW, b"".join(batches))
    other = opened(alone, segment_bytes=segment_bytes, index_interval_bytes=1)
    for batch in batches:
        other.append_replicated(NOW, batch)
    assert sum(len(segment.offsets) for segment in log.segments) == len(batches) - len(log.segments)
    for closed in (log, other):
        closed.close_cleanly()
    assert together.files == alone.files
    assert (
        (log.epochs.epochs, log.epochs.starts)
        == (other.epochs.epochs, other.epochs.starts)
        == (
            [0, 1, 3, 4],
            [0, 3, 5, 10],
        )
    )
    assert log.read(0, 1 << 20, 11) == other.read(0, 1 << 20, 11)


def test_batches_before_wrong_offset_are_kept() -> None:
    log = opened(MemoryDisk())
    with pytest.raises(RecordsRefused, match="offset 0, but the log ends at 2"):
        log.append_replicated(NOW, one(0) + one(1) + one(0))
    assert log.log_end_offset == 2


@pytest.mark.clause("UnifiedLogTest.testTruncateToEndOffsetClearsEpochCache")
def test_empty_epoch_of_former_leader_is_removed() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append_replicated(NOW, one(0, 1))
    log.assign_leader_epoch(5)
    assert log.latest_epoch == 5
    log.forget_empty_epochs()
    assert log.latest_epoch == 1
    log.append_replicated(NOW, one(1, 1))
    again = opened(disk)
    assert (again.epochs.epochs, again.epochs.starts) == ([1], [0])


@pytest.mark.clause("UnifiedLogTest.testInvalidLeaderEpoch")
def test_batch_with_later_epoch_than_leader_is_rejected() -> None:
    log = opened(MemoryDisk())
    with pytest.raises(RecordsRefused, match="offset 2 has leader epoch 4, above 3"):
        log.append_replicated(NOW, one(0, 2) + one(1, 3) + one(2, 4) + one(3, 3), 3)
    assert (log.log_end_offset, log.latest_epoch) == (2, 3)
    with pytest.raises(RecordsRefused, match="above 3"):
        log.append_replicated(NOW, one(2, 4), 3)
    assert log.append_replicated(NOW, one(2, 4), 4) == 3


@pytest.mark.parametrize("offset", [9, 2**31 + 9], ids=["inside a segment", "between two"])
@pytest.mark.parametrize("start", [0, 1], ids=["empty log", "one record"])
def test_disk_error_at_gap_leaves_usable_log(start: int, offset: int) -> None:
    """As with another leader, whose log is not cleaned yet."""
    failures = 0
    while True:
        disk = MemoryDisk()
        log = opened(disk)
        if start:
            log.append_replicated(NOW, one(0))
        disk.fail_after = failures
        try:
            log.append_replicated(NOW, one(offset, 1))
            break
        except DiskError:
            failures += 1
        disk.fail_after = None
        log.check_invariants()
        log.append_replicated(NOW, one(start, 1))
        log.check_invariants()
        assert (log.epochs.epochs[-1], log.epochs.starts[-1]) == (1, start)
        assert log.read(start, 1000, start + 1) == one(start, 1)
    assert failures >= 2
