"""Errors of reads when objects are damaged or missing, or the store fails."""

from itertools import pairwise

import pytest

from reference_broker.log.tests.log_world import START_MS, all_bytes, headers_of
from reference_broker.log.timestamp_lookup import FoundOffset
from reference_broker.ports.store import StoreFailure
from reference_broker.remote_log.metadata.events import RemoteLogSegmentState, update_of
from reference_broker.remote_log.objects import ObjectKind, key_of
from reference_broker.remote_log.reading.reader import RemoteRecords
from reference_broker.remote_log.reading.readings import FIRST_PAUSE_US, LONGEST_PAUSE_US
from reference_broker.remote_log.reading.tests.reading_world import Tiered, plain, transactional
from reference_broker.remote_log.tests.tier_world import UNAVAILABLE
from reference_broker.wire.errors import ErrorCode

# --- errors ---------------------------------------------------------------------------------------------------------


def test_unlisted_offset_returns_out_of_range() -> None:
    tiered = Tiered(plain)
    assert tiered.read(10_000) is ErrorCode.offset_out_of_range


@pytest.mark.clause("RemoteLogManagerTest.testFindOffsetByTimestampWithSegmentNotReady")
def test_read_before_metadata_is_loaded_returns_replica_not_available() -> None:
    tiered = Tiered(plain)
    tiered.node.metadata.not_ready.add((tiered.log.topic_id, 0))
    assert tiered.read(0) is ErrorCode.replica_not_available
    assert tiered.time(START_MS) is ErrorCode.replica_not_available
    assert tiered.auxiliary(0, 6) is ErrorCode.replica_not_available


@pytest.mark.thorough
@pytest.mark.clause("RemoteIndexCacheTest.testRSMReturnCorruptedIndexFile")
@pytest.mark.parametrize("kind", list(ObjectKind)[:4])
@pytest.mark.parametrize("damage", ["gone", "short", "junk"])
def test_damaged_object_returns_error_and_no_other_records(kind: ObjectKind, damage: str) -> None:
    tiered = Tiered(transactional)
    objects = tiered.tier.store_memory.objects
    segment = next(each for each in tiered.tier.listed(tiered.partition) if each.has_transaction_index)
    key = key_of(segment, kind)
    if damage == "gone":
        del objects[key]
    else:
        objects[key] = objects[key][:-1] if damage == "short" else bytes(255 - each for each in objects[key])
    result = tiered.read(segment.start_offset + 1, is_committed=True)
    if kind is ObjectKind.TIME_INDEX:
        assert isinstance(result, RemoteRecords)
        result = tiered.time(segment.max_timestamp_ms)
    if isinstance(result, RemoteRecords):
        assert damage == "junk", "an index that fits its format may lead to the right batch"
        assert result.records in all_bytes(tiered.twin)
    elif not isinstance(result, FoundOffset | None):
        assert result is (ErrorCode.unknown_server_error if damage == "gone" else ErrorCode.corrupt_message)


@pytest.mark.parametrize(
    ("deleted", "returned"), [(True, ErrorCode.offset_out_of_range), (False, ErrorCode.unknown_server_error)]
)
def test_missing_object_returns_out_of_range_only_if_segment_is_deleted(deleted: bool, returned: ErrorCode) -> None:
    """A store whose folder is not mounted has no objects, although they are listed."""
    tiered = Tiered(plain)
    segment = tiered.tier.listed(tiered.partition)[1]
    known = tiered.tier.known(tiered.partition)

    def lose(_: str) -> None:
        tiered.tier.store_memory.objects.clear()
        if deleted:
            known.apply(update_of(segment, RemoteLogSegmentState.DELETE_SEGMENT_STARTED, 1, 5, 0))

    tiered.node.ports.before = lose
    assert tiered.read(segment.start_offset) is returned


def test_failing_store_returns_error_and_backs_off() -> None:
    tiered = Tiered(plain)
    times: list[int] = []

    def refuse(_: str) -> StoreFailure:
        times.append(tiered.tier.mono_us)
        return UNAVAILABLE

    tiered.node.ports.before = refuse
    for _ in range(9):
        assert tiered.result(tiered.node.manager.reader.read, 0, 100, ms=6000) is ErrorCode.unknown_server_error
    assert tiered.node.value("RemoteFetchErrorsPerSec") == 9
    tiered.node.ports.before = lambda _: None
    assert (
        headers_of(
            tiered.read(
                0,
                100,
            ).records
        )[0].base_offset
        == 0
    )
    before = len(times)
    tiered.node.ports.before = refuse
    gets = 0

    def retry(_: object = None) -> None:
        nonlocal gets
        gets += 1
        if gets < 2000:
            tiered.node.manager.reader.read(tiered.log, 0, 12, 100, retry)

    for _ in range(100):
        retry()
    tiered.tier.pass_ms(20_000)
    gaps = [b - a for a, b in pairwise(times[before:])]
    assert len(times) - before < 12, "clients that retry at once do not make the node do so"
    assert all(FIRST_PAUSE_US <= gap <= LONGEST_PAUSE_US + 2000 for gap in gaps)


def test_slow_object_delays_no_other_partition() -> None:
    tiered = Tiered(plain)
    slow = key_of(tiered.tier.listed(tiered.partition)[0], ObjectKind.OFFSET_INDEX)
    tiered.node.ports.delay_us = lambda operation: 3_600_000_000 if operation[0] == slow else 1000
    results: list[object] = []
    tiered.node.manager.reader.read(tiered.log, 0, 0, 100, results.append)
    assert tiered.read(30, 100).records
    assert results == []
