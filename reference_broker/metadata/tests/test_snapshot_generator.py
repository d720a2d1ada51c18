"""Snapshots are made while writes go on, after so many bytes or so much time; whatever goes wrong, none is torn."""

from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_broker.metadata.records import NoOpRecord
from reference_broker.metadata.snapshots import RETRY_US, load_snapshot
from reference_broker.metadata.tests.metadata_world import topic_id, topic_records
from reference_broker.metadata.tests.test_image_replay import OPERATIONS, Model
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.snapshots.tests.snapshot_world import Crash, CrashingDisk, Replica, content, setting
from reference_broker.quorum.values import OffsetAndEpoch

BYTES: dict[str, Any] = {
    "metadata_log_max_record_bytes_between_snapshots": "2000",
    "metadata_log_max_snapshot_interval_ms": "0",
}
NEVER: dict[str, Any] = {
    "metadata_log_max_record_bytes_between_snapshots": "999999999",
    "metadata_log_max_snapshot_interval_ms": "0",
}


@pytest.mark.clause(
    "KafkaMetadataLogTest.testCreateSnapshot",
    "FileRawSnapshotTest.testWriteReadSnapshot",
    "SnapshotGeneratorTest.testCreateSnapshot",
)
@pytest.mark.clause("S-12")
def test_snapshot_is_made_after_max_new_bytes() -> None:
    replica = Replica(**BYTES)
    replica.append(topic_records("a", topic_id(1), 5))
    replica.ports.advance(100_000)
    assert not replica.store.ids
    replica.append(topic_records("b", topic_id(2), 30))
    replica.ports.run()
    (made,) = replica.store.ids
    assert made == (replica.log.end.offset, replica.epoch)
    assert content(run_to_end(load_snapshot(replica.disk, made))) == content(replica.image)
    replica.append([setting(1)])
    replica.ports.run()
    assert replica.store.ids == (made,), "the bytes count from the last snapshot on"


def test_snapshot_is_made_on_demand_once() -> None:
    replica = Replica(**NEVER)
    replica.append(topic_records("a", topic_id(1), 5))
    replica.ports.advance(100_000)
    assert not replica.store.ids
    replica.generator.make_now()
    replica.generator.make_now()
    replica.ports.run()
    assert replica.store.ids == ((replica.log.end.offset, replica.epoch),)
    replica.generator.make_now()
    replica.ports.run()
    assert len(replica.ports.notes_of("snapshot_started")) == 1


@pytest.mark.clause("SnapshotGeneratorTest.testTimeBasedSnapshots")
@pytest.mark.clause("S-12")
def test_snapshot_is_made_after_max_interval_if_records_are_new() -> None:
    replica = Replica(metadata_log_max_snapshot_interval_ms="5000")
    replica.ports.advance(20_000)
    assert replica.store.ids == ()
    replica.append([setting(1)])
    replica.ports.run()
    assert len(replica.store.ids) == 1
    replica.append([setting(2)])
    replica.ports.advance(4_999)
    assert len(replica.store.ids) == 1
    replica.ports.advance(1)
    assert [each.offset for each in replica.store.ids] == [1, 2]
    replica.ports.advance(60_000)
    assert len(replica.store.ids) == 2
    assert len(replica.ports.notes_of("snapshot_started")) == 2


def test_interval_can_begin_again() -> None:
    replica = Replica(metadata_log_max_snapshot_interval_ms="5000")
    replica.append([setting(1)])
    replica.ports.advance(4_000)
    replica.generator.count_from(replica.ports.now_us)
    replica.ports.advance(4_999)
    assert replica.store.ids == ()
    replica.ports.advance(1)
    assert len(replica.store.ids) == 1


@pytest.mark.clause("FileRawSnapshotTest.testBatchWriteReadSnapshot")
@pytest.mark.clause("S-12")
def test_writes_after_the_freeze_point_do_not_get_into_it() -> None:
    replica = Replica(**BYTES)
    replica.append(topic_records("a", topic_id(1), 400))
    frozen = content(replica.image)
    slices = 0
    while not replica.store.ids:
        assert replica.ports.step()
        slices += 1
        replica.append([setting(slices)])
    assert slices > 3
    made = replica.store.ids[0]
    assert made.offset == 401
    assert content(run_to_end(load_snapshot(replica.disk, made))) == frozen
    assert replica.image.provenance.offset == 400 + slices


