"""A power loss or a truncation at the end of a log loses no more than that end."""

from dataclasses import replace

import pytest

from reference_broker.log.cleaner.cleaning import Cleaning, Overtaken
from reference_broker.log.cleaner.tests.cleaner_world import (
    BUFFER_BYTES,
    COMPACTED,
    all_headers,
    cleaned,
    dirty,
    fresh,
    put,
    rolled,
    sync_all,
    texts,
)
from reference_broker.log.tests.log_world import NOW, opened, refused, sent
from reference_broker.log.unified_log import UnifiedLog


def newest(log: UnifiedLog) -> dict[str, str | None]:
    return {key: value for _, key, value in texts(log)}


def test_durable_record_is_superseded_only_by_durable_one() -> None:
    """The disk loses all unsynced data after each slice of a pass."""
    passes = 0
    for slices in range(100):
        log, disk = fresh()
        put(log, *((f"k{number}", "old") for number in range(8)))
        rolled(log)
        sync_all(log, disk)
        for number in range(8):
            put(log, (f"k{number}", "new" * 20))
        rolled(log)
        steps = Cleaning(log, dirty(log), NOW, BUFFER_BYTES).run()
        for _ in range(slices):
            step = next(steps, None)
            if step is None:
                passes += 1
                break
            disk.sync(step.sync)
        assert len(newest(opened(disk.after_power_loss(), COMPACTED, clean=False))) == 8
        if passes:
            break
    assert passes


@pytest.mark.parametrize("later", [1, 7])
@pytest.mark.parametrize("clean_before", [False, True])
def test_producer_stays_known_after_truncation_of_newer_batches(later: int, clean_before: bool) -> None:
    """The log remembers five batches: the relevant one after the truncation may not be among them."""
    log, disk = fresh()
    put(log, ("a", "1"), producer=(7, 0))
    put(log, ("a", "2"), producer=(7, 1))
    put(log, ("a", "3"))
    rolled(log)
    if clean_before:
        cleaned(log, disk)
        put(log, ("b", "1"))
        rolled(log)
    end = log.log_end_offset
    for number in range(later):
        put(log, ("c", str(number)), producer=(7, 2 + number))
        rolled(log)
    log.high_watermark = end
    cleaned(log, disk)
    log.truncate_to(end)
    assert log.producers.by_id[7].last_sequence == 1
    assert sent(log, 7, 1).duplicate
    assert not sent(log, 7, 2).duplicate


def test_superseded_batch_below_high_watermark_is_removed() -> None:
    log, disk = fresh()
    for number in range(6):
        put(log, ("a", str(number)), producer=(7, number))
    put(log, ("a", "end"))
    rolled(log)
    put(log, ("a", "later"), producer=(7, 6))
    cleaned(log, disk)
    again = opened(disk, replace(COMPACTED, cleanup_policy="delete", retention_ms=-1), clean=False)
    sequences = [mark.first_sequence for mark in again.producers.by_id[7].batch_metadata]
    assert sequences[-2:] == [5, 6], sequences
    assert len(sequences) <= 4  # Others end segments, or begin epochs.
    assert refused(again, 7, 9)


def test_large_batch_truncated_during_check_is_not_damage() -> None:
    log, _ = fresh(replace(COMPACTED, segment_bytes=1 << 24))
    put(log, *((f"k{number}", "x" * 200) for number in range(1500)))
    put(log, *((f"k{number}", "x" * 200) for number in range(900)))
    rolled(log)
    steps = Cleaning(log, dirty(log), NOW, 1 << 24).run()
    next(steps)
    log.truncate_to(0)
    with pytest.raises(Overtaken):
        list(steps)


def test_pass_over_truncated_part_changes_nothing() -> None:
    """Records in place of the truncated ones may be above the high watermark."""
    log, _ = fresh()
    put(log, ("a", "1"), ("b", "1"))
    put(log, ("a", "2"))
    rolled(log)
    steps = Cleaning(log, dirty(log), NOW, BUFFER_BYTES).run()
    log.truncate_to(0)
    put(log, ("c", "1"), ("c", "2"), ("c", "3"))
    rolled(log)
    log.high_watermark = 0
    with pytest.raises(Overtaken):
        list(steps)
    assert texts(log) == [(0, "c", "1"), (1, "c", "2"), (2, "c", "3")]


@pytest.mark.clause("LogLoaderTest.testLogRecoversForLeaderEpoch")
def test_log_starting_in_gap_has_leader_epoch_after_power_loss() -> None:
    """A pass removed the records, deletion the batch before them that started the epoch, and the power loss the epoch
    file.
    Offsets 1 and 2 are the gap."""
    config = replace(COMPACTED, segment_bytes=250)
    log, disk = fresh(config)
    put(log, ("first", "x" * 150), epoch=3)
    put(log, ("a", "old"), ("b", "old"), epoch=3)
    put(log, ("c", "x" * 60), epoch=3)
    rolled(log)
    put(log, ("a", "new"), ("b", "new"), epoch=3)
    rolled(log)
    cleaned(log, disk)
    log.delete_records_before(2)
    sync_all(log, disk)
    assert [header.base_offset for header in all_headers(log)] == [3, 4]
    again = opened(disk.after_power_loss(), config, clean=False)
    assert again.log_start_offset == 2
    assert [again.epoch_at(offset) for offset in range(2, 6)] == [3] * 4
    assert again.end_offset_for_epoch(2).end_offset == 2  # A follower with other records there truncates them.
    assert opened(again.disk, config, clean=False).epochs.starts == [2]
