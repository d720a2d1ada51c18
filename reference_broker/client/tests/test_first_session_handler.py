"""The client side of a session in KIP-227's first revision, and incremental builds in both revisions."""

from typing import Any

import pytest

from reference_broker.client.partitions import TopicPartition
from reference_broker.client.session_handler import FetchPlan, SessionHandler, Wanted, make_session_handler
from reference_broker.wire.errors import DraftError, Error, ErrorCode
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH,
    INCREMENTAL_FETCH_OK,
    INCREMENTAL_FETCH_RESPONSE,
    NO_TOPIC_ID,
    FetchPartition,
    FetchResponse,
    FetchTopicResponse,
    PartitionData,
)

ID, OTHER = 2**40 + 1, 2**40 + 2
A, B, C = (TopicPartition("t", index) for index in range(3))
OK, BOTH = INCREMENTAL_FETCH_OK, INCREMENTAL_FETCH_OK | INCREMENTAL_FETCH_RESPONSE


def at(offset: int, max_bytes: int = 100) -> Wanted:
    return Wanted(NO_TOPIC_ID, offset, max_bytes)


def response(session_id: int, flags: int, *partitions: TopicPartition, error: int = 0) -> FetchResponse:
    topics = [
        FetchTopicResponse("t", NO_TOPIC_ID, [PartitionData(partition.partition, 0, 0)]) for partition in partitions
    ]
    return FetchResponse(error, session_id, topics, response_flags=flags)


def opened(*partitions: TopicPartition) -> SessionHandler:
    handler = make_session_handler("first")
    handler.build(dict.fromkeys(partitions, at(0)))
    assert handler.handle_response(response(ID, OK, *partitions)).problem is None
    return handler


def shown(plan: FetchPlan) -> tuple[int, int, list[TopicPartition]]:
    return plan.session_id, plan.session_epoch, list(plan.to_send)


def test_make_session_handler_by_revision() -> None:
    first, final = make_session_handler("first"), make_session_handler("final")
    assert (first.revision, first.retransmits) == ("first", True)
    assert (final.revision, final.retransmits) == ("final", False)
    assert make_session_handler("first", sessionless=True).build({A: at(0)}).session_epoch == -1
    with pytest.raises(AssertionError, match="no revision"):
        make_session_handler("second")


@pytest.mark.clause("G-1", "G-3", "G-4", "G-12")
def test_first_request_is_full_and_first_incremental_has_number_one() -> None:
    handler = make_session_handler("first")
    plan = handler.build({A: at(0), B: at(0)})
    assert shown(plan) == (0, 0, [A, B])
    assert (plan.is_full, plan.version(17)) == (True, 1000)
    assert plan.request(1000, 1, 1, 1).fetch_type == 0
    handler.handle_response(response(ID, OK, A, B))
    plan = handler.build({A: at(0), B: at(5)})
    assert shown(plan) == (ID, 1, [B])
    request = plan.request(1000, 1, 1, 1, replica_id=3)
    assert (request.fetch_type, request.replica_id, request.session_epoch) == (INCREMENTAL_FETCH, 3, 1)
    handler.handle_response(response(ID, BOTH, B))
    assert shown(handler.build({A: at(0), B: at(5)})) == (ID, 2, [])


@pytest.mark.clause("G-12")
@pytest.mark.parametrize("epoch", ["current_leader_epoch", "last_fetched_epoch"])
def test_changed_epoch_names_partition_again(epoch: str) -> None:
    handler = opened(A, B)
    new: dict[str, Any] = {epoch: 7}
    plan = handler.build({A: at(0), B: at(0)._replace(**new)})
    assert shown(plan) == (ID, 1, [B])
    assert getattr(plan.request(1002, 1, 1, 1, replica_id=3).topics[0].partitions[0], epoch) == 7


