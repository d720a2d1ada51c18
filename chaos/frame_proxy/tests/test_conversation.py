"""Frames that pass the proxy without a rule: the same bytes, in any pieces."""

from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from chaos.frame_proxy.conversation import LARGE_BYTES, MAX_PENDING, START_BYTES
from chaos.frame_proxy.tests.talk import Talk
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.messages import encode_request
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

LARGE = LARGE_BYTES + 100
UNKNOWN_API = 999


def framed(body: bytes) -> bytes:
    return len(body).to_bytes(4, "big") + body


def request(api: int, version: int, correlation: int, rest: bytes = b"") -> bytes:
    start = b"".join(number.to_bytes(2, "big", signed=True) for number in (api, version))
    return framed(start + correlation.to_bytes(4, "big") + (1).to_bytes(2, "big") + b"c" + rest)


def produce(correlation: int, acks: int, size: int = 10) -> bytes:
    body = ProduceRequest(acks, 100, [ProduceTopic("hot", bytes(16), [ProducePartition(0, bytes(size))])])
    return b"".join(bytes(part) for part in encode_request(ApiKey.PRODUCE, 9, correlation, "c", body))


def response(correlation: int, rest: bytes = b"") -> bytes:
    return framed(correlation.to_bytes(4, "big") + rest)


