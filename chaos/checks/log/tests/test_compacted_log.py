"""Replicas of a compacted partition: records that a cleaner may remove, and records that it may not."""

import pytest

from chaos.checks.log.tests.compacted_logs import CompactedLog, keyed
from chaos.checks.replication.tests.replicated import KEY, SECOND_US, Cluster


@pytest.fixture
def compacted() -> Cluster:
    """Keys a, b, a, b (deleted), then c in the active segment; all committed everywhere."""
    made = Cluster()
    made.logs = [CompactedLog() for _ in range(3)]
    made.append(keyed(0, b"a"), keyed(1, b"b"), keyed(2, b"a"), keyed(3, b"b", None), keyed(4, b"c"))
    for log in made.logs:
        log.bases = [0, 4]
    made.commit(5)
    return made


def test_replica_lacks_what_is_superseded(compacted: Cluster) -> None:
    cleaned = compacted.logs[1]
    assert isinstance(cleaned, CompactedLog)
    cleaned.clean(0, 1)
    compacted.observe(1)
    late = compacted.logs[2]  # It copies what the other has cleaned, and has cleaned nothing itself.
    assert isinstance(late, CompactedLog)
    compacted.restart(2)
    compacted.logs[2] = CompactedLog(held=late.held, gone={0: None, 1: None}, high_watermark=5, bases=[0])
    compacted.observe(2)
    compacted.append(keyed(5, b"b"), to=(0, 1, 2))
    for log, base in zip(compacted.logs, (5, 6, 6), strict=True):
        log.bases = [0, base]
    compacted.commit(6)
    behind = compacted.logs[0]  # It had offset 1 itself, and what was to supersede it is no more where it copies.
    assert isinstance(behind, CompactedLog)
    behind.clean(0, 3)
    compacted.observe(0)
    assert compacted.broken() == []
    partition = compacted.view.partitions[KEY]
    assert partition.compacted is not None
    assert partition.compacted.cleanings == 2


@pytest.mark.parametrize(
    ("gone", "explanation"),
    [
        ((0, 1, 2), "lacks the record at offset 2, which is the newest of its key"),
        ((0, 1, 3), "lacks the record at offset 3, which is the newest of its key"),
        ((0,), "is cleaned up to 4, and has offset 1, which 3 supersedes"),
        ((0, 1, 4), "lacks the record at offset 4, which is the newest of its key"),
    ],
)
def test_wrongly_cleaned_replica_is_a_violation(compacted: Cluster, gone: tuple[int, ...], explanation: str) -> None:
    cleaned = compacted.logs[1]
    assert isinstance(cleaned, CompactedLog)
    cleaned.clean(*gone)
    compacted.observe(1)
    assert compacted.broken() == ["replicas-equal"]
    (found,) = {violation.explanation for check in compacted.checks for violation in check.violations}
    assert explanation in found


def test_tombstone_goes_when_its_time_is_over(compacted: Cluster) -> None:
    compacted.now_us += 2 * SECOND_US
    cleaned = compacted.logs[1]
    assert isinstance(cleaned, CompactedLog)
    cleaned.clean(0, 1, 3)
    compacted.observe(1)
    assert compacted.broken() == []


@pytest.mark.clause("X-11")
@pytest.mark.parametrize(("jump_us", "broken"), [(2 * SECOND_US, []), (0, ["replicas-equal"])])
def test_tombstone_goes_earlier_only_if_a_clock_was_set_ahead(
    compacted: Cluster, jump_us: int, broken: list[str]
) -> None:
    compacted.view.fault_times.clock_jumps_us = jump_us
    cleaned = compacted.logs[1]
    assert isinstance(cleaned, CompactedLog)
    cleaned.clean(0, 1, 3)
    compacted.observe(1)
    assert compacted.broken() == broken


@pytest.mark.clause("E-7", "X-11")
@pytest.mark.parametrize(
    ("survivor", "broken"), [(keyed(3, b"b", None), []), (keyed(3, b"c", None), ["replicas-equal"])]
)
def test_tombstone_that_a_loss_has_left_is_as_old_as_before_it(
    compacted: Cluster, survivor: bytes, broken: list[str]
) -> None:
    compacted.now_us += 2 * SECOND_US
    for log in compacted.logs:
        log.held[3] = survivor
    partition = compacted.view.partitions[KEY]
    partition.restart()
    leader = partition.copies[0]
    assert leader.log is not None
    compacted.view._commit(compacted.now_us, partition, leader.log, leader.held)
    cleaned = compacted.logs[1]
    assert isinstance(cleaned, CompactedLog)
    cleaned.clean(0, 1, 3) if not broken else cleaned.clean(0, 3)
    compacted.observe(1)
    assert compacted.broken() == broken


def test_another_record_at_a_committed_offset_is_a_violation(compacted: Cluster) -> None:
    compacted.restart(1)
    compacted.logs[1].held[2] = keyed(2, b"a", b"other")
    compacted.observe(1)
    assert compacted.broken() == ["replicas-equal"]


def test_cleaned_batch_above_the_committed_end_is_a_violation(compacted: Cluster) -> None:
    compacted.append(keyed(5, b"c"), keyed(6, b"d"), to=(0, 1, 2))
    cleaned = compacted.logs[0]
    assert isinstance(cleaned, CompactedLog)
    cleaned.bases = [0, 4, 6]
    cleaned.clean(0, 1, 4)
    compacted.observe(0)
    assert compacted.broken() == ["replicas-equal"]
    explanations = [violation.explanation for check in compacted.checks for violation in check.violations]
    assert any("was cleaned up to 6; what is below 5 is committed" in explanation for explanation in explanations)
