"""Contents of a response of KIP-227's first revision: dirty numbers, retransmission, rotation."""

import pytest

from reference_broker.apis.records.tests.first_world import (
    INVALID_FETCH_SESSION,
    dirty_number,
    open_session,
    session_of,
)
from reference_broker.apis.tests.fetch_world import LARGE, FetchWorld, names, partitions_of, two_topics
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition

A0, A1, A2, B0 = ("a", 0), ("a", 1), ("a", 2), ("b", 0)
READ_UNCOMMITTED, READ_COMMITTED = 0, 1


@pytest.fixture
def world() -> FetchWorld:
    return two_topics()


@pytest.mark.clause("G-5", "G-6")
def test_change_is_sent_once(world: FetchWorld) -> None:
    session_id = open_session(world, A0, A1)
    assert names(world.fetch_first(session_id, 1).response) == []
    world.append("a", 1)
    assert names(world.fetch_first(session_id, 2).response) == [A1]
    assert names(world.fetch_first(session_id, 3).response) == []


@pytest.mark.clause("G-3", "G-6", "F-10")
def test_retransmission_gets_at_least_partitions_of_first_response(world: FetchWorld) -> None:
    session_id = open_session(world, A0, A1, A2)
    world.append("a", 0)
    world.append("a", 1)
    first = world.fetch_first(session_id, 1).response
    assert names(first) == [A1, A0]
    world.append("a", 2)
    again = world.fetch_first(session_id, 1).response
    assert again.error_code == ErrorCode.none
    assert names(again) == [A1, A2, A0]
    assert partitions_of(again)[A0] == partitions_of(first)[A0]
    # What changed after the first response may have been in the second only: it is sent again.
    assert names(world.fetch_first(session_id, 2).response) == [A2]
    # The final revision refuses the same.
    final = world.open_session({A0: 0})
    world.fetch(final, 1)
    assert world.fetch(final, 1).response.error_code == ErrorCode.invalid_fetch_session_epoch


@pytest.mark.clause("G-6")
def test_retransmission_includes_first_partitions_when_limit_is_exhausted(world: FetchWorld) -> None:
    session_id = open_session(world, A0, A1, A2)
    world.append("a", 0)
    assert names(world.fetch_first(session_id, 1, max_bytes=150).response) == [A0]
    world.append("a", 1, size_bytes=150)
    again = world.fetch_first(session_id, 1, max_bytes=150).response
    assert names(again) == [A1, A0]
    assert not partitions_of(again)[A0].records
    assert partitions_of(world.fetch_first(session_id, 2).response)[A0].records


@pytest.mark.clause("G-4", "G-6")
def test_retransmission_after_full_response_omits_partitions_it_sent(world: FetchWorld) -> None:
    session_id = open_session(world, A0, A1)
    world.fetch_first(session_id, 1)
    world.append("a")
    assert partitions_of(world.fetch_first(session_id, 0, {A0: 0, A1: 0}).response)[A0].records
    assert names(world.fetch_first(session_id, 1, {A0: 1}).response) == []


@pytest.mark.clause("G-4", "G-5")
@pytest.mark.parametrize("following", [1, 2])
def test_full_response_confirms_no_sequence_number(world: FetchWorld, following: int) -> None:
    """The full request ended request 1, whose number the fetcher uses again. A change in between is sent once, also to
    a fetcher that goes on with the next number."""
    session_id = open_session(world, A0, A1)
    assert world.fetch_first(session_id, 1, max_wait_ms=500).waiting
    assert names(world.fetch_first(session_id, 0, {A0: 0, A1: 0}).response) == [A0, A1]
    world.append("a", 1)
    assert names(world.fetch_first(session_id, following).response) == [A1]
    assert names(world.fetch_first(session_id, following + 1).response) == []


@pytest.mark.clause("G-4", "G-5")
def test_change_during_number_superseded_by_full_request_is_sent_once(world: FetchWorld) -> None:
    session_id = open_session(world, A0, A1)
    assert world.fetch_first(session_id, 1, max_wait_ms=500).waiting
    world.fetch_first(session_id, 0, {A0: 0, A1: 0})
    call = world.fetch_first(session_id, 1, max_wait_ms=500)
    world.append("a", 1)
    assert names(call.response) == [A1]
    assert names(world.fetch_first(session_id, 2).response) == []


