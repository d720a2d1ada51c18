"""Fetch 1000, KIP-227's first revision: sequence numbers, retransmission, dirty numbers, rotation, flags, errors."""

import re

import pytest

from reference_broker.apis.records import first_revision
from reference_broker.apis.records.fetch import Fetch
from reference_broker.apis.records.first_revision import FirstRevisionFetch, FirstRevisionSession
from reference_broker.apis.records.tests.first_world import (
    INCREMENTAL_FETCH_DENIED,
    INVALID_FETCH_SESSION,
    INVALID_REQUEST,
    open_session,
    outcome,
    session_of,
)
from reference_broker.apis.tests.fetch_world import FetchWorld, names, partitions_of, two_topics
from reference_broker.sessions.fetch_session import FetchSession
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FULL_FETCH, INCREMENTAL_FETCH_OK, INCREMENTAL_FETCH_RESPONSE

A0, A1, A2, B0 = ("a", 0), ("a", 1), ("a", 2), ("b", 0)


@pytest.fixture
def world() -> FetchWorld:
    return two_topics()


# IDs, numbers, kinds of requests


@pytest.mark.clause("G-1")
def test_session_ids_are_64_bit_random_and_unique() -> None:
    world = FetchWorld()
    world.create("a")
    ids = [open_session(world, A0) for _ in range(300)]
    assert len(set(ids)) == 300
    assert all(1 <= each < 2**63 for each in ids)
    assert max(ids) > 2**62
    assert min(ids) < 2**61


@pytest.mark.clause("G-1", "G-9")
def test_full_request_with_id_zero_creates_session(world: FetchWorld) -> None:
    response = world.fetch_first(0, 0, {A0: 0, B0: 0}).response
    assert names(response) == [A0, B0]
    assert list(world.sessions.sessions) == [response.session_id]
    assert outcome(response) == (0, response.session_id, INCREMENTAL_FETCH_OK)


@pytest.mark.clause("G-2", "G-11")
@pytest.mark.parametrize(("replica_id", "made_by", "privileged"), [(8, "follower 8", 1), (-1, "consumer 'c'", 0)])
def test_session_records_its_creator_in_notes(
    world: FetchWorld, replica_id: int, made_by: str, privileged: int
) -> None:
    session_id = open_session(world, A0, replica_id=replica_id)
    (note,) = world.ports.noted("session_created")
    assert (note["made_by"], note["privileged"], note["revision"]) == (made_by, privileged, "first")
    assert session_of(world, session_id).made_by == made_by


