"""Contents, order and limits of an incremental response of the final revision."""

from typing import Any

import pytest

from reference_broker.apis.records.fetch import MAX_SKIPPED_BATCHES
from reference_broker.apis.tests.fetch_world import LARGE, FetchWorld, names, partitions_of, two_topics
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition

A0, A1, A2, B0 = ("a", 0), ("a", 1), ("a", 2), ("b", 0)


@pytest.fixture
def world() -> FetchWorld:
    return two_topics()


@pytest.mark.clause("F-14", "FetchSessionTest.testFetchRequests")
def test_only_changed_partitions_are_sent(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0, A1: 0, A2: 0})
    world.append("a", 1)
    response = partitions_of(world.fetch(session_id, 1).response)
    assert list(response) == [A1]
    assert response[A1].high_watermark == 1


@pytest.mark.clause("F-14")
def test_moved_high_watermark_is_sent_once_without_data(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    world.append("a", commit=False)
    assert names(world.fetch(session_id, 1, {A0: 1}).response) == []
    world.partition("a").log.high_watermark = 1
    world.partition("a").changed()
    response = partitions_of(world.fetch(session_id, 2).response)
    assert (response[A0].high_watermark, response[A0].records) == (1, b"")
    assert names(world.fetch(session_id, 3).response) == []


@pytest.mark.clause("F-14")
def test_moved_log_start_is_sent_once(world: FetchWorld) -> None:
    world.append("a", records=5)
    session_id = world.open_session({A0: 5})
    world.partition("a").log.delete_records_before(5)
    world.partition("a").changed()
    response = partitions_of(world.fetch(session_id, 1).response)
    assert response[A0].log_start_offset == 5
    assert names(world.fetch(session_id, 2).response) == []


@pytest.mark.clause("F-14")
def test_moved_last_stable_offset_alone_is_not_sent(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    log = world.log("a")
    log.lso_hold = 0
    world.append("a")
    world.fetch(session_id, 1, {A0: 1})
    log.lso_hold = None
    world.partition("a").changed()
    assert names(world.fetch(session_id, 2).response) == []


@pytest.mark.clause("F-14")
def test_added_partition_is_always_sent(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    assert names(world.fetch(session_id, 1, {B0: 0}).response) == [B0]


@pytest.mark.clause("F-14")
def test_error_is_in_each_response_and_next_state_is_sent(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 7, A1: 0})
    for epoch in (1, 2):
        assert partitions_of(world.fetch(session_id, epoch).response)[A0].error_code == ErrorCode.offset_out_of_range
    response = partitions_of(world.fetch(session_id, 3, {A0: 0}).response)
    assert (response[A0].error_code, response[A0].high_watermark) == (ErrorCode.none, 0)
    assert names(world.fetch(session_id, 4).response) == []


@pytest.mark.clause("F-14", "F-20")
def test_data_is_resent_until_fetch_offset_advances(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0})
    world.append("a")
    first = partitions_of(world.fetch(session_id, 1).response)[A0].records
    assert partitions_of(world.fetch(session_id, 2).response)[A0].records == first
    assert names(world.fetch(session_id, 3, {A0: 1}).response) == []


@pytest.mark.clause("F-15")
def test_each_partition_with_data_is_served_within_n_responses(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0, A1: 0, A2: 0})
    for index in range(3):
        world.append("a", index)
    served = [
        [
            key
            for key, data in partitions_of(world.fetch(session_id, epoch, max_bytes=1).response).items()
            if data.records
        ]
        for epoch in range(1, 7)
    ]
    assert served == [[A0], [A1], [A2], [A0], [A1], [A2]]


