"""Files of a closed segment: planted differences from its batches, and near misses."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import timedelta
from struct import pack_into
from typing import Any

import pytest
from kio.schema.delete_records.v2.request import DeleteRecordsPartition, DeleteRecordsRequest, DeleteRecordsTopic
from kio.schema.types import TopicName
from kio.static.primitive import i32, i32Timedelta, i64

from chaos.checks.check import Check
from chaos.checks.history import History
from chaos.checks.log import segment_files
from chaos.checks.log.segment_files import RollSnapshotsReplayed, SegmentsKept, SideFilesMatch
from chaos.checks.log.tests.checked_log import START_MS, CheckedLog
from reference_broker.core.events import Request
from reference_broker.ports.node_ports import Now
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest, FetchTopic
from reference_broker.wire.tags import Tag

INDEX, TIME_INDEX = "00000000000000000000.index", "00000000000000000000.timeindex"
SNAPSHOT, EPOCHS = "00000000000000000012.snapshot", "leader-epoch-checkpoint"
BATCHES = 12


class Rolled(CheckedLog):
    """A log whose first segment has 12 batches of two producers. ``roll`` closes it."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**{"index_interval_bytes": 200, **config})
        self.files = SideFilesMatch(self.context)
        self.snapshots = RollSnapshotsReplayed(self.context)
        self.own: Sequence[Check] = (self.files, self.snapshots)
        for number in range(BATCHES):
            self.ms = START_MS + (number if number != 5 else 100)
            self.data(5 + number % 2, number // 2, transactional=number % 2 == 1)
            self.commit()
        self.looked()

    def roll(self, *, spoilt: Callable[["Rolled"], None] | None = None) -> list[str]:
        """Close the segment, spoil its files, append, and return the explanations of the violations."""
        with self.touched.noted():
            self.log.roll(Now(0, self.ms))
        if spoilt is not None:
            spoilt(self)
        self.data(7, 0, transactional=False)
        self.looked()
        return self.explanations()

    def explanations(self) -> list[str]:
        return [violation.explanation for check in self.own for violation in check.violations]

    def file(self, name: str) -> bytearray:
        path = f"t-0/{name}"
        return bytearray(self.disk.read(path, 0, self.disk.size(path)))

    def put(self, name: str, data: bytes | bytearray) -> None:
        self.disk.write(f"t-0/{name}", bytes(data))

    def patch(self, name: str, at: int, layout: str, value: int) -> None:
        data = self.file(name)
        pack_into(layout, data, at, value)
        self.put(name, data)


def test_files_of_a_closed_segment_match_its_batches() -> None:
    world = Rolled()
    assert not world.roll()
    assert world.files.evidence
    assert world.snapshots.evidence
    world.files.end(History())
    assert not world.explanations()


def without_last_time_entry(world: Rolled) -> None:
    world.put(TIME_INDEX, world.file(TIME_INDEX)[:-12])


def with_late_index_entry(world: Rolled) -> None:
    world.patch(INDEX, 0, ">i", 9)


def with_index_entry_inside_a_batch(world: Rolled) -> None:
    world.patch(INDEX, 4, ">i", 1)


def without_index_entries(world: Rolled) -> None:
    world.put(INDEX, b"")


def with_larger_time(world: Rolled) -> None:
    world.patch(TIME_INDEX, 0, ">q", START_MS + 101)


def with_later_epoch(world: Rolled) -> None:
    world.put(EPOCHS, b"0\n1\n0 1\n")


def with_another_epoch(world: Rolled) -> None:
    world.put(EPOCHS, b"0\n2\n0 0\n1 3\n")


def with_larger_timestamp_known(world: Rolled) -> None:
    world.log.segments[0].max_timestamp_ms = START_MS + 101


def without_snapshot(world: Rolled) -> None:
    world.disk.delete(f"t-0/{SNAPSHOT}")


def with_stale_snapshot(world: Rolled) -> None:
    known = world.log.producers.by_id[6]
    world.log.producers.by_id[6] = known._replace(batch_metadata=known.batch_metadata[:-1])
    world.log.segments.snapshots.write(BATCHES, world.log.producers)
    world.log.producers.by_id[6] = known


def with_strange_producer(world: Rolled) -> None:
    producers = world.log.producers.by_id
    producers[9] = producers[6]
    world.log.segments.snapshots.write(BATCHES, world.log.producers)
    del producers[9]


def without_open_transaction(world: Rolled) -> None:
    known = world.log.producers.by_id[6]
    world.log.producers.by_id[6] = known._replace(current_txn_first_offset=-1)
    world.log.segments.snapshots.write(BATCHES, world.log.producers)
    world.log.producers.by_id[6] = known


@pytest.mark.parametrize(
    ("spoilt", "explanation"),
    [
        (without_last_time_entry, "largest timestamp, with its offset"),
        (with_late_index_entry, "an entry for offset 9"),
        (with_index_entry_inside_a_batch, "no batch begins"),
        (without_index_entries, "has none from byte 0"),
        (with_larger_time, "is the largest timestamp up to"),
        (with_later_epoch, "does not fit batch 0..0"),
        (with_another_epoch, "does not fit batch 3..3"),
        (with_larger_timestamp_known, "are taken for"),
        (without_snapshot, "has rolled to 12 without"),
        (with_stale_snapshot, "producer 6"),
        (with_strange_producer, "the log has no batch of it"),
        (without_open_transaction, "producer 6"),
    ],
    ids=lambda each: each.__name__ if callable(each) else "",
)
def test_file_must_not_differ_from_the_batches(spoilt: Callable[[Rolled], None], explanation: str) -> None:
    explanations = Rolled().roll(spoilt=spoilt)
    assert explanations
    assert explanation in explanations[0]


def test_damaged_snapshot_is_rebuilt_and_not_loaded() -> None:
    assert not Rolled().roll(spoilt=lambda world: world.patch(SNAPSHOT, 20, ">i", 77))


@pytest.mark.parametrize(("log_start", "is_due"), [(BATCHES, False), (BATCHES - 1, True)])
def test_snapshot_may_be_missing_only_at_the_log_start(log_start: int, is_due: bool) -> None:
    world = Rolled()
    world.log.delete_records_before(log_start)
    assert any("has rolled to 12 without" in each for each in world.roll(spoilt=without_snapshot)) == is_due


def test_expired_producer_may_be_missing_in_a_snapshot() -> None:
    world = Rolled(producer_id_expiration_ms=1000)
    world.ms = START_MS + 5000
    world.log.expire_producers(Now(0, world.ms))
    assert set(world.log.producers.by_id) == {6}
    assert not world.roll()


def test_gap_is_judged_by_the_largest_interval_of_the_segment() -> None:
    world = Rolled(index_interval_bytes=4096)
    world.log.config = replace(world.log.config, index_interval_bytes=100)
    assert not world.roll()
    strict = Rolled(index_interval_bytes=4096)
    strict.files.segments.logs[1, "t-0"].intervals[0] = 100
    strict.log.config = replace(strict.log.config, index_interval_bytes=100)
    assert "has none from byte" in strict.roll()[0]


def test_index_of_another_interval_after_a_start_is_not_judged_for_gaps() -> None:
    world = Rolled()
    for each in (INDEX, TIME_INDEX):
        world.put(each, b"")
    world.restart()
    world.roll()
    assert not world.explanations()


def test_indexes_are_judged_again_at_the_end() -> None:
    world = Rolled()
    assert not world.roll()
    with_late_index_entry(world)
    world.files.end(History())
    assert "an entry for offset 9" in world.explanations()[0]
    missing = Rolled()
    assert not missing.roll()
    missing.disk.delete(f"t-0/{INDEX}")
    missing.files.end(History())
    assert not missing.explanations()


def test_snapshot_of_a_truncated_log_is_judged_by_what_is_left() -> None:
    world = Rolled()
    assert not world.roll()
    with world.touched.noted():
        world.log.truncate_to(10)
    world.looked()
    world.data(6, 5)
    world.data(5, 5, transactional=False)
    world.looked()
    with world.touched.noted():
        world.log.roll(Now(0, world.ms))
    world.data(5, 6, transactional=False)
    world.looked()
    assert not world.explanations()
    assert world.snapshots.evidence == 2


@pytest.mark.parametrize(("epoch_starts", "right"), [(6, True), (7, False)])
def test_epochs_begin_at_the_start_of_the_log(epoch_starts: int, right: bool) -> None:
    """KIP-101: records below the start may still be in the segment, and their epochs are not known any more."""

    def deleted(world: Rolled) -> None:
        world.log.delete_records_before(6)
        world.put(EPOCHS, f"0\n1\n0 {epoch_starts}\n".encode())

    assert any(EPOCHS in each for each in Rolled().roll(spoilt=deleted)) is not right


class Shrinking(CheckedLog):
    """A log whose segments have one batch each, 1000 ms apart. ``kept`` judges it."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**{"segment_bytes": 80, **config})
        self.kept = SegmentsKept(self.context)
        for number in range(8):
            self.ms = START_MS + 1000 * number
            self.put(number)

    def put(self, number: int) -> None:
        with self.touched.noted():
            record = Record(timestamp_ms=self.ms, key=b"%d" % (number % 2), value=b"v" * 10)
            self.log.append(Now(0, self.ms), build([record]), 0)
        self.commit()
        self.looked()

    @property
    def size(self) -> int:
        return self.log.segments[0].size_bytes

    def change(self, **config: Any) -> None:
        self.log.config = replace(self.log.config, **config)

    def retain(self, count: int | None = None) -> str:
        """Apply retention, or delete this number of segments whatever it says."""
        with self.touched.noted():
            if count is None:
                self.log.enforce_retention(Now(0, self.ms))
            else:
                self.log._drop_oldest(count)
        self.looked()
        return " ".join(violation.explanation for violation in self.kept.violations)

    def clean(self, end: int) -> str:
        """A pass of the cleaner ends at this offset."""
        with self.touched.noted():
            self.log.note_cleaned(end)
        self.looked()
        return " ".join(violation.explanation for violation in self.kept.violations)


def test_retention_may_delete_by_time_and_by_size() -> None:
    by_time = Shrinking()
    by_time.change(retention_ms=4000)
    assert not by_time.retain()
    assert by_time.log.bases[0] == 3
    assert by_time.kept.evidence == 3
    by_size = Shrinking()
    by_size.change(retention_bytes=3 * by_size.size + 1)
    assert not by_size.retain()
    assert by_size.log.bases[0] == 4


def test_segment_must_not_be_deleted_too_early() -> None:
    by_time = Shrinking()
    by_time.change(retention_ms=4000)
    assert "its newest record was 4000 ms old" in by_time.retain(4)
    by_size = Shrinking()
    by_size.change(retention_bytes=3 * by_size.size + 1)
    assert "has deleted its segment from 4 to 5" in by_size.retain(5)
    without = Shrinking()
    assert "has deleted its segment from 0 to 1" in without.retain(1)


def test_metadata_log_is_deleted_up_to_a_snapshot(monkeypatch: pytest.MonkeyPatch) -> None:
    world = Shrinking()
    monkeypatch.setattr(segment_files, "METADATA_LOG", world.log.directory)
    assert not world.retain(2)


def test_emptied_log_is_not_judged() -> None:
    world = Shrinking()
    with world.touched.noted():
        world.log.truncate_fully_and_start_at(20, Now(0, world.ms))
    world.looked()
    assert not world.kept.violations


def test_records_may_be_deleted_within_a_segment() -> None:
    world = Shrinking(segment_bytes=160)
    with world.touched.noted():
        world.log.delete_records_before(5)
    world.looked()
    assert world.log.bases[0] == 4
    assert not world.kept.violations


def delete_records(world: Shrinking, offset: int) -> Request:
    topic, _, index = world.log.directory.rpartition("-")
    partition = DeleteRecordsPartition(partition_index=i32(int(index)), offset=i64(offset))
    body = DeleteRecordsRequest(
        topics=(DeleteRecordsTopic(name=TopicName(topic), partitions=(partition,)),),
        timeout=i32Timedelta.parse(timedelta(seconds=1)),
    )
    return Request(1, 1, ApiKey.DELETE_RECORDS, 2, "c", body, Tag(ApiKey.DELETE_RECORDS, 2, "c"))


def test_segments_below_offset_that_a_client_requested_may_be_deleted_also_later() -> None:
    world = Shrinking()
    world.kept.acted(7, world.node(), delete_records(world, 2), ())
    world.looked()
    assert not world.retain(2)
    assert "has deleted its segment from 2 to 3" in world.retain(1)


def test_request_of_another_api_moves_no_log_start() -> None:
    """A fetch may let the leader respond to an earlier DeleteRecords, so the check gets that event, too."""
    world = Shrinking()
    fetch = FetchRequest(topics=[FetchTopic("events", b"", [])])
    world.kept.acted(7, world.node(), Request(1, 1, ApiKey.FETCH, 12, "c", fetch, Tag(ApiKey.FETCH, 12, "c")), ())
    assert "has deleted its segment from 0 to 1" in world.retain(1)


def test_request_for_high_watermark_does_not_cover_what_is_appended_later() -> None:
    world = Shrinking()
    world.kept.acted(7, world.node(), delete_records(world, -1), ())
    world.put(8)
    world.put(9)
    assert not world.retain(8)
    assert "has deleted its segment from 8 to 9" in world.retain(1)


def compacted(**config: Any) -> Shrinking:
    return Shrinking(cleanup_policy="compact", **config)


def test_pass_of_the_cleaner_that_is_due() -> None:
    world = compacted(min_compaction_lag_ms=2000)
    assert not world.clean(5)
    assert world.kept.evidence


def test_cleaner_does_not_take_young_segments() -> None:
    assert "min.compaction.lag.ms is 2000" in compacted(min_compaction_lag_ms=2000).clean(7)


def test_cleaner_does_not_take_the_active_segment() -> None:
    assert "its active segment begins at 7" in compacted().clean(8)


def test_settings_at_the_begin_of_a_pass_count() -> None:
    world = compacted(min_compaction_lag_ms=500)
    world.change(min_compaction_lag_ms=5000)
    assert not world.clean(7)


def test_too_little_is_dirty() -> None:
    world = compacted(min_cleanable_dirty_ratio=0.5)
    assert not world.clean(6)
    world.put(8)
    assert "bytes were dirty; the ratio is 0.5" in world.clean(7)
    overdue = compacted(min_cleanable_dirty_ratio=0.5)
    assert not overdue.clean(6)
    overdue.change(max_compaction_lag_ms=500)
    assert not overdue.clean(7)
