"""The metadata log and its snapshots: validation of fetches, truncation, repairs at start (KafkaMetadataLogTest)."""

import base64
from collections.abc import Callable

import pytest

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.log.config import LogConfig
from reference_broker.metadata.records import NoOpRecord, TopicRecord, encode
from reference_broker.ports.disk import DiskError, MemoryDisk, UndoFailed
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import run_to_end
from reference_broker.quorum.metadata_log import (
    MAX_BATCH_BYTES,
    VALID,
    BatchTooLarge,
    Diverging,
    MetadataLog,
    NeedsSnapshot,
    TruncationBelowHighWatermark,
    Validity,
    open_metadata_log,
)
from reference_broker.quorum.node_files import StartRefused
from reference_broker.quorum.snapshots.format import footer_batch, header_batch
from reference_broker.quorum.tests.quorum_alone import batch
from reference_broker.quorum.tests.quorum_snapshots import NamedSnapshots
from reference_broker.quorum.values import METADATA_TOPIC_ID, OffsetAndEpoch
from reference_broker.records.record import read_records

NOW = Now(0, 1_700_000_000_000)
CONFIG = BrokerConfig.parse({"metadata.log.segment.bytes": "1024"})
EPOCHS = "__cluster_metadata-0/leader-epoch-checkpoint"


def opened(disk: MemoryDisk | None = None, clean: bool = False, config: BrokerConfig = CONFIG) -> MetadataLog:
    disk = disk if disk is not None else MemoryDisk()
    return run_to_end(open_metadata_log(disk, config, NOW, clean, NamedSnapshots(disk)))


def filled(*epochs: int, each: int = 10) -> MetadataLog:
    """Return a log with ``each`` batches of one record in each epoch, all committed."""
    log = opened()
    for epoch in epochs:
        for _ in range(each):
            log.append(NOW, [encode(NoOpRecord())], epoch)
    log.log.advance_high_watermark(log.end.offset)
    return log


def snapshot(log: MetadataLog, offset: int, epoch: int, delete: bool = True) -> OffsetAndEpoch:
    made = OffsetAndEpoch(offset, epoch)
    assert isinstance(log.snapshots, NamedSnapshots)
    log.snapshots.add(made)
    if delete:
        assert log.delete_before(made)
        log.snapshots.drop_older(made)
    return made


@pytest.mark.clause(
    "KafkaMetadataLogTest.testValidateEpochGreaterThanLastKnownEpoch",
    "KafkaMetadataLogTest.testValidateOffsetGreatThanEndOffset",
    "KafkaMetadataLogTest.testValidateOffsetLessThanLEO",
    "KafkaMetadataLogTest.testValidateValidEpochAndOffset",
)
@pytest.mark.parametrize(
    ("offset", "epoch", "validity"),
    [
        (0, 0, VALID),
        (10, 1, VALID),
        (5, 1, VALID),
        (20, 3, VALID),
        (25, 3, Diverging(OffsetAndEpoch(20, 3))),
        (11, 1, Diverging(OffsetAndEpoch(10, 1))),
        (15, 2, Diverging(OffsetAndEpoch(10, 1))),
        (20, 7, Diverging(OffsetAndEpoch(20, 3))),
        (5, 3, VALID),
        (4, 0, Diverging(OffsetAndEpoch(0, 0))),
    ],
)
def test_validity_of_fetch_without_snapshots(offset: int, epoch: int, validity: Validity) -> None:
    assert filled(1, 3).validate_offset_and_epoch(offset, epoch) == validity


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testFetchRequestOffsetLessThanLogStart",
    "KafkaRaftClientSnapshotTest.testFetchRequestAtLogStartOffsetWithInvalidEpoch",
    "KafkaRaftClientSnapshotTest.testFetchRequestWithLastFetchedEpochLessThanOldestSnapshot",
    "KafkaMetadataLogTest.testValidateEpochLessThanOldestSnapshotEpoch",
    "KafkaMetadataLogTest.testValidateOffsetLessThanOldestSnapshotOffset",
    "KafkaMetadataLogTest.testValidateOffsetEqualToOldestSnapshotOffset",
    "KafkaMetadataLogTest.testValidateUnknownEpochLessThanLastKnownGreaterThanOldestSnapshot",
)
@pytest.mark.clause("S-10")
@pytest.mark.parametrize(
    ("offset", "epoch", "validity"),
    [
        (0, 0, NeedsSnapshot(OffsetAndEpoch(15, 3))),
        (14, 3, NeedsSnapshot(OffsetAndEpoch(15, 3))),
        (15, 2, NeedsSnapshot(OffsetAndEpoch(15, 3))),
        (20, 2, NeedsSnapshot(OffsetAndEpoch(15, 3))),
        (15, 3, VALID),
        (20, 3, VALID),
        (30, 5, VALID),
        (31, 5, Diverging(OffsetAndEpoch(30, 5))),
        (25, 4, Diverging(OffsetAndEpoch(20, 3))),
    ],
)
def test_validity_of_fetch_when_log_starts_at_snapshot(offset: int, epoch: int, validity: Validity) -> None:
    log = filled(1, 3, 5)
    snapshot(log, 15, 3)
    assert log.validate_offset_and_epoch(offset, epoch) == validity