@pytest.mark.clause("KafkaMetadataLogTest.testCreateSnapshotFromEndOffset", "SnapshotGeneratorTest.testCreateSnapshot")
def test_records_appended_during_snapshot_count_for_next() -> None:
    replica = Replica(**BYTES)
    replica.append(topic_records("a", topic_id(1), 100))
    replica.ports.step()
    replica.append(topic_records("b", topic_id(2), 100))
    replica.append([NoOpRecord()])
    replica.ports.run()
    assert [each.offset for each in replica.store.ids] == [101, 203]


@pytest.mark.clause("KafkaMetadataLogTest.testCreateExistingSnapshot")
@pytest.mark.clause("S-12")
def test_loaded_snapshot_counts_as_the_last() -> None:
    replica = Replica(**NEVER)
    replica.append([setting(1)])
    replica.make_snapshot()
    replica.generator.published(replica.image, 10**9)
    replica.ports.run()
    assert not replica.ports.notes_of("snapshot_started")


@pytest.mark.clause("FileRawSnapshotTest.testWritingSnapshot", "NotifyingRawSnapshotWriterTest.testFreezeClose")
def test_synced_before_renamed() -> None:
    replica = Replica(**BYTES)
    replica.append(topic_records("a", topic_id(1), 100))
    rename = replica.disk.rename
    seen: list[bool] = []

    def watched(source: str, target: str) -> None:
        seen.append(replica.disk.durable_size(source) == replica.disk.size(source))
        rename(source, target)

    replica.disk.rename = watched  # type: ignore[method-assign]  # Watched on this disk only.
    replica.ports.run()
    assert seen == [True]
    noted = [what for what, _ in replica.ports.notes if what.startswith("snapshot_")]
    assert noted == ["snapshot_started", "snapshot_written", "snapshot_renamed"]
    assert replica.ports.notes_of("snapshot_written")[0]["bytes"] == replica.store.size(replica.store.ids[0])


