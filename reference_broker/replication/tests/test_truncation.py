"""Truncation offset of a log that diverges from its leader's (Kafka's getOffsetTruncationState)."""

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.replication.follower.partition_data_applier import truncation_offset
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