@pytest.mark.clause("F-15", "FetchSessionTest.testDeprioritizesPartitionsWithRecordsOnly")
def test_only_partitions_with_returned_records_move_to_end(world: FetchWorld) -> None:
    session_id = world.open_session({A0: 0, A1: 0, A2: 0})
    for index in range(3):
        world.append("a", index)
    world.fetch(session_id, 1, {A0: 1, A2: 1})  # A0 and A2 send their high watermark only, A1 returns its record
    order = sorted(world.sessions.sessions[session_id].partitions.values(), key=lambda cached: cached.order)
    assert [(cached.topic, cached.index) for cached in order] == [A0, A2, A1]


@pytest.mark.clause("F-15")
def test_full_response_rotates_partitions(world: FetchWorld) -> None:
    for index in range(3):
        world.append("a", index)
    response = world.fetch(0, 0, {A0: 0, A1: 0, A2: 0}, max_bytes=1).response
    assert [key for key, data in partitions_of(response).items() if data.records] == [A0]
    assert [key for key, data in partitions_of(world.fetch(response.session_id, 1, max_bytes=1).response).items()] == [
        A1
    ]


@pytest.mark.clause("F-16", "FetchRequestTest.testBrokerRespectsPartitionsOrderAndSizeLimits")
def test_first_partition_with_data_may_exceed_both_limits(world: FetchWorld) -> None:
    world.append("a", 1, size_bytes=5000)
    world.append("a", 2, size_bytes=10)
    wanted = {key: FetchPartition(key[1], 0, 100) for key in (A0, A1, A2)}
    response = partitions_of(world.fetch(0, -1, wanted, max_bytes=50).response)
    assert [len(data.records or b"") for data in response.values()] == [0, 5000, 0]


@pytest.mark.clause("F-16")
def test_limits_of_zero_return_one_batch(world: FetchWorld) -> None:
    world.append("a")
    assert partitions_of(world.fetch(0, -1, {A0: FetchPartition(0, 0, 0)}, max_bytes=0).response)[A0].records


@pytest.mark.clause("F-16")
def test_later_partitions_get_remaining_response_limit(world: FetchWorld) -> None:
    for index in range(3):
        world.append("a", index, size_bytes=60)
        world.append("a", index, size_bytes=60)
    response = partitions_of(world.fetch(0, -1, {A0: 0, A1: 0, A2: 0}, max_bytes=200).response)
    assert [len(data.records or b"") for data in response.values()] == [120, 60, 0]


@pytest.mark.clause("F-14", "F-15")
@pytest.mark.parametrize("revision", ["final", "first"])
def test_partition_that_fits_is_sent_after_ones_that_do_not(world: FetchWorld, revision: str) -> None:
    """As in Kafka's broker, the remaining limit goes on to the next partition."""
    for index, size in enumerate([600, 600, 100]):
        world.append("a", index, size_bytes=size)
    send = world.fetch if revision == "final" else world.fetch_first
    response = partitions_of(send(0, 0, {A0: 0, A1: 0, A2: 0}, max_bytes=1000).response)
    assert [len(data.records or b"") for data in response.values()] == [600, 0, 100]


@pytest.mark.clause("F-14", "F-15")
@pytest.mark.parametrize("revision", ["final", "first"])
def test_many_partitions_that_do_not_fit_block_no_other(revision: str) -> None:
    world = FetchWorld()
    world.create("m", 102)
    sizes = [100, *[500] * 100, 100]
    for index, size in enumerate(sizes):
        world.append("m", index, size_bytes=size)
    send = world.fetch if revision == "final" else world.fetch_first
    wanted = {("m", index): FetchPartition(index, 0, 400) for index in range(len(sizes))}
    opened = send(0, 0, wanted).response
    assert [len(data.records or b"") for data in partitions_of(opened).values()] == [100, *[0] * 100, 100]
    unchanged = send(opened.session_id, 1, {("m", 0): 1, ("m", 101): 1}, max_bytes=400).response
    assert [len(data.records or b"") for data in partitions_of(unchanged).values() if data.records] == [500]  # F-16


