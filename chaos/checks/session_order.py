from chaos.checks.fetch_model import FIRST_REVISIONS
from chaos.checks.session_trace import LARGEST_EPOCH, OrderTrace, Pending, Session
from reports.rows import TraceRow

ID_NOT_FOUND = 70
INVALID_EPOCH = 71
TOPIC_ID_ERROR = 106


class SessionOrder(OrderTrace):
    """session-epoch-order: a session accepts the epoch that it expects, and refuses any other.

    The check has a model of its own, as small as the clauses F-3, F-7, F-9 and F-10 allow. A new session expects epoch
    1. Each accepted request raises that by one, and 1 follows 2^31-1. A wrong epoch gets INVALID_FETCH_SESSION_EPOCH
    and changes nothing. There are three exceptions for a request with the right epoch:
    - One that waits gets INVALID_FETCH_SESSION_EPOCH when a later request overtakes it in its session: by F-3 only the
      later epoch's answer counts.
    - One that waits gets FETCH_SESSION_ID_NOT_FOUND when its session ends (F-9).
    - One that names topics by ID in a session of names, or the other way round, gets FETCH_SESSION_TOPIC_ID_ERROR and
      changes nothing (Kafka, KIP-516).

    A session's number is the epoch that it expects.
    """

    guarantee = "session-epoch-order"

    def _judges(self, row: TraceRow) -> bool:
        return row.api_version not in FIRST_REVISIONS and row.session_epoch not in (0, -1)  # F-4, F-5: a full fetch.

    def _asked(self, row: TraceRow, session: Session | None) -> None:
        if session is None or not 1 <= row.session_epoch <= LARGEST_EPOCH:
            must = ID_NOT_FOUND
        else:
            must = 0 if row.session_epoch == session.number else INVALID_EPOCH
        self._await(row, session, must, 1 if row.session_epoch == LARGEST_EPOCH else row.session_epoch + 1)

    def _answered(self, row: TraceRow, pending: Pending) -> None:
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
            f"session {row.session_id} epoch {row.session_epoch} of {row.client_id} on connection {row.connection} was "
            f"answered with error {row.error}, not {pending.must}",
        )