@pytest.mark.clause("G-4")
@pytest.mark.parametrize("following", [1, 2])
def test_partitions_of_full_request_without_response_are_sent_next(world: FetchWorld, following: int) -> None:
    session_id = open_session(world, A0, A1)
    world.fetch_first(session_id, 1)
    world.fetch_first(session_id, 0, {A0: 0, A1: 0}, max_wait_ms=500, min_bytes=1000)
    assert sorted(names(world.fetch_first(session_id, following).response)) == [A0, A1]
    assert names(world.fetch_first(session_id, following + 1).response) == []


@pytest.mark.clause("G-5", "G-6")
def test_partition_omitted_by_first_response_is_sent_after_second(world: FetchWorld) -> None:
    """Which of the two responses the next number confirms is unknown."""
    session_id = open_session(world, A0, A1, A2)
    for index in range(3):
        world.append("a", index)
    for number in (1, 2):
        assert A0 not in partitions_of(world.fetch_first(session_id, number, max_bytes=60).response)
    assert A0 in partitions_of(world.fetch_first(session_id, 2, {A0: 1}, max_bytes=60).response)
    assert A0 in partitions_of(world.fetch_first(session_id, 3, max_bytes=60).response)
    assert A0 not in partitions_of(world.fetch_first(session_id, 4, max_bytes=60).response)


@pytest.mark.clause("G-6")
def test_request_may_be_retransmitted_many_times(world: FetchWorld) -> None:
    session_id = open_session(world, A0, A1)
    world.append("a", 0)
    for _ in range(4):
        assert names(world.fetch_first(session_id, 1).response) == [A0]
    assert names(world.fetch_first(session_id, 2).response) == []


@pytest.mark.clause("G-5")
@pytest.mark.parametrize("what", ["log start", "high watermark", "last stable offset", "log end"])
def test_each_kind_of_change_makes_partition_dirty(world: FetchWorld, what: str) -> None:
    world.append("a", 0, records=3, commit=False)
    session_id = world.fetch_first(0, 0, {A0: 3}).response.session_id
    world.fetch_first(session_id, 1)
    partition = world.partition("a")
    log = world.log("a")
    if what == "log start":
        log.delete_records_before(2)
    elif what == "high watermark":
        log.high_watermark = 1
    elif what == "last stable offset":
        log.lso_hold = 0
    else:
        log.append(1, 10, 0)
    partition.changed()
    assert dirty_number(session_of(world, session_id), A0) == 2
    assert names(world.fetch_first(session_id, 2).response) == [A0]
    assert names(world.fetch_first(session_id, 3).response) == []


@pytest.mark.clause("G-5")
def test_change_while_parked_is_in_response(world: FetchWorld) -> None:
    session_id = open_session(world, A0, A1)
    call = world.fetch_first(session_id, 1, max_wait_ms=100)
    world.append("a", 1)
    assert names(call.response) == [A1]
    assert dirty_number(session_of(world, session_id), A1) == 1


