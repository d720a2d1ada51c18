"""Readers of a compacted log skip batches that the cleaner keeps without records."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_broker.log.cleaner.cleaning import cleanable
from reference_broker.log.cleaner.tests.cleaner_world import (
    COMPACTED,
    NOW,
    all_headers,
    cleaned,
    fresh,
    headers_in,
    put,
    rolled,
)
from reference_broker.log.tests.log_world import opened
from reference_broker.log.unified_log import UnifiedLog


def check_reads(log: UnifiedLog, offset: int, end: int, max_bytes: int) -> None:
    """Read on as a consumer does, and compare with the headers of all batches in the files."""
    batches = [header for header in all_headers(log) if header.base_offset < end]
    while any(header.last_offset >= offset for header in batches):
        records = headers_in(log.read(offset, max_bytes, end, skips_empty=True))
        expected = [header for header in batches if header.last_offset >= offset]
        following = [header for header in expected if header.record_count]
        assert records, f"nothing at {offset} of {end}"
        if following:
            assert records == following[: len(records)], f"from {offset} on"
        else:
            assert records == expected[expected.index(records[0]) :][: len(records)]
        assert len(records) == 1 or sum(header.size_bytes for header in records) <= max_bytes
        offset = records[-1].last_offset + 1


@pytest.mark.thorough
@settings(max_examples=80, deadline=None)
@given(
    writes=st.lists(
        st.tuples(st.sampled_from(["a", "b", "roll", "epoch"]), st.sampled_from([-1, 5, 6]), st.booleans()),
        min_size=1,
        max_size=40,
    ),
    segment_bytes=st.sampled_from([150, 400, 1 << 20]),
    max_bytes=st.sampled_from([1, 61, 100, 300, 1 << 20]),
    passes=st.integers(1, 3),
    cut=st.integers(0, 5),
    restart=st.sampled_from(["none", "clean", "unclean"]),
    data=st.data(),
)
def test_read_has_records_if_any_follow(
    writes: list[tuple[str, int, bool]],
    segment_bytes: int,
    max_bytes: int,
    passes: int,
    cut: int,
    restart: str,
    data: st.DataObject,
) -> None:
    log, disk = fresh(replace(COMPACTED, segment_bytes=segment_bytes))
    epoch, sequences = 0, {5: 0, 6: 0}
    for number in range(passes):
        for what, producer, has_value in writes:
            if what == "roll":
                rolled(log)
            elif what == "epoch":
                epoch += 1
            elif producer < 0:
                put(log, (what, str(number) if has_value else None), epoch=epoch)
            else:
                put(log, (what, str(number)), epoch=epoch, producer=(producer, sequences[producer]))
                sequences[producer] += 1
        rolled(log)
        if cleanable(log, NOW) is not None:
            cleaned(log, disk)
    log.truncate_to(max(log.log_end_offset - cut, 0))
    if restart != "none":
        if restart == "clean":
            log.close_cleanly()
        log = opened(disk, log.config, clean=restart == "clean")
    end = data.draw(st.integers(0, log.log_end_offset), label="end")
    check_reads(log, data.draw(st.integers(0, end), label="offset"), end, max_bytes)


def emptied_segments() -> UnifiedLog:
    """Ten segments of which the cleaner keeps an empty batch each, and then one with a record."""
    log, disk = fresh(replace(COMPACTED, segment_bytes=100))
    for number in range(10):
        put(log, ("a", str(number)), producer=(number, 0))
        rolled(log)
    put(log, ("a", "newest"))
    rolled(log)
    cleaned(log, disk)
    assert [header.record_count for header in all_headers(log)] == [0] * 10 + [1]
    return log


@pytest.mark.parametrize("max_bytes", [1, 61, 1 << 20])
def test_consumer_skips_empty_batches_of_many_segments_at_once(max_bytes: int) -> None:
    log = emptied_segments()
    assert [header.base_offset for header in headers_in(log.read(0, max_bytes, skips_empty=True))] == [10]


def test_follower_gets_empty_batches() -> None:
    log = emptied_segments()
    assert headers_in(log.read(0, 61))[0].base_offset == 0


def test_trailing_empty_batches_move_reader_to_end() -> None:
    log = emptied_segments()
    records = headers_in(log.read(0, 1 << 20, 10, skips_empty=True))
    assert (records[-1].last_offset, sum(header.record_count for header in records)) == (9, 0)


def test_records_beyond_limit_are_not_replaced_by_empty_batches() -> None:
    log = emptied_segments()
    assert log.read(0, 65, at_least_one=False, skips_empty=True) == b""
