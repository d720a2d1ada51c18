"""Each kind of fault in the proxy: what both ends get, and that it is logged."""

import os
import signal
from typing import Any

import pytest

from chaos.frame_proxy.conversation import LARGE_BYTES, START_BYTES
from chaos.frame_proxy.fault_actions import NO_PROCESS
from chaos.frame_proxy.tests.talk import Talk
from chaos.frame_proxy.tests.test_conversation import UNKNOWN_API, produce, request, response
from chaos.interceptor.tests.intercepted import rule
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchResponse, FetchTopicResponse, PartitionData
from reference_broker.wire.messages import decode_response, encode_response
from scenarios.model import Match, Range

ONE, TWO = request(UNKNOWN_API, 0, 1, b"one"), request(UNKNOWN_API, 0, 2, b"two")
FIRST, SECOND = response(1, b"first"), response(2, b"second")


def talk(kind: str, on: str, **more: Any) -> Talk:
    return Talk(rule(kind, on, **more)).connect()


def kinds(of: Talk) -> list[str]:
    return [row.kind for row in of.rows]


def test_dropped_request_ends_the_connection_unseen_by_the_node() -> None:
    seen = talk("request_dropped", "request", nth=2)
    seen.conversation.from_client(ONE + TWO)
    assert seen.node.got == ONE
    assert seen.client.got == b""
    assert seen.node.ended == "aborted"
    assert seen.client.ended == "aborted"
    assert kinds(seen) == ["request_dropped"]


def test_delayed_request_holds_back_those_behind_it() -> None:
    seen = talk("request_delayed", "request", delay_ms=Range(5, 5))
    seen.conversation.from_client(ONE + TWO)
    assert (seen.node.got, seen.client.reads) == (b"", False)
    seen.later.pass_time()
    assert (seen.node.got, seen.client.reads) == (ONE + TWO, True)
    seen.conversation.from_node(FIRST + SECOND)
    assert seen.client.got == FIRST + SECOND
    assert kinds(seen) == ["request_delayed"]


def test_dropped_response_ends_the_connection_after_the_node_has_done_it() -> None:
    seen = talk("response_dropped", "response")
    seen.conversation.from_client(ONE)
    seen.conversation.from_node(FIRST)
    assert seen.node.got == ONE
    assert seen.client.got == b""
    assert seen.client.ended == "aborted"
    assert kinds(seen) == ["response_dropped"]
    assert seen.logged == ["response_taken"]


def test_delayed_response_holds_back_those_behind_it() -> None:
    seen = talk("response_delayed", "response", delay_ms=Range(5, 5))
    seen.conversation.from_client(ONE + TWO)
    seen.conversation.from_node(FIRST + SECOND)
    assert (seen.client.got, seen.node.reads) == (b"", False)
    seen.later.pass_time()
    assert (seen.client.got, seen.node.reads) == (FIRST + SECOND, True)
    assert kinds(seen) == ["response_delayed"]


def test_proxy_response_does_not_overtake_delayed_response() -> None:
    seen = talk("response_delayed", "response", delay_ms=Range(5, 5))
    seen.conversation.from_client(ONE)
    seen.conversation.from_node(FIRST)
    seen.conversation.from_client(request(ApiKey.API_VERSIONS, 99, 2))
    assert seen.client.got == b""
    seen.later.pass_time()
    assert seen.client.got == FIRST


def test_truncated_response_is_cut_and_the_connection_closed() -> None:
    seen = talk("response_truncated", "response", cut_bytes=Range(6, 6))
    seen.conversation.from_client(ONE + TWO)
    seen.conversation.from_node(FIRST + SECOND)
    assert seen.client.got == FIRST[:6]
    assert seen.client.ended == "closed"
    assert [row.detail for row in seen.rows] == [f"6 of {len(FIRST)} bytes"]


def test_damaged_response_has_one_other_bit() -> None:
    seen = talk("response_damaged", "response")
    seen.conversation.from_client(ONE)
    seen.conversation.from_node(FIRST)
    (differs,) = [old ^ new for old, new in zip(FIRST, seen.client.got, strict=True) if old != new]
    assert differs.bit_count() == 1
    assert kinds(seen) == ["response_damaged"]


def test_doubled_response_comes_twice_and_the_next_ones_once() -> None:
    seen = talk("response_duplicated", "response")
    seen.conversation.from_client(ONE + TWO)
    seen.conversation.from_node(FIRST + SECOND)
    assert seen.client.got == FIRST + FIRST + SECOND
    assert kinds(seen) == ["response_duplicated"]


