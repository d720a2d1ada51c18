"""session-lost: a session that was created stays known until it is closed or evicted, and its answers carry its ID.

A session is lost if its ID is refused as unknown although nothing ended it, if an accepted request is answered with the
ID of another session, or if a wrong epoch closes it (F-7, F-9, F-10). No ID comes twice (F-2).
"""

import json

from chaos.checks.check import Check
from reports.rows import TraceRow

FETCH = 1
ID_NOT_FOUND = 70
INVALID_EPOCH = 71
FIRST_REVISION = 1000
INVALID_FETCH_SESSION = 10001
LARGEST_EPOCH = 2**31 - 1


class SessionLost(Check):
    guarantee = "session-lost"
    rows = ("request", "reply", "session_created", "session_closed", "session_evicted")

    def __init__(self) -> None:
        super().__init__()
        self._alive: dict[tuple[int, int], None] = {}
        self._incarnations: dict[int, int] = {}
        self._last_request: dict[int, TraceRow] = {}
        self._closed_by: dict[tuple[int, int], int] = {}
        self._ever: dict[tuple[int, int], None] = {}

    def trace(self, row: TraceRow) -> None:
        if self._incarnations.get(row.node) != row.incarnation:
            self._restarted(row)
        if row.what == "request":
            self._last_request[row.node] = row
        elif row.what == "session_created":
            self._created(row)
        elif row.what in ("session_evicted", "session_closed"):
            self._ended(row)
        elif row.what == "reply" and row.api_key == FETCH and row.session_id != 0:
            closed = self._closed_by.pop((row.node, row.connection), 0)
            if row.session_epoch not in (0, -1):
                self._reply(row, closed)

    def _restarted(self, row: TraceRow) -> None:
        self._incarnations[row.node] = row.incarnation
        self._alive = {key: None for key in self._alive if key[0] != row.node}
        self._closed_by = {key: each for key, each in self._closed_by.items() if key[0] != row.node}
        self._ever = {key: None for key in self._ever if key[0] != row.node}
        self._last_request.pop(row.node, None)

    def _created(self, row: TraceRow) -> None:
        key = (row.node, json.loads(row.detail)["session_id"])
        self._alive[key] = None
        if key in self._ever:
            self.violated(row.at_us, f"session {key[1]} was created twice: an ID means one session for good")
        self._ever[key] = None

    def _ended(self, row: TraceRow) -> None:
        session_id = json.loads(row.detail)["session_id"]
        self._alive.pop((row.node, session_id), None)
        cause = self._last_request.get(row.node)
        if row.what == "session_closed" and cause is not None and cause.session_id == session_id:
            self._closed_by[row.node, cause.connection] = session_id

    def _reply(self, row: TraceRow, closed: int) -> None:
        who = f"session {row.session_id} epoch {row.session_epoch} of {row.client_id}"
        known = (row.node, row.session_id) in self._alive
        if row.api_version == FIRST_REVISION:
            if row.error == INVALID_FETCH_SESSION and closed == row.session_id:
                self.violated(row.at_us, f"{who} was refused for its number, and the session was closed for that")
            elif row.error == 0 and not known and row.answered_session_id == row.session_id:
                self.violated(row.at_us, f"{who} was served, but there is no such session")
            return
        if row.error == INVALID_EPOCH and closed == row.session_id:
            self.violated(row.at_us, f"{who} was refused for its epoch, and the session was closed for that")
        elif row.error == ID_NOT_FOUND and known and 1 <= row.session_epoch <= LARGEST_EPOCH:
            self.violated(row.at_us, f"{who} was answered as unknown, but nothing had closed or evicted it")
        elif row.error == 0 and row.answered_session_id not in (0, row.session_id):
            self.violated(row.at_us, f"{who} was answered with session {row.answered_session_id}")
        elif row.error == 0 and row.answered_session_id == 0 and known:
            self.violated(row.at_us, f"{who} was answered without its ID, although the session is still there")
