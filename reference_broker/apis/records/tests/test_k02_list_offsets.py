"""ListOffsets on a real log: special timestamps, times, isolation, epochs and errors."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.list_offsets.v10.response import ListOffsetsPartitionResponse
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i32Timedelta, i64

from reference_broker.apis.records import k02_list_offsets
from reference_broker.apis.tests.fetch_world import FakeCall, FetchWorld, real_log, real_records
from reference_broker.wire.errors import ErrorCode

LATEST, EARLIEST, MAX_TIMESTAMP, EARLIEST_LOCAL, LATEST_TIERED = -1, -2, -3, -4, -5
BASE_MS = 1_700_000_000_000


@pytest.fixture
def world() -> FetchWorld:
    """Offsets 0-1 of epoch 0 at BASE_MS and BASE_MS + 10, offset 2 of epoch 4 at BASE_MS + 5; the high watermark is 2,
    the log end 3."""
    world = FetchWorld(log_of=real_log)
    (partition,) = world.create("a")
    partition.log.append(world.broker.now, real_records([BASE_MS, BASE_MS + 10]), 0)
    partition.log.append(world.broker.now, real_records([BASE_MS + 5]), 4)
    partition.log.advance_high_watermark(2)
    partition.leader_epoch = 4
    return world


def partition_at(timestamp: int, *, index: int = 0, epoch: int = -1) -> ListOffsetsPartition:
    return ListOffsetsPartition(partition_index=i32(index), current_leader_epoch=i32(epoch), timestamp=i64(timestamp))


def list_offsets(
    world: FetchWorld,
    *partitions: ListOffsetsPartition,
    version: int = 10,
    topic: str = "a",
    replica: int = -1,
    level: int = 0,
) -> list[ListOffsetsPartitionResponse]:
    request = ListOffsetsRequest(
        replica_id=BrokerId(replica),
        isolation_level=i8(level),
        topics=(ListOffsetsTopic(name=TopicName(topic), partitions=partitions),),
        timeout=i32Timedelta.parse(timedelta(0)),
    )
    call = FakeCall(1, "c", version)
    k02_list_offsets.handle(world.broker, call, request)
    response: Any = call.response
    assert [each.name for each in response.topics] == [topic]
    return list(response.topics[0].partitions)


def found(response: Any) -> tuple[int, int, int]:
    assert response.error_code == ErrorCode.none
    return (response.offset, response.timestamp, response.leader_epoch)


@pytest.mark.clause(
    "UnifiedLogTest.testFetchOffsetByTimestampIncludesLeaderEpoch",
    "UnifiedLogTest.testFetchOffsetByTimestampWithMaxTimestampIncludesTimestamp",
)
@pytest.mark.parametrize(
    ("timestamp", "expected"),
    [
        (LATEST, (2, -1, 4)),
        (EARLIEST, (0, -1, 0)),
        (EARLIEST_LOCAL, (0, -1, 0)),
        (MAX_TIMESTAMP, (1, BASE_MS + 10, 0)),
        (LATEST_TIERED, (-1, -1, -1)),
        (0, (0, BASE_MS, 0)),
        (BASE_MS, (0, BASE_MS, 0)),
        (BASE_MS + 1, (1, BASE_MS + 10, 0)),
        (BASE_MS + 11, (-1, -1, -1)),
    ],
)
def test_consumer_offsets_by_timestamp(world: FetchWorld, timestamp: int, expected: tuple[int, int, int]) -> None:
    assert found(list_offsets(world, partition_at(timestamp))[0]) == expected


def test_follower_latest_is_log_end(world: FetchWorld) -> None:
    assert found(list_offsets(world, partition_at(LATEST), replica=8)[0])[0] == 3


def test_offset_above_high_watermark_is_not_found_for_consumer(world: FetchWorld) -> None:
    partition = world.partition("a")
    partition.log.append(world.broker.now, real_records([BASE_MS + 50]), 4)
    assert found(list_offsets(world, partition_at(MAX_TIMESTAMP))[0]) == (-1, -1, -1)
    assert found(list_offsets(world, partition_at(BASE_MS + 20))[0]) == (-1, -1, -1)
    assert found(list_offsets(world, partition_at(BASE_MS + 20), replica=8)[0]) == (3, BASE_MS + 50, 4)


def test_earliest_is_log_start(world: FetchWorld) -> None:
    log = world.partition("a").log
    log.advance_high_watermark(3)
    log.delete_records_before(2)
    assert found(list_offsets(world, partition_at(EARLIEST))[0]) == (2, -1, 4)


def test_max_timestamp_of_empty_log_is_not_found() -> None:
    world = FetchWorld(log_of=real_log)
    world.create("a")
    assert found(list_offsets(world, partition_at(MAX_TIMESTAMP))[0]) == (-1, -1, -1)
    assert found(list_offsets(world, partition_at(LATEST))[0]) == (0, -1, -1)


def test_latest_read_committed_is_last_stable_offset() -> None:
    world = FetchWorld()
    world.create("a")
    for _ in range(3):
        world.append("a")
    world.log("a").lso_hold = 1
    assert found(list_offsets(world, partition_at(LATEST), level=1)[0])[0] == 1
    assert found(list_offsets(world, partition_at(LATEST), level=0)[0])[0] == 3


@pytest.mark.parametrize(
    ("epoch", "error"),
    [
        (-1, ErrorCode.none),
        (4, ErrorCode.none),
        (3, ErrorCode.fenced_leader_epoch),
        (5, ErrorCode.unknown_leader_epoch),
    ],
)
def test_leader_epoch_is_checked(world: FetchWorld, epoch: int, error: int) -> None:
    assert list_offsets(world, partition_at(LATEST, epoch=epoch))[0].error_code == error


@pytest.mark.parametrize(
    ("current", "error"),
    [
        (-1, ErrorCode.not_leader_or_follower),
        (3, ErrorCode.not_leader_or_follower),
        (2, ErrorCode.fenced_leader_epoch),
        (4, ErrorCode.unknown_leader_epoch),
    ],
)
def test_follower_checks_leader_epoch_before_not_leader(world: FetchWorld, current: int, error: int) -> None:
    world.publish("b", 1, b"b".rjust(16, b"#"), leader=8, replicas=(7, 8), epoch=3)
    assert list_offsets(world, partition_at(LATEST, epoch=current), topic="b")[0].error_code == error


def test_unknown_or_unled_partition_returns_error(world: FetchWorld) -> None:
    world.create("elsewhere", led_here=False)
    assert list_offsets(world, partition_at(LATEST, index=1))[0].error_code == ErrorCode.unknown_topic_or_partition
    assert list_offsets(world, partition_at(LATEST), topic="x")[0].error_code == ErrorCode.unknown_topic_or_partition
    assert (
        list_offsets(world, partition_at(LATEST), topic="elsewhere")[0].error_code == ErrorCode.not_leader_or_follower
    )


def test_duplicate_partition_returns_invalid_request(world: FetchWorld) -> None:
    assert [offset.error_code for offset in list_offsets(world, partition_at(LATEST), partition_at(EARLIEST))] == [
        ErrorCode.invalid_request
    ]


def test_response_has_each_topic_and_partition_once(world: FetchWorld) -> None:
    named = [
        ("a", [partition_at(LATEST), partition_at(LATEST, index=1), partition_at(EARLIEST)]),
        ("x", [partition_at(LATEST)]),
        ("a", [partition_at(LATEST, index=2), partition_at(LATEST)]),
        ("none", []),
    ]
    request = ListOffsetsRequest(
        replica_id=BrokerId(-1),
        isolation_level=i8(0),
        topics=tuple(ListOffsetsTopic(name=TopicName(name), partitions=tuple(of)) for name, of in named),
        timeout=i32Timedelta.parse(timedelta(0)),
    )
    call = FakeCall(1, "c", 10)
    k02_list_offsets.handle(world.broker, call, request)
    response: Any = call.response
    unknown = ErrorCode.unknown_topic_or_partition
    assert [
        (topic.name, [(partition.partition_index, partition.error_code) for partition in topic.partitions])
        for topic in response.topics
    ] == [
        ("a", [(0, ErrorCode.invalid_request), (1, unknown), (2, unknown)]),
        ("x", [(0, unknown)]),
    ]


@pytest.mark.parametrize(("timestamp", "since"), [(MAX_TIMESTAMP, 7), (EARLIEST_LOCAL, 8), (LATEST_TIERED, 9)])
def test_special_timestamp_before_its_version_is_unsupported(world: FetchWorld, timestamp: int, since: int) -> None:
    assert (
        list_offsets(world, partition_at(timestamp), version=since - 1)[0].error_code == ErrorCode.unsupported_version
    )
    assert list_offsets(world, partition_at(timestamp), version=since)[0].error_code == ErrorCode.none


def test_unknown_special_timestamp_is_unsupported(world: FetchWorld) -> None:
    assert list_offsets(world, partition_at(-9))[0].error_code == ErrorCode.unsupported_version