def test_skipped_batches_are_bounded_and_next_response_continues() -> None:
    world = FetchWorld()
    count = 2 * MAX_SKIPPED_BATCHES + 2
    logs: list[Any] = [partition.log for partition in world.create("m", count)]
    for index in range(count):
        world.append("m", index, size_bytes=100 if index in (0, count - 1) else 500)
    session_id = world.open_session({("m", index): 0 for index in range(count)}, max_bytes=1)
    with_data = []
    for epoch in (1, 2, 3):
        before = sum(log.touches for log in logs)
        call = world.fetch(session_id, epoch, max_bytes=650)
        world.pass_ms(0)  # the response takes more than a slice
        response = partitions_of(call.response)
        assert sum(log.touches for log in logs) - before < 3 * MAX_SKIPPED_BATCHES
        with_data.append([name for name, data in response.items() if data.records])
    assert [len(names) for names in with_data] == [1, 2, 2]
    assert ("m", count - 1) in with_data[1]


def test_skipped_batch_is_not_read_again_without_more_room() -> None:
    world = FetchWorld()
    logs: list[Any] = [partition.log for partition in world.create("m", 20)]
    for index in range(20):
        world.append("m", index, size_bytes=500)
    wanted = {("m", index): FetchPartition(index, 0, 300) for index in range(20)}
    session_id = world.open_session(wanted)
    world.fetch(session_id, 1)
    for epoch in range(2, 40):
        before = sum(log.touches for log in logs)
        assert len(partitions_of(world.fetch(session_id, epoch).response)) == 1  # F-16: the first one in the list
        assert sum(log.touches for log in logs) == before + 2
    more = {("m", 7): FetchPartition(7, 0, 500)}
    assert ("m", 7) in names(world.fetch(session_id, 40, more).response)


def test_small_partition_limit_does_not_block_other_partitions(world: FetchWorld) -> None:
    world.append("a", 0, size_bytes=10)
    world.append("a", 1, size_bytes=500)
    world.append("a", 2, size_bytes=10)
    wanted: dict[tuple[str, int], int | FetchPartition] = {A0: 0, A1: FetchPartition(1, 0, 100), A2: 0}
    response = partitions_of(world.fetch(0, -1, wanted).response)
    assert [len(data.records or b"") for data in response.values()] == [10, 0, 10]


def test_fetch_max_bytes_of_broker_bounds_response() -> None:
    world = FetchWorld(max_bytes_limit=150)
    world.create("a", 3)
    for index in range(3):
        world.append("a", index)
    response = partitions_of(world.fetch(0, -1, {A0: 0, A1: 0, A2: 0}, max_bytes=LARGE).response)
    assert [len(data.records or b"") for data in response.values()] == [100, 0, 0]


@pytest.mark.parametrize(("limit", "held"), [(250, [100, 100, 0]), (50, [100, 0, 0]), (LARGE, [100, 100, 100])])
def test_follower_uses_larger_replica_fetch_limit(limit: int, held: list[int]) -> None:
    """A follower's first batch is sent whole, whatever the limit."""
    world = FetchWorld(max_bytes_limit=90, follower_bytes_limit=limit)
    world.create("a", 3)
    for index in range(3):
        world.append("a", index)
    response = partitions_of(world.fetch(0, -1, {A0: 0, A1: 0, A2: 0}, max_bytes=LARGE, replica_id=8).response)
    assert [len(data.records or b"") for data in response.values()] == held


@pytest.mark.clause("F-14")
def test_state_after_error_is_sent_although_unchanged(world: FetchWorld) -> None:
    world.append("a")
    session_id = world.open_session({A0: 1})
    assert partitions_of(world.fetch(session_id, 1, {A0: 99}).response)[A0].error_code == ErrorCode.offset_out_of_range
    again = partitions_of(world.fetch(session_id, 2, {A0: 1}).response)[A0]
    assert (again.error_code, again.high_watermark) == (ErrorCode.none, 1)
    assert partitions_of(world.fetch(session_id, 3).response) == {}