def fetched(size: int) -> FetchResponse:
    data = PartitionData(0, 0, 2, records=bytes(size))
    return FetchResponse(session_id=9, responses=[FetchTopicResponse("hot", bytes(16), [data])])


@pytest.mark.parametrize("size", [10, LARGE_BYTES * 3])
def test_error_is_put_into_a_response_of_any_size(size: int) -> None:
    seen = talk("response_error", "response", match=Match(api=int(ApiKey.FETCH)), code=6, code_in="items")
    seen.conversation.from_client(ONE + request(ApiKey.FETCH, 12, 2, bytes(40)))
    seen.conversation.from_node(FIRST)
    whole = b"".join(bytes(each) for each in encode_response(ApiKey.FETCH, 12, 2, fetched(size)))
    for start in range(0, len(whole), START_BYTES):
        seen.conversation.from_node(whole[start : start + START_BYTES])
    _, body = decode_response(ApiKey.FETCH, 12, memoryview(seen.client.got[len(FIRST) :])[4:])
    assert isinstance(body, FetchResponse)
    assert body.responses[0].partitions[0].error_code == ErrorCode.not_leader_or_follower
    assert kinds(seen) == ["response_error"]


@pytest.mark.parametrize("match", [Match(error=ErrorCode.fetch_session_id_not_found), Match(error=0)])
def test_rule_finds_responses_by_their_error(match: Match) -> None:
    seen = talk("response_dropped", "response", match=match)
    seen.conversation.from_client(request(ApiKey.FETCH, 12, 2, bytes(40)))
    body = FetchResponse(error_code=ErrorCode.fetch_session_id_not_found)
    seen.conversation.from_node(b"".join(bytes(each) for each in encode_response(ApiKey.FETCH, 12, 2, body)))
    assert bool(seen.rows) is (match.error == ErrorCode.fetch_session_id_not_found)
    assert [entry.error for entry in seen.entries] == ["FETCH_SESSION_ID_NOT_FOUND"]


@pytest.mark.parametrize("large", [False, True])
def test_large_request_that_a_rule_may_hit_waits_until_it_is_whole(large: bool) -> None:
    seen = talk("request_dropped", "request", match=Match(api=int(ApiKey.PRODUCE)), nth=2)
    whole = produce(1, acks=1, size=LARGE_BYTES + 9 if large else 9)
    seen.conversation.from_client(whole[:-1])
    assert seen.node.got == b""
    seen.conversation.from_client(whole[-1:])
    assert seen.node.got == whole
    seen.conversation.from_client(produce(2, acks=1, size=LARGE_BYTES + 9 if large else 9))
    assert seen.node.got == whole
    assert kinds(seen) == ["request_dropped"]


@pytest.mark.parametrize(
    ("kind", "on"), [("node_killed", "request"), ("node_killed", "response"), ("node_paused", "response")]
)
def test_process_is_killed_or_paused(kind: str, on: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    seen = Talk(rule(kind, on, duration_s=1.0), process=77).connect()
    seen.conversation.from_client(ONE)
    if on == "response":
        seen.conversation.from_node(FIRST)
    seen.later.pass_time()
    killed = [(77, signal.SIGKILL)]
    assert sent == (killed if kind == "node_killed" else [(77, signal.SIGSTOP), (77, signal.SIGCONT)])
    assert seen.client.got == (b"" if kind == "node_killed" else FIRST)
    assert kinds(seen) == [kind]


@pytest.mark.parametrize("kind", ["node_killed", "node_paused"])
def test_process_that_has_ended_is_left_alone_and_is_no_hit(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ID of the ended process may belong to another process by now."""
    sent: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda process, number: sent.append((process, number)))
    seen = Talk(rule(kind, "request", duration_s=1.0), process=NO_PROCESS).connect()
    seen.conversation.from_client(ONE)
    seen.later.pass_time()
    assert sent == []
    assert kinds(seen) == []
    assert seen.node.got == ONE
    assert [row.kind for row in seen.missed] == [kind]


def test_client_that_leaves_while_its_request_is_held_is_closed_on_both_sides() -> None:
    seen = talk("request_delayed", "request", delay_ms=Range(5, 5))
    seen.conversation.from_client(ONE)
    seen.conversation.end("the client closed the connection")
    assert seen.node.got == b""
    assert seen.node.ended == "closed"
    assert not seen.front.conversations
