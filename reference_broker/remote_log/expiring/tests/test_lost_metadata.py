"""A node without the events of a tier deletes nothing there."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.log.tests.log_world import NOW, appended, batch_of
from reference_broker.log.tests.tiered_world import TIERED, filled, synced
from reference_broker.ports.disk import MemoryDisk
from reference_broker.ports.slicing import Sliced
from reference_broker.remote_log.expiring import expirer
from reference_broker.remote_log.expiring.expirer import Due, due
from reference_broker.remote_log.leader_epoch_fencing import LeaderEpochFencing
from reference_broker.remote_log.metadata.events import lineage_of
from reference_broker.remote_log.metadata.tests.remote_events import FINISHED, STARTED, step
from reference_broker.remote_log.objects import ObjectName, name_of
from reference_broker.remote_log.tests.tier_world import Tier, TierNode, check_whole, objects_of
from reference_broker.replication.partitions import Partition
from reference_broker.wire.errors import Error, ErrorCode

SEGMENTS = 18
START = 30
"""The start of the local log when all closed segments are in the tier only."""


@pytest.fixture(autouse=True)
def frequent_sweeps(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("reference_broker.remote_log.expiring.expirer.SWEEP_INTERVAL_US", 20_000_000)


def in_the_tier_only() -> tuple[Tier, TierNode, Partition]:
    tier, disk = Tier(), MemoryDisk()
    log = filled(disk, TIERED, SEGMENTS)
    node = TierNode(tier, disk=disk, expires=True)
    partition = node.lead(log)
    tier.pass_ms(5_000)
    synced(log)
    log.delete_local(log.copied_end_offset)
    synced(log)
    assert (log.log_start_offset, log.local_log_start_offset) == (0, START)
    return tier, node, partition


def append_segments(partition: Partition) -> None:
    """Append new records, which are copied."""
    log = partition.log
    for _ in range(7):
        appended(log, batch_of(2), epoch=5)
    log.advance_high_watermark(log.log_end_offset)
    synced(log)


@pytest.mark.parametrize("goes_on", [True, False])
def test_lost_events_stop_deletion(goes_on: bool) -> None:
    """``goes_on``: segments are copied afterwards, so some are known again."""
    tier, _, partition = in_the_tier_only()
    before = dict(tier.store_memory.objects)
    tier.known(partition).forget()
    if goes_on:
        append_segments(partition)
    tier.pass_ms(60_000)
    assert bool(tier.listed(partition)) is goes_on
    assert partition.log.log_start_offset == 0
    assert before.items() <= tier.store_memory.objects.items()
    (note,) = tier.noted("remote_log_events_missing")
    assert note["log_start_offset"] == 0
    assert note["local_log_start_offset"] == START


def test_lost_oldest_events_stop_deletion() -> None:
    tier, _, partition = in_the_tier_only()
    before = dict(tier.store_memory.objects)
    known = tier.known(partition)
    newer = [each for each in known.listed() if each.start_offset >= 12]
    known.forget()
    for each in newer:
        known.apply(replace(each, state=STARTED))
        known.apply(step(each, FINISHED, by=each.uploader_epoch))
    assert [each.start_offset for each in known.listed()] == [12, 18, 24]
    tier.pass_ms(60_000)
    assert partition.log.log_start_offset == 0
    assert before.items() <= tier.store_memory.objects.items()


@pytest.mark.clause("P-11")
@pytest.mark.parametrize("first", [0, 12])
def test_nothing_is_deleted_when_only_the_ends_of_copies_are_lost(first: int) -> None:
    """``first``: from which copy on. A copy that was abandoned is garbage, but not one whose records are missing."""
    tier, _, partition = in_the_tier_only()
    before = dict(tier.store_memory.objects)
    known = tier.known(partition)
    listed = tuple(known.listed())
    known.forget()
    for each in listed:
        known.apply(replace(each, state=STARTED))
        if each.start_offset < first:
            known.apply(step(each, FINISHED, by=each.uploader_epoch))
    tier.pass_ms(60_000)
    assert partition.log.log_start_offset == 0
    assert before.items() <= tier.store_memory.objects.items()
    assert len(tier.noted("remote_log_events_missing")) == 1
    partition.log.delete_records_before(START)
    tier.pass_ms(60_000)
    assert not tier.store_memory.objects


@pytest.mark.parametrize("lost", [6, 12, 24])
@pytest.mark.parametrize("expires", [False, True])
def test_lost_events_in_the_middle_stop_deletion(lost: int, expires: bool) -> None:
    """``expires``: earlier segments are removed, so the log would start with the missing ones."""
    tier, _, partition = in_the_tier_only()
    known = tier.known(partition)
    listed = tuple(known.listed())
    (missed,) = (each for each in listed if each.start_offset == lost)
    known.forget()
    for each in listed:
        if each is not missed:
            known.apply(replace(each, state=STARTED))
            known.apply(step(each, FINISHED, by=each.uploader_epoch))
    before = objects_of(tier, missed)
    if expires:
        partition.log.delete_records_before(lost)
    tier.pass_ms(60_000)
    assert partition.log.log_start_offset == (lost if expires else 0)
    assert objects_of(tier, missed) == before
    assert len(tier.noted("remote_log_events_missing")) == 1
    partition.log.delete_records_before(lost + 6)
    tier.pass_ms(60_000)
    assert not objects_of(tier, missed), "they are not missing any more"


def test_next_leader_with_lost_events_deletes_nothing() -> None:
    """The leader's own event, which changes nothing, does not list the earlier segments."""
    tier, node, partition = in_the_tier_only()
    before = dict(tier.store_memory.objects)
    tier.known(partition).forget()
    node.resign(partition)
    again = TierNode(tier, 2, node.disk, expires=True).lead(partition.log, leader_epoch=6)
    tier.pass_ms(30_000)
    assert tier.known(again).newest_epoch == 6
    assert again.log.log_start_offset == 0
    assert tier.store_memory.objects == before


