"""A model of each fetch session, fed with a trace. The checks of both revisions' orders share it."""

import json
from abc import abstractmethod
from typing import Generic, TypeVar

from chaos.checks.check import Check
from reports.rows import TraceRow

FETCH = 1
FIRST_REVISION = 1000
"""Version of Fetch with an order of its own."""

Session = TypeVar("Session")
Pending = TypeVar("Pending")


class SessionTrace(Check, Generic[Session, Pending]):
    """``_sessions`` is by node and session ID. ``_pending`` holds requests not yet answered, by node and connection."""

    rows = ("request", "reply", "session_created", "session_closed", "session_evicted")

    def __init__(self) -> None:
        super().__init__()
        self._sessions: dict[tuple[int, int], Session] = {}
        self._pending: dict[tuple[int, int], Pending] = {}
        self._incarnations: dict[int, int] = {}

    @abstractmethod
    def _created(self) -> Session:
        """Returns a session as it begins."""

    @abstractmethod
    def _judges(self, row: TraceRow) -> bool:
        """Returns whether this fetch belongs to a session of the revision."""

    @abstractmethod
    def _request(self, row: TraceRow) -> None:
        """Takes in a request that it judges."""

    @abstractmethod
    def _reply(self, row: TraceRow, pending: Pending) -> None:
        """Takes in the reply to a request that it judges."""

    def trace(self, row: TraceRow) -> None:
        if self._incarnations.get(row.node) != row.incarnation:
            self._restarted(row)
        if row.what == "request":
            if row.api_key == FETCH and self._judges(row):
                self._request(row)
        elif row.what == "reply":
            pending = self._pending.pop((row.node, row.connection), None)
            if pending is not None:
                self._reply(row, pending)
        elif row.what == "session_created":
            self._sessions[row.node, json.loads(row.detail)["session_id"]] = self._created()
        elif row.what in ("session_closed", "session_evicted"):
            self._sessions.pop((row.node, json.loads(row.detail)["session_id"]), None)

    def _restarted(self, row: TraceRow) -> None:
        self._incarnations[row.node] = row.incarnation
        self._sessions = {key: value for key, value in self._sessions.items() if key[0] != row.node}
        self._pending = {key: value for key, value in self._pending.items() if key[0] != row.node}
