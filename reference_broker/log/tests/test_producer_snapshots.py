"""Producer snapshots: Kafka's bytes, when they are written, which of them a start loads, and damaged ones."""

from struct import pack

import pytest

from reference_broker.log.appending import BatchOrigin
from reference_broker.log.cleaner.tests.cleaner_world import cleaned, fresh, put
from reference_broker.log.config import LogConfig
from reference_broker.log.producer_state import (
    BatchMetadata,
    ProducerSnapshots,
    ProducerStateEntry,
    ProducerStateManager,
    SnapshotDamaged,
    decode_snapshot,
    encode_snapshot,
)
from reference_broker.log.tests.log_world import DIRECTORY, NOW, at, batch_of, opened, refused, sent
from reference_broker.log.tests.recovery_world import stopped
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.batch import checksum
from reference_broker.records.tests.markers import build_marker
from reference_broker.wire.errors import ErrorCode


def kafkas(*producers: tuple[int, int, int, int, int, int, int, int], version: int = 1) -> bytes:
    """Return a file as Kafka writes it: ProducerSnapshot.json, version 1, after its version and the CRC-32C of the
    rest."""
    body = pack(">i", len(producers)) + b"".join(pack(">qhiqiqiq", *producer) for producer in producers)
    return pack(">hI", version, checksum(body)) + body


def path_of(offset: int) -> str:
    return f"{DIRECTORY}/{offset:020d}.snapshot"


def snapshots(disk: MemoryDisk) -> list[int]:
    return [int(path[-29:-9]) for path in sorted(disk.files) if path.endswith(".snapshot")]


def filled(disk: MemoryDisk, rolls: int = 3) -> UnifiedLog:
    """Append segments at 0, 2, 4 and so on. Producer 1 has a batch in each, and producer 2 starts with the second
    one."""
    log = opened(disk)
    for number in range(rolls + 1):
        if number:
            log.roll(NOW)
            sent(log, 2, number - 1)
        else:
            log.append(NOW, batch_of(1), 0)
        sent(log, 1, number)
    return log


@pytest.mark.clause("P-2", "ProducerStateManagerTest.testReadWriteSnapshot")
def test_snapshot_has_bytes_of_kafka() -> None:
    states = ProducerStateManager(1000, True)
    states.by_id = {
        7: ProducerStateEntry(3, (BatchMetadata(5, 6, 40, 41, 90), BatchMetadata(7, 9, 50, 52, 99)), 100, 4, -1),
        8: ProducerStateEntry(2, (), 120, 6, -1),
        9: ProducerStateEntry(0, (BatchMetadata(2**31 - 2, 1, 60, 63, 130),), 130, -1, 60),
    }
    written = kafkas((7, 3, 9, 52, 2, 100, 4, -1), (8, 2, -1, -1, 0, 120, 6, -1), (9, 0, 1, 63, 3, 130, -1, 60))
    assert encode_snapshot(states) == written
    known = dict(decode_snapshot(written))
    assert known[7] == ProducerStateEntry(3, (BatchMetadata(7, 9, 50, 52, 100),), 100, 4, -1)
    assert known[8] == states.by_id[8]
    assert known[9] == states.by_id[9], "a restarted sequence is found again"


@pytest.mark.clause("P-4", "ProducerStateManagerTest.testLoadFromSnapshotRetainsNonExpiredProducers")
def test_snapshot_of_kafka_is_loaded() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    log.append(NOW, batch_of(50), 0)
    stopped(log)
    for offset in snapshots(disk):
        disk.delete(path_of(offset))
    disk.files[path_of(50)] = bytearray(kafkas((7, 3, 9, 41, 2, NOW.wall_ms, -1, -1)))
    again = opened(disk)
    assert again.recovered.snapshot == path_of(50)
    assert refused(again, 7, 11, epoch=3) == ErrorCode.out_of_order_sequence_number
    assert sent(again, 7, 7, 3, epoch=3).duplicate
    assert sent(again, 7, 10, epoch=3).first_offset == 50


