"""Producers after a start, where records were deleted, or markers came from a coordinator of an older epoch."""

import pytest

from reference_broker.log.appending import BatchOrigin
from reference_broker.log.config import LogConfig
from reference_broker.log.tests.log_world import at, opened, sent
from reference_broker.ports.disk import MemoryDisk
from reference_broker.records.tests.markers import build_marker


@pytest.mark.clause(
    "LogLoaderTest.testLoadProducersAfterDeleteRecordsMidSegment",
    "LogLoaderTest.testLoadProducersAfterDeleteRecordsOnSegment",
)
@pytest.mark.parametrize(("rolled", "known"), [(False, {1: 0, 2: 0}), (True, {2: 0})])
def test_deleted_records_count_while_segment_exists(rolled: bool, known: dict[int, int]) -> None:
    disk = MemoryDisk()
    log = opened(disk)
    sent(log, 1, 0)
    if rolled:
        log.roll(at(0))
    sent(log, 2, 0)
    log.delete_records_before(1)
    log.mark_synced(log.sync_point())
    assert len(log.segments) == 1
    assert set(log.producers.by_id) == {1, 2}
    again = opened(disk, clean=False)
    assert {each: producer.last_sequence for each, producer in again.producers.by_id.items()} == known


@pytest.mark.clause("LogLoaderTest.testRecoverAfterNonMonotonicCoordinatorEpochWrite")
def test_marker_of_older_coordinator_is_not_damage() -> None:
    disk, config = MemoryDisk(), LogConfig(producer_id_expiration_ms=1000)
    log = opened(disk, config)
    for time, coordinator in ((0, 5), (1000, 4)):
        log.expire_producers(at(time))
        assert log.producers.by_id == {}
        now = at(time)
        marker = build_marker(
            commit=False, producer_id=1, producer_epoch=0, coordinator_epoch=coordinator, timestamp_ms=now.wall_ms
        )
        log.append(now, marker, 0, origin=BatchOrigin.BROKER)
    again = opened(disk, config, now=at(1500), clean=False)
    assert again.log_end_offset == 2
    assert again.producers.by_id[1].last_timestamp_ms == at(1000).wall_ms