@pytest.mark.clause(
    "KafkaRaftClientSnapshotTest.testFetchRequestTruncateToLogStart",
    "KafkaMetadataLogTest.testValidateEpochLessThanFirstEpochInLog",
)
def test_epoch_before_oldest_snapshot_ends_at_it() -> None:
    """testFetchRequestTruncateToLogStart."""
    log = opened()
    log.snapshots.add(OffsetAndEpoch(10, 1))  # type: ignore[attr-defined]
    log.install_snapshot(NOW, OffsetAndEpoch(10, 1))
    log.append(NOW, [encode(NoOpRecord())], 4)
    assert log.validate_offset_and_epoch(11, 2) == Diverging(OffsetAndEpoch(10, 1))


@pytest.mark.clause("S-9")
def test_disk_error_at_installation_of_snapshot_leaves_log_or_ends_node() -> None:
    """A voter that went on with a part of its log would vote for a candidate that lacks committed records."""
    failures, outcomes, wanted = 0, [], OffsetAndEpoch(45, 4)
    while "installed" not in outcomes:
        disk = MemoryDisk()
        log = opened(disk)
        for _ in range(40):
            log.append(NOW, [encode(NoOpRecord())], 3)
        log.log.advance_high_watermark(40)
        log.snapshots.add(wanted)  # type: ignore[attr-defined]
        disk.fail_after = failures
        try:
            assert log.install_snapshot(NOW, wanted)
            outcomes.append("installed")
        except DiskError:
            outcomes.append("unchanged")
            assert (log.start_offset, log.end) == (0, OffsetAndEpoch(40, 3))
            assert read_records(log.read(0, 1, 40))
            log.log.check_invariants()
        except UndoFailed:
            outcomes.append("ended")
        disk.fail_after = None
        if outcomes[-1] != "unchanged":
            assert opened(disk).end == wanted
        failures += 1
    assert set(outcomes) == {"unchanged", "ended", "installed"}


def _lead(log: MetadataLog) -> None:
    log.append_leader_change(NOW, 1, (0, 1, 2), 4)


def _follow(log: MetadataLog) -> None:
    log.append_fetched(NOW, batch(1, 4), 4)