@pytest.mark.clause("G-3", "G-6")
def test_lost_incremental_request_is_retransmitted_with_new_changes() -> None:
    handler = opened(A, B, C)
    assert shown(handler.build({A: at(1), B: at(0), C: at(0)})) == (ID, 1, [A])
    handler.handle_lost()
    assert shown(handler.build({A: at(1), B: at(0), C: at(0)})) == (ID, 1, [A])
    handler.handle_lost()
    plan = handler.build({A: at(2), B: at(0), C: at(7)})
    assert shown(plan) == (ID, 1, [A, C])
    assert plan.to_send[A] == at(2)
    handler.handle_response(response(ID, BOTH))
    assert shown(handler.build({A: at(2), B: at(0), C: at(7)})) == (ID, 2, [])


@pytest.mark.clause("G-3", "G-4")
def test_changed_partitions_are_sent_in_full_request_with_same_id_and_number() -> None:
    handler = opened(A, B)
    handler.build({A: at(0), B: at(0)})
    handler.handle_response(response(ID, BOTH))
    plan = handler.build({A: at(0), C: at(0)})
    assert shown(plan) == (ID, 0, [A, C])
    handler.handle_response(response(ID, OK, A, C))
    assert shown(handler.build({A: at(0), C: at(0)})) == (ID, 2, [])


@pytest.mark.clause("G-3")
def test_lost_number_before_full_request_is_reused_after_it() -> None:
    """The broker accepts it as the next one or as a retransmission."""
    handler = opened(A)
    handler.build({A: at(0)})
    handler.handle_lost()
    assert shown(handler.build({A: at(0), B: at(0)})) == (ID, 0, [A, B])
    handler.handle_lost()
    assert shown(handler.build({A: at(0), B: at(0)})) == (ID, 0, [B, A])
    handler.handle_response(response(ID, OK, A, B))
    assert shown(handler.build({A: at(0), B: at(0)})) == (ID, 1, [])


@pytest.mark.clause("G-9", "G-10")
@pytest.mark.parametrize(
    ("error", "session_id", "flags", "following"),
    [
        (DraftError.INVALID_FETCH_SESSION, 0, INCREMENTAL_FETCH_RESPONSE, 0),
        (DraftError.INVALID_FETCH_SESSION, ID, BOTH, 0),
        (DraftError.INCREMENTAL_FETCH_DENIED, ID, INCREMENTAL_FETCH_RESPONSE, ID),
        (ErrorCode.invalid_request, ID, BOTH, ID),
    ],
)
def test_error_makes_next_request_full(error: Error, session_id: int, flags: int, following: int) -> None:
    handler = opened(A)
    handler.build({A: at(3)})
    assert handler.handle_response(response(session_id, flags, error=error)).problem
    assert shown(handler.build({A: at(3)})) == (following, 0, [A])


@pytest.mark.clause("G-9", "G-10")
@pytest.mark.parametrize(("session_id", "flags"), [(0, 0), (ID, 0)])
def test_missing_ok_flag_or_id_makes_every_request_full(session_id: int, flags: int) -> None:
    handler = make_session_handler("first")
    for _ in range(3):
        plan = handler.build({A: at(0)})
        assert plan.is_full
        assert handler.handle_response(response(session_id, flags, A)).problem is None
    assert handler.build({A: at(0)}).session_id == session_id


@pytest.mark.clause("G-7")
def test_consecutive_full_requests_rotate_partitions() -> None:
    """The broker responds to a full request in its order, so the last partition would starve under a small limit."""
    handler, firsts = make_session_handler("first"), []
    for _ in range(4):
        firsts.append(next(iter(handler.build(dict.fromkeys((A, B, C), at(0))).to_send)))
        handler.handle_response(response(0, 0, A, B, C))
    assert firsts == [A, B, C, A]


@pytest.mark.parametrize(
    ("invalid", "problem"),
    [
        (response(ID, BOTH, C), "not requested"),
        (response(ID, OK, A), "a full response to an incremental one"),
        (response(OTHER, BOTH, A), "another one's"),
    ],
)
def test_invalid_incremental_response_is_rejected(invalid: FetchResponse, problem: str) -> None:
    handler = opened(A)
    handler.build({A: at(1)})
    assert problem in (handler.handle_response(invalid).problem or "")
    assert shown(handler.build({A: at(1)})) == (ID, 0, [A])


