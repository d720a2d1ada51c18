"""session-epoch-order: a session's accepted epochs follow one another; the right one is accepted, any other refused.

This is a model of its own, as small as the clauses F-3, F-7, F-9 and F-10 allow. A new session expects epoch 1, and
each accepted request moves that on (2^31-1 to 1). A wrong epoch gets INVALID_FETCH_SESSION_EPOCH and changes
nothing. There is one exception: a right request that waits gets an error when a later one overtakes it in its session.
"""

from dataclasses import dataclass
from typing import Self

from chaos.checks.session_trace import FIRST_REVISION, SessionTrace
from chaos.checks.surroundings import Surroundings
from reports.rows import TraceRow

ID_NOT_FOUND = 70
INVALID_EPOCH = 71
TOPIC_ID_ERROR = 106
LARGEST_EPOCH = 2**31 - 1


@dataclass(slots=True)
class _Session:
    expects: int
    accepted: int = 0


@dataclass(slots=True)
class _Pending:
    """A request not yet answered. ``must`` is the error that it must get, 0 if it must be accepted. ``number`` is
    its place among the session's accepted requests."""

    must: int
    session: _Session | None
    number: int
    epoch: int


class SessionOrder(SessionTrace[_Session, _Pending]):
    """``first_epoch`` is what a session expects when it is created: 1, unless a preset sets it."""

    guarantee = "session-epoch-order"

    def __init__(self, first_epoch: int = 1) -> None:
        super().__init__()
        self._first_epoch = first_epoch

    @classmethod
    def made(cls, around: Surroundings) -> Self:
        return cls(around.settings.first_session_epoch)

    def _created(self) -> _Session:
        return _Session(self._first_epoch)

    def _judges(self, row: TraceRow) -> bool:
        return row.api_version != FIRST_REVISION and row.session_id != 0 and row.session_epoch not in (0, -1)

    def _request(self, row: TraceRow) -> None:
        session = self._sessions.get((row.node, row.session_id))
        if session is None or not 1 <= row.session_epoch <= LARGEST_EPOCH:
            must = ID_NOT_FOUND
        elif row.session_epoch != session.expects:
            must = INVALID_EPOCH
        else:
            must = 0
            session.expects = 1 if session.expects == LARGEST_EPOCH else session.expects + 1
            session.accepted += 1
        number = session.accepted if session is not None else 0
        self._pending[row.node, row.connection] = _Pending(must, session, number, row.session_epoch)

    def _reply(self, row: TraceRow, pending: _Pending) -> None:
        if row.error == pending.must:
            return
        session = pending.session
        if pending.must == 0 and session is not None:
            overtaken = session.accepted > pending.number
            ended = self._sessions.get((row.node, row.session_id)) is not session
            if row.error == INVALID_EPOCH and overtaken:
                return
            if row.error == ID_NOT_FOUND and ended:
                return
            if row.error == TOPIC_ID_ERROR and not overtaken:
                session.expects, session.accepted = pending.epoch, session.accepted - 1
                return
            if row.error not in (ID_NOT_FOUND, INVALID_EPOCH):
                return
        self.violated(
            row.at_us,
            f"session {row.session_id} epoch {row.session_epoch} of {row.client_id} on connection {row.connection} was "
            f"answered with error {row.error}, not {pending.must}",
        )