@pytest.mark.parametrize("append", [_lead, _follow])
def test_batch_that_could_not_be_written_leaves_no_epoch(append: Callable[[MetadataLog], None]) -> None:
    """The next leader may have records of an older epoch there. A voter names the epoch of its last one (KIP-595)."""
    failures = 0
    while True:
        disk = MemoryDisk()
        log = opened(disk)
        log.append(NOW, [encode(NoOpRecord())], 3)
        disk.fail_after = failures
        try:
            append(log)
            break
        except DiskError:
            failures += 1
        disk.fail_after = None
        assert log.end == OffsetAndEpoch(1, 3)
        assert log.append_fetched(NOW, batch(1, 3), 5)
        assert log.end == opened(disk).end == OffsetAndEpoch(2, 3)
        assert log.end_for_epoch(4) == OffsetAndEpoch(2, 3)
    assert failures == 2, "the epochs, and the batch"
    assert log.end == OffsetAndEpoch(2, 4)


@pytest.mark.clause("KafkaRaftClientSnapshotTest.testFetchRequestOffsetAtZero")
@pytest.mark.clause("S-10")
def test_fetch_at_zero_needs_existing_snapshot() -> None:
    log = filled(1)
    snapshot(log, 5, 1, delete=False)
    assert log.validate_offset_and_epoch(0, 0) == NeedsSnapshot(OffsetAndEpoch(5, 1))
    assert log.validate_offset_and_epoch(3, 1) == VALID
    assert log.validate_offset_and_epoch(3, 0) == NeedsSnapshot(OffsetAndEpoch(5, 1))


def test_newest_snapshot_is_returned() -> None:
    log = filled(1, 3)
    snapshot(log, 5, 1)
    snapshot(log, 15, 3, delete=False)
    assert log.validate_offset_and_epoch(3, 1) == NeedsSnapshot(OffsetAndEpoch(15, 3))
    assert log.validate_offset_and_epoch(5, 1) == VALID


@pytest.mark.parametrize(
    ("diverging", "end"),
    [
        (OffsetAndEpoch(12, 3), OffsetAndEpoch(12, 3)),
        (OffsetAndEpoch(99, 3), OffsetAndEpoch(20, 3)),
        (OffsetAndEpoch(15, 2), OffsetAndEpoch(10, 1)),
        (OffsetAndEpoch(8, 1), OffsetAndEpoch(8, 1)),
    ],
)
def test_diverging_log_is_truncated_to_common_part(diverging: OffsetAndEpoch, end: OffsetAndEpoch) -> None:
    log = filled(1, 3)
    log.log.high_watermark = 0
    log.truncate_to_diverging(diverging)
    assert log.end == end


@pytest.mark.clause("KafkaMetadataLogTest.testTruncateBelowHighWatermark")
def test_truncation_below_high_watermark_raises() -> None:
    with pytest.raises(TruncationBelowHighWatermark, match="below its high watermark 20"):
        filled(1, 3).truncate_to(19)


@pytest.mark.clause(
    "KafkaMetadataLogTest.testTruncateFullyToLatestSnapshot", "KafkaMetadataLogTest.testDoesntTruncateFully"
)
@pytest.mark.parametrize(("id", "installed"), [((99, 3), True), ((5, 4), True), ((20, 3), False), ((99, 2), False)])
def test_snapshot_replaces_log_only_if_ahead(id: tuple[int, int], installed: bool) -> None:  # noqa: A002
    log = filled(1, 3)
    wanted = OffsetAndEpoch(*id)
    log.snapshots.add(wanted)  # type: ignore[attr-defined]
    assert log.install_snapshot(NOW, wanted) is installed
    if installed:
        assert (log.start_offset, log.end, log.log.high_watermark) == (wanted.offset, wanted, wanted.offset)


@pytest.mark.clause(
    "KafkaMetadataLogTest.testSegmentsLessThanLatestSnapshot", "MockLogTest.testFailToIncreaseLogStartPastHighWatermark"
)
def test_log_is_deleted_only_up_to_high_watermark_and_snapshot() -> None:
    log = filled(1, each=60)
    log.log.high_watermark = 30
    assert log.delete_before(OffsetAndEpoch(31, 1)) is False
    assert log.delete_before(OffsetAndEpoch(30, 1)) is True
    assert log.start_offset == 30
    assert log.delete_before(OffsetAndEpoch(30, 1)) is False
    assert log.log.bases[0] <= 30
    assert log.log.bases[0] > 0, "whole segments below are gone"