@pytest.mark.parametrize(
    ("invalid", "problem"),
    [(response(ID, OK, A), "missing"), (response(ID, BOTH, A, B), "an incremental response to a full request")],
)
def test_invalid_full_response_is_rejected(invalid: FetchResponse, problem: str) -> None:
    handler = make_session_handler("first")
    handler.build({A: at(0), B: at(0)})
    assert problem in (handler.handle_response(invalid).problem or "")
    assert handler.build({A: at(0), B: at(0)}).is_full


@pytest.mark.clause("G-3", "G-4", "G-9")
@pytest.mark.parametrize("unfit", [response(OTHER, OK, A), response(OTHER, OK, A, B, C), response(OTHER, BOTH, A, B)])
def test_session_of_invalid_response_is_used_from_first_number(unfit: FetchResponse) -> None:
    """The session exists at the broker, and no other client knows its ID."""
    handler = opened(A, B)
    for number in (1, 2):
        assert handler.build({A: at(number), B: at(0)}).session_epoch == number
        handler.handle_response(response(ID, BOTH))
    handler.build({A: at(3), B: at(0)})
    handler.handle_response(response(0, INCREMENTAL_FETCH_RESPONSE, error=DraftError.INVALID_FETCH_SESSION))
    assert handler.build({A: at(3), B: at(0)}).session_id == 0
    assert handler.handle_response(unfit).problem
    assert handler.build({A: at(3), B: at(0)}).session_id == OTHER
    assert handler.handle_response(response(OTHER, OK, A, B)).problem is None
    assert shown(handler.build({A: at(3), B: at(0)})) == (OTHER, 1, [])


def test_session_closed_by_broker_is_reopened() -> None:
    handler = opened(A)
    handler.build({A: at(0)})
    handler.handle_response(response(0, INCREMENTAL_FETCH_RESPONSE))
    assert shown(handler.build({A: at(0)})) == (0, 0, [A])
    handler.handle_response(response(OTHER, OK, A))
    assert shown(handler.build({A: at(0)})) == (OTHER, 1, [])


@pytest.mark.parametrize("revision", ["final", "first"])
def test_second_request_in_flight_raises(revision: str) -> None:
    handler = make_session_handler(revision)
    handler.build({A: at(0)})
    with pytest.raises(AssertionError, match="two fetches"):
        handler.build({A: at(0)})


# follower fetches


@pytest.mark.clause("F-12")
@pytest.mark.parametrize("revision", ["final", "first"])
def test_update_names_changes_and_is_full_if_required(revision: str) -> None:
    handler = make_session_handler(revision)
    assert list(handler.update({A: at(0), B: at(0)}).to_send) == [A, B]
    handler.handle_response(response(ID, OK, A, B))
    plan = handler.update({B: at(4), A: at(0)})
    assert (shown(plan), plan.to_forget) == ((ID, 1, [B]), ())
    handler.handle_response(response(ID, BOTH, B))
    assert shown(handler.update({})) == (ID, 2, [])
    handler.handle_response(response(0, INCREMENTAL_FETCH_RESPONSE))
    plan = handler.update({A: at(9)})
    assert (plan.session_id, plan.session_epoch) == (0, 0)
    assert dict(plan.to_send) == {A: at(9), B: at(4)}


@pytest.mark.parametrize("revision", ["final", "first"])
def test_update_removes_partition_that_it_changes(revision: str) -> None:
    handler = make_session_handler(revision)
    handler.update({A: at(0), B: at(0)})
    handler.handle_response(response(ID, OK, A, B))
    plan = handler.update({A: at(1), B: at(1)}, [B, C])
    assert dict(handler.partitions) == {A: at(1)}
    assert list(plan.to_send) == [A]
    assert [tp for tp, _ in plan.to_forget] == ([B] if revision == "final" else [])
    assert plan.is_full == (revision == "first")


