"""session-epoch-order in the first revision: a session accepts the number after the last one, or the last one again.

This is a model of its own, as small as G-3, G-4 and G-10 allow. An incremental request with the next number proves that
the answer before it was processed. One with the last number is a retransmission. All others are refused with
InvalidFetchSession and change nothing. A full request with a session's ID keeps the session's number.
"""

from dataclasses import dataclass
from typing import Self

from chaos.checks.session_trace import FIRST_REVISION, SessionTrace
from chaos.checks.surroundings import Surroundings
from reports.rows import TraceRow

INVALID_FETCH_SESSION = 10001
ERRORS_THAT_CHANGE_NOTHING = (42, 10002)
"""INVALID_REQUEST for a partition that the session does not hold; IncrementalFetchDenied."""


@dataclass(slots=True)
class _Session:
    last: int
    accepted: int = 0


@dataclass(slots=True)
class _Pending:
    """A request not yet answered. ``must`` says whether it must be accepted. ``before`` is the last number then."""

    must: bool
    session: _Session | None
    number: int
    before: int


class SequenceOrder(SessionTrace[_Session, _Pending]):
    """``first_number`` is that of a session's first incremental request: 1, unless a preset sets it."""

    guarantee = "session-epoch-order"

    def __init__(self, first_number: int = 1) -> None:
        super().__init__()
        self._first_number = first_number

    @classmethod
    def made(cls, around: Surroundings) -> Self:
        return cls(around.settings.first_session_epoch)

    def _created(self) -> _Session:
        return _Session(self._first_number - 1)

    def _judges(self, row: TraceRow) -> bool:
        return row.api_version == FIRST_REVISION and row.session_id != 0

    def _request(self, row: TraceRow) -> None:
        session = self._sessions.get((row.node, row.session_id))
        if row.session_epoch == 0:
            if session is not None:
                session.accepted += 1  # A full request overtakes one that still waits.
            return
        before = session.last if session is not None else 0
        must = session is not None and row.session_epoch in (before, before + 1)
        if must and session is not None:
            session.last = row.session_epoch
            session.accepted += 1
        number = session.accepted if session is not None else 0
        self._pending[row.node, row.connection] = _Pending(must, session, number, before)

    def _reply(self, row: TraceRow, pending: _Pending) -> None:
        session = pending.session
        refused = row.error == INVALID_FETCH_SESSION
        if pending.must and session is not None:
            overtaken = session.accepted > pending.number
            ended = self._sessions.get((row.node, row.session_id)) is not session
            if row.error in ERRORS_THAT_CHANGE_NOTHING and not overtaken:
                session.last = pending.before
            if not refused or overtaken or ended:
                return
        elif refused or (session is None and row.error):
            return
        self.violated(
            row.at_us,
            f"session {row.session_id} number {row.session_epoch} of {row.client_id} on connection {row.connection} "
            f"came after number {pending.before} and was answered with error {row.error}",
        )
