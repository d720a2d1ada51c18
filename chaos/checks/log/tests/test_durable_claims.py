"""Durability that files claim: claims ahead of the disk, and near misses."""

from random import Random
from typing import Any
from zlib import crc32

import pytest

from chaos.checks.check import Check
from chaos.checks.log.durable_claims import CLEAN_SHUTDOWN, ClaimsDurable, CleanShutdownHonest
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubNode
from chaos.sim.disk import SimDisk
from reference_broker.log.config import LogConfig
from reference_broker.log.opening import open_log
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.records.record import Record, build

SYNCED, RECOVERY_POINT = "t-0/synced-offset-checkpoint", "t-0/recovery-point-offset-checkpoint"


def checkpoint(offset: int) -> bytes:
    row = str(offset)
    return f"0\n2\n{row}\n{crc32(row.encode()):08x}\n".encode()


class Claims:
    """A node with one log, of which five records are synced and three are not."""

    def __init__(self) -> None:
        self.disk = SimDisk(Random(0))
        self.log = run_to_end(open_log(self.disk, "t-0", LogConfig(), Now(0, 0), False))
        context = check_context()
        self.claims, self.marks = ClaimsDurable(context), CleanShutdownHonest(context)
        self.incarnation = 0
        self.node: Any = StubNode(StubBroker(1, disk=self.disk), all_logs=[self.log])
        self.append(5)
        self.sync()
        self.append(3)

    def append(self, count: int) -> None:
        for _ in range(count):
            self.log.append(Now(0, 0), build([Record(timestamp_ms=0, value=b"v")]), 0)
        self.log.advance_high_watermark(self.log.log_end_offset)

    def sync(self) -> None:
        point = self.log.sync_point()
        self.disk.finish_sync(self.disk.begin_sync(point.paths))
        self.log.mark_synced(point)
        self.log.files.note_synced()

    def looked(self) -> str:
        self.claims.logs_touched(7, self.node, [self.log], False)
        self.marks.inspect(7, self.incarnation, self.node, None, False)
        own: tuple[Check, ...] = (self.claims, self.marks)
        return " ".join(violation.explanation for check in own for violation in check.violations)


def test_claims_up_to_the_durable_end() -> None:
    node = Claims()
    assert not node.looked()
    assert node.claims.evidence
    node.append(1)
    node.sync()
    assert not node.looked()


@pytest.mark.clause("E-7")
@pytest.mark.parametrize("path", [SYNCED, RECOVERY_POINT, f"{RECOVERY_POINT}.new"])
@pytest.mark.parametrize(("claim", "explanation"), [(5, ""), (6, "which they are up to 5"), (9, "and it ends at 8")])
def test_file_claims_no_more_than_the_disk_has_durably(path: str, claim: int, explanation: str) -> None:
    node = Claims()
    assert not node.looked()
    node.disk.write(path, checkpoint(claim))
    assert explanation in node.looked()
    assert bool(node.looked()) is bool(explanation)


def test_records_whose_file_has_no_durable_name_are_not_durable() -> None:
    node = Claims()
    node.log.roll(Now(0, 0))
    node.append(1)
    node.disk.begin_sync([])
    node.disk.write(SYNCED, checkpoint(9))
    assert "which they are up to 5" in node.looked()


def test_claim_must_shrink_with_a_truncated_log() -> None:
    node = Claims()
    node.sync()
    assert not node.looked()
    node.log.truncate_to(6)
    assert not node.looked()
    node.disk.write(SYNCED, checkpoint(8))
    assert "and it ends at 6" in node.looked()


def test_records_are_scanned_again_after_a_truncation() -> None:
    node = Claims()
    assert not node.looked()
    node.log.truncate_to(4)
    node.append(4)
    node.sync()
    node.append(1)
    assert not node.looked()


