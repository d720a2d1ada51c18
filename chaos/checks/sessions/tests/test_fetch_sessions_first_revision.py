"""Responses of the first revision of KIP-227: wrong flags, IDs and texts."""

import pytest

from chaos.checks.sessions.fetch_sessions import FirstRevisionResponses
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubNode
from reference_broker.core.events import Effect, Note, Reply, Request
from reference_broker.wire.fetch import FetchRequest, FetchResponse
from reference_broker.wire.tags import Tag

FETCH, VERSION = 1, 1000
INCREMENTAL_FETCH_RESPONSE, INCREMENTAL_FETCH_OK = 1, 2
NODE = StubNode()


class Session:
    """Session 7 of one fetcher, which its first full fetch has made."""

    def __init__(self, flags: int = INCREMENTAL_FETCH_OK) -> None:
        self.check = FirstRevisionResponses(check_context())
        self.fetches(
            0, FetchResponse(session_id=7, response_flags=flags), Note("session_created", (("session_id", 7),))
        )
        assert self.check.violations == []

    def fetches(self, kind: int, response: FetchResponse, *notes: Effect, session_id: int = 7) -> list[str]:
        """Return the violation of one response."""
        before = len(self.check.violations)
        tag = Tag(FETCH, VERSION, "me", session_id, kind)
        body = FetchRequest(session_id=session_id, session_epoch=kind, fetch_type=kind)
        request = Request(1, 1, FETCH, VERSION, "me", body, tag)
        self.check.acted(0, NODE.as_node(), request, [*notes, Reply(1, 1, FETCH, VERSION, response, tag)])
        return [violation.explanation.partition(": ")[2] for violation in self.check.violations[before:]]


@pytest.mark.clause("G-4", "G-9")
def test_bit_0_says_what_kind_of_response_it_is() -> None:
    session = Session()
    incremental = FetchResponse(session_id=7, response_flags=INCREMENTAL_FETCH_RESPONSE | INCREMENTAL_FETCH_OK)
    assert session.fetches(1, incremental) == []
    assert session.fetches(1, FetchResponse(session_id=7, response_flags=INCREMENTAL_FETCH_OK)) == [
        "flags 2, to an incremental request"
    ]
    assert session.fetches(0, FetchResponse(session_id=7, response_flags=3)) == ["flags 3, to a full request"]
    assert session.fetches(0, FetchResponse(session_id=7, response_flags=6)) == ["flags 6, to a full request"]


@pytest.mark.clause("G-9")
def test_error_has_a_text_and_nothing_else_has() -> None:
    refused = FetchResponse(10001, 7, error_string="no such number", response_flags=3)
    assert Session().fetches(1, refused) == []
    (explanation,) = Session().fetches(1, FetchResponse(10001, 7, response_flags=3))
    assert explanation == "error 10001 with the text None"
    (explanation,) = Session().fetches(0, FetchResponse(0, 7, error_string="fine", response_flags=2))
    assert explanation == "error 0 with the text 'fine'"


@pytest.mark.clause("G-9")
def test_session_id_is_0_if_and_only_if_there_is_no_session() -> None:
    refused = FetchResponse(10001, 0, error_string="x", response_flags=INCREMENTAL_FETCH_RESPONSE)
    assert Session().fetches(1, refused) == ["session ID 0, and the session is still there"]
    gone = Note("session_evicted", (("session_id", 7),))
    assert Session().fetches(1, refused, gone) == []
    (explanation,) = Session().fetches(1, FetchResponse(0, 8, response_flags=3))
    assert explanation == "session ID 8, and there is no such session"


@pytest.mark.clause("G-9", "G-10")
def test_bit_1_says_whether_incremental_requests_may_follow() -> None:
    denied = FetchResponse(10002, 7, error_string="full ones only", response_flags=INCREMENTAL_FETCH_RESPONSE)
    served = FetchResponse(0, 7, response_flags=INCREMENTAL_FETCH_RESPONSE | INCREMENTAL_FETCH_OK)
    assert Session(flags=0).fetches(1, denied) == []
    assert Session(flags=0).fetches(1, served) == [
        "an incremental request was served, and the last response had said that none may follow"
    ]
    assert Session().fetches(1, denied) == ["an incremental request was denied, and the last response had invited it"]
    (explanation,) = Session().fetches(0, FetchResponse(0, 0, response_flags=INCREMENTAL_FETCH_OK), session_id=0)
    assert explanation == "incremental requests may follow, without a session"


@pytest.mark.clause("G-9")
def test_process_that_begins_to_end_keeps_its_sessions_and_another_one_has_none() -> None:
    session, served = Session(), FetchResponse(0, 7, response_flags=INCREMENTAL_FETCH_RESPONSE | INCREMENTAL_FETCH_OK)
    session.check.acted(0, NODE.as_node(), None, ())
    assert session.fetches(1, served) == []
    session.check.acted(0, StubNode().as_node(), None, ())
    assert session.fetches(1, served) == ["session ID 7, and there is no such session"]
