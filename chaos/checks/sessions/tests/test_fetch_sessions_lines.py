"""Trace lines about sessions: ones without the session, and ones without its maker."""

from typing import TypeAlias

import pytest

from chaos.checks.sessions.fetch_sessions import SessionLines
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubNode
from reference_broker.core.events import Effect, Note, Reply, Request, Send
from reference_broker.wire.fetch import FetchRequest, FetchResponse
from reference_broker.wire.tags import Tag

Act: TypeAlias = tuple[Request, list[Effect]]
FETCH, VERSION = 1, 12
NODE = StubNode().as_node()


def request_of(body: FetchRequest, tag: Tag | None = None) -> Request:
    tag = tag or Tag(FETCH, VERSION, "me", body.session_id, body.session_epoch)
    return Request(1, 1, FETCH, VERSION, "me", body, tag)


def explanations(*acts: Act) -> list[str]:
    check = SessionLines(check_context())
    for request, effects in acts:
        check.acted(0, NODE, request, effects)
    return [violation.explanation for violation in check.violations]


def reply(request: Request, session_id: int, tag: Tag | None = None) -> Reply:
    return Reply(1, 1, FETCH, VERSION, FetchResponse(session_id=session_id), tag or request.tag)


def note(what: str, session_id: int, made_by: str) -> Note:
    return Note(what, (("session_id", session_id), ("made_by", made_by)))


@pytest.mark.clause("F-23")
def test_lines_of_request_and_response_have_the_session_and_the_epoch() -> None:
    good = request_of(FetchRequest(session_id=7, session_epoch=3))
    assert explanations((good, [reply(good, 7)])) == []
    (explanation,) = explanations((good, [reply(good, 7, Tag(FETCH, VERSION, "me"))]))
    assert explanation == "the line of me's response has session 0, epoch -1; its request has 7, 3"
    (explanation,) = explanations(
        (request_of(FetchRequest(session_id=7, session_epoch=3), Tag(FETCH, VERSION, "me", 7, 2)), [])
    )
    assert "me's request has session 7, epoch 2" in explanation
    sent = Send(1, "fetch", 1, FETCH, VERSION, good.body, Tag(FETCH, VERSION, "node-0"), 0, "node-0")  # type: ignore[arg-type]
    assert "node-0's request has session 0" in explanations((request_of(FetchRequest()), [sent]))[0]


@pytest.mark.clause("G-2")
@pytest.mark.parametrize(("replica", "maker"), [(-1, "consumer 'me'"), (8, "follower 8")])
def test_lines_of_a_sessions_life_name_its_maker(replica: int, maker: str) -> None:
    opening = request_of(FetchRequest(replica_id=replica, session_epoch=0))
    made: Act = (opening, [note("session_created", 7, maker), reply(opening, 7)])
    later = request_of(FetchRequest(session_id=1, session_epoch=1))
    assert explanations(made, (later, [note("session_evicted", 7, maker)])) == []
    (explanation,) = explanations((opening, [note("session_created", 7, "consumer"), reply(opening, 7)]))
    assert "says 'consumer' made it" in explanation
    (explanation,) = explanations(made, (later, [note("session_closed", 7, "")]))
    assert "session_closed of session 7 says ''" in explanation
