from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from chaos.checks.check import Check
from chaos.checks.fetch_model import FETCH, FIRST_REVISIONS
from chaos.checks.history import without_node
from chaos.checks.sequence_order import INCREMENTAL_FETCH_DENIED, INVALID_FETCH_SESSION
from chaos.checks.session_lines import CREATED
from chaos.checks.surroundings import Surroundings
from reference_broker.core.effects import Effect, Note, Reply
from reference_broker.core.events import Closed, Event, Request
from reference_broker.wire.fetch import FetchRequest, FetchResponse

if TYPE_CHECKING:
    from reference_broker.core.node import Node

INCREMENTAL = 1
IS_INCREMENTAL, MAY_FOLLOW = 1, 2
"""Bits 0 and 1 of the flags, as the page names them."""
INVALID_REQUEST = 42
ENDS = ("session_closed", "session_evicted")


@dataclass(slots=True)
class _Asked:
    """``may_follow`` is what the last answer in the session had said when the request came, or None."""

    session_id: int
    incremental: bool
    may_follow: bool | None


class FirstAnswers(Check):
    """first-answers-exact: an answer of the first revision says what kind it is, what may follow, and what is wrong
    (G-9).

    Bit 0 is set if and only if the request was an incremental one (G-4). While bit 1 is set the session takes
    incremental requests, and while it is clear it denies them (G-10). The session ID is 0 if and only if the node
    closed the session or made none. An error that belongs to the revision has a text beside it, and an answer without
    an error has none.

    Which sessions there are is known from the node's notes. From a full request until its answer nobody knows what may
    follow, since the request replaces all that the session holds (G-4).

    Knows by node and session ID what the last answer in each session said of what may follow; None if that is not
    known.
    """

    guarantee = "first-answers-exact"
    needs_one_node = True
    acts_on = (FETCH, Closed, CREATED, *ENDS, type(None))

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._sessions: dict[tuple[int, int], bool | None] = {}
        self._asked: dict[tuple[int, int], dict[int, _Asked]] = {}
        """by node and connection, then by correlation ID"""
        self._processes: dict[int, Node] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if self._processes.get(node_id) is not node:
            self._processes[node_id] = node
            self._sessions = without_node(self._sessions, node_id)
            self._asked = without_node(self._asked, node_id)
        if type(event) is Closed:
            self._asked.pop((node_id, event.connection), None)
        elif type(event) is Request and isinstance(event.body, FetchRequest) and event.api_version in FIRST_REVISIONS:
            session_id, incremental = event.body.session_id, event.body.fetch_type == INCREMENTAL
            if not incremental and (node_id, session_id) in self._sessions:
                self._sessions[node_id, session_id] = None
            asked = _Asked(session_id, incremental, self._sessions.get((node_id, session_id)))
            self._asked.setdefault((node_id, event.connection), {})[event.correlation_id] = asked
        for effect in effects:
            if type(effect) is Note and effect.what == CREATED:
                self._sessions[node_id, int(dict(effect.fields)["session_id"])] = None
            elif type(effect) is Note and effect.what in ENDS:
                self._sessions.pop((node_id, int(dict(effect.fields)["session_id"])), None)
            elif type(effect) is Reply and isinstance(effect.body, FetchResponse):
                found = self._asked.get((node_id, effect.connection), {}).pop(effect.correlation_id, None)
                if found is not None:
                    for wrong in self._wrong(node_id, found, effect.body):
                        who = f"{effect.tag.client_id}, session {found.session_id}"
                        self.violated(at_us, f"node-{node_id} answered {who}: {wrong}")

    def _wrong(self, node_id: int, asked: _Asked, answer: FetchResponse) -> list[str]:
        """Returns what is wrong with an answer, and takes in what it says."""
        wrong, flags, error = [], answer.response_flags, answer.error_code
        if bool(flags & IS_INCREMENTAL) != asked.incremental or flags & ~(IS_INCREMENTAL | MAY_FOLLOW):
            wrong.append(f"flags {flags}, to {'an incremental' if asked.incremental else 'a full'} request")
        own_errors = (INVALID_REQUEST, INVALID_FETCH_SESSION, INCREMENTAL_FETCH_DENIED)
        if (error in own_errors and not answer.error_string) or (error == 0 and answer.error_string):
            wrong.append(f"error {error} with the text {answer.error_string!r}")
        key, session_id = (node_id, asked.session_id), answer.session_id
        if session_id and (node_id, session_id) not in self._sessions:
            wrong.append(f"session ID {session_id}, and there is no such session")
        if not session_id and asked.session_id and key in self._sessions:
            wrong.append("session ID 0, and the session is still there")
        if flags & MAY_FOLLOW and not session_id:
            wrong.append("incremental requests may follow, without a session")
        before = self._sessions.get(key)
        if asked.incremental and asked.may_follow is not None and asked.may_follow == before:
            if error == INCREMENTAL_FETCH_DENIED and before:
                wrong.append("an incremental request was denied, and the last answer had invited it")
            if error == 0 and not before:
                wrong.append("an incremental request was served, and the last answer had said that none may follow")
        if error == 0 and (node_id, session_id) in self._sessions:
            self._sessions[node_id, session_id] = bool(flags & MAY_FOLLOW)
        return wrong
