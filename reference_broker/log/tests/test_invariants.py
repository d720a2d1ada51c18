"""Every family of assertions fires: a log whose state is corrupted on purpose raises."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.log.durability import SyncPoint
from reference_broker.log.producer_state import ProducerStateEntry
from reference_broker.log.segment import new_segment
from reference_broker.log.tests.log_world import DIRECTORY, START_MS, appended, at, batch_of, marked, opened
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.batch import read_header
from reference_broker.records.tests.markers import build_marker

CONFIG = LogConfig(segment_bytes=500, index_interval_bytes=0)
SPOILED: list[tuple[str, Callable[[UnifiedLog], object]]] = []


def spoils(message: str) -> Callable[[Callable[[UnifiedLog], object]], Callable[[UnifiedLog], object]]:
    def noted(spoil: Callable[[UnifiedLog], object]) -> Callable[[UnifiedLog], object]:
        SPOILED.append((message, spoil))
        return spoil

    return noted


@pytest.fixture
def log() -> UnifiedLog:
    """Return a log of several segments with indexes, two epochs, a producer, an aborted transaction and an open one."""
    log = opened(MemoryDisk(), CONFIG)
    for number in range(6):
        times = [number, number]
        appended(log, batch_of(2, timestamps=times, producer_id=1, producer_epoch=0, base_sequence=2 * number))
    data = batch_of(2, producer_id=9, producer_epoch=0, base_sequence=0, is_transactional=True)
    appended(log, data, epoch=3)
    marked(log, build_marker(commit=False, producer_id=9, producer_epoch=0, coordinator_epoch=0, timestamp_ms=START_MS))
    for number in range(4):
        appended(log, batch_of(1, timestamps=[20 + number]), epoch=4)
    appended(log, batch_of(1, producer_id=8, producer_epoch=0, base_sequence=0, is_transactional=True), epoch=4)
    log.check_invariants()
    assert len(log.segments) > 2
    assert len(log.segments[0].offsets) > 1
    assert len(log.segments[0].times) > 1
    return log


@spoils("high watermark .* lies outside")
def _high_watermark_beyond_the_end(log: UnifiedLog) -> None:
    log.high_watermark = log.log_end_offset + 1


@spoils("high watermark .* lies outside")
def _high_watermark_below_the_start(log: UnifiedLog) -> None:
    log.local_log_start_offset = log.high_watermark + 1


@spoils("local records begin at .* before the log's start")
def _log_start_beyond_the_local_one(log: UnifiedLog) -> None:
    log.log_start_offset = log.local_log_start_offset + 1


@spoils("the log ends at")
def _log_end_beyond_the_last_segment(log: UnifiedLog) -> None:
    log.log_end_offset += 1


@spoils("the log starts at 2, before its first segment")
def _log_start_before_the_first_segment(log: UnifiedLog) -> None:
    log.segments.retire_first()
    log.log_start_offset = log.local_log_start_offset = 2


@spoils("base offsets differ")
def _base_offsets_without_their_segment(log: UnifiedLog) -> None:
    log.segments.bases[1] += 1


@spoils("inside segment")
def _segments_that_overlap(log: UnifiedLog) -> None:
    log.segments[0].next_offset += 1


@spoils("bytes for offsets up to")
def _bytes_without_offsets(log: UnifiedLog) -> None:
    log.segments[1].size_bytes = 0


@spoils("the positions of the index do not rise")
def _index_that_goes_back(log: UnifiedLog) -> None:
    log.segments[0].offsets.positions[1] = 0


@spoils("the offsets of the index go beyond")
def _index_beyond_the_segment(log: UnifiedLog) -> None:
    log.segments[0].offsets.keys[-1] = 1000


@spoils("the times of the index do not rise")
def _times_that_go_back(log: UnifiedLog) -> None:
    log.segments[0].times.timestamps[1] = 0


@spoils("the synced offset .* lies beyond")
def _synced_beyond_the_end(log: UnifiedLog) -> None:
    log.durability.synced_offset = log.log_end_offset + 1


@spoils("the cleaned offset .* lies beyond")
def _cleaned_beyond_the_end(log: UnifiedLog) -> None:
    log.note_cleaned(log.log_end_offset + 1)


@spoils("the durable end .* lies beyond")
def _recovery_point_beyond_the_end(log: UnifiedLog) -> None:
    log.files.checkpoints.raise_recovery_point(log.log_end_offset + 1)


@spoils("the leader epochs do not rise")
def _epochs_that_go_back(log: UnifiedLog) -> None:
    log.epochs.epochs[1] = 0


@spoils("start offsets of the leader epochs do not rise")
def _epoch_starts_that_go_back(log: UnifiedLog) -> None:
    log.epochs.starts[1] = 0


@spoils("epochs start at .* outside")
def _epoch_beyond_the_end(log: UnifiedLog) -> None:
    log.epochs.note(9, log.log_end_offset + 1)


@spoils("producer 1: its batches at .* overlap")
def _producer_whose_batches_overlap(log: UnifiedLog) -> None:
    producer = log.producers.by_id[1]
    marks = (*producer.batch_metadata[:-1], producer.batch_metadata[-1]._replace(first_offset=0))
    log.producers.by_id[1] = producer._replace(batch_metadata=marks)


@spoils("producer 1: its last batch ends at 1000")
def _producer_beyond_the_end(log: UnifiedLog) -> None:
    producer = log.producers.by_id[1]
    marks = (*producer.batch_metadata[:-1], producer.batch_metadata[-1]._replace(last_offset=1000))
    log.producers.by_id[1] = producer._replace(batch_metadata=marks)


@spoils("producer 1: 6 batches are remembered")
def _producer_that_remembers_too_much(log: UnifiedLog) -> None:
    producer = log.producers.by_id[1]
    marks = (producer.batch_metadata[0]._replace(first_offset=0, last_offset=1), *producer.batch_metadata)
    log.producers.by_id[1] = producer._replace(batch_metadata=marks)


@spoils("the open transactions are")
def _open_transaction_of_nobody(log: UnifiedLog) -> None:
    log.producers.by_id[8] = ProducerStateEntry(0)


@spoils("an aborted transaction of producer 9 lies at")
def _aborted_transaction_that_ends_before_it_begins(log: UnifiedLog) -> None:
    (index,) = (segment.aborted for segment in log.segments if segment.aborted.count)
    index.hold(log.disk)
    (entry,) = index.entries
    index._entries = [entry._replace(first_offset=entry.last_offset, last_offset=entry.first_offset)]


@pytest.mark.parametrize(("message", "spoil"), SPOILED, ids=[spoil.__name__.strip("_") for _, spoil in SPOILED])
def test_corrupted_log_fails_validation(log: UnifiedLog, message: str, spoil: Callable[[UnifiedLog], object]) -> None:
    spoil(log)
    with pytest.raises(AssertionError, match=message):
        log.check_invariants()


def test_validation_of_closed_segments_is_optional(log: UnifiedLog) -> None:
    offsets = log.segments[0].offsets
    offsets.positions[0], offsets.positions[1] = offsets.positions[1], offsets.positions[0]
    log.check_invariants(closed_too=False)
    with pytest.raises(AssertionError, match="the positions of the index do not rise"):
        log.check_invariants()


@pytest.mark.clause("LocalLogTest.testRollSegmentErrorWhenNextOffsetIsIllegal")
def test_adding_overlapping_segment_raises(log: UnifiedLog) -> None:
    with pytest.raises(AssertionError, match="overlaps the one before it"):
        log.segments.add(new_segment(DIRECTORY, log.log_end_offset - 1, 0))


def test_replacing_segments_with_other_offsets_raises(log: UnifiedLog) -> None:
    first, second = log.segments[:2]
    stranger = new_segment(DIRECTORY, 0, 0)
    with pytest.raises(AssertionError, match="are not in the log"):
        log.segments.swap([stranger], stranger)
    with pytest.raises(AssertionError, match="cannot replace segments of offsets"):
        log.segments.swap([first, second], stranger)
    log.check_invariants()


@pytest.mark.clause("LogSegmentTest.testAppendForLogSegmentOffsetOverflowException")
def test_append_below_log_end_raises(log: UnifiedLog) -> None:
    log.log_end_offset -= 1
    with pytest.raises(AssertionError, match="follows on one that ends at"):
        appended(log, batch_of(1), epoch=4)


def test_sync_beyond_log_end_raises(log: UnifiedLog) -> None:
    with pytest.raises(AssertionError, match="covers more than the log"):
        log.mark_synced(SyncPoint((), log.log_end_offset + 1, log.durability.changes))


def test_lowering_recovery_point_raises(log: UnifiedLog) -> None:
    with pytest.raises(AssertionError, match="would go back"):
        log.files.checkpoints.raise_recovery_point(0)


def test_producer_batches_out_of_order_raise(log: UnifiedLog) -> None:
    header = read_header(batch_of(1, producer_id=1, producer_epoch=0, base_sequence=12))
    with pytest.raises(AssertionError, match="producer 1 has a batch at offset 3, and its batch before that one ends"):
        log.producers.record(header, 3, START_MS)


@pytest.mark.clause("OffsetIndexTest.appendOutOfOrder", "TimeIndexTest.testAppend")
def test_index_entries_out_of_order_raise(log: UnifiedLog) -> None:
    segment = log.segments[0]
    with pytest.raises(AssertionError, match="follows on one for offset"):
        segment.offsets.add(1000, 1000, 0)
    with pytest.raises(AssertionError, match="follows on one for offset"):
        segment.times.add(segment.max_timestamp_ms + 1, 0)


def test_log_in_use_passes_validation(log: UnifiedLog) -> None:
    log.truncate_to(log.log_end_offset - 3)
    log.check_invariants()
    log.high_watermark = log.log_end_offset
    log.delete_records_before(5)
    log.check_invariants()
    log.config = replace(CONFIG, retention_bytes=0)
    log.enforce_retention(at(0))
    log.check_invariants()
    log.truncate_fully_and_start_at(77, at(0))
    log.check_invariants()
