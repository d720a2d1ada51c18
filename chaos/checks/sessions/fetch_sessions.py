"""Fetch sessions: their epochs, ends, and log lines.

``SessionTrace`` follows sessions through a trace, so its checks have models of their own and never read the broker's
state.
"""

import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

from chaos.checks.check import Check, CheckContext, fields_of
from chaos.checks.history import without_node
from chaos.checks.pending_requests import PendingRequests
from chaos.checks.sessions.fetch_model import FETCH, FIRST_REVISIONS
from reference_broker.core.events import Closed, Effect, Event, Note, Reply, Request, Send
from reference_broker.wire.fetch import FetchRequest, FetchResponse
from reference_broker.wire.tags import Tag
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


LARGEST_EPOCH = 2**31 - 1


class SessionTrace(Check):
    """Base of the checks of sessions. Its state about a node ends with the node's process."""

    rows: ClassVar[tuple[str, ...]] = ("request", "reply", "session_created", "session_closed", "session_evicted")

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._incarnations: dict[int, int] = {}

    def trace(self, row: TraceRow) -> None:
        if self._incarnations.get(row.node) != row.incarnation:
            self._incarnations[row.node] = row.incarnation
            self._restarted(row.node)
        if row.what == "request":
            self._request(row)
        elif row.what == "reply":
            if row.api_key == FETCH:  # A search of seeds records no rows of other responses.
                self._reply(row)
        else:
            fields = fields_of(row)
            if row.what == "session_created":
                self._created(row, fields["session_id"], fields)
            else:
                self._ended(row, fields["session_id"], fields)

    @abstractmethod
    def _restarted(self, node_id: int) -> None:
        """Forget the state about the node, which has a new process."""

    def _request(self, row: TraceRow) -> None:
        """Follow a request of any API."""

    def _reply(self, row: TraceRow) -> None:
        """Follow the response to a fetch."""

    @abstractmethod
    def _created(self, row: TraceRow, session_id: int, fields: Mapping[str, Any]) -> None:
        """Follow the creation of a session."""

    @abstractmethod
    def _ended(self, row: TraceRow, session_id: int, fields: Mapping[str, Any]) -> None:
        """Follow the close or eviction of a session."""


@dataclass(slots=True)
class Session:
    """The state of one session. ``number`` is the epoch that it expects (final revision) or its last number (first
    revision). ``accepted`` counts accepted requests."""

    number: int
    accepted: int = 0


@dataclass(slots=True)
class Pending:
    """A request without a response yet.

    ``must`` is the error that it must get, 0 if it must be accepted. ``before`` is the session's number before the
    request, and ``place`` is the request's place among the accepted ones.
    """

    must: int
    session: Session | None
    before: int
    place: int


