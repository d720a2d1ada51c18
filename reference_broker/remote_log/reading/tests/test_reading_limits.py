"""Limits of the memory and the requests of reads."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.log.tests.log_world import appended, batch_of
from reference_broker.log.tests.tiered_world import TIERED
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.remote_log.reading import reader
from reference_broker.remote_log.reading.readings import MAX_GETS
from reference_broker.remote_log.reading.tests.reading_world import (
    Tiered,
    plain,
    set_block_bytes,
)
from reference_broker.remote_log.tests.tier_world import UNAVAILABLE
from reference_broker.wire.errors import ErrorCode


@pytest.mark.clause("RemoteIndexCacheTest.testFetchIndexFromRemoteStorage")
def test_reads_of_same_offset_share_one_get() -> None:
    tiered = Tiered(plain)
    results: list[Any] = []
    for _ in range(20):
        tiered.node.manager.reader.read(tiered.log, 0, 0, 100, results.append)
    tiered.tier.pass_ms(1000)
    assert len(results) == 20
    assert len(set(results)) == 1
    assert len(tiered.gets) == 2


def test_concurrent_gets_are_limited() -> None:
    def fill(log: UnifiedLog) -> None:
        for _ in range(300):
            appended(log, batch_of(2))

    tiered = Tiered(fill)
    results: list[Any] = []
    tiered.node.ports.most_under_way = 0
    for segment in tiered.tier.listed(tiered.partition):
        tiered.node.manager.reader.read(tiered.log, 0, segment.start_offset, 100, results.append)
    tiered.tier.pass_ms(1000)
    assert len(results) == 99
    assert tiered.node.ports.most_under_way == MAX_GETS


@pytest.mark.clause("RemoteIndexCacheTest.testCacheEntryExpiry")
def test_cached_indexes_and_blocks_stay_within_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    set_block_bytes(monkeypatch, 100)
    monkeypatch.setattr(reader, "BLOCKS_LIMIT_BYTES", 450)
    tiered = Tiered(plain, remote_log_index_file_cache_total_size_bytes="60")
    caches = [tiered.node.manager.reader._readings.blocks, tiered.node.manager.reader._readings.indexes]
    for offset in [*range(0, 80, 3)] * 2:
        tiered.read(offset, 200)
        assert all(cache.size_bytes <= cache.limit_bytes for cache in caches)
        assert all(cache.size_bytes == sum(map(len, cache._kept.values())) for cache in caches)
        assert not any(cache._in_flight for cache in caches)
    assert all(cache._kept for cache in caches)


def test_next_block_is_read_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    set_block_bytes(monkeypatch, 100)

    def fill(log: UnifiedLog) -> None:
        for _ in range(40):
            appended(log, batch_of(2))

    tiered = Tiered(fill, replace(TIERED, segment_bytes=1000))
    batch_bytes = len(batch_of(2))
    tiered.read(0, batch_bytes)
    blocks = [name for name in tiered.gets if name.endswith(".log")]
    assert len(blocks) == 1 + reader.READ_AHEAD_BLOCKS
    tiered.gets.clear()
    results: list[Any] = []
    tiered.node.manager.reader.read(tiered.log, 0, 2, batch_bytes, results.append)
    assert results
    assert results[0].records, "it was read ahead, so no reader waits"


def test_abandoned_read_calls_back_nothing_and_caches_block() -> None:
    tiered = Tiered(plain)
    results: list[Any] = []
    abandon = tiered.node.manager.reader.read(tiered.log, 0, 0, 100, results.append)
    abandon()
    tiered.tier.pass_ms(1000)
    assert results == []
    tiered.gets.clear()
    assert tiered.read(0, 100).records
    assert len(tiered.gets) == 1, "the index was on its way"


def test_abandoned_reads_do_not_delay_others() -> None:
    """More reads than gets at once are abandoned. Only gets that have started continue."""

    def fill(log: UnifiedLog) -> None:
        for _ in range(300):
            appended(log, batch_of(2))

    tiered, results = Tiered(fill), list[Any]()
    read = tiered.node.manager.reader.read
    segments = tiered.tier.listed(tiered.partition)
    abandons = [read(tiered.log, 0, segment.start_offset, 100, results.append) for segment in segments[:-1]]
    same = read(tiered.log, 0, segments[-2].start_offset, 100, results.append)
    read(tiered.log, 0, segments[-1].start_offset, 100, results.append)
    for abandon in abandons:
        abandon()
    tiered.tier.pass_ms(1000)
    assert len(results) == 2, "one waits for what another one has abandoned"
    assert len(tiered.gets) <= MAX_GETS + 2 * 3
    same()


def test_abandoned_get_in_backoff_is_not_started() -> None:
    tiered, results = Tiered(plain), list[Any]()
    tiered.node.ports.before = lambda name: UNAVAILABLE if name.startswith("Get") else None
    assert tiered.read(0) is ErrorCode.unknown_server_error
    calls = list[str]()
    tiered.node.ports.before = lambda name: calls.append(name)
    abandon = tiered.node.manager.reader.read(tiered.log, 0, 0, 100, results.append)
    abandon()
    tiered.tier.pass_ms(1000)
    assert not calls
    assert tiered.read(0).records


def test_reads_are_counted() -> None:
    tiered = Tiered(plain)
    read = tiered.read(0, 100)
    assert tiered.node.value("RemoteFetchBytesPerSec") == len(read.records)
    assert tiered.node.value("RemoteFetchRequestsPerSec") == 1
