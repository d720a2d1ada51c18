"""Every failure and death between two steps of a copy."""

from itertools import pairwise
from typing import Any

import pytest

from reference_broker.log.tests.log_world import appended, batch_of, opened
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.store import FailureKind, StoreFailure
from reference_broker.remote_log.metadata.events import common_end, lineage_of
from reference_broker.remote_log.metadata.remote_log_metadata_cache import RemoteLogMetadataCache
from reference_broker.remote_log.objects import ObjectKind
from reference_broker.remote_log.tests.copying_world import ACTS, KEPT, SIX_SEGMENTS, copied
from reference_broker.remote_log.tests.tier_world import UNAVAILABLE, Tier, TierNode, check_whole, objects_of

# --- failures -------------------------------------------------------------------------------------------------------


@pytest.mark.clause("P-11", "RemoteLogManagerTest.testFailedCopyShouldDeleteTheDanglingSegment")
@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("at", range(2 * ACTS))
def test_each_failed_act_retries_copy(at: int, happens: bool) -> None:
    """``happens``: the act was done, and only its response is lost."""
    tier, node, log = copied()
    acts = []

    def fail_once(name: str) -> StoreFailure | None:
        acts.append(name)
        return UNAVAILABLE if len(acts) == at + 1 else None

    if happens:
        node.ports.after = fail_once
    else:
        node.ports.before = fail_once
    partition = node.lead(log)
    tier.pass_ms(10_000)
    check_whole(tier, partition)
    assert node.value("RemoteCopyErrorsPerSec") == (at > 0), "former leaders are fenced before all copies"
    ids = [act.split("/")[1].split(".")[0] for act in tier.acts if act.endswith(".log")]
    assert len(set(ids)) == len(ids), "a segment ID is used again"


@pytest.mark.clause("P-11")
@pytest.mark.parametrize("happens", [True, False])
@pytest.mark.parametrize("at", range(2 * ACTS))
def test_copy_resumes_after_death_at_each_act(at: int, happens: bool) -> None:
    """No segment with a missing object is listed, before the death and after it."""
    tier, node, log = copied()
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
    partition = node.lead(log)
    tier.pass_ms(10_000)
    assert node.ports.is_dead
    assert len(tier.acts) == at + happens
    for segment in tier.listed(partition):
        assert set(objects_of(tier, segment)) >= set(ObjectKind) - {ObjectKind.TRANSACTION_INDEX}
    again = opened(node.disk, KEPT, clean=False)
    partition = TierNode(tier, disk=node.disk).lead(again, leader_epoch=6)
    tier.pass_ms(10_000)
    check_whole(tier, partition)


def test_consecutive_failures_back_off() -> None:
    tier, node, log = copied()
    times: list[int] = []

    def refuse(name: str) -> StoreFailure | None:
        if name.endswith(".log"):
            times.append(tier.mono_us // 1000)
            return StoreFailure(FailureKind.REFUSED, "no such bucket")
        return None

    node.ports.before = refuse
    partition = node.lead(log)
    tier.pass_ms(200_000)
    gaps = [after - before for before, after in pairwise(times)]
    assert [round(gap, -2) for gap in gaps[:7]] == [500, 1000, 2000, 4000, 8000, 16000, 30000]
    assert "no such bucket" in str(tier.noted("copy_failed")[0]["reason"])
    node.ports.before = lambda _: None
    tier.pass_ms(31_000)
    check_whole(tier, partition)


def test_log_is_notified_of_copy_once_listed() -> None:
    tier, node, log = copied()
    received: list[tuple[str, int]] = []

    def listen(name: str) -> None:
        received.append((name.rpartition(".")[2], log.copied_end_offset))

    node.ports.after = listen
    node.lead(log)
    tier.pass_ms(2000)
    assert [end for name, end in received[1 : ACTS + 1]] == [0] * ACTS
    assert [end for name, end in received[ACTS + 1 : 2 * ACTS + 1]] == [6] * ACTS
    assert log.copied_end_offset == 30


def first_epochs_gone() -> UnifiedLog:
    """Return a log whose first segment [0, 6) has records of two leader epochs."""
    log = opened(MemoryDisk(), KEPT)
    for number in range(SIX_SEGMENTS):
        appended(log, batch_of(2, timestamps=[number, number]), epoch=min(number, 1))
    log.advance_high_watermark(log.log_end_offset)
    return log


@pytest.mark.parametrize("log_start", range(1, 13))
def test_log_starting_inside_segment_is_copied_once(log_start: int) -> None:
    """DeleteRecords moves the log start there. The copy is read from the log start on."""
    tier, log = Tier(), first_epochs_gone()
    log.delete_records_before(log_start)
    disk: Any = log.disk
    node = TierNode(tier, disk=disk)
    partition = node.lead(log)
    tier.pass_ms(600_000)
    bases = [base for base in range(0, 30, 6) if base + 6 > log_start]
    assert [segment.start_offset for segment in tier.listed(partition)] == bases
    assert len(tier.acts) == 1 + len(bases) * ACTS
    assert log.copied_end_offset == 30
    assert tier.noted("copy_failed") == []
    for segment in tier.listed(partition):
        segment.validate()
        assert common_end(segment, lineage_of(log), log.log_end_offset) == segment.next_offset


@pytest.mark.parametrize("acts", range(2 * ACTS))
def test_copy_is_retried_after_log_start_moved_into_segment(acts: int) -> None:
    tier, log = Tier(), first_epochs_gone()
    disk: Any = log.disk
    node = TierNode(tier, disk=disk)

    def move(_: str) -> StoreFailure | None:
        if len(tier.acts) != acts + 1:
            return None
        log.delete_records_before(4 + 6 * (acts // ACTS))
        return UNAVAILABLE

    node.ports.after = move
    partition = node.lead(log)
    tier.pass_ms(600_000)
    assert log.log_start_offset > 0
    assert [segment.start_offset for segment in tier.listed(partition)] == [0, 6, 12, 18, 24]
    assert node.value("RemoteCopyErrorsPerSec") == (acts > 0)
    assert len(tier.acts) <= 2 + 6 * ACTS
    assert log.copied_end_offset == 30


def test_copies_that_are_never_listed_back_off(monkeypatch: pytest.MonkeyPatch) -> None:
    tier, node, log = copied()
    monkeypatch.setattr(RemoteLogMetadataCache, "listed_until", lambda _, _lineage, offset: offset)
    node.lead(log)
    tier.pass_ms(600_000)
    assert len(tier.acts) < 30 * ACTS