class OrderTrace(SessionTrace):
    """Base of the checks of a revision's order of epochs or numbers.

    ``sessions`` is by node and session ID. ``FIRST_NUMBER`` is a session's number when it begins, if no preset sets its
    first epoch.
    """

    FIRST_NUMBER = 1

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self.sessions: dict[tuple[int, int], Session] = {}
        self._pending: dict[tuple[int, int], Pending] = {}
        """by node and connection"""

    @abstractmethod
    def _judges(self, row: TraceRow) -> bool:
        """Return whether this fetch belongs to a session of the revision."""

    @abstractmethod
    def _requested(self, row: TraceRow, session: Session | None) -> None:
        """Follow a request that it judges, and calls ``_await`` if the reply is to be judged."""

    @abstractmethod
    def _replied(self, row: TraceRow, pending: Pending) -> None:
        """Judge the reply."""

    def _await(self, row: TraceRow, session: Session | None, must: int, following: int) -> None:
        """Note the request. If it must be accepted, its session's number becomes ``following``."""
        before = 0 if session is None else session.number
        if session is not None and must == 0:
            session.accepted += following != session.number  # A retransmission overtakes nothing.
            session.number = following
        place = 0 if session is None else session.accepted
        self._pending[row.node, row.connection] = Pending(must, session, before, place)

    def _has_ended(self, row: TraceRow, session: Session) -> bool:
        return self.sessions.get((row.node, row.session_id)) is not session

    def _request(self, row: TraceRow) -> None:
        if row.api_key == FETCH and self._judges(row):
            self._requested(row, self.sessions.get((row.node, row.session_id)))

    def _reply(self, row: TraceRow) -> None:
        pending = self._pending.pop((row.node, row.connection), None)
        if pending is not None:
            self.evidence += row.session_id != 0 and row.session_epoch > 0
            self._replied(row, pending)

    def _created(self, row: TraceRow, session_id: int, fields: Mapping[str, Any]) -> None:  # noqa: ARG002
        number = self.FIRST_NUMBER + self.context.settings.first_session_epoch - 1
        self.sessions[row.node, session_id] = Session(number)

    def _ended(self, row: TraceRow, session_id: int, fields: Mapping[str, Any]) -> None:  # noqa: ARG002
        self.sessions.pop((row.node, session_id), None)

    def _restarted(self, node_id: int) -> None:
        self.sessions = without_node(self.sessions, node_id)
        self._pending = without_node(self._pending, node_id)


ID_NOT_FOUND = 70
INVALID_EPOCH = 71
TOPIC_ID_ERROR = 106


class SessionOrder(OrderTrace):
    """session-epoch-order: a session accepts the epoch that it expects, and rejects any other.

    The check has a model of its own, as small as the clauses F-3, F-7, F-9 and F-10 allow. A new session expects epoch
    1. Each accepted request raises that by one, and 1 follows 2^31-1. A wrong epoch gets INVALID_FETCH_SESSION_EPOCH
    and changes nothing. There are three exceptions for a request with the right epoch:
    - A parked request gets INVALID_FETCH_SESSION_EPOCH when a later request of its session overtakes it: by F-3 only
      the later epoch's response counts.
    - A parked request gets FETCH_SESSION_ID_NOT_FOUND when its session ends (F-9).
    - A request that names topics by ID in a session of names, or by name in a session of IDs, gets
      FETCH_SESSION_TOPIC_ID_ERROR and changes nothing (Kafka, KIP-516).

    A session's number is the epoch that it expects.
    """

    guarantee = "session-epoch-order"

    def _judges(self, row: TraceRow) -> bool:
        return row.api_version not in FIRST_REVISIONS and row.session_epoch not in (0, -1)  # F-4, F-5: a full fetch.

    def _requested(self, row: TraceRow, session: Session | None) -> None:
        if session is None or not 1 <= row.session_epoch <= LARGEST_EPOCH:
            must = ID_NOT_FOUND
        else:
            must = 0 if row.session_epoch == session.number else INVALID_EPOCH
        self._await(row, session, must, 1 if row.session_epoch == LARGEST_EPOCH else row.session_epoch + 1)

    def _replied(self, row: TraceRow, pending: Pending) -> None:
        if row.error == pending.must:
            return
        session = pending.session
        if pending.must == 0 and session is not None:
            overtaken = session.accepted > pending.place
            if row.error == INVALID_EPOCH and overtaken:
                return
            if row.error == ID_NOT_FOUND and self._has_ended(row, session):
                return
            if row.error == TOPIC_ID_ERROR and not overtaken:
                session.number, session.accepted = pending.before, session.accepted - 1
                return
        self.violated(
            row.at_us,
            f"session {row.session_id} epoch {row.session_epoch} of {row.client_id} on connection {row.connection} got "
            f"error {row.error}, not {pending.must}",
        )


INVALID_FETCH_SESSION = 10001
INCREMENTAL_FETCH_DENIED = 10002
ERRORS_THAT_CHANGE_NOTHING = (42, INCREMENTAL_FETCH_DENIED)
"""INVALID_REQUEST for a partition that is not in the session; IncrementalFetchDenied."""