@pytest.mark.clause("MockLogTest.testMonotonicEpochStartOffset")
def test_epoch_without_records_ends_like_previous() -> None:
    log = filled(1, each=5)
    assert [log.end_for_epoch(epoch) for epoch in (1, 2)] == [OffsetAndEpoch(5, 1)] * 2
    log.append(NOW, [encode(NoOpRecord())], 3)
    assert [log.end_for_epoch(epoch) for epoch in (1, 2)] == [OffsetAndEpoch(5, 1)] * 2
    assert [log.end_for_epoch(epoch) for epoch in (3, 4)] == [OffsetAndEpoch(6, 3)] * 2


# Appending


@pytest.mark.clause(
    "KafkaRaftClientTest.testAppendFailedWithRecordBatchTooLargeException", "KafkaMetadataLogTest.testMaxBatchSize"
)
def test_batch_beyond_limit_is_rejected() -> None:
    log = opened()
    with pytest.raises(BatchTooLarge):
        log.append(NOW, [encode(TopicRecord(name="x" * MAX_BATCH_BYTES, topic_id=bytes(16)))], 1)
    assert log.end == OffsetAndEpoch(0, 0)


def test_batch_may_exceed_segment_size() -> None:
    log = opened()
    log.append(NOW, [encode(TopicRecord(name="x" * 5000, topic_id=bytes(16)))], 1)
    log.append(NOW, [encode(NoOpRecord())], 1)
    assert log.end.offset == 2
    assert len(log.log.segments) == 2


@pytest.mark.clause("KafkaMetadataLogTest.testEmptyAppendNotAllowed")
def test_append_without_records_raises() -> None:
    log = opened()
    with pytest.raises(AssertionError, match="at least one record"):
        log.append(NOW, [], 1)
    assert log.end == OffsetAndEpoch(0, 0)


@pytest.mark.clause("KafkaMetadataLogTest.testSegmentMsConfigIsSetInMetadataLog")
def test_segment_rolls_after_its_time() -> None:
    log = opened(config=BrokerConfig.parse({"metadata.log.segment.ms": "5000"}))
    for wall_ms in (0, 4999, 5001, 6000):
        log.append(Now(0, NOW.wall_ms + wall_ms), [encode(NoOpRecord())], 1)
    assert log.log.bases == [0, 2]


@pytest.mark.clause("KafkaMetadataLogTest.testTopicId")
def test_metadata_topic_has_id_of_kafka() -> None:
    assert base64.urlsafe_b64encode(METADATA_TOPIC_ID).rstrip(b"=") == b"AAAAAAAAAAAAAAAAAAAAAQ"


@pytest.mark.clause(
    "KafkaMetadataLogTest.testUnexpectedAppendOffset",
    "KafkaMetadataLogTest.testInvalidMemoryRecords",
    "KafkaMetadataLogTest.testInvalidLeaderEpoch",
)
@pytest.mark.parametrize(
    ("data", "taken"),
    [
        (batch(0, 1) + batch(1, 1), 2),
        (batch(0, 1) + batch(2, 1), 1),
        (batch(0, 1) + batch(1, 3), 1),
        (batch(0, 2) + batch(1, 1), 1),
        (batch(0, 1) + batch(1, 1)[:-3], 1),
        (batch(0, 1) + batch(1, 1)[:-1] + b"\xff", 1),
        (batch(1, 1), 0),
        (b"", 0),
        (b"nonsense" * 20, 0),
    ],
    ids=["good", "a hole", "a newer epoch", "an older epoch", "torn", "damaged", "not the next", "none", "nonsense"],
)
def test_follower_appends_only_intact_following_batches(data: bytes, taken: int) -> None:
    log = opened()
    assert log.append_fetched(NOW, data, 2) == taken * len(batch(0, 1))
    assert log.end.offset == taken


