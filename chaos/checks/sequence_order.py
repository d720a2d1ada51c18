from chaos.checks.fetch_model import FIRST_REVISIONS
from chaos.checks.session_trace import OrderTrace, Pending, Session
from reports.rows import TraceRow

INVALID_FETCH_SESSION = 10001
INCREMENTAL_FETCH_DENIED = 10002
ERRORS_THAT_CHANGE_NOTHING = (42, INCREMENTAL_FETCH_DENIED)
"""INVALID_REQUEST for a partition that the session does not hold; IncrementalFetchDenied."""


class SequenceOrder(OrderTrace):
    """session-epoch-order in the first revision: a session accepts the number after the last one, or the last one
    again.

    The check has a model of its own, as small as the clauses G-3, G-4 and G-10 allow. An incremental request with the
    next number proves that the client has processed the last answer. One with the last number is a retransmission. All
    others are refused with InvalidFetchSession and change nothing. A full request with a session's ID keeps the
    session's number.

    There are two exceptions. A request that waits is refused when a later one overtakes it in its session: by G-3 the
    client proves that it no longer waits for it. It is refused as well when its session ends (G-10). A retransmission
    is no such proof, so both it and the request that waits must be answered.

    A session's number is that of its last incremental request, or 0 if there was none.
    """

    guarantee = "session-epoch-order"
    FIRST_NUMBER = 0

    def _judges(self, row: TraceRow) -> bool:
        return row.api_version in FIRST_REVISIONS and (row.session_id != 0 or row.session_epoch != 0)

    def _asked(self, row: TraceRow, session: Session | None) -> None:
        if row.session_epoch == 0:
            if session is not None:
                session.accepted += 1  # A full request overtakes one that still waits.
            return
        follows = session is not None and row.session_epoch in (session.number, session.number + 1)
        self._await(row, session, 0 if follows else INVALID_FETCH_SESSION, row.session_epoch)

    def _answered(self, row: TraceRow, pending: Pending) -> None:
        session = pending.session
        if pending.must == 0 and session is not None:
            overtaken = session.accepted > pending.place
            if row.error in ERRORS_THAT_CHANGE_NOTHING and not overtaken:
                session.number = pending.before
            if row.error in (0, *ERRORS_THAT_CHANGE_NOTHING):
                return
            if row.error == INVALID_FETCH_SESSION and (overtaken or self._has_ended(row, session)):
                return
        elif row.error in (INVALID_FETCH_SESSION, INCREMENTAL_FETCH_DENIED):
            return  # G-4: a session whose last full answer had the OK bit clear denies any number.
        self.violated(
            row.at_us,
            f"session {row.session_id} number {row.session_epoch} of {row.client_id} on connection {row.connection} "
            f"came after number {pending.before} and was answered with error {row.error}",
        )