class SequenceOrder(OrderTrace):
    """session-epoch-order in the first revision: a session accepts the number after the last one, or the last one
    again.

    The check has a model of its own, as small as the clauses G-3, G-4 and G-10 allow. An incremental request with the
    next number proves that the client has processed the last response. One with the last number is a retransmission.
    All others are rejected with InvalidFetchSession and change nothing. A full request with a session's ID keeps the
    session's number.

    There are two exceptions. A parked request is rejected when a later one overtakes it in its session: by G-3 the
    client proves that it no longer waits for it. It is rejected as well when its session ends (G-10). A retransmission
    is no such proof, so both it and the parked request must get responses.

    Physical: requests that are under way on two connections at once may be handled in either order, and no clause says
    which comes first. So a request is also overtaken by a full one that arrived before it, if that still has no
    response when this one gets its error. Each full request overtakes at most one.

    A session's number is that of its last incremental request, or 0 before the first one.
    """

    guarantee = "session-epoch-order"
    FIRST_NUMBER = 0

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._full: dict[tuple[int, int], TraceRow] = {}
        """by node and connection: a pending full request in a session, which has overtaken nothing so far"""

    def _restarted(self, node_id: int) -> None:
        super()._restarted(node_id)
        self._full = without_node(self._full, node_id)

    def _judges(self, row: TraceRow) -> bool:
        return row.api_version in FIRST_REVISIONS and (row.session_id != 0 or row.session_epoch != 0)

    def _requested(self, row: TraceRow, session: Session | None) -> None:
        if row.session_epoch == 0:
            if session is not None:
                session.accepted += 1  # A full request overtakes one that still waits.
                self._full[row.node, row.connection] = row
            return
        follows = session is not None and row.session_epoch in (session.number, session.number + 1)
        self._await(row, session, 0 if follows else INVALID_FETCH_SESSION, row.session_epoch)

    def _reply(self, row: TraceRow) -> None:
        self._full.pop((row.node, row.connection), None)
        super()._reply(row)

    def _replied(self, row: TraceRow, pending: Pending) -> None:
        session = pending.session
        if pending.must == 0 and session is not None:
            overtaken = session.accepted > pending.place
            if row.error in ERRORS_THAT_CHANGE_NOTHING and not overtaken:
                session.number = pending.before
            if row.error in (0, *ERRORS_THAT_CHANGE_NOTHING):
                return
            if row.error == INVALID_FETCH_SESSION and (
                overtaken or self._has_ended(row, session) or self._is_overtaken_by_earlier(row)
            ):
                return
        elif row.error in (INVALID_FETCH_SESSION, INCREMENTAL_FETCH_DENIED):
            return  # G-4: a session whose last full response had the OK bit clear denies any number.
        self.violated(
            row.at_us,
            f"session {row.session_id} number {row.session_epoch} of {row.client_id} on connection {row.connection} "
            f"came after number {pending.before} and got error {row.error}",
        )

    def _is_overtaken_by_earlier(self, row: TraceRow) -> bool:
        """Return whether a pending full request in the session may have overtaken the one that this is the reply to."""
        for key, full in self._full.items():
            if key[0] == row.node and full.session_id == row.session_id:
                del self._full[key]
                return True
        return False


REPEATS_BY_CHANCE = 1
"""Of n random IDs of 31 bits two are equal with a probability of about n^2/2^32: 1 in 7,000 for 787 sessions. Two
pairs are with about half the square of that: 1 in 90 million."""


