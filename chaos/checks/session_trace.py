"""Follows fetch sessions through a trace, for the checks that model them without a look into the broker."""

import json
from abc import abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from chaos.checks.check import Check
from chaos.checks.fetch_model import FETCH
from chaos.checks.history import without_node
from chaos.checks.surroundings import Surroundings
from reports.rows import TraceRow

LARGEST_EPOCH = 2**31 - 1


class SessionTrace(Check):
    """Base of the checks of sessions. All that it knows of a node ends with the node's process."""

    rows: ClassVar[tuple[str, ...]] = ("request", "reply", "session_created", "session_closed", "session_evicted")

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self._incarnations: dict[int, int] = {}

    def trace(self, row: TraceRow) -> None:
        if self._incarnations.get(row.node) != row.incarnation:
            self._incarnations[row.node] = row.incarnation
            self._restarted(row.node)
        if row.what == "request":
            self._request(row)
        elif row.what == "reply":
            if row.api_key == FETCH:  # A search of seeds makes no rows of other replies.
                self._reply(row)
        else:
            fields = json.loads(row.detail)
            if row.what == "session_created":
                self._created(row, fields["session_id"], fields)
            else:
                self._ended(row, fields["session_id"], fields)

    @abstractmethod
    def _restarted(self, node_id: int) -> None:
        """Forgets what it knows of the node, which has a new process."""

    def _request(self, row: TraceRow) -> None:
        """Takes in a request of any API."""

    def _reply(self, row: TraceRow) -> None:
        """Takes in the reply to a fetch."""

    @abstractmethod
    def _created(self, row: TraceRow, session_id: int, fields: dict[str, Any]) -> None:
        """Takes in that a session begins."""

    @abstractmethod
    def _ended(self, row: TraceRow, session_id: int, fields: dict[str, Any]) -> None:
        """Takes in that a session was closed or evicted."""


@dataclass(slots=True)
class Session:
    """``number`` is the epoch that it expects (final revision) or its last number (first revision). ``accepted`` counts
    the requests that it accepted."""

    number: int
    accepted: int = 0


@dataclass(slots=True)
class Pending:
    """A request not yet answered.

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

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
        self.sessions: dict[tuple[int, int], Session] = {}
        self._pending: dict[tuple[int, int], Pending] = {}
        """by node and connection"""

    @abstractmethod
    def _judges(self, row: TraceRow) -> bool:
        """Returns whether this fetch belongs to a session of the revision."""

    @abstractmethod
    def _asked(self, row: TraceRow, session: Session | None) -> None:
        """Takes in a request that it judges, and calls ``_await`` if the reply is to be judged."""

    @abstractmethod
    def _answered(self, row: TraceRow, pending: Pending) -> None:
        """Judges the reply."""

    def _await(self, row: TraceRow, session: Session | None, must: int, following: int) -> None:
        """Notes the request. If it must be accepted, its session's number becomes ``following``."""
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
            self._asked(row, self.sessions.get((row.node, row.session_id)))

    def _reply(self, row: TraceRow) -> None:
        pending = self._pending.pop((row.node, row.connection), None)
        if pending is not None:
            self.looked_at += row.session_id != 0 and row.session_epoch > 0
            self._answered(row, pending)

    def _created(self, row: TraceRow, session_id: int, fields: dict[str, Any]) -> None:  # noqa: ARG002
        number = self.FIRST_NUMBER + self.around.settings.first_session_epoch - 1
        self.sessions[row.node, session_id] = Session(number)

    def _ended(self, row: TraceRow, session_id: int, fields: dict[str, Any]) -> None:  # noqa: ARG002
        self.sessions.pop((row.node, session_id), None)

    def _restarted(self, node_id: int) -> None:
        self.sessions = without_node(self.sessions, node_id)
        self._pending = without_node(self._pending, node_id)