@pytest.mark.clause("F-12")
def test_update_does_not_walk_unchanged_partitions() -> None:
    """A fetch that follows 10,000 partitions walks over none of them."""

    class Counting(dict[TopicPartition, Wanted]):
        walks = 0

        def items(self):  # type: ignore[no-untyped-def]
            Counting.walks += 1
            return super().items()

        __iter__ = items

        def copy(self):  # type: ignore[no-untyped-def]
            Counting.walks += 1
            return dict(super().items())

    for revision in ("final", "first"):
        handler = make_session_handler(revision)
        places = [TopicPartition("t", index) for index in range(100)]
        handler.update(dict.fromkeys(places, at(0)))
        handler.handle_response(response(ID, OK, *places))
        handler.partitions = Counting(handler.partitions)
        Counting.walks = 0
        for offset in range(1, 4):
            assert list(handler.update({places[7]: at(offset)}).to_send) == [places[7]]
            handler.handle_response(response(ID, BOTH, places[7]))
        assert Counting.walks == 0, revision


@pytest.mark.parametrize("revision", ["final", "first"])
def test_builds_and_updates_are_equal(revision: str) -> None:
    wanted = {A: at(0), B: at(0)}
    whole, updated = make_session_handler(revision), make_session_handler(revision)
    steps: list[tuple[dict[TopicPartition, Wanted], list[TopicPartition]]] = [
        (dict(wanted), []),
        ({A: at(1)}, []),
        ({C: at(0)}, [A]),
        ({}, []),
        ({A: at(0), B: at(2)}, [C]),
        ({}, [A, B]),
    ]
    for changed, removed in steps:
        wanted.update(changed)
        for each in removed:
            del wanted[each]
        one, other = whole.build(wanted), updated.update(changed, removed)
        assert dict(one.to_send) == dict(other.to_send)
        assert sorted(one.to_forget) == sorted(other.to_forget)
        assert one.session_epoch == other.session_epoch
        reply = response(ID, OK, *wanted) if one.is_full else response(ID, BOTH)
        for handler in (whole, updated):
            assert handler.handle_response(reply).problem is None


@pytest.mark.clause("G-3")
def test_presume_processed_uses_next_number_and_names_all_partitions() -> None:
    """The broker counts the records of the lost response as processed, and resends them only on request."""
    handler = make_session_handler("first")
    handler.build({A: at(0), B: at(0)})
    assert not handler.presume_processed()
    handler.handle_response(response(ID, OK, A, B))
    handler.build({A: at(1), B: at(0)})
    assert handler.presume_processed()
    plan = handler.build({A: at(1), B: at(0)})
    assert plan.session_id == ID
    assert plan.session_epoch == 2
    assert dict(plan.to_send) == {A: at(1), B: at(0)}


@pytest.mark.clause("G-12")
def test_only_follower_request_has_topic_ids_and_epochs() -> None:
    handler = make_session_handler("first")
    plan = handler.build({A: Wanted(b"i" * 16, 0, 100, 4, 3, 2)})
    assert (plan.version(17), plan.version(17, of_replica=True)) == (1000, 1002)
    (client,), (follower,) = plan.request(1000, 1, 1, 1).topics, plan.request(1002, 1, 1, 1, replica_id=2).topics
    assert (client.topic_id, client.partitions) == (NO_TOPIC_ID, [FetchPartition(0, 0, 100, -1, -1, 2)])
    assert (follower.topic_id, follower.partitions) == (b"i" * 16, [FetchPartition(0, 0, 100, 4, 3, 2)])
    handler.handle_response(response(ID, OK, A))
    plan = handler.build({A: Wanted(b"j" * 16, 0, 100)})
    assert [topic.topic_id for topic in plan.request(1002, 1, 1, 1, replica_id=2).topics] == [b"j" * 16]