class SessionLost(SessionTrace):
    """session-lost: a session that was created stays known until it is closed or evicted, and its responses carry its
    ID.

    A session is lost if its ID is rejected as unknown although nothing ended it, if the response to an accepted request
    has the ID of another session, or if a wrong epoch closes it (F-7, F-9, F-10). A session never gets the ID of an
    open one, and the ID of a closed one only by chance (F-2). The response to a full fetch has the ID of a new session,
    or 0; it is always 0 if the fetch requests none (F-4 to F-6, F-8).
    """

    guarantee = "session-lost"

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._alive: dict[tuple[int, int], None] = {}
        self._ever: dict[tuple[int, int], None] = {}
        self._repeats = 0
        self._last_request: dict[int, TraceRow] = {}
        self._closed_by: dict[tuple[int, int], int] = {}
        """by node and connection: the session that its request closed"""

    def _request(self, row: TraceRow) -> None:
        self._last_request[row.node] = row

    def _reply(self, row: TraceRow) -> None:
        if row.session_epoch in (0, -1) and row.api_version not in FIRST_REVISIONS:
            self._judge_full(row)
        if row.session_id != 0:
            closed = self._closed_by.pop((row.node, row.connection), 0)
            if row.session_epoch not in (0, -1):
                self._judge(row, closed)

    def _judge_full(self, row: TraceRow) -> None:
        session_id = row.response_session_id
        if session_id == 0:
            return  # F-5, F-6: the broker may decline.
        who = f"a full fetch of {row.client_id} with session {row.session_id} and epoch {row.session_epoch}"
        if row.session_epoch == -1:
            self.violated(row.at_us, f"{who} wants no session and got session {session_id}")
        elif session_id == row.session_id or (row.node, session_id) not in self._alive:
            self.violated(row.at_us, f"{who} got session {session_id}, which is not new")

    def _restarted(self, node_id: int) -> None:
        self._alive = without_node(self._alive, node_id)
        self._ever = without_node(self._ever, node_id)
        self._closed_by = without_node(self._closed_by, node_id)
        self._last_request.pop(node_id, None)

    def _created(self, row: TraceRow, session_id: int, fields: Mapping[str, Any]) -> None:  # noqa: ARG002
        key = (row.node, session_id)
        if key in self._alive:
            self.violated(row.at_us, f"session {session_id} was created twice: the first one still lives")
        elif key in self._ever:
            self._repeats += 1
            if self._repeats > REPEATS_BY_CHANCE:
                explanation = (
                    f"session {session_id} was created twice: {self._repeats} IDs came again, more than by chance"
                )
                self.violated(row.at_us, explanation)
        self._alive[key] = self._ever[key] = None

    def _ended(self, row: TraceRow, session_id: int, fields: Mapping[str, Any]) -> None:  # noqa: ARG002
        self._alive.pop((row.node, session_id), None)
        cause = self._last_request.get(row.node)
        if row.what == "session_closed" and cause is not None and cause.session_id == session_id:
            self._closed_by[row.node, cause.connection] = session_id

    def _judge(self, row: TraceRow, closed: int) -> None:
        self.evidence += row.session_epoch > 0
        who = f"session {row.session_id} epoch {row.session_epoch} of {row.client_id}"
        known = (row.node, row.session_id) in self._alive
        if row.api_version in FIRST_REVISIONS:
            if row.error == INVALID_FETCH_SESSION and closed == row.session_id:
                self.violated(row.at_us, f"{who} was refused for its number, and that closed the session")
            elif row.error == 0 and not known and row.response_session_id == row.session_id:
                self.violated(row.at_us, f"{who} was served, but there is no such session")
            return
        if row.error == INVALID_EPOCH and closed == row.session_id:
            self.violated(row.at_us, f"{who} was refused for its epoch, and that closed the session")
        elif row.error == ID_NOT_FOUND and known and 1 <= row.session_epoch <= LARGEST_EPOCH:
            self.violated(row.at_us, f"{who} was refused as unknown, but nothing had closed or evicted it")
        elif row.error == 0 and row.response_session_id not in (0, row.session_id):
            self.violated(row.at_us, f"{who} got session {row.response_session_id}")
        elif row.error == 0 and row.response_session_id == 0 and known:
            self.violated(row.at_us, f"{who} got no session ID, although the session is still there")