@pytest.mark.clause("G-3")
def test_only_next_and_last_sequence_number_are_accepted(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    for number, valid in [(2, False), (1, True), (1, True), (2, True), (1, False), (4, False), (2, True), (3, True)]:
        response = world.fetch_first(session_id, number, fetch_type=1).response
        assert response.error_code == (0 if valid else INVALID_FETCH_SESSION)
        assert response.session_id == session_id


@pytest.mark.clause("G-3")
@pytest.mark.parametrize("number", [0, -1, -(2**63)])
def test_incremental_request_without_positive_number_is_rejected(world: FetchWorld, number: int) -> None:
    session_id = open_session(world, A0)
    assert world.fetch_first(session_id, number, fetch_type=1).response.error_code == INVALID_FETCH_SESSION


@pytest.mark.clause("G-3", "F-3")
def test_sequence_numbers_are_64_bit_and_do_not_wrap_like_epochs(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    session_of(world, session_id).sequence_number = session_of(world, session_id).responded_sequence_number = 2**31 - 1
    assert world.fetch_first(session_id, 1).response.error_code == INVALID_FETCH_SESSION
    assert world.fetch_first(session_id, 2**31).response.error_code == ErrorCode.none
    session_of(world, session_id).sequence_number = session_of(world, session_id).responded_sequence_number = 2**62
    assert world.fetch_first(session_id, 2**62 + 1).response.error_code == ErrorCode.none


@pytest.mark.clause("G-3")
@pytest.mark.parametrize("known", [True, False])
def test_full_request_with_number_above_zero_is_rejected(world: FetchWorld, known: bool) -> None:
    session_id = open_session(world, A0) if known else 0
    response = world.fetch_first(session_id, 5, {A0: 0}, fetch_type=FULL_FETCH).response
    assert outcome(response) == (INVALID_FETCH_SESSION, session_id, INCREMENTAL_FETCH_OK if known else 0)


@pytest.mark.clause("G-4", "G-9")
def test_response_type_matches_request_type(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    incremental = world.fetch_first(session_id, 1).response
    assert outcome(incremental) == (0, session_id, INCREMENTAL_FETCH_RESPONSE | INCREMENTAL_FETCH_OK)
    assert outcome(world.fetch_first(session_id, 0, {A0: 0}).response) == (0, session_id, INCREMENTAL_FETCH_OK)


@pytest.mark.clause("G-4")
def test_full_request_replaces_partitions_and_keeps_id_and_number(world: FetchWorld) -> None:
    session_id = open_session(world, A0, A1)
    world.fetch_first(session_id, 1)
    world.fetch_first(session_id, 2)
    response = world.fetch_first(session_id, 0, {A1: 0, B0: 0}).response
    assert (names(response), response.session_id) == ([A1, B0], session_id)
    assert list(session_of(world, session_id).partitions) == [A1, B0]
    world.append("a", 0)
    world.append("a", 1)
    third = world.fetch_first(session_id, 3).response
    assert (third.error_code, names(third)) == (ErrorCode.none, [A1])


@pytest.mark.clause("G-4", "G-10")
def test_full_request_with_unknown_id_is_rejected(world: FetchWorld) -> None:
    response = world.fetch_first(77, 0, {A0: 0}).response
    assert outcome(response) == (INVALID_FETCH_SESSION, 0, 0)
    assert response.error_string


@pytest.mark.clause("G-4", "G-10")
@pytest.mark.parametrize("session_id", [0, 77, -5, 2**62])
def test_incremental_request_with_unknown_id_is_rejected(world: FetchWorld, session_id: int) -> None:
    response = world.fetch_first(session_id, 1).response
    assert outcome(response) == (INVALID_FETCH_SESSION, 0, INCREMENTAL_FETCH_RESPONSE)
    assert response.error_string


@pytest.mark.clause("G-4")
def test_partition_outside_session_is_rejected_and_session_unchanged(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    world.append("a")
    response = world.fetch_first(session_id, 1, {A0: 1, B0: 0}).response
    assert outcome(response) == (INVALID_REQUEST, session_id, INCREMENTAL_FETCH_RESPONSE | INCREMENTAL_FETCH_OK)
    assert session_of(world, session_id).partitions[A0].fetch_offset == 0
    assert session_of(world, session_id).sequence_number == 0
    assert names(world.fetch_first(session_id, 1).response) == [A0]


@pytest.mark.clause("G-9")
@pytest.mark.parametrize("number", [0, 1])
def test_request_with_too_many_partitions_is_rejected_with_session_id(
    world: FetchWorld, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    monkeypatch.setattr(first_revision, "MAX_NAMED_PARTITIONS", 1)
    session_id = world.fetch_first(0, 0, {A0: 0}).response.session_id
    response = world.fetch_first(session_id, number, {A0: 0, A1: 0}).response
    assert (response.error_code, response.session_id, response.responses) == (ErrorCode.invalid_request, session_id, [])
    assert response.response_flags & INCREMENTAL_FETCH_OK
    assert world.fetch_first(session_id, 1).response.error_code == ErrorCode.none


def test_unknown_fetch_type_is_rejected(world: FetchWorld) -> None:
    session_id = open_session(world, A0)
    response = world.fetch_first(session_id, 1, fetch_type=2).response
    assert outcome(response) == (INVALID_REQUEST, session_id, INCREMENTAL_FETCH_OK)


@pytest.mark.clause("G-9", "G-11")
def test_declined_session_returns_id_zero_and_data(world: FetchWorld) -> None:
    world = FetchWorld(slots=0)
    world.create("a", 3)
    world.append("a")
    response = world.fetch_first(0, 0, {A0: 0}).response
    assert outcome(response) == (0, 0, 0)
    assert partitions_of(response)[A0].records


@pytest.mark.clause("G-10", "G-9", "F-21")
def test_session_beyond_cache_limit_denies_incremental_requests(world: FetchWorld) -> None:
    world.sessions.max_partitions = 2
    world.append("a")
    response = world.fetch_first(0, 0, {A0: 0, A1: 0, A2: 0}).response
    session_id = response.session_id
    assert session_id != 0
    assert response.error_code == ErrorCode.none
    assert response.response_flags == 0
    assert len(partitions_of(response)[A0].records or b"") == 100
    assert session_of(world, session_id).partitions == {}
    denied = world.fetch_first(session_id, 1).response
    assert outcome(denied) == (INCREMENTAL_FETCH_DENIED, session_id, INCREMENTAL_FETCH_RESPONSE)
    fewer = world.fetch_first(session_id, 0, {A0: 0, A1: 0}).response
    assert outcome(fewer) == (0, session_id, INCREMENTAL_FETCH_OK)
    incremental = world.fetch_first(session_id, 1).response
    assert outcome(incremental) == (0, session_id, INCREMENTAL_FETCH_RESPONSE | INCREMENTAL_FETCH_OK)
    again = world.fetch_first(session_id, 0, {A0: 0, A1: 0, A2: 0}).response
    assert (outcome(again), len(again.responses)) == ((0, session_id, 0), 1)
    assert len(again.responses[0].partitions) == 3
    assert world.sessions.partitions_cached == 0
    assert all(not partition.watchers for partition in world.partitions.by_name.values())


@pytest.mark.clause("G-10", "G-3", "F-21")
def test_metrics_stay_exact_after_parked_full_request_beyond_cache_limit(world: FetchWorld) -> None:
    world.sessions.max_partitions = 2
    session_id = open_session(world, A0)
    world.fetch_first(session_id, 0, {A0: 0, A1: 0, A2: 0}, max_wait_ms=500)
    world.fetch_first(session_id, 0, {A0: 0, A1: 0})
    assert world.sessions.partitions_cached == 2


# beside the final revision


@pytest.mark.clause("G-11", "D-3")
def test_session_is_unknown_to_other_revision(world: FetchWorld) -> None:
    first, final = open_session(world, A0), world.open_session({A0: 0})
    assert world.fetch(first & 0x7FFFFFFF, 1).response.error_code == ErrorCode.fetch_session_id_not_found
    session_of(world, first).session_id = 5
    world.sessions.sessions[5] = world.sessions.sessions.pop(first)
    assert world.fetch(5, 1).response.error_code == ErrorCode.fetch_session_id_not_found
    world.fetch(5, -1, {A0: 0})
    assert world.fetch_first(5, 1).response.error_code == ErrorCode.none
    assert world.fetch_first(final, 1).response.error_code == INVALID_FETCH_SESSION
    assert world.fetch(final, 1).response.error_code == ErrorCode.none


@pytest.mark.clause("G-11")
def test_eviction_invalidates_session_and_completes_parked_fetch() -> None:
    world = FetchWorld(slots=1, first_min_eviction_ms=1000)
    world.create("a", 3)
    session_id = open_session(world, A0)
    waits = world.fetch_first(session_id, 1, max_wait_ms=50_000)
    world.pass_ms(1001)
    other = open_session(world, A1)
    assert other != 0
    assert outcome(waits.response) == (INVALID_FETCH_SESSION, 0, INCREMENTAL_FETCH_RESPONSE)
    assert world.fetch_first(session_id, 2).response.error_code == INVALID_FETCH_SESSION


def test_draft_returns_no_leader_endpoints(world: FetchWorld) -> None:
    world.create("far", led_here=False)
    response = world.fetch_first(0, 0, {("far", 0): 0}).response
    data = partitions_of(response)["far", 0]
    assert (data.error_code, data.current_leader, response.node_endpoints) == (
        ErrorCode.not_leader_or_follower,
        None,
        [],
    )


@pytest.mark.clause("F-22")
def test_accepted_request_refreshes_all_cached_partitions(world: FetchWorld) -> None:
    session_id = open_session(world, A0, A1, replica_id=8)
    session = session_of(world, session_id)
    for number, again in [(1, False), (1, True), (2, False)]:
        world.pass_ms(10)
        world.fetch_first(session_id, number, replica_id=8)
        assert session.contact_us == world.broker.now.mono_us, again
    before = session.contact_us
    world.pass_ms(10)
    world.fetch_first(session_id, 9, replica_id=8)
    assert session.contact_us == before


@pytest.mark.parametrize(("base", "derived"), [(FetchSession, FirstRevisionSession), (Fetch, FirstRevisionFetch)])
def test_table_of_module_names_all_overridden_methods(base: type, derived: type) -> None:
    (rows,) = re.findall(
        rf"^``{base.__name__}``.*?\n=+ .*?\n(.*?)\n=", first_revision.__doc__ or "", re.DOTALL | re.MULTILINE
    )
    methods = {name for name, value in vars(derived).items() if callable(value) or isinstance(value, staticmethod)}
    overridden = {name for name in methods if not name.startswith("__") and hasattr(base, name)}
    assert re.findall(r"^``(\w+)``", rows, re.MULTILINE) == [name for name in vars(derived) if name in overridden]
