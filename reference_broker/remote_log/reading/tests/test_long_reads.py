"""A read of many batches does not block an event: the offset index finds what fits, and long walks take slices."""

from dataclasses import replace
from typing import Any

import pytest

from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import all_bytes, appended, at, batch_of, headers_of
from reference_broker.log.tests.tiered_world import TIERED
from reference_broker.log.unified_log import UnifiedLog
from reference_broker.records import batch
from reference_broker.remote_log.reading import reader, segment_readings
from reference_broker.remote_log.reading.reader import RemoteRecords
from reference_broker.remote_log.reading.tests.reading_world import Tiered

BATCHES = 3000
INDEXED = replace(TIERED, segment_bytes=10_000_000, index_interval_bytes=4096)
SPARSE = replace(INDEXED, index_interval_bytes=100_000_000)
NO_LIMIT = 1 << 60


class Headers:
    """Counts the headers that are read, ``most`` in one event."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.counted = self.most = 0
        read_header = batch.read_header

        def counting(*args: Any) -> Any:
            self.counted += 1
            self.most = max(self.most, self.counted)
            return read_header(*args)

        for module in (batch, segment_readings):
            patch.setattr(module, "read_header", counting)

    def next_event(self) -> None:
        self.counted = 0


def many_batches(log: UnifiedLog) -> None:
    data = batch_of(1)
    for _ in range(BATCHES):
        log.append(at(0), data, 0)
    log.roll(at(0))
    appended(log, data)


def tiered(config: LogConfig) -> Tiered:
    made = Tiered(many_batches, config)
    assert made.log.local_log_start_offset == BATCHES
    return made


def test_end_of_read_is_found_without_walking_all_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    world = tiered(INDEXED)
    found, headers = world.read(0, 1 << 30), Headers(monkeypatch)
    whole = found.records
    assert len(headers_of(whole)) == BATCHES
    headers.next_event()
    assert found.fitting(len(whole), BATCHES, at_least_one=True) == whole
    assert headers.most == BATCHES, "only this test has read the headers so far"
    headers.most = 0
    size = len(whole) // BATCHES
    for count in (1, 2, 777, 2999):
        assert found.fitting(count * size + 5, NO_LIMIT, at_least_one=True) == whole[: count * size]
        assert found.fitting(len(whole), count, at_least_one=True) == whole[: count * size]
        headers.next_event()
    assert headers.most < 250


@pytest.mark.parametrize("config", [INDEXED, SPARSE])
@pytest.mark.parametrize("max_bytes", [70_000, 200_000])
def test_no_event_of_read_walks_many_headers(
    config: LogConfig, max_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    world, headers = tiered(config), Headers(monkeypatch)
    monkeypatch.setattr(segment_readings, "REMOTE_HEADERS_PER_SLICE", 100)
    deliver = world.node.ports.deliver

    def delivered(callback: Any) -> None:
        headers.next_event()
        deliver(callback)

    world.node.ports.deliver = delivered  # type: ignore[method-assign]
    found, most = world.read(1500, max_bytes), headers.most
    assert 60_000 < len(found.records) <= max_bytes
    assert headers_of(found.records)[0].base_offset == 1500
    assert 0 < most <= 301, "a look at an index entry, and a slice at each end"


def test_read_without_index_walks_limited_headers(monkeypatch: pytest.MonkeyPatch) -> None:
    world = tiered(SPARSE)
    whole = world.read(0, 1 << 30).records
    assert len(headers_of(whole)) == BATCHES
    headers = Headers(monkeypatch)
    found = RemoteRecords(whole, None).fitting(len(whole) - 1, NO_LIMIT, at_least_one=True)
    assert headers.most == reader.MAX_HEADERS
    assert len(found) == len(whole) // BATCHES * reader.MAX_HEADERS


def test_read_exceeds_limit_only_for_one_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(segment_readings, "MAX_BYTES", 70_000)

    def fill(log: UnifiedLog) -> None:
        for size in (1000, 80_000, 1000, 30_000, 30_000, 30_000):
            appended(log, batch_of(1, value=bytes(size)))
        log.roll(at(0))

    world = Tiered(fill, replace(TIERED, segment_bytes=200_000, index_interval_bytes=4096))
    assert world.all(1 << 20) == all_bytes(world.twin)
    assert len(headers_of(world.read(0, 1 << 20).records)) == 1
    assert len(world.read(1, 1 << 20, at_least_one=False).records) > 80_000
    assert 60_000 < len(world.read(2, 1 << 20).records) <= 70_000