CREATED = "session_created"
LIVES = (CREATED, "session_closed", "session_evicted")


class _Sent(NamedTuple):
    session_id: int
    epoch: int
    maker: str


class SessionLines(Check):
    """session-lines-exact: a node's log lines about fetch sessions contain their IDs and their creators.

    F-23: the lines of a fetch's request and of its response carry the session ID and the epoch (or number) of the
    request. The trace and the request log take both from the tag of the message, so the tag is compared with the
    message.

    G-2: a session stores its creator, which is a follower's number or a consumer's client ID. The lines of its creation
    and of its end contain it.
    """

    guarantee = "session-lines-exact"
    needs_one_node = True
    acts_on = (FETCH, (Send, FETCH), Closed, *LIVES)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._pending = PendingRequests[_Sent]()
        self._makers: dict[tuple[int, int], str] = {}
        """by node and session ID"""

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if event is None:
            self._pending.restarted(node_id)
            self._makers = without_node(self._makers, node_id)
        elif type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and isinstance(event.body, FetchRequest):
            request = self._read(at_us, event.body, event.tag, event.client_id)
            self._pending.add(node_id, event, request)
        made: dict[int, str] = {}
        for effect in effects:
            if type(effect) is Send and isinstance(effect.body, FetchRequest):
                self._read(at_us, effect.body, effect.tag, effect.client_id)
            elif type(effect) is Note and effect.what in LIVES:
                fields = dict(effect.fields)
                session_id, made_by = int(fields["session_id"]), str(fields.get("made_by", ""))
                if effect.what == CREATED:
                    made[session_id] = made_by
                else:
                    maker = self._makers.pop((node_id, session_id), None)
                    self._names(at_us, effect.what, session_id, made_by, maker)
            elif type(effect) is Reply and effect.api_key == FETCH:
                completed = self._pending.pop(node_id, effect)
                if completed is None:
                    continue
                self._compare(at_us, "response", completed, effect.tag)
                session_id = getattr(effect.body, "session_id", 0)
                if session_id in made:
                    self._makers[node_id, session_id] = completed.maker
                    self._names(at_us, CREATED, session_id, made.pop(session_id), completed.maker)

    def _read(self, at_us: int, body: FetchRequest, tag: Tag, client_id: str) -> _Sent:
        maker = str(body.replica_id) if body.replica_id >= 0 else client_id
        request = _Sent(body.session_id, body.session_epoch, maker)
        self._compare(at_us, "request", request, tag)
        return request

    def _compare(self, at_us: int, what: str, request: _Sent, tag: Tag) -> None:
        if (tag.session_id, tag.session_epoch) != request[:2]:
            logged, sent = (
                f"session {tag.session_id}, epoch {tag.session_epoch}",
                f"{request.session_id}, {request.epoch}",
            )
            self.violated(at_us, f"the line of {request.maker}'s {what} has {logged}; its request has {sent}")

    def _names(self, at_us: int, what: str, session_id: int, made_by: str, maker: str | None) -> None:
        """Judge whether ``made_by`` has the maker as a word of its own. ``maker`` is None without its request."""
        if maker is not None and not re.search(rf"(?<!\w){re.escape(maker)}(?!\w)", made_by):
            self.violated(at_us, f"{what} of session {session_id} says {made_by!r} made it; {maker} did")


INCREMENTAL = 1
IS_INCREMENTAL, MAY_FOLLOW = 1, 2
"""Bits 0 and 1 of the flags, as the page names them."""
INVALID_REQUEST = 42
ENDS = ("session_closed", "session_evicted")


@dataclass(slots=True)
class _FirstFetch:
    """A pending fetch of the first revision. ``may_follow`` is the flag of the session's last response when the request
    came, or None."""

    session_id: int
    incremental: bool
    may_follow: bool | None


