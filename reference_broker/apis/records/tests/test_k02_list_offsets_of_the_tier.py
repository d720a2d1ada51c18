"""ListOffsets of a partition whose first records are in the remote tier only."""

from collections.abc import Callable
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from reference_broker.apis.records import k02_list_offsets
from reference_broker.apis.tests.fetch_world import FakeCall, FetchWorld, real_log, real_records
from reference_broker.log.producer_state import encode_snapshot
from reference_broker.log.timestamp_lookup import FoundOffset
from reference_broker.wire.errors import Error, ErrorCode

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
BASE_MS = 1_700_000_000_000
Result = FoundOffset | Error | None


class FakeReader:
    def __init__(self) -> None:
        self.searches: list[tuple[int, Callable[[Result], None]]] = []
        self.abandoned = 0

    def first_of_time(
        self, _log: object, _partition: int, timestamp_ms: int, done: Callable[[Result], None]
    ) -> Callable[[], None]:
        self.searches.append((timestamp_ms, done))

        def abandon() -> None:
            self.abandoned += 1

        return abandon


def tiered() -> tuple[FetchWorld, FakeReader]:
    """Offsets 10 to 39 of epochs 0 and 1 are in the tier, 40 and 41 of epoch 2 are here, at BASE_MS + 10 and
    BASE_MS + 20."""
    world, reader = FetchWorld(log_of=real_log), FakeReader()
    (partition,) = world.create("a")
    log = partition.log
    log.start_from_remote(world.broker.now, 40, 10, [(0, 0), (1, 30)], encode_snapshot(log.producers), log.producers)
    log.append(world.broker.now, real_records([BASE_MS + 10, BASE_MS + 20]), 2)
    log.advance_high_watermark(42)
    log.copied_end_offset = 40
    remote_log: Any = SimpleNamespace(reader=reader)
    world.broker.remote_log = remote_log
    config: Any = world.broker.config
    config.remote_list_offsets_request_timeout_ms = 3000
    return world, reader


def list_offsets(world: FetchWorld, timestamp: int, version: int = 10) -> FakeCall:
    call = FakeCall(1, "c", version)
    wanted = ListOffsetsPartition(partition_index=i32(0), current_leader_epoch=i32(-1), timestamp=i64(timestamp))
    request = ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(0),
        topics=(ListOffsetsTopic(name=TopicName("a"), partitions=(wanted,)),),
        timeout=i32Timedelta.parse(timedelta(seconds=1)),
    )
    k02_list_offsets.handle(world.broker, call, request)
    return call


def result_of(call: FakeCall) -> tuple[int, int, int, int]:
    response: Any = call.response
    partition = response.topics[0].partitions[0]
    return partition.error_code, partition.offset, partition.timestamp, partition.leader_epoch


@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (EARLIEST, (0, 10, -1, 0)),
        (EARLIEST_LOCAL, (0, 40, -1, 2)),
        (LATEST_TIERED, (0, 39, -1, 1)),
        (LATEST, (0, 42, -1, 2)),
        (MAX_TIMESTAMP, (0, 41, BASE_MS + 20, 2)),
    ],
)
def test_special_timestamps_need_no_remote_read(timestamp: int, expected: tuple[int, ...]) -> None:
    world, reader = tiered()
    assert result_of(list_offsets(world, timestamp)) == expected
    assert not reader.searches


@pytest.mark.clause(
    "UnifiedLogTest.testFetchLatestTieredTimestampNoRemoteStorage",
    "UnifiedLogTest.testFetchLatestTieredTimestampWithRemoteStorage",
)
@pytest.mark.parametrize("copied_end", [0, 40])
def test_latest_tiered_of_log_without_tiered_segments_is_not_found(copied_end: int) -> None:
    """Kafka returns -1 without an error (UnifiedLog.fetchOffsetByTimestamp). The log begins at 40: what came before is
    gone. So everything before 40 that is here is listed, which says nothing."""
    world, _ = tiered()
    log = world.log("a")
    log.delete_records_before(40)
    log.copied_end_offset = copied_end
    assert result_of(list_offsets(world, LATEST_TIERED)) == (0, -1, -1, -1)
    log.copied_end_offset = 41
    assert result_of(list_offsets(world, LATEST_TIERED)) == (0, 40, -1, 2)


@pytest.mark.clause("UnifiedLogTest.testFetchOffsetByTimestampFromRemoteStorage")
@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (FoundOffset(BASE_MS + 5, 30, 1), (0, 30, BASE_MS + 5, 1)),
        (None, (0, 40, BASE_MS + 10, 2)),
        (ErrorCode.unknown_server_error, (-1, -1, -1, -1)),
    ],
)
def test_timestamp_is_searched_in_tier_then_local_log(result: Result, expected: tuple[int, ...]) -> None:
    world, reader = tiered()
    call = list_offsets(world, BASE_MS)
    assert call.waiting
    ((timestamp_ms, complete),) = reader.searches
    assert timestamp_ms == BASE_MS
    complete(result)
    assert result_of(call) == expected


@pytest.mark.parametrize(("version", "waits_ms"), [(9, 3000), (10, 1000)])
def test_slow_remote_lookup_times_out(version: int, waits_ms: int) -> None:
    world, reader = tiered()
    call = list_offsets(world, BASE_MS, version)
    world.pass_ms(waits_ms - 1)
    assert call.waiting
    world.pass_ms(1)
    assert result_of(call)[0] == ErrorCode.request_timed_out
    assert reader.abandoned == 1


def test_segment_moved_during_lookup_returns_offset_not_available() -> None:
    world, reader = tiered()
    log = world.log("a")
    call = list_offsets(world, BASE_MS)
    log.roll(world.broker.now)
    log.mark_synced(log.sync_point())
    log.copied_end_offset = 42
    assert log.delete_local(42) == 1
    reader.searches[0][1](None)
    assert result_of(call)[0] == ErrorCode.offset_not_available


def test_closed_connection_abandons_remote_lookup() -> None:
    world, reader = tiered()
    call = list_offsets(world, BASE_MS)
    call.hang_up()
    assert reader.abandoned == 1
    world.pass_ms(5000)
    assert not call.responses


def test_lookup_without_remote_log_returns_offset_not_available() -> None:
    world, _ = tiered()
    world.broker.remote_log = None
    assert result_of(list_offsets(world, BASE_MS))[0] == ErrorCode.offset_not_available
