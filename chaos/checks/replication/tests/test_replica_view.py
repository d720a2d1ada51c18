"""A look costs what an event touched: logs note their changes, and only while a reader needs them."""

from typing import TYPE_CHECKING, Any
from unittest.mock import patch

import pytest

from chaos.checks.fault_times import FaultTimes
from chaos.checks.replication.replica_view import ReplicaView, TouchedLogs, offsets_partition
from chaos.checks.tests.stub_node import StubNode
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.log.segment import new_segment
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end

if TYPE_CHECKING:
    pass


def test_only_logs_that_changed_are_looked_at() -> None:
    touched = TouchedLogs()
    slot = UnifiedLog.__dict__["high_watermark"]
    with touched.noted():
        log = run_to_end(open_log(MemoryDisk(), "t-0", LogConfig(), Now(0, 0), True))
        assert touched.taken() == (log,)
        assert touched.taken() == ()
        log.high_watermark = 3
        log.high_watermark = 4
        assert (log.high_watermark, touched.taken()) == (4, (log,))
    log.log_end_offset = 9
    assert (log.log_end_offset, touched.taken()) == (9, ())
    assert UnifiedLog.__dict__["high_watermark"] is slot


def test_log_that_contradicts_itself_is_found_after_the_event_that_touched_it() -> None:
    touched = TouchedLogs()
    node: Any = None
    view = ReplicaView(FaultTimes(), touched=touched)
    with touched.noted():
        log = run_to_end(open_log(MemoryDisk(), "t-0", LogConfig(), Now(0, 0), True))
        view.observe(1, 0, node)
        log.high_watermark = 4
        with pytest.raises(AssertionError, match=r"the high watermark 4 lies outside 0\.\.0"):
            view.observe(2, 0, node)


def test_closed_segments_are_checked_when_their_list_changes_and_the_active_one_when_it_grows() -> None:
    checked = list[str]()
    touched = TouchedLogs()
    node = StubNode().as_node()
    view = ReplicaView(FaultTimes(), touched=touched)
    with touched.noted():
        log = run_to_end(open_log(MemoryDisk(), "t-0", LogConfig(), Now(0, 0), True))
        with (
            patch.object(UnifiedLog, "check_invariants", lambda _, closed_too: checked.append(PARTS[closed_too])),
            patch.object(UnifiedLog, "check_offsets", lambda _: checked.append("offsets")),
        ):
            for change in (nothing, nothing, grow, nothing, roll, grow, cut, nothing):
                change(log)
                log.high_watermark = 0
                view.observe(1, 0, node, thorough=False)
            log.high_watermark = 0
            view.observe(1, 0, node, thorough=True)
    assert checked == ["all", "offsets", "active", "offsets", "all", "active", "all", "offsets", "all"]


PARTS = {True: "all", False: "active"}


def nothing(log: UnifiedLog) -> None:
    pass


def grow(log: UnifiedLog) -> None:
    log.log_end_offset += 1


def roll(log: UnifiedLog) -> None:
    log.segments.items.append(new_segment("t-0", 9, 0))


def cut(log: UnifiedLog) -> None:
    log.durability.last_cut += 1


@pytest.mark.parametrize(
    ("group", "partition"), [("g", 103 % 50), ("abc", 4), ("group", 47), ("polygenelubricants", 0), ("", 0)]
)
def test_partition_of_a_group_is_kafka_s(group: str, partition: int) -> None:
    """Java's hashes are 103, 96354, 98629247, -2^31 (whose absolute value Kafka takes to be 0) and 0."""
    assert offsets_partition(group, 50) == partition