@pytest.mark.clause("G-5")
def test_dirty_number_never_decreases(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    session = session_of(world, session_id)
    numbers = []
    for number in range(1, 9):
        if number % 3:
            world.append("a")
        for _ in range(1 + number % 2):
            world.fetch_first(session_id, number)
            numbers.append(dirty_number(session, A0))
    assert numbers == sorted(numbers)
    assert numbers[-1] == 8


@pytest.mark.clause("G-5", "G-7")
def test_partitions_omitted_by_limit_are_sent_next(world: FetchWorld) -> None:
    session_id = open_session(world, A0, A1, A2, max_bytes=100)
    for index in range(3):
        world.append("a", index)
    assert names(world.fetch_first(session_id, 1, max_bytes=100).response) == [A1]
    assert dirty_number(session_of(world, session_id), A2) == 2
    assert names(world.fetch_first(session_id, 2, max_bytes=100).response) == [A2]
    assert names(world.fetch_first(session_id, 3, max_bytes=100).response) == [A0]
    assert names(world.fetch_first(session_id, 4, max_bytes=100).response) == []


@pytest.mark.clause("G-5", "G-8")
def test_partition_with_remaining_data_stays_dirty(world: FetchWorld) -> None:
    world.append("a")
    world.append("a")
    narrow = {A0: FetchPartition(0, 0, 100)}
    session_id = world.fetch_first(0, 0, narrow).response.session_id
    first = world.fetch_first(session_id, 1).response
    assert partitions_of(first)[A0].records == partitions_of(world.fetch_first(session_id, 2).response)[A0].records
    after = world.fetch_first(session_id, 3, {A0: FetchPartition(0, 1, 100)}).response
    assert len(partitions_of(after)[A0].records or b"") == 100
    assert names(world.fetch_first(session_id, 4).response) == []


@pytest.mark.clause("G-8")
def test_cached_fetch_offset_is_the_requested_one(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    world.append("a")
    assert partitions_of(world.fetch_first(session_id, 1).response)[A0].records
    assert session_of(world, session_id).partitions[A0].fetch_offset == 0
    world.append("a")
    both = partitions_of(world.fetch_first(session_id, 2).response)[A0].records
    assert len(both or b"") == 200
    world.append("a")
    assert len(partitions_of(world.fetch_first(session_id, 3, {A0: 2}).response)[A0].records or b"") == 100


@pytest.mark.clause("G-5")
def test_requested_offset_below_log_end_makes_partition_dirty(world: FetchWorld) -> None:
    world.append("a")
    session_id = open_session(world, A0)
    assert names(world.fetch_first(session_id, 1, {A0: 1}).response) == []
    assert partitions_of(world.fetch_first(session_id, 2, {A0: 0}).response)[A0].records
    assert names(world.fetch_first(session_id, 3).response) == []


@pytest.mark.clause("G-7")
def test_response_starts_at_sequence_number_modulo_partition_count(world: FetchWorld) -> None:
    session_id = open_session(world, B0, A2, A0, A1)
    ordered = [A0, A1, A2, B0]
    for number in range(1, 10):
        for place in ordered:
            world.append(*place)
        start = number % 4
        assert names(world.fetch_first(session_id, number).response) == ordered[start:] + ordered[:start]


@pytest.mark.clause("G-7")
def test_small_limit_starves_no_partition(world: FetchWorld) -> None:
    session_id = open_session(world, A0, A1, A2, B0)
    served: dict[object, int] = {}
    for number in range(1, 21):
        for place in (A0, A1, A2, B0):
            world.append(*place)
        for name in names(world.fetch_first(session_id, number, max_bytes=100).response):
            served[name] = served.get(name, 0) + 1
    assert min(served.get(place, 0) for place in (A0, A1, A2, B0)) == 5


@pytest.mark.clause("G-6")
def test_dirty_number_example_of_kip_227(world: FetchWorld) -> None:
    """P1 has dirty number 100, P2 101: request 100 returns both, request 101 only P2."""
    session_id = open_session(world, A0, A1)
    session_of(world, session_id).sequence_number = session_of(world, session_id).responded_sequence_number = 99
    world.append("a", 0)
    assert names(world.fetch_first(session_id, 100).response) == [A0]
    world.append("a", 1)
    session = session_of(world, session_id)
    assert (dirty_number(session, A0), dirty_number(session, A1)) == (100, 101)
    assert names(world.fetch_first(session_id, 100).response) == [A0, A1]
    assert names(world.fetch_first(session_id, 101).response) == [A1]


def test_error_is_repeated_and_next_state_is_sent(world: FetchWorld) -> None:
    session_id = open_session(world, A0, ("new", 0))
    for number in (1, 2):
        response = partitions_of(world.fetch_first(session_id, number).response)
        assert response["new", 0].error_code == ErrorCode.unknown_topic_or_partition
    world.create("new")
    assert partitions_of(world.fetch_first(session_id, 3).response)["new", 0].error_code == ErrorCode.none
    assert names(world.fetch_first(session_id, 4).response) == []


@pytest.mark.clause("G-3", "G-6")
def test_retransmission_completes_itself_and_parked_original(
    world: FetchWorld,
) -> None:
    """Which of the two copies the fetcher waits for is unknown."""
    session_id = open_session(world, A0)
    waits = world.fetch_first(session_id, 1, max_wait_ms=500, min_bytes=1000)
    world.append("a")
    again = world.fetch_first(session_id, 1, max_wait_ms=500)
    assert (waits.response.error_code, names(waits.response)) == (ErrorCode.none, [A0])
    assert (again.response.error_code, partitions_of(again.response)) == (ErrorCode.none, partitions_of(waits.response))
    assert world.fetch_first(session_id, 2).response.error_code == ErrorCode.none


@pytest.mark.clause("G-3")
def test_both_copies_of_empty_request_get_response(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    waits = world.fetch_first(session_id, 1, max_wait_ms=500)
    again = world.fetch_first(session_id, 1, max_wait_ms=500)
    assert (waits.response.error_code, names(waits.response)) == (ErrorCode.none, [])
    assert again.waiting
    world.append("a")
    assert names(again.response) == [A0]
    assert world.fetch_first(session_id, 2).response.error_code == ErrorCode.none


@pytest.mark.clause("G-3", "G-4")
def test_both_copies_of_full_request_get_response(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    waits = world.fetch_first(session_id, 0, {A0: 0}, max_wait_ms=500)
    again = world.fetch_first(session_id, 0, {A0: 0}, max_wait_ms=500)
    assert waits.response.error_code == ErrorCode.none
    assert waits.response.session_id == session_id
    assert names(waits.response) == [A0]
    world.append("a")
    assert (again.response.session_id, names(again.response)) == (session_id, [A0])
    assert world.fetch_first(session_id, 1, max_wait_ms=500).waiting


@pytest.mark.clause("G-3", "G-4")
def test_other_full_request_ends_parked_one_with_error(world: FetchWorld) -> None:
    """The other request may be a late copy of an older one, so the fetcher must not go on in this session."""
    session_id = open_session(world, A0)
    waits = world.fetch_first(session_id, 0, {A0: 0}, max_wait_ms=500)
    world.fetch_first(session_id, 0, {A1: 0}, max_wait_ms=500)
    assert waits.response.error_code == INVALID_FETCH_SESSION


def test_closed_connection_of_parked_fetch_loses_no_change(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    waits = world.fetch_first(session_id, 1, max_wait_ms=500, min_bytes=1000)
    world.append("a")
    waits.hang_up()
    assert names(world.fetch_first(session_id, 1).response) == [A0]


def test_next_number_gets_changes_of_request_without_response(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    waits = world.fetch_first(session_id, 1, max_wait_ms=500, min_bytes=1000)
    world.append("a")
    assert names(world.fetch_first(session_id, 2).response) == [A0]
    assert waits.response.error_code == INVALID_FETCH_SESSION


@pytest.mark.clause("G-5")
def test_empty_fetch_of_idle_session_touches_no_partition(world: FetchWorld) -> None:
    places = {("many", index): FetchPartition(index, 0, LARGE) for index in range(500)}
    world.create("many", 500)
    session_id = world.fetch_first(0, 0, places).response.session_id
    world.fetch_first(session_id, 1)
    for index in range(500):
        world.log("many", index).touches = 0
    world.append("many", 7)
    assert names(world.fetch_first(session_id, 2).response) == [("many", 7)]
    world.fetch_first(session_id, 3)
    touched = [index for index in range(500) if world.log("many", index).touches]
    assert touched == [7]


@pytest.mark.clause("G-6")
def test_next_number_after_retransmission_repeats_nothing_sent(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    world.append("a")
    assert names(world.fetch_first(session_id, 1).response) == [A0]
    repeated = world.fetch_first(session_id, 1, max_wait_ms=500, min_bytes=1000)
    assert names(world.fetch_first(session_id, 2).response) == []
    assert repeated.response.error_code == INVALID_FETCH_SESSION
    world.append("a")
    assert names(world.fetch_first(session_id, 3).response) == [A0]


@pytest.mark.clause("G-5")
@pytest.mark.parametrize("named", [{}, {A0: 0}], ids=["none", "one"])
def test_fetch_without_a_response_changes_no_partition(world: FetchWorld, named: dict[tuple[str, int], int]) -> None:
    session_id = open_session(world, A0, A1, A2)
    waits = world.fetch_first(session_id, 1, named, max_wait_ms=500, min_bytes=1000)
    world.append("a", 1)
    waits.hang_up()
    assert names(world.fetch_first(session_id, 2).response) == [A1]
    assert names(world.fetch_first(session_id, 3).response) == []


@pytest.mark.clause("G-5", "G-6")
def test_another_isolation_level_is_no_change_of_a_partition(world: FetchWorld) -> None:
    """The other level reads to another end, so only the partitions with data below that end have something to send."""
    world.append("a", 0)
    world.append("a", 1)
    world.log("a", 1).lso_hold = 0
    session_id = open_session(world, A0, A1, A2, isolation_level=READ_COMMITTED)
    assert names(world.fetch_first(session_id, 1, {A0: 1}, isolation_level=READ_COMMITTED).response) == []
    read_all = world.fetch_first(session_id, 2, isolation_level=READ_UNCOMMITTED).response
    assert names(read_all) == [A1]
    assert partitions_of(read_all)[A1].records
    assert names(world.fetch_first(session_id, 3, {A1: 1}, isolation_level=READ_COMMITTED).response) == []
