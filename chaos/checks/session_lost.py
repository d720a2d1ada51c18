from typing import Any

from chaos.checks.fetch_model import FIRST_REVISIONS
from chaos.checks.history import without_node
from chaos.checks.sequence_order import INVALID_FETCH_SESSION
from chaos.checks.session_order import ID_NOT_FOUND, INVALID_EPOCH
from chaos.checks.session_trace import LARGEST_EPOCH, SessionTrace
from chaos.checks.surroundings import Surroundings
from reports.rows import TraceRow

REPEATS_BY_CHANCE = 1
"""Of n random IDs of 31 bits two are equal with a probability of about n^2/2^32: 1 in 7,000 for 787 sessions. Two
pairs are with about half the square of that: 1 in 90 million."""


class SessionLost(SessionTrace):
    """session-lost: a session that was created stays known until it is closed or evicted, and its answers carry its ID.

    A session is lost if its ID is refused as unknown although nothing ended it, if an accepted request is answered with
    the ID of another session, or if a wrong epoch closes it (F-7, F-9, F-10). A session gets no ID of one that lives,
    and that of one that has ended only by chance (F-2). A full fetch is answered with the ID of a new session or with
    0, and always with 0 if it wants none (F-4 to F-6, F-8).

    Knows the sessions by node and ID.
    """

    guarantee = "session-lost"

    def __init__(self, around: Surroundings) -> None:
        super().__init__(around)
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
        answered = row.answered_session_id
        if answered == 0:
            return  # F-5, F-6: the broker may decline.
        who = f"a full fetch of {row.client_id} with session {row.session_id} and epoch {row.session_epoch}"
        if row.session_epoch == -1:
            self.violated(row.at_us, f"{who} wants no session and was answered with session {answered}")
        elif answered == row.session_id or (row.node, answered) not in self._alive:
            self.violated(row.at_us, f"{who} was answered with session {answered}, which is not new")

    def _restarted(self, node_id: int) -> None:
        self._alive = without_node(self._alive, node_id)
        self._ever = without_node(self._ever, node_id)
        self._closed_by = without_node(self._closed_by, node_id)
        self._last_request.pop(node_id, None)

    def _created(self, row: TraceRow, session_id: int, fields: dict[str, Any]) -> None:  # noqa: ARG002
        key = (row.node, session_id)
        if key in self._alive:
            self.violated(row.at_us, f"session {session_id} was created twice: the first one still lives")
        elif key in self._ever:
            self._repeats += 1
            if self._repeats > REPEATS_BY_CHANCE:
                story = f"session {session_id} was created twice: {self._repeats} IDs came again, more than by chance"
                self.violated(row.at_us, story)
        self._alive[key] = self._ever[key] = None

    def _ended(self, row: TraceRow, session_id: int, fields: dict[str, Any]) -> None:  # noqa: ARG002
        self._alive.pop((row.node, session_id), None)
        cause = self._last_request.get(row.node)
        if row.what == "session_closed" and cause is not None and cause.session_id == session_id:
            self._closed_by[row.node, cause.connection] = session_id

    def _judge(self, row: TraceRow, closed: int) -> None:
        self.looked_at += row.session_epoch > 0
        who = f"session {row.session_id} epoch {row.session_epoch} of {row.client_id}"
        known = (row.node, row.session_id) in self._alive
        if row.api_version in FIRST_REVISIONS:
            if row.error == INVALID_FETCH_SESSION and closed == row.session_id:
                self.violated(row.at_us, f"{who} was refused for its number, and that closed the session")
            elif row.error == 0 and not known and row.answered_session_id == row.session_id:
                self.violated(row.at_us, f"{who} was served, but there is no such session")
            return
        if row.error == INVALID_EPOCH and closed == row.session_id:
            self.violated(row.at_us, f"{who} was refused for its epoch, and that closed the session")
        elif row.error == ID_NOT_FOUND and known and 1 <= row.session_epoch <= LARGEST_EPOCH:
            self.violated(row.at_us, f"{who} was answered as unknown, but nothing had closed or evicted it")
        elif row.error == 0 and row.answered_session_id not in (0, row.session_id):
            self.violated(row.at_us, f"{who} was answered with session {row.answered_session_id}")
        elif row.error == 0 and row.answered_session_id == 0 and known:
            self.violated(row.at_us, f"{who} was answered without its ID, although the session is still there")