class FirstRevisionResponses(Check):
    """first-revision-responses-exact: the flags and the error text of a response in the first revision are right (G-9).

    Bit 0 is set if and only if the request was incremental (G-4). Bit 1 is set if and only if the session accepts
    incremental requests; otherwise it denies them (G-10). The session ID is 0 if and only if the node closed the
    session or created none. An error of this revision has a text, and a response without an error has none.

    The node's notes show which sessions exist. Between a full request and its response it is unknown which requests may
    follow, since the request replaces all partitions of the session (G-4).
    """

    guarantee = "first-revision-responses-exact"
    needs_one_node = True
    acts_on = (FETCH, Closed, CREATED, *ENDS, type(None))

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._sessions: dict[tuple[int, int], bool | None] = {}
        """by node and session ID: whether incremental requests may follow by the last response, None if not known"""
        self._pending = PendingRequests[_FirstFetch]()
        self._processes: dict[int, Node] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id = node.broker.node_id
        if self._processes.get(node_id) is not node:
            self._processes[node_id] = node
            self._sessions = without_node(self._sessions, node_id)
            self._pending.restarted(node_id)
        if type(event) is Closed:
            self._pending.closed(node_id, event.connection)
        elif type(event) is Request and isinstance(event.body, FetchRequest) and event.api_version in FIRST_REVISIONS:
            session_id, incremental = event.body.session_id, event.body.fetch_type == INCREMENTAL
            if not incremental and (node_id, session_id) in self._sessions:
                self._sessions[node_id, session_id] = None
            request = _FirstFetch(session_id, incremental, self._sessions.get((node_id, session_id)))
            self._pending.add(node_id, event, request)
        for effect in effects:
            if type(effect) is Note and effect.what == CREATED:
                self._sessions[node_id, int(dict(effect.fields)["session_id"])] = None
            elif type(effect) is Note and effect.what in ENDS:
                self._sessions.pop((node_id, int(dict(effect.fields)["session_id"])), None)
            elif type(effect) is Reply and isinstance(effect.body, FetchResponse):
                completed = self._pending.pop(node_id, effect)
                if completed is not None:
                    for wrong in self._wrong(node_id, completed, effect.body):
                        who = f"{effect.tag.client_id}, session {completed.session_id}"
                        self.violated(at_us, f"node-{node_id} responded to {who}: {wrong}")

    def _wrong(self, node_id: int, request: _FirstFetch, response: FetchResponse) -> list[str]:
        """Return what is wrong with a response, and update the model."""
        wrong, flags, error = [], response.response_flags, response.error_code
        if bool(flags & IS_INCREMENTAL) != request.incremental or flags & ~(IS_INCREMENTAL | MAY_FOLLOW):
            wrong.append(f"flags {flags}, to {'an incremental' if request.incremental else 'a full'} request")
        own_errors = (INVALID_REQUEST, INVALID_FETCH_SESSION, INCREMENTAL_FETCH_DENIED)
        if (error in own_errors and not response.error_string) or (error == 0 and response.error_string):
            wrong.append(f"error {error} with the text {response.error_string!r}")
        key, session_id = (node_id, request.session_id), response.session_id
        if session_id and (node_id, session_id) not in self._sessions:
            wrong.append(f"session ID {session_id}, and there is no such session")
        if not session_id and request.session_id and key in self._sessions:
            wrong.append("session ID 0, and the session is still there")
        if flags & MAY_FOLLOW and not session_id:
            wrong.append("incremental requests may follow, without a session")
        before = self._sessions.get(key)
        if request.incremental and request.may_follow is not None and request.may_follow == before:
            if error == INCREMENTAL_FETCH_DENIED and before:
                wrong.append("an incremental request was denied, and the last response had invited it")
            if error == 0 and not before:
                wrong.append("an incremental request was served, and the last response had said that none may follow")
        if error == 0 and (node_id, session_id) in self._sessions:
            self._sessions[node_id, session_id] = bool(flags & MAY_FOLLOW)
        return wrong
