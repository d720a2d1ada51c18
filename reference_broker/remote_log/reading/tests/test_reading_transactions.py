"""Read-committed readers get the aborted transactions, wherever their markers are."""

from dataclasses import replace

import pytest

from reference_broker.log.tests.log_world import all_bytes, at, headers_of
from reference_broker.log.tests.test_open_transactions import Producers
from reference_broker.log.tests.tiered_world import TIERED
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.remote_log.reading.tests.reading_world import (
    Tiered,
    transactional,
)

# --- transactions ---------------------------------------------------------------------------------------------------


@pytest.mark.clause("RemoteIndexCacheTest.testFetchIndexForMissingTransactionIndex")
@pytest.mark.usefixtures("block_bytes")
def test_read_committed_returns_aborted_transactions() -> None:
    tiered = Tiered(transactional)
    assert any(segment.has_transaction_index for segment in tiered.tier.listed(tiered.partition))
    for offset in range(tiered.log.local_log_start_offset):
        read = tiered.read(offset, 200, is_committed=True)
        first, end = headers_of(read.records)[0].base_offset, headers_of(read.records)[-1].last_offset + 1
        assert list(read.aborted) == tiered.twin.aborted_transactions(first, end)
        assert len(read.aborted) == len({(each.producer_id, each.first_offset) for each in read.aborted})


def test_transaction_aborted_in_local_log_is_returned() -> None:
    def fill(log: UnifiedLog) -> None:
        producers = Producers(log)
        producers.send(7, 2)
        for _ in range(2):
            producers.send(8, 5)
        log.advance_high_watermark(log.log_end_offset)
        log.roll(at(0))
        producers.end(7, commit=False)
        producers.end(8, commit=True)

    config = replace(TIERED, segment_bytes=250)
    tiered = Tiered(fill, config)
    markers = [header.base_offset for header in headers_of(all_bytes(tiered.twin)) if header.is_control]
    assert min(markers) >= tiered.log.local_log_start_offset, "the marker is to be here"
    (transaction,) = tiered.read(0, is_committed=True).aborted
    assert (transaction.producer_id, transaction.first_offset) == (7, 0)


def test_read_uncommitted_reads_no_transaction_index() -> None:
    tiered = Tiered(transactional)
    assert tiered.read(0).aborted is None
    assert not any(name.endswith(".txnindex") for name in tiered.gets)