def test_delete_records_of_missing_segments_resumes_deletion() -> None:
    tier, _, partition = in_the_tier_only()
    tier.known(partition).forget()
    tier.pass_ms(30_000)
    partition.log.delete_records_before(START)
    tier.pass_ms(30_000)
    assert not tier.store_memory.objects
    assert len(tier.noted("remote_log_events_missing")) == 1


def test_retention_of_missing_segments_resumes_deletion() -> None:
    """Newer segments have to be removed, too."""
    tier, _, partition = in_the_tier_only()
    tier.known(partition).forget()
    append_segments(partition)
    tier.pass_ms(10_000)
    assert tier.listed(partition)
    partition.log.config = replace(TIERED, retention_ms=1)
    tier.pass_ms(30_000)
    assert not tier.store_memory.objects


def test_local_segments_with_lost_events_are_copied_again() -> None:
    """A segment is kept here until then, although its objects are removed: no event lists them."""
    tier, disk = Tier(), MemoryDisk()
    log = filled(disk, replace(TIERED, local_retention_bytes=-1), SEGMENTS)
    node = TierNode(tier, disk=disk, expires=True)
    partition = node.lead(log)
    tier.pass_ms(5_000)
    synced(log)
    assert log.copied_end_offset == START
    tier.known(partition).forget()
    for _ in range(60):
        tier.pass_ms(1_000)
        known = tier.known(partition)
        assert known.listed_until(lineage_of(log), 0) >= log.copied_end_offset
    assert log.copied_end_offset == START
    assert log.local_log_start_offset == 0
    check_whole(tier, partition)
    log.config = TIERED
    log.enforce_retention(NOW)
    assert log.local_log_start_offset == START
    tier.pass_ms(30_000)
    assert tier.known(partition).listed_until(lineage_of(log), 0) >= START


def test_new_epoch_fences_former_leaders_again() -> None:
    tier, disk = Tier(), MemoryDisk()
    node = TierNode(tier, disk=disk)
    partition = node.lead(filled(disk, TIERED, SEGMENTS))
    tier.pass_ms(5_000)
    ports: Any = node.ports
    fencing = LeaderEpochFencing(ports, 1, node.metadata, partition)
    errors: list[Error] = []
    fencing.establish(errors.append)
    tier.pass_ms(10)
    assert (errors, fencing.is_established) == ([ErrorCode.none], True)
    tier.known(partition).forget()
    assert not fencing.is_established
    fencing.establish(errors.append)
    tier.known(partition).forget()
    tier.pass_ms(10)
    assert errors[1:] == [ErrorCode.fenced_leader_epoch]
    fencing.establish(errors.append)
    tier.pass_ms(10)
    assert (errors[2:], fencing.is_established) == ([ErrorCode.none], True)


@pytest.mark.parametrize("looks_at", ["retention", "objects"])
def test_partition_removed_during_check_has_no_missing_segments(looks_at: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The partition has no metadata any more. That is no loss of its events."""
    tier, node, partition = in_the_tier_only()
    went: list[bool] = []

    def go() -> None:
        if not went:
            went.append(True)
            partition.is_topic_deleted = True
            node.resign(partition)

    def due_and_gone(*of: Any) -> Sliced[Due]:
        found = yield from due(*of)
        go()
        return found

    def name_and_gone(key: str) -> ObjectName | None:
        tier.set_timer(tier.mono_us, go)
        return name_of(key)

    if looks_at == "retention":
        monkeypatch.setattr(expirer, "due", due_and_gone)
    else:
        monkeypatch.setattr(expirer, "REMOTE_OBJECTS_PER_SLICE", 1)
        monkeypatch.setattr(expirer, "name_of", name_and_gone)
    before = dict(tier.store_memory.objects)
    tier.pass_ms(60_000)
    assert went
    assert not tier.noted("remote_log_events_missing")
    assert tier.store_memory.objects == before