@pytest.mark.clause(
    "FileRawSnapshotTest.testAbortedSnapshot",
    "NotifyingRawSnapshotWriterTest.testFailingFreeze",
    "SnapshotGeneratorTest.testEmitterProblem",
)
def test_full_disk_is_noted_leaves_nothing_and_is_tried_again() -> None:
    replica = Replica(**BYTES)
    replica.append(topic_records("a", topic_id(1), 400))
    for _ in range(20):
        replica.disk.capacity_bytes = replica.disk.used_bytes + 1000
        replica.ports.advance(RETRY_US // 1000 - 1)
        replica.disk.capacity_bytes = -1
        replica.append([setting(1)])
        replica.disk.capacity_bytes = replica.disk.used_bytes + 1000
        assert replica.names() == []
        assert replica.store.ids == ()
        replica.ports.advance(1)
    assert len(replica.ports.notes_of("snapshot_failed")) >= 20
    replica.disk.capacity_bytes = -1
    replica.ports.advance(RETRY_US // 1000)
    (made,) = replica.store.ids
    assert content(run_to_end(load_snapshot(replica.disk, made))) == content(replica.image)


@pytest.mark.clause(
    "KafkaMetadataLogTest.testCreateSnapshotBeforeLogStartOffset",
    "NotifyingRawSnapshotWriterTest.testCloseWithoutFreeze",
    "RaftSnapshotWriterTest.testCloseWithoutFreeze",
)
def test_newer_one_from_the_leader_makes_it_needless() -> None:
    replica = Replica(**BYTES)
    replica.append(topic_records("a", topic_id(1), 100))
    replica.ports.step()
    replica.disk.append("other", [b"x"])
    replica.store.name(OffsetAndEpoch(500, 2), "other")
    replica.store.add(OffsetAndEpoch(500, 2))
    replica.ports.run()
    assert replica.store.ids == ((500, 2),)
    assert replica.names() == [f"{500:020d}-{2:010d}.checkpoint"]


@pytest.mark.clause("SnapshotEmitterTest.testEmit")
@pytest.mark.clause("S-14")
def test_metrics_of_making_and_loading() -> None:
    replica = Replica(**BYTES)
    found: dict[str, Any] = {row.name: row.metric for row in replica.metrics.rows()}
    assert found["SnapshotSizeBytes"].value == 0
    replica.append(topic_records("a", topic_id(1), 400))
    while not replica.store.ids:
        replica.ports.step()
        replica.ports.now_us += 2_000
    assert found["SnapshotSizeBytes"].value == replica.store.size(replica.store.ids[0])
    assert found["GenSnapshotLatencyMs"].count == 1
    assert found["GenSnapshotLatencyMs"].sum >= 6
    downloaded = OffsetAndEpoch(10_000, 2)
    replica.disk.append(replica.store.path(downloaded), [b"x" * 7])
    replica.store.add(downloaded)
    assert found["SnapshotSizeBytes"].value == 7, "a snapshot shows as soon as it is held, before it is loaded"
    replica.store.delete(downloaded)
    for _ in replica.loader.load():
        replica.ports.now_us += 3_000
    assert (found["LoadSnapshotLatencyMs"].count, found["LoadSnapshotLatencyMs"].sum) == (1, 6)
    assert len(replica.ports.notes_of("snapshot_loaded")) == 1
    assert {row.mbean for row in replica.metrics.rows()} == {
        f"kafka.controller:type=KafkaController,name={name}"
        for name in ("GenSnapshotLatencyMs", "LoadSnapshotLatencyMs", "SnapshotSizeBytes")
    }


def _crashed(crash_at: int, power_loss: bool, seed: int) -> bool:
    """One life until it dies before change number ``crash_at``, then another: it has what was durable, or all."""
    disk = CrashingDisk(Random(seed))
    config: dict[str, Any] = BYTES | {
        "metadata_max_retention_bytes": "0",
        "crucible_metadata_snapshot_keep_ms": "0",
        "metadata_log_segment_bytes": "1024",
    }
    durable = content(Replica(disk).image)
    written: dict[int, tuple[Any, ...]] = {}
    disk.crash_at = crash_at + disk.changes
    died = False
    try:
        replica = Replica(disk, **config)
        for number in range(6):
            replica.append(topic_records(f"t{number}", topic_id(number), 30))
            written[replica.image.provenance.offset] = content(replica.image)
            if number % 2:
                replica.sync()
                durable = content(replica.image)
            replica.ports.advance(100)
        assert replica.log.start_offset > 0, "the test must see the log go"
    except Crash:
        died = True
    disk.crash_at = -1
    if power_loss:
        disk.power_loss()
    again = Replica(disk, **config)
    offset = again.image.provenance.offset
    if offset >= 0:
        assert content(again.image) == written.get(offset, durable), "neither what was written nor a beginning of it"
    assert offset >= durable[0], "what was durable is gone"
    assert not again.log.start_offset or again.store.ids[-1].offset >= again.log.start_offset
    assert not [name for name in again.names() if "part" in name]
    again.append(topic_records("after", topic_id(99), 40))
    again.ports.advance(5_000)
    assert content(run_to_end(load_snapshot(disk, again.store.ids[-1]))) == content(again.image)
    return died


@pytest.mark.thorough
@pytest.mark.clause("FileRawSnapshotTest.testAbortedSnapshot", "SnapshotWriterReaderTest.testAbortedSnapshot")
@pytest.mark.clause("S-9", "S-15")
@pytest.mark.parametrize("power_loss", [False, True])
def test_crash_before_each_disk_operation_leaves_a_snapshot_or_none(power_loss: bool) -> None:
    crash_at = 0
    while _crashed(crash_at, power_loss, crash_at):
        crash_at += 1
    assert crash_at > 40


@pytest.mark.clause("QuorumControllerTest.testSnapshotSaveAndLoad")
@pytest.mark.clause("S-15")
@settings(max_examples=40, deadline=None)
@given(OPERATIONS, st.integers(0, 400), st.integers(0, 2**16), st.booleans())
def test_snapshot_start_equals_full_replay(
    operations: list[tuple[str, int]], crash_at: int, seed: int, power_loss: bool
) -> None:
    model, disk, whole = Model(), CrashingDisk(Random(seed)), Replica()
    config: dict[str, Any] = BYTES | {
        "metadata_log_max_record_bytes_between_snapshots": "300",
        "metadata_max_retention_bytes": "0",
    }
    replica = Replica(disk, crucible_metadata_snapshot_keep_ms="0", **config)
    disk.crash_at = disk.changes + crash_at
    batches = [records for operation, number in operations if (records := model.records(operation, number))]
    by_offset = {-1: content(whole.image)}
    for records in batches:
        whole.append(records)
        by_offset[whole.image.provenance.offset] = content(whole.image)
    try:
        for records in batches:
            replica.append(records)
            replica.sync()
            replica.ports.advance(50)
    except Crash:
        disk.crash_at = -1
        if power_loss:
            disk.power_loss()
    disk.crash_at = -1
    again = Replica(disk, **config)
    assert content(again.image) == by_offset[again.image.provenance.offset]
