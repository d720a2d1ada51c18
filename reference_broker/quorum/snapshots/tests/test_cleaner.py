"""Deletion of snapshots: never the newest, nor one that is being fetched, nor the one before the log."""

from typing import Any, NoReturn

import pytest

from reference_broker.log.checkpoints import LOG_START_FILE, NEW_SUFFIX
from reference_broker.ports.disk import DiskError
from reference_broker.quorum.node_files import METADATA_DIRECTORY
from reference_broker.quorum.snapshots.store import CHECK_US
from reference_broker.quorum.snapshots.tests.snapshot_world import Replica, content, filled, setting

SMALL: dict[str, Any] = {"metadata_max_retention_bytes": "0", "metadata_log_max_snapshot_interval_ms": "0"}


def _with_snapshots(count: int, **config: str) -> Replica:
    replica = filled(Replica(**{**SMALL, **config}))
    for number in range(count):
        replica.append([setting(number)])
        replica.make_snapshot()
    replica.generator.cleaner.check()
    return replica


@pytest.mark.clause("KafkaMetadataLogTest.testDeleteSnapshots", "KafkaMetadataLogTest.testSoftRetentionLimit")
@pytest.mark.clause("S-15")
def test_superseded_snapshot_is_deleted_after_one_minute() -> None:
    replica = _with_snapshots(3)
    oldest = replica.store.ids[0]
    replica.ports.advance(59_999)
    assert len(replica.store.ids) == 3
    assert replica.log.start_offset == oldest.offset
    replica.ports.advance(1)
    assert len(replica.store.ids) == 1
    assert replica.log.start_offset == replica.store.ids[0].offset
    assert replica.ports.notes_of("snapshot_deleted")[0] == {"end_offset": oldest.offset, "epoch": oldest.epoch}
    replica.ports.advance(10 * CHECK_US // 1000)
    assert len(replica.store.ids) == 1, "the newest always stays"


@pytest.mark.clause("KafkaMetadataLogTest.testAdvanceLogStartOffsetAfterCleaning")
@pytest.mark.clause("S-15")
def test_log_is_deleted_before_snapshot_it_follows() -> None:
    replica = _with_snapshots(2)
    replica.ports.advance(60_000)
    noted = [what for what, _ in replica.ports.notes if "deleted" in what]
    assert noted == ["log_deleted_before", "log_deleted_before", "snapshot_deleted"]


@pytest.mark.clause("S-15")
def test_nothing_is_deleted_within_retention() -> None:
    replica = _with_snapshots(3, metadata_max_retention_bytes="1000000", metadata_max_retention_ms="600000")
    replica.ports.advance(599_000)
    assert len(replica.store.ids) == 3
    assert replica.log.start_offset == 0
    replica.ports.advance(62_000)
    assert len(replica.store.ids) == 1
    assert replica.log.start_offset == replica.store.ids[0].offset


@pytest.mark.clause("S-15")
def test_unlimited_retention_deletes_nothing() -> None:
    replica = _with_snapshots(3, metadata_max_retention_bytes="-1", metadata_max_retention_ms="-1")
    replica.ports.advance(10**9)
    assert len(replica.store.ids) == 3
    assert replica.log.start_offset == 0


@pytest.mark.clause("S-15")
def test_snapshot_stays_while_its_download_advances() -> None:
    replica = _with_snapshots(3)
    first, _second, third = replica.store.ids
    for position in range(1, 10):
        replica.ports.advance(50_000)
        replica.store.readers.note_request(first, 2, position, replica.ports.now_us)
        assert replica.store.holds(first)
    assert replica.store.ids == (first, third), "a snapshot without downloads need not wait for the oldest"
    assert replica.log.start_offset == first.offset
    for _ in range(2):
        replica.ports.advance(29_000)
        replica.store.readers.note_request(first, 2, 9, replica.ports.now_us)
    assert replica.store.ids[0] == first
    replica.ports.advance(3_000)
    assert [*replica.store.ids] == [third]


@pytest.mark.clause("S-15")
def test_repeated_request_for_same_bytes_is_no_advance() -> None:
    replica = _with_snapshots(1)
    readers, (id_,) = replica.store.readers, replica.store.ids
    readers.note_request(id_, 2, 10, 5)
    readers.note_request(id_, 2, 10, 6)
    readers.note_request(id_, 2, 0, 7)
    assert readers.advanced_us(id_) == 5
    readers.note_request(id_, 2, 4, 8)
    readers.note_request(id_, 3, 0, 9)
    assert readers.advanced_us(id_) == 9


@pytest.mark.clause("KafkaMetadataLogTest.testAdvanceLogStartOffsetAfterCleaning")
@pytest.mark.clause("S-15")
def test_nothing_is_deleted_beyond_high_watermark() -> None:
    replica = _with_snapshots(2)
    disk = replica.disk
    again = Replica(disk, **SMALL)
    again.log.log.high_watermark = again.log.start_offset
    again.ports.advance(200_000)
    assert len(again.store.ids) == 2
    again.log.log.advance_high_watermark(again.log.end.offset)
    again.ports.advance(CHECK_US // 1000)
    assert len(again.store.ids) == 1


def test_failed_deletion_is_noted_and_retried() -> None:
    replica = _with_snapshots(2)
    delete = replica.disk.delete

    def full(path: str) -> NoReturn:
        raise DiskError(f"{path}: input/output error")

    replica.disk.delete = full  # type: ignore[method-assign]  # This disk refuses.
    replica.ports.advance(60_000)
    assert len(replica.store.ids) == 2
    assert replica.ports.notes_of("snapshot_cleaning_failed")
    replica.disk.delete = delete  # type: ignore[method-assign]  # And no longer.
    replica.ports.advance(CHECK_US // 1000)
    assert len(replica.store.ids) == 1


@pytest.mark.clause("KafkaMetadataLogTest.testCleanupOlderSnapshots")
def test_start_completes_interrupted_deletion() -> None:
    replica = _with_snapshots(2)
    first, second = replica.store.ids
    replica.log.delete_before(second)
    replica.sync()
    again = Replica(replica.disk, **SMALL)
    assert again.store.ids == (second,)
    assert again.log.start_offset == second.offset
    assert again.ports.notes_of("snapshot_deleted")[0]["end_offset"] == first.offset


@pytest.mark.clause("S-15")
def test_log_start_reverted_by_power_loss_finds_all_records() -> None:
    replica = filled(Replica(metadata_log_segment_bytes="1024", **SMALL), topics=20)
    replica.sync()
    for number in range(2):
        replica.append([setting(number)])
    oldest = replica.make_snapshot()
    replica.append([setting(3)])
    replica.sync()
    replica.generator.cleaner.check()
    assert replica.log.start_offset == oldest.offset
    replica.disk.truncate(f"{METADATA_DIRECTORY}/{LOG_START_FILE}{NEW_SUFFIX}", 0)
    replica.disk.power_loss()
    again = Replica(replica.disk, metadata_log_segment_bytes="1024", metadata_max_retention_bytes="-1")
    assert again.log.start_offset == 0
    assert content(again.image) == content(replica.image)
