"""Truncation offset of a log that diverges from its leader's (Kafka's getOffsetTruncationState)."""

from types import SimpleNamespace
from typing import Any

import pytest

from reference_broker.log.checkpoints import LOG_START_FILE
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import Buffer, DiskError, MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.replication.follower.followed import FollowedPartition
from reference_broker.replication.follower.partition_data_applier import PartitionDataApplier, truncation_offset
from reference_broker.replication.tests.follower_world import one_record
from reference_broker.wire.fetch import EpochEndOffset


def log_of(epochs: tuple[int, ...], high_watermark: int = 0) -> UnifiedLog:
    log = run_to_end(open_log(MemoryDisk(), "t-0", LogConfig(), Now(0, 0), True))
    for offset, epoch in enumerate(epochs):
        log.append_replicated(Now(0, 0), one_record(offset, epoch))
    log.advance_high_watermark(high_watermark)
    return log


@pytest.mark.parametrize(
    ("epochs", "leader", "expected"),
    [
        ((0, 0, 1, 1), (1, 3), 3),  # The same epoch ended earlier there.
        ((0, 0, 1, 1), (1, 9), 4),  # It ended later: the follower is merely behind.
        ((0, 0, 1, 2), (1, 9), 3),  # Later there, but here another epoch followed.
        ((0, 0, 2, 2), (1, 9), 2),  # The leader's epoch is unknown here: back to the largest below it, and retry.
        ((0, 0, 2, 2), (1, 1), 2),
        ((3, 3), (1, 1), 0),  # All epochs here are newer than those of the leader.
        ((0, 0, 1, 1), (-1, 3), 3),  # A leader that knows offsets only.
        ((0, 0), (5, 1), 1),  # An epoch above all that are known here.
    ],
)
def test_truncation_offset_is_last_common_offset(
    epochs: tuple[int, ...], leader: tuple[int, int], expected: int
) -> None:
    assert truncation_offset(log_of(epochs), EpochEndOffset(*leader)) == expected


def test_leader_without_epochs_keeps_committed_records() -> None:
    assert truncation_offset(log_of((0, 0, 0), high_watermark=2), EpochEndOffset(-1, -1)) == 2


def test_truncation_that_the_disk_interrupts_is_reported() -> None:
    """The log ends earlier, with a lower high watermark, and a retry finds nothing to truncate. Otherwise the file of
    high watermarks would keep the old one."""

    class Full(MemoryDisk):
        def write(self, path: str, data: Buffer) -> None:
            if LOG_START_FILE in path and self.exists(path):
                raise DiskError(f"write {path}: no space left on device")
            super().write(path, data)

    log = run_to_end(open_log(Full(), "t-0", LogConfig(), Now(0, 0), True))
    for offset in range(4):
        log.append_replicated(Now(0, 0), one_record(offset, 0))
    log.advance_high_watermark(4)
    log.delete_records_before(3)
    moved, changed = list[UnifiedLog](), list[FollowedPartition]()
    ports: Any = SimpleNamespace(note=lambda *_: None)
    followed: Any = SimpleNamespace(log=log, trace_name="t-0")
    applier = PartitionDataApplier(ports, moved.append, changed.append)
    with pytest.raises(DiskError, match="no space"):
        applier.truncate(followed, 2)
    assert (log.log_end_offset, log.high_watermark) == (2, 2)
    assert (moved, changed) == ([log], [followed])
