"""Replies that a rule truncates, or into which it puts an error: what goes out, and what is left as evidence."""

from datetime import timedelta
from typing import Any

import pytest
from kio.schema.find_coordinator.v6.response import Coordinator, FindCoordinatorResponse
from kio.schema.heartbeat.v4.response import HeartbeatResponse

from chaos.interceptor.frame_faults import stamped
from chaos.interceptor.interceptor import Interceptor
from chaos.interceptor.raw_frames import RawFrame, reply_frame, value_of
from chaos.interceptor.tests.intercepted import NOW, Log, interceptor, rule
from reference_broker.core.events import Closed, Reply
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchResponse, FetchTopicResponse, PartitionData
from reference_broker.wire.messages import decode_response
from reference_broker.wire.produce import ProducePartitionResponse, ProduceResponse, ProduceTopicResponse
from reference_broker.wire.tags import Tag
from scenarios.model import Match, Range

NOT_LEADER_OR_FOLLOWER = int(ErrorCode.not_leader_or_follower)
FETCH_SESSION_ID_NOT_FOUND = int(ErrorCode.fetch_session_id_not_found)


def reply(api: int, version: int, body: object) -> Reply:
    return Reply(1, 5, api, version, body, Tag(api, version, "client"))


def fetched() -> Reply:
    data = [PartitionData(number, 0, 2, records=b"records") for number in (0, 1)]
    body = FetchResponse(session_id=9, responses=[FetchTopicResponse("hot", NO_TOPIC_ID, data)])
    return reply(ApiKey.FETCH, 12, body)


def produced() -> Reply:
    data = [ProducePartitionResponse(0, 0, base_offset=7)]
    return reply(ApiKey.PRODUCE, 9, ProduceResponse([ProduceTopicResponse("hot", NO_TOPIC_ID, data)]))


def raw(of: Reply) -> Reply:
    """Return the same response as it comes over the wire."""
    return of._replace(body=RawFrame(reply_frame(of), of.api_key, of.api_version, is_request=False))


def after(subject: Interceptor, given: Reply) -> list[Any]:
    return list(subject.after(NOW, Closed(0), (given,)))


def read_back(given: Reply) -> object:
    return decode_response(given.api_key, given.api_version, memoryview(reply_frame(given))[4:])[1]


@pytest.mark.parametrize("given", [fetched(), raw(fetched())], ids=["value", "bytes"])
def test_truncated_reply_is_cut_after_the_drawn_number_of_bytes(given: Reply) -> None:
    log = Log()
    subject = interceptor(log, rule("response_truncated", "response", cut_bytes=Range(3, 9)))
    assert after(subject, given) == []
    (_, row), (what, cut, start) = log.calls
    assert (what, cut) == ("reply_cut", given)
    assert isinstance(start, bytes)
    assert 3 <= len(start) <= 9
    assert reply_frame(given).startswith(start)
    assert row.detail == f"{len(start)} of {len(reply_frame(given))} bytes"  # type: ignore[attr-defined]


def test_truncated_reply_is_never_whole() -> None:
    log = Log()
    after(interceptor(log, rule("response_truncated", "response", cut_bytes=Range(9999, 9999))), fetched())
    assert len(log.calls[1][2]) == len(reply_frame(fetched())) - 1  # type: ignore[arg-type]


def test_no_response_cannot_be_truncated() -> None:
    log = Log()
    nothing = fetched()._replace(body=None)
    subject = interceptor(log, rule("response_truncated", "response", cut_bytes=Range(1, 1)))
    assert after(subject, nothing) == [nothing]
    assert not log.rows


@pytest.mark.parametrize("made", [lambda each: each, raw], ids=["value", "bytes"])
def test_error_of_the_response_leaves_nothing_else_in_it(made: Any) -> None:
    log = Log()
    (sent,) = after(
        interceptor(log, rule("response_error", "response", code=FETCH_SESSION_ID_NOT_FOUND)), made(fetched())
    )
    assert read_back(sent) == FetchResponse(error_code=FETCH_SESSION_ID_NOT_FOUND)
    assert [row.detail for row in log.rows] == ["NONE became FETCH_SESSION_ID_NOT_FOUND"]


@pytest.mark.parametrize("made", [lambda each: each, raw], ids=["value", "bytes"])
def test_item_error_is_set_in_each_item_and_removes_records(made: Any) -> None:
    subject = interceptor(Log(), rule("response_error", "response", code=NOT_LEADER_OR_FOLLOWER, code_in="items"))
    (sent,) = after(subject, made(fetched()))
    seen: Any = read_back(sent)
    assert (seen.error_code, seen.session_id) == (ErrorCode.none, 9)
    assert [(partition.error_code, bytes(partition.records)) for partition in seen.responses[0].partitions] == [
        (NOT_LEADER_OR_FOLLOWER, b"")
    ] * 2


def test_response_without_an_error_of_its_own_has_it_in_its_items() -> None:
    (sent,) = after(
        interceptor(Log(), rule("response_error", "response", code=NOT_LEADER_OR_FOLLOWER)), raw(produced())
    )
    seen: Any = read_back(sent)
    (partition,) = seen.responses[0].partitions
    assert (partition.error_code, partition.base_offset) == (NOT_LEADER_OR_FOLLOWER, -1)


def test_response_that_has_no_place_for_the_error_is_no_match() -> None:
    log = Log()
    subject = interceptor(log, rule("response_error", "response", code=NOT_LEADER_OR_FOLLOWER, code_in="response"))
    assert after(subject, produced()) == [produced()]
    assert not log.rows


def test_rule_counts_only_responses_that_match() -> None:
    log = Log()
    match = Match(api=int(ApiKey.FETCH))
    subject = interceptor(log, rule("response_error", "response", match=match, nth=2, code=FETCH_SESSION_ID_NOT_FOUND))
    whole = [after(subject, each) == [each] for each in (produced(), fetched(), produced(), fetched())]
    assert whole == [True, True, True, False]


@pytest.mark.parametrize("version", [0, 3, 4, 6])
def test_error_code_is_put_into_every_version_of_a_kio_response(version: int) -> None:
    coordinator: Any = Coordinator
    response: Any = FindCoordinatorResponse
    one = coordinator(key="g", node_id=1, host="h", port=9092, error_code=ErrorCode.none, error_message=None)
    body = response(throttle_time=timedelta(0), coordinators=(one,))
    sent = reply(ApiKey.FIND_COORDINATOR, version, stamped(ApiKey.FIND_COORDINATOR, version, body, 15, "either"))
    seen: Any = read_back(sent)
    assert [each.error_code for each in seen.coordinators] == [ErrorCode.coordinator_not_available]


def test_frame_of_an_unknown_api_is_not_changed() -> None:
    unknown = reply(999, 0, RawFrame(b"\0\0\0\4abcd", 999, 0, is_request=False))
    subject = interceptor(Log(), rule("response_error", "response", code=NOT_LEADER_OR_FOLLOWER))
    assert after(subject, unknown) == [unknown]
    assert value_of(unknown.body) is None
    assert value_of(HeartbeatResponse) is HeartbeatResponse