@pytest.mark.clause("E-7", "X-11")
@pytest.mark.parametrize(("end", "explanation"), [(5, ""), (6, "it was cleaned up to 6, and is durable up to 5")])
def test_cleaner_passes_over_durable_records_only(end: int, explanation: str) -> None:
    node = Claims()
    assert not node.looked()
    node.log.cleaned_offset = end
    assert node.looked() == (f"t-0 on node 1: {explanation}" if explanation else "")


@pytest.mark.clause("E-7")
def test_later_sync_makes_no_records_durable_whose_sync_failed() -> None:
    node = Claims()
    assert not node.looked()
    node.disk.fail_sync([f"t-0/{0:020}.log"])
    node.sync()
    node.disk.write(SYNCED, checkpoint(8))
    assert "which they are up to 5" in node.looked()


def test_sizes_come_from_the_disk_and_not_from_the_log() -> None:
    """A log that took its unsynced end for no part of its segment would hide its claim."""
    node = Claims()
    node.log.segments.items[-1].size_bytes = node.disk.durable_size(f"t-0/{0:020}.log") or 0
    node.disk.write(SYNCED, checkpoint(8))
    assert "which they are up to 5" in node.looked()


def test_log_that_is_offline_is_not_judged() -> None:
    node = Claims()
    node.disk.write(SYNCED, checkpoint(9))
    node.log.segments.is_offline = True
    assert not node.looked()


@pytest.mark.clause("P-3", "E-4")
@pytest.mark.parametrize("is_synced", [True, False])
def test_mark_that_a_power_loss_may_bring_back_to_a_serving_node(is_synced: bool) -> None:
    node = Claims()
    node.disk.write(CLEAN_SHUTDOWN, b"{}")
    node.disk.make_durable(CLEAN_SHUTDOWN)
    node.node.ready = False
    assert not node.looked()
    node.disk.delete(CLEAN_SHUTDOWN)
    if is_synced:
        node.disk.make_durable(CLEAN_SHUTDOWN)
    node.node.ready = True
    assert ("may still have the mark" in node.looked()) is not is_synced


@pytest.mark.clause("P-3", "E-4")
@pytest.mark.parametrize("is_synced", [True, False])
def test_mark_whose_creation_a_power_loss_may_keep_without_its_deletion(is_synced: bool) -> None:
    node = Claims()
    node.disk.write(CLEAN_SHUTDOWN, b"{}")
    node.node.ready = False
    assert not node.looked()
    node.disk.delete(CLEAN_SHUTDOWN)
    if is_synced:
        node.disk.make_durable(CLEAN_SHUTDOWN)
    node.node.ready = True
    assert ("may still have the mark" in node.looked()) is not is_synced


@pytest.mark.clause("P-3", "E-4")
@pytest.mark.parametrize("grows", [True, False])
def test_mark_that_a_power_loss_may_bring_back_behind_a_log_that_has_grown(grows: bool) -> None:
    node = Claims()
    node.disk.write(CLEAN_SHUTDOWN, b"{}")
    node.disk.make_durable(CLEAN_SHUTDOWN)
    node.disk.delete(CLEAN_SHUTDOWN)
    node.node.ready = False
    for _ in range(2):
        node.marks.logs_touched(7, node.node, [node.log], False)
        if grows:
            node.append(1)
    assert bool(node.looked()) is grows


@pytest.mark.clause("P-3", "E-4")
@pytest.mark.parametrize(
    ("marks", "syncs", "explanation"),
    [(True, False, "is durable up to 5, and ends at 8"), (True, True, ""), (False, False, "")],
)
def test_clean_stop_with_unsynced_records(marks: bool, syncs: bool, explanation: str) -> None:
    node = Claims()
    assert not node.looked()
    if syncs:
        node.sync()
    if marks:
        node.disk.write(CLEAN_SHUTDOWN, b"{}")
    node.node.ready, node.node.stopped = False, True
    assert explanation in node.looked()
    assert bool(node.looked()) is bool(explanation)
