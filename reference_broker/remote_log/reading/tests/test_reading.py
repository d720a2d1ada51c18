"""Reads from the tier return the log's records, compared with a twin log that kept everything."""

from collections.abc import Callable
from dataclasses import replace
from struct import pack_into

import pytest
from crc32c import crc32c
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_broker.log.tests.log_world import all_bytes, appended, at, batch_of, headers_of, opened
from reference_broker.log.tests.test_open_transactions import Producers
from reference_broker.log.tests.tiered_world import TIERED
from reference_broker.log.timestamp_lookup import FoundOffset
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.batch import HEADER_BYTES
from reference_broker.remote_log.reading.tests.reading_world import (
    BLOCK_SIZES,
    Tiered,
    by_epochs,
    plain,
    set_block_bytes,
)
from reference_broker.wire.errors import ErrorCode

# --- records --------------------------------------------------------------------------------------------------------


@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("max_bytes", [1, 150, 400, 70_000])
def test_all_records_are_read_back(max_bytes: int) -> None:
    tiered = Tiered(plain)
    assert tiered.all(max_bytes) == all_bytes(tiered.twin)


@pytest.mark.usefixtures("block_bytes")
def test_read_from_any_offset_starts_with_its_batch() -> None:
    tiered = Tiered(plain)
    for offset in range(tiered.log.local_log_start_offset):
        (first, *_) = headers_of(tiered.read(offset, 200).records)
        assert first.base_offset <= offset <= first.last_offset


def test_large_read_ends_at_indexed_batch() -> None:
    def fill(log: UnifiedLog) -> None:
        for _ in range(100):
            appended(log, batch_of(1, value=bytes(3000)))

    tiered = Tiered(fill, replace(TIERED, segment_bytes=200_000, index_interval_bytes=4096))
    assert tiered.all(100_000) == all_bytes(tiered.twin)
    assert 90_000 < len(tiered.read(5, 100_000).records) <= 100_000


@pytest.mark.clause("RemoteLogManagerTest.testReadForFirstBatchMoreThanMaxFetchBytes")
@pytest.mark.usefixtures("block_bytes")
def test_batch_beyond_limit_is_returned_only_if_minimum_one() -> None:
    tiered = Tiered(plain)
    assert tiered.read(0, 10, at_least_one=False).records == b""
    assert len(headers_of(tiered.read(0, 10).records)) == 1


@pytest.mark.clause(
    "RemoteLogManagerTest.testReadForMissingFirstBatchInRemote",
    "RemoteLogManagerTest.testReadForFirstBatchInLogCompaction",
)
def test_read_continues_over_gap_at_segment_end() -> None:
    """The records were written as a follower, and the leader's offsets had a gap."""

    def fill(log: UnifiedLog) -> None:
        for base in (0, 2, 4, 50, 52, 54, 60, 62, 64):
            log.append_replicated(at(0), batch_of(2, base_offset=base, leader_epoch=0))

    tiered = Tiered(fill)
    assert tiered.twin.bases[1] == 6
    assert headers_of(tiered.read(6).records)[0].base_offset == headers_of(tiered.twin.read(6, 100))[0].base_offset
    assert tiered.all(100) == all_bytes(tiered.twin)


@pytest.mark.parametrize("is_committed", [True, False])
def test_read_continues_in_log_over_gap_at_end_of_tier(is_committed: bool) -> None:
    """The gap, which no segment can hold, is at the end of one (Kafka returns nothing there, so a consumer would
    stall)."""

    def fill(log: UnifiedLog) -> None:
        for base in (0, 2, 1 << 33):
            log.append_replicated(at(0), batch_of(2, base_offset=base, leader_epoch=0))

    tiered = Tiered(fill)
    assert tiered.log.local_log_start_offset == 1 << 33
    local = tiered.twin.read(1 << 33, 1 << 20)
    for offset in (4, 5, (1 << 33) - 1):
        assert tiered.read(offset, is_committed=is_committed)[:2] == (local, () if is_committed else None)
    tiered.log.high_watermark = 1 << 33
    assert tiered.read(5, is_committed=is_committed).records == b""


def test_read_over_gap_returns_aborted_transactions_of_log() -> None:
    def fill(log: UnifiedLog) -> None:
        for base in (0, 2):
            log.append_replicated(at(0), batch_of(2, base_offset=base, leader_epoch=0))
        log.append_replicated(at(0), batch_of(2, base_offset=1 << 33, leader_epoch=0))
        log.advance_high_watermark(log.log_end_offset)
        producers = Producers(log)
        producers.send(7, 2)
        producers.end(7, commit=False)

    (transaction,) = Tiered(fill).read(5, is_committed=True).aborted
    assert (transaction.producer_id, transaction.first_offset) == (7, (1 << 33) + 2)


def test_records_of_other_lineage_are_not_read() -> None:
    """The log lost its records from offset 9 on to another leader, after a copy: the tier still has them."""
    tiered = Tiered(plain)
    ends = [header.last_offset + 1 for header in headers_of(all_bytes(tiered.twin))]
    cut = next(end for end in ends if end > tiered.twin.bases[1] and end not in tiered.twin.bases)
    tiered.log.epochs.epochs[:], tiered.log.epochs.starts[:] = [0, 7], [0, cut]
    read = tiered.read(tiered.twin.bases[1])
    assert headers_of(read.records)[-1].last_offset == cut - 1
    assert tiered.read(cut) is ErrorCode.offset_out_of_range