@pytest.mark.clause(
    "RecordsIteratorTest.testMemoryRecords", "RecordsIteratorTest.testControlRecordIterationWithKraftVersion0"
)
def test_batches_report_their_records_provenance_and_size() -> None:
    log = filled(2, each=1)
    log.append_leader_change(NOW, 1, (0, 1), 3)
    first, second = log.batches(0, 2)
    assert (first.values, first.provenance.offset, first.provenance.epoch) == ((encode(NoOpRecord()),), 0, 2)
    assert second.values == ()
    assert first.size_bytes + second.size_bytes == log.log.size_bytes
    assert len(list(log.batches(0, 1))) == 1, "not beyond the end that is given"


@pytest.mark.clause("RecordsIteratorTest.testControlRecordTypeValues")
def test_control_record_types_have_numbers_of_kafka() -> None:
    log = opened()
    log.append_leader_change(NOW, 1, (0, 1), 3)
    made = OffsetAndEpoch(1, 3)
    batches = (log.read(0, 1000, 1), header_batch(made, 0), footer_batch(made, 1, 0))
    keys = [next(read_records(each)).key for each in batches]
    assert keys == [bytes((0, 0, 0, number)) for number in (2, 3, 4)], "a version of 0, and the type"


# Opening


def test_open_reads_epochs_from_batches_after_crash() -> None:
    """The epoch file may list records that a power loss removed, or brought back."""
    log = filled(1, 3)
    disk = log.log.disk
    assert isinstance(disk, MemoryDisk)
    disk.files[EPOCHS] = bytearray(b"0\n2\n1 0\n7 5\n")
    assert opened(disk).end_for_epoch(1) == OffsetAndEpoch(10, 1)


@pytest.mark.clause(
    "KafkaMetadataLogTest.testStartupWithInvalidSnapshotState",
    "KafkaMetadataLogTest.testCreateReplicatedLogTruncatesFully",
)
def test_open_completes_truncation_after_snapshot_rename() -> None:
    log = filled(1)
    log.snapshots.add(OffsetAndEpoch(40, 2))  # type: ignore[attr-defined]
    again = opened(log.log.disk)  # type: ignore[arg-type]
    assert (again.start_offset, again.end) == (40, OffsetAndEpoch(40, 2))


@pytest.mark.clause("KafkaMetadataLogTest.testStartupWithInvalidSnapshotState")
def test_open_rejects_log_starting_beyond_snapshots() -> None:
    log = filled(1, each=60)
    snapshot(log, 50, 1)
    disk = log.log.disk
    assert isinstance(disk, MemoryDisk)
    for name in [path for path in disk.files if path.endswith(".checkpoint")]:
        del disk.files[name]
    NamedSnapshots(disk).add(OffsetAndEpoch(20, 1))
    with pytest.raises(StartRefused, match="begins at offset"):
        opened(disk)


def test_open_keeps_log_start_at_oldest_snapshot() -> None:
    log = filled(1, each=60)
    made = snapshot(log, 50, 1)
    log.log.mark_synced(log.log.sync_point())
    disk = log.log.disk
    assert isinstance(disk, MemoryDisk)
    for path in [path for path in disk.files if "log-start-offset" in path]:
        del disk.files[path]
    again = opened(disk)
    assert (again.start_offset, again.end) == (50, OffsetAndEpoch(60, 1))
    assert again.validate_offset_and_epoch(*made) == VALID
    assert again.log.high_watermark == 50


def test_empty_log_ends_at_zero() -> None:
    log = opened()
    assert (log.end, log.start_offset, log.synced_offset) == (OffsetAndEpoch(0, 0), 0, 0)
    assert LogConfig().segment_bytes > CONFIG.metadata_log_segment_bytes