def cut(data: bytes, places: Sequence[int]) -> list[bytes]:
    """Cut the bytes at these places, in thousandths of their length."""
    ends = sorted({0, len(data), *(place * len(data) // 1000 for place in places)})
    return [data[start:end] for start, end in pairwise(ends)]


PLACES = st.lists(st.integers(0, 1000), max_size=12)
SIZES = st.one_of(st.integers(0, 300), st.sampled_from([START_BYTES, LARGE_BYTES - 11, LARGE_BYTES, LARGE]))


@given(st.lists(SIZES, min_size=1, max_size=6), SIZES, PLACES, PLACES)
def test_frames_pass_as_they_are_in_any_pieces(sizes: list[int], back: int, up: list[int], down: list[int]) -> None:
    requests = b"".join(request(UNKNOWN_API, 3, number, bytes(size)) for number, size in enumerate(sizes))
    responses = b"".join(response(number, bytes(back)) for number in range(len(sizes)))
    talk = Talk().connect()
    for piece in cut(requests, up):
        talk.conversation.from_client(piece)
    for piece in cut(responses, down):
        talk.conversation.from_node(piece)
    assert talk.node.got == requests
    assert talk.client.got == responses
    assert talk.logged == ["response"] * len(sizes)
    assert [entry.request_bytes for entry in talk.entries] == [size + 15 for size in sizes]


@given(st.binary(max_size=400), st.binary(max_size=400), PLACES, PLACES)
def test_bytes_that_are_no_frames_pass_as_they_are(
    requests: bytes, responses: bytes, up: list[int], down: list[int]
) -> None:
    talk = Talk().connect()
    talk.conversation.from_client(b"\x16\x03\x01\x02\x00")  # As TLS begins: a length beyond any limit.
    for piece in cut(requests, up):
        talk.conversation.from_client(piece)
    for piece in cut(responses, down):
        talk.conversation.from_node(piece)
    assert talk.node.got == b"\x16\x03\x01\x02\x00" + requests
    assert talk.client.got == responses
    assert talk.logged == ["opaque"]


@given(st.binary(max_size=400), PLACES)
def test_all_received_bytes_are_forwarded_at_any_frame_boundary(garbage: bytes, places: list[int]) -> None:
    talk = Talk().connect()
    data = request(UNKNOWN_API, 0, 7) + garbage
    for piece in cut(data, places):
        talk.conversation.from_client(piece)
    talk.conversation.end("over")
    assert data.startswith(talk.node.got)
    assert len(talk.node.got) >= 15


@pytest.mark.parametrize("body", [b"", b"\x00", bytes(7)])
def test_frame_without_a_header_passes_with_what_follows(body: bytes) -> None:
    data = len(body).to_bytes(4, "big") + body + b"more"
    talk = Talk().connect()
    talk.conversation.from_client(data)
    assert talk.node.got == data
    assert talk.logged == ["opaque"]


def test_response_to_another_request_makes_the_rest_opaque_with_one_line() -> None:
    talk = Talk().connect()
    talk.conversation.from_client(request(UNKNOWN_API, 0, 7))
    talk.conversation.from_node(response(8, b"other") + b"and what follows")
    assert talk.client.got == response(8, b"other") + b"and what follows"
    assert talk.logged == ["opaque"]
    assert "a response to request 8, not 7" in talk.entries[0].detail


def test_produce_request_with_acks_0_waits_for_no_response() -> None:
    talk = Talk().connect()
    talk.conversation.from_client(produce(1, acks=0) + produce(2, acks=1))
    talk.conversation.from_node(response(2))
    assert talk.logged == ["no_response", "response"]
    assert talk.client.got == response(2)


def test_session_of_a_fetch_is_read_in_each_layout() -> None:
    talk = Talk().connect()
    for number, version in enumerate((4, 11, 15, 18)):
        body = FetchRequest(session_id=9, session_epoch=3)
        talk.conversation.from_client(b"".join(encode_request(ApiKey.FETCH, version, number, "c", body)))
        talk.conversation.from_node(response(number, bytes(40)))
    seen = [(entry.session_id, entry.session_epoch) for entry in talk.entries if entry.what == "response"]
    assert seen == [(0, -1), (9, 3), (9, 3), (9, 3)]


def test_large_request_goes_on_before_it_has_arrived() -> None:
    talk, whole = Talk().connect(), produce(1, acks=1, size=LARGE)
    talk.conversation.from_client(whole[: START_BYTES + 1])
    assert talk.node.got == whole[: START_BYTES + 1]
    talk.conversation.from_client(whole[START_BYTES + 1 :])
    assert talk.node.got == whole


def test_side_is_read_only_while_other_side_is_writable() -> None:
    talk = Talk()
    assert not talk.client.reads  # The node is not reached yet.
    talk.connect()
    assert talk.client.reads
    talk.conversation.node_full(True)
    assert (talk.client.reads, talk.node.reads) == (False, True)
    talk.conversation.from_client(request(UNKNOWN_API, 0, 1))  # What was under way already waits.
    assert talk.node.got == b""
    talk.conversation.node_full(False)
    assert talk.client.reads
    assert talk.node.got == request(UNKNOWN_API, 0, 1)
    talk.conversation.client_full(True)
    assert (talk.client.reads, talk.node.reads) == (True, False)
    talk.conversation.client_full(False)
    assert talk.node.reads


@pytest.mark.parametrize("side", ["client", "node"])
def test_both_ends_close_with_half_a_frame_and_the_request_is_logged_as_lost(side: str) -> None:
    talk = Talk().connect()
    talk.conversation.from_client(request(UNKNOWN_API, 0, 1) + request(UNKNOWN_API, 0, 2)[:9])
    talk.conversation.from_node(response(1, bytes(100))[:50])
    talk.conversation.end(f"the {side} closed the connection")
    talk.conversation.end("again")
    assert talk.client.ended == "closed"
    assert talk.node.ended == "closed"
    assert [(entry.what, entry.detail) for entry in talk.entries] == [("lost", f"the {side} closed the connection")]
    assert not talk.front.conversations
    talk.client.ended = talk.node.ended = ""  # The peers do not read what was written.
    for _, abort in talk.services.lingering:
        abort()
    assert talk.client.ended == "aborted"
    assert talk.node.ended == "aborted"


UNKNOWN_API_VERSIONS = request(ApiKey.API_VERSIONS, 99, 2)


def test_no_response_of_the_proxys_own_lands_inside_a_large_one_that_still_arrives() -> None:
    talk, large = Talk().connect(), response(1, bytes(LARGE))
    talk.conversation.from_client(request(UNKNOWN_API, 3, 1))
    talk.conversation.from_node(large[:50_000])
    talk.conversation.from_client(UNKNOWN_API_VERSIONS)
    talk.conversation.from_node(large[50_000:])
    assert talk.client.got == large
    assert talk.node.got == request(UNKNOWN_API, 3, 1) + UNKNOWN_API_VERSIONS


def test_client_is_not_read_while_too_many_of_its_requests_have_no_response() -> None:
    talk, count = Talk().connect(), MAX_PENDING + 5
    requests = [request(UNKNOWN_API, 3, number) for number in range(count)]
    talk.conversation.from_client(b"".join(requests))
    assert (talk.node.got, talk.client.reads) == (b"".join(requests[:MAX_PENDING]), False)
    for number in range(count):
        talk.conversation.from_node(response(number))
    assert (talk.node.got, talk.client.reads) == (b"".join(requests), True)
    assert talk.client.got == b"".join(response(number) for number in range(count))