def test_log_start_inside_segment_at_new_epoch_is_read() -> None:
    """The log has dropped the segment's first leader epoch."""
    tiered = Tiered(by_epochs)
    segment = next(each for each in tiered.tier.listed(tiered.partition) if len(each.leader_epochs) > 1)
    start = segment.leader_epochs[1][1]
    whole = all_bytes(tiered.twin)
    tiered.log.delete_records_before(start)
    assert tiered.log.epochs.starts[0] == start
    kept = [header.base_offset for header in headers_of(whole) if header.last_offset >= start]
    assert [header.base_offset for header in headers_of(tiered.all(150))] == kept
    assert isinstance(tiered.time(0), FoundOffset)


# --- any log --------------------------------------------------------------------------------------------------------


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, int, int]]:
    return draw(
        st.lists(st.tuples(st.sampled_from("pstca"), st.integers(0, 3), st.integers(1, 6)), min_size=5, max_size=60)
    )


@pytest.mark.thorough
@settings(max_examples=60, deadline=None)
@given(history=histories(), block=st.sampled_from(BLOCK_SIZES), max_bytes=st.integers(1, 900))
def test_any_log_is_read_back_with_transactions(
    history: list[tuple[str, int, int]], block: int, max_bytes: int
) -> None:
    def fill(log: UnifiedLog) -> None:
        producers = Producers(log)
        started: set[int] = set()
        for what, who, count in history:
            if what in "st":
                producers.send(who, count)
                started.add(who)
            elif what in "ca" and who in started:
                producers.end(who, commit=what == "c")
                started.discard(who)
            else:
                producers.plain(count)
        for who in sorted(started):
            producers.end(who, commit=False)
        log.advance_high_watermark(log.log_end_offset)

    with pytest.MonkeyPatch.context() as patch:
        set_block_bytes(patch, block)
        tiered = Tiered(fill) if probe_has_two_segments(fill) else None
        if tiered is None:
            return
        assert tiered.all(max_bytes) == all_bytes(tiered.twin)
        offset = 0
        while offset < tiered.log.local_log_start_offset:
            read = tiered.read(offset, max_bytes, is_committed=True)
            headers = headers_of(read.records)
            end = headers[-1].last_offset + 1
            assert list(read.aborted) == tiered.twin.aborted_transactions(headers[0].base_offset, end)
            offset = end


def probe_has_two_segments(fill: Callable[[UnifiedLog], object]) -> bool:
    log = opened(MemoryDisk(), TIERED)
    fill(log)
    return len(log.bases) > 1


# --- batches without records ----------------------------------------------------------------------------------------


def emptied(batch: bytes) -> bytes:
    """Return the batch as the cleaner keeps it for its producer's last sequence: without records, by Kafka's format."""
    header = bytearray(batch[:HEADER_BYTES])
    pack_into(">i", header, 8, HEADER_BYTES - 12)
    pack_into(">i", header, 57, 0)
    pack_into(">I", header, 17, crc32c(bytes(header[21:])))
    return bytes(header)


def sparse(*kept: int, batches: int = 24) -> Callable[[UnifiedLog], None]:
    """Return a function that appends batches of two offsets, of which only ``kept`` have records."""

    def fill(log: UnifiedLog) -> None:
        for number in range(batches):
            batch = batch_of(2, base_offset=2 * number, leader_epoch=number // 7)
            log.append_replicated(at(0), batch if number in kept else emptied(batch))

    return fill


@pytest.mark.thorough
@pytest.mark.usefixtures("block_bytes")
@pytest.mark.parametrize("kept", [(22,), (3, 4, 15, 23), (0, 8, 20), (23,)])
@pytest.mark.parametrize("max_bytes", [1, 61, 130, 70_000])
@pytest.mark.parametrize("is_committed", [True, False])
def test_read_continues_over_batches_without_records(kept: tuple[int, ...], max_bytes: int, is_committed: bool) -> None:
    """A consumer gets each record, in order, and never a batch without records."""
    tiered = Tiered(sparse(*kept))
    found: list[int] = []
    offset = 0
    while offset < tiered.log.local_log_start_offset and len(found) < len(kept):
        headers = headers_of(tiered.read(offset, max_bytes, is_committed=is_committed).records)
        assert headers
        assert all(header.record_count for header in headers)
        found += [header.base_offset // 2 for header in headers]
        offset = headers[-1].last_offset + 1
    there = [number for number in kept if 2 * number < tiered.log.local_log_start_offset]
    assert found[: len(there)] == there
    assert found == [*kept[: len(found)]]


def test_trailing_empty_batches_are_returned() -> None:
    tiered = Tiered(sparse(1))
    local = tiered.log.local_log_start_offset
    assert headers_of(tiered.read(4).records)[0].base_offset == local
    tiered.log.high_watermark = local  # The log's own batches must not be read yet.
    (first, *_) = headers_of(tiered.read(4).records)
    assert (first.base_offset, first.record_count) == (4, 0)
    assert tiered.read(4, 10, at_least_one=False).records == b""


def test_read_limit_excludes_skipped_empty_batches() -> None:
    tiered = Tiered(sparse(0, 2, 23))
    records = tiered.read(0, 70_000)
    whole = headers_of(records.records)
    assert [header.base_offset for header in whole] == [0, 4][: len(whole)]
    assert headers_of(records.fitting(whole[0].size_bytes, 1 << 40, at_least_one=False)) == whole[:1]
