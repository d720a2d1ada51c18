"""Leader epochs after a start: from their file, or from the batches where that is lost or wrong."""

import pytest

from reference_broker.log.tests.log_world import (
    DIRECTORY,
    appended,
    batch_of,
    opened,
)
from reference_broker.log.tests.recovery_world import SMALL, filled, same
from reference_broker.ports.disk import MemoryDisk


@pytest.mark.clause("LogLoaderTest.testLogRecoversForLeaderEpoch", "LogSegmentTest.testRecoveryRebuildsEpochCache")
@pytest.mark.parametrize("rows", [b"", b"0\n", b"0\n2\n0 0\n", b"0\n1\nx y\n", b"0\n2\n3 0\n3 9\n", b"1\n1\n0 0\n"])
def test_epochs_are_read_from_batches_if_file_is_lost(rows: bytes) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    disk.write(f"{DIRECTORY}/leader-epoch-checkpoint", rows)
    same(opened(disk.copy(), SMALL, clean=False), log)
    same(opened(disk.copy(), SMALL, clean=True), log)


@pytest.mark.parametrize(
    "rows",
    [
        b"0\n4\n0 0\n1 10\n2 20\n5 24\n",  # Of truncated records, before others were written in their place.
        b"0\n3\n0 0\n1 10\n3 20\n",  # Of records lost in a power loss, while the ones that they replaced reappeared.
        b"0\n3\n0 0\n1 10\n2 26\n",
        b"0\n3\n0 4\n1 6\n2 20\n",
        b"0\n2\n0 0\n2 20\n",
        b"0\n1\n7 0\n",
        b"0\n3\n1 10\n2 20\n9 22\n",
    ],
)
@pytest.mark.parametrize("clean", [False, True])
def test_batches_override_epoch_file(rows: bytes, clean: bool) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    disk.write(f"{DIRECTORY}/leader-epoch-checkpoint", rows)
    same(opened(disk, SMALL, clean=clean), log)
    assert disk.files[f"{DIRECTORY}/leader-epoch-checkpoint"] == b"0\n3\n0 0\n1 10\n2 20\n"


@pytest.mark.clause(
    "UnifiedLogTest.shouldTruncateLeaderEpochsWhenDeletingSegments",
    "UnifiedLogTest.shouldUpdateOffsetForLeaderEpochsWhenDeletingSegments",
)
def test_log_starting_inside_batch_does_not_rewrite_epochs() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    log.delete_records_before(11)
    before = disk.files[f"{DIRECTORY}/leader-epoch-checkpoint"]
    assert before == b"0\n2\n1 11\n2 20\n"
    for clean in (True, False):
        assert opened(disk, SMALL, clean=clean).epochs.starts == [11, 20]
        assert disk.files[f"{DIRECTORY}/leader-epoch-checkpoint"] is before


def test_epoch_file_has_format_of_kafka() -> None:
    disk = MemoryDisk()
    filled(disk)
    assert disk.files[f"{DIRECTORY}/leader-epoch-checkpoint"] == b"0\n3\n0 0\n1 10\n2 20\n"


def test_epochs_are_synced_with_their_first_records() -> None:
    disk, path = MemoryDisk(), f"{DIRECTORY}/leader-epoch-checkpoint"
    log = filled(disk, batches=1)
    assert path in log.sync_point().paths
    log.mark_synced(log.sync_point())
    appended(log, batch_of(1), epoch=0)
    assert path not in log.sync_point().paths
    appended(log, batch_of(1), epoch=1)
    assert path in log.sync_point().paths
    log.mark_synced(log.sync_point())
    log.truncate_to(2)
    assert path in log.sync_point().paths