@pytest.mark.clause(
    "P-12",
    "ProducerStateManagerTest.testLoadFromEmptySnapshotFile",
    "ProducerStateManagerTest.testLoadFromTruncatedSnapshotFile",
    "ProducerStateManagerTest.testLoadFromCorruptSnapshotFile",
)
def test_every_damage_of_file_is_detected() -> None:
    whole = kafkas((7, 3, 9, 52, 2, 100, 4, -1), (8, 2, -1, -1, 0, 120, 6, -1))
    for bit in range(8 * len(whole)):
        flipped = bytearray(whole)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SnapshotDamaged):
            dict(decode_snapshot(bytes(flipped)))
    for size in range(len(whole)):
        with pytest.raises(SnapshotDamaged):
            dict(decode_snapshot(whole[:size]))
    for other in (whole + b"\0", kafkas((7, 3, 9, 52, 2, 100, 4, -1), version=2)):
        with pytest.raises(SnapshotDamaged):
            dict(decode_snapshot(other))


@pytest.mark.clause("P-12")
@pytest.mark.parametrize("how", ["flipped", "cut", "emptied", "missing"])
@pytest.mark.parametrize("damaged", [1, 2, 4])
@pytest.mark.parametrize("clean", [True, False])
def test_damaged_snapshot_is_deleted_and_rebuilt(how: str, damaged: int, clean: bool) -> None:
    disk = MemoryDisk()
    log = filled(disk)
    stopped(log)
    before = {offset: bytes(disk.files[path_of(offset)]) for offset in snapshots(disk)}
    assert list(before) == [2, 4, 6, 8]
    spoiled = list(before)[-damaged:]
    for offset in spoiled:
        content = disk.files[path_of(offset)]
        if how == "flipped":
            content[20] ^= 4
        elif how == "missing":
            del disk.files[path_of(offset)]
        else:
            del content[len(content) // 2 if how == "cut" else 0 :]
    again = opened(disk, clean=clean)
    assert again.producers.by_id == log.producers.by_id
    kept = [offset for offset in before if offset not in spoiled]
    assert again.recovered.snapshot == (path_of(kept[-1]) if kept else "")
    found = [path for path, _ in again.recovered.damaged_snapshots]
    assert found == ([] if how == "missing" else [path_of(offset) for offset in reversed(spoiled)])
    made = {offset: bytes(disk.files[path_of(offset)]) for offset in snapshots(disk)}
    assert made == {offset: content for offset, content in before.items() if offset in (*kept, 4, 6, 8)}


@pytest.mark.clause(
    "P-2",
    "P-3",
    "ProducerStateManagerTest.testTakeSnapshot",
    "ProducerStateManagerTest.testSkipSnapshotIfOffsetUnchanged",
    "UnifiedLogTest.testTakeSnapshotOnRollAndDeleteSnapshotOnRecoveryPointCheckpoint",
)
def test_snapshot_is_written_at_each_roll_and_clean_stop() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    assert snapshots(disk) == [2, 4, 6]
    stopped(log)
    assert snapshots(disk) == [2, 4, 6, 8]
    written = disk.files[path_of(8)]
    stopped(opened(disk))
    assert disk.files[path_of(8)] is written, "nothing is written twice"
    assert not [path for path in disk.files if path.endswith(".new")]


@pytest.mark.clause("P-4")
def test_only_batches_after_newest_snapshot_are_replayed() -> None:
    disk = MemoryDisk()
    log = filled(disk)
    data = encoded_with_sequence(log, 77)
    disk.files[path_of(6)] = bytearray(data)
    again = opened(disk, clean=False)
    assert again.recovered.snapshot == path_of(6)
    assert again.producers.by_id[5].last_sequence == 77, "only the snapshot speaks of producer 5"
    assert again.producers.by_id[1].last_sequence == 3


def encoded_with_sequence(log: UnifiedLog, sequence: int) -> bytes:
    states = log.producers.empty_copy()
    states.by_id[5] = ProducerStateEntry(0, (BatchMetadata(sequence, sequence, 3, 3, NOW.wall_ms),), NOW.wall_ms)
    return encode_snapshot(states)


@pytest.mark.clause(
    "ProducerStateManagerTest.testTruncateAndReloadRemovesOutOfRangeSnapshots",
    "ProducerStateManagerTest.testTruncateFullyAndStartAt",
    "ProducerStateManagerTest.testDeleteSnapshotsBefore",
    "ProducerStateManagerTest.testReloadSnapshots",
    "UnifiedLogTest.testRetentionDeletesProducerStateSnapshots",
    "UnifiedLogTest.testLogStartOffsetMovementDeletesSnapshots",
    "UnifiedLogTest.testDeleteSnapshotsOnIncrementLogStartOffset",
)
def test_snapshots_are_deleted_with_their_segments() -> None:
    disk = MemoryDisk()
    log = filled(disk, 5)
    stopped(log)
    assert snapshots(disk) == [2, 4, 6, 8, 10, 12]
    log.delete_records_before(4)
    log.mark_synced(log.sync_point())
    assert snapshots(disk) == [4, 6, 8, 10, 12], "a segment takes its own along"
    log.truncate_to(9)
    assert snapshots(disk) == [4, 6, 8]
    assert {who: each.last_sequence for who, each in log.producers.by_id.items()} == {1: 3, 2: 3}
    log = opened(disk, clean=False)
    assert snapshots(disk) == [6, 8, 9], "the one at the log start has deleted records only"
    log.truncate_fully_and_start_at(30, NOW)
    assert snapshots(disk) == []


@pytest.mark.clause(
    "ProducerStateManagerTest.testRemoveStraySnapshotsKeepCleanShutdownSnapshot",
    "ProducerStateManagerTest.testRemoveAllStraySnapshots",
    "LogLoaderTest.testLoadingLogKeepsLargestStrayProducerStateSnapshot",
    "UnifiedLogTest.testLoadingLogDeletesProducerStateSnapshotsPastLogEndOffset",
)
def test_only_newest_snapshot_without_segment_is_kept() -> None:
    disk = MemoryDisk()
    stopped(filled(disk))
    content = disk.files[path_of(8)]
    disk.files.update({path_of(offset): bytearray(content) for offset in (1, 3, 5, 7, 9, 20)})
    disk.files[f"{path_of(20)}.new"] = bytearray(b"half")
    again = opened(disk)
    assert snapshots(disk) == [2, 4, 6, 8]
    assert again.recovered.snapshot == path_of(8)
    assert not disk.exists(f"{path_of(20)}.new")


@pytest.mark.clause("P-2")
def test_roll_succeeds_if_snapshot_cannot_be_written() -> None:
    disk = MemoryDisk()
    log = filled(disk, 1)
    for allowed in range(6):
        disk.fail_after = allowed
        try:
            log.roll(NOW)
        except OSError:
            continue
        finally:
            disk.fail_after = None
        break
    sent(log, 1, 2)
    assert len(log.segments) == 3
    assert opened(disk, clean=False).producers.by_id == log.producers.by_id


@pytest.mark.clause("P-6")
def test_duplicate_of_older_batch_is_detected_after_clean_restart() -> None:
    disk = MemoryDisk()
    log = opened(disk, LogConfig(segment_bytes=300))
    for number in range(9):
        sent(log, 1, number)
    stopped(log)
    again = opened(disk, LogConfig(segment_bytes=300))
    assert len(again.segments) > 2
    assert [sent(again, 1, number).duplicate for number in range(4, 9)] == [True] * 5
    assert refused(again, 1, 3) == ErrorCode.out_of_order_sequence_number


@pytest.mark.clause("ProducerStateManagerTest.testRemoveExpiredPidsOnReload", "P-7")
def test_expired_producer_is_not_loaded() -> None:
    disk, config = MemoryDisk(), LogConfig(producer_id_expiration_ms=1000)
    log = opened(disk, config)
    sent(log, 1, 0)
    transaction = batch_of(1, producer_id=2, producer_epoch=0, base_sequence=0, is_transactional=True)
    log.append(NOW, transaction, 0)
    stopped(log)
    assert set(opened(disk, config, now=at(999)).producers.by_id) == {1, 2}
    assert set(opened(disk, config, now=at(1000)).producers.by_id) == {2}, "it has an open transaction"


@pytest.mark.clause("ProducerStateManagerTest.testCoordinatorFencedAfterReload")
def test_coordinator_epoch_is_loaded() -> None:
    disk = MemoryDisk()
    log = opened(disk)
    marker = build_marker(commit=True, producer_id=1, producer_epoch=0, coordinator_epoch=7, timestamp_ms=NOW.wall_ms)
    log.append(NOW, marker, 0, origin=BatchOrigin.BROKER)
    stopped(log)
    assert opened(disk).producers.by_id[1].coordinator_epoch == 7


def test_snapshot_is_written_once_per_offset() -> None:
    log = opened(MemoryDisk())
    files = ProducerSnapshots(log.disk, DIRECTORY, log.durability)
    assert not files.is_due(5, 5)
    assert files.is_due(6, 5)
    files.write(6, log.producers)
    assert not files.is_due(6, 5)
    assert files.offsets == [6]


@pytest.mark.clause(
    "UnifiedLogTest.testProducerSnapshotAfterSegmentRollOnAppend",
    "UnifiedLogTest.testProducerIdMapOffsetUpdatedForNonIdempotentData",
)
def test_roll_without_producers_writes_snapshot() -> None:
    disk = MemoryDisk()
    log = opened(disk, LogConfig(segment_bytes=200))
    for _ in range(6):
        log.append(NOW, batch_of(1), 0)
    assert len(log.bases) > 2
    assert snapshots(disk) == list(log.bases[1:])


@pytest.mark.clause("UnifiedLogTest.testCompactionDeletesProducerStateSnapshots")
def test_swap_removes_snapshots_within_its_range() -> None:
    log, disk = fresh()
    for number in range(15):
        put(log, ("same", str(number)), producer=(1, number))
    log.roll(NOW)
    before = snapshots(disk)
    cleaned(log, disk)
    assert len(before) > 2
    assert snapshots(disk) == [offset for offset in before if offset >= log.bases[-1]]
    assert log.producers.by_id[1].last_sequence == 14


@pytest.mark.parametrize("clean", [True, False])
@pytest.mark.parametrize(("log_start_offset", "is_known"), [(1, True), (2, False)])
@pytest.mark.clause("P-4")
def test_marker_before_log_start_adds_no_producer(clean: bool, log_start_offset: int, is_known: bool) -> None:
    """Otherwise the next sequence of a producer whose batches were all deleted would be rejected as out of order."""
    disk = MemoryDisk()
    log = opened(disk)
    log.append(NOW, batch_of(1, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True), 0)
    log.roll(NOW)
    marker = build_marker(commit=False, producer_id=9, producer_epoch=0, coordinator_epoch=0, timestamp_ms=NOW.wall_ms)
    log.append(NOW, marker, 0, origin=BatchOrigin.BROKER)
    log.advance_high_watermark(2)
    log.delete_records_before(log_start_offset)
    log.mark_synced(log.sync_point())
    if clean:
        stopped(log)
    again = opened(disk, clean=clean)
    if clean and is_known:
        assert again.producers.by_id[9].last_sequence == 0, "a snapshot behind the log start has it"
    else:
        assert (9 in again.producers.by_id) == is_known
