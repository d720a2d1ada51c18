"""Fetch in the first revision of its sessions (``sessions.first_revision``): the private drafts 1000 and 1002.

* Its sessions are in the same slots as those of the final revision.
* A request that is repeated with its sequence number gets a response again, with at least the partitions of its first
  one.
* The response to a full request is in the request's order.
* A top-level error has the ID of the session while that exists.
* Records that a reader may not read yet count as beyond the log end.
* v1002 is for followers, which name topic IDs and epochs and get the offsets where their logs diverge.

``k01_fetch`` has what holds in all versions. ``FirstRevisionFetch`` has what differs while a request is served.
"""

from collections.abc import Callable
from dataclasses import dataclass

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.records.fetch import Fetch
from reference_broker.apis.records.fetch_partition import Lookup
from reference_broker.ports.slicing import Sliced
from reference_broker.sessions.fetch_session import CachedPartition, SessionFetch
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.sessions.first_revision import FirstRevisionSession
from reference_broker.wire.errors import DraftError, Error, ErrorCode, known_error
from reference_broker.wire.fetch import (
    FULL_FETCH,
    INCREMENTAL_FETCH,
    INCREMENTAL_FETCH_RESPONSE,
    FetchRequest,
    FetchResponse,
)


def fetch_first(
    broker: Broker, call: Call, request: FetchRequest, again: Callable[[], FetchResponse | None]
) -> FetchResponse | None:
    """Begin a fetch. ``again`` handles the request once more, after the parked fetch of its session has ended."""
    sessions = broker.fetch_sessions
    named_session = sessions.find(request.session_id, FirstRevisionSession)
    if request.fetch_type == FULL_FETCH:
        if request.session_epoch != 0 or (request.session_id != 0 and named_session is None):
            sessions.count_not_found()
            return error_response(DraftError.INVALID_FETCH_SESSION, request, named_session)
        return _fetch_all(broker, call, request, named_session, again)
    if request.fetch_type != INCREMENTAL_FETCH:
        return error_response(ErrorCode.invalid_request, request, named_session)
    session = _lookup(sessions, request, named_session)
    if not isinstance(session, FirstRevisionSession):
        return error_response(session, request, named_session)
    if not _caches_all(session, request):
        return error_response(ErrorCode.invalid_request, request, session)
    if session.fetch is not None:
        is_repeated = session.has_parked(request.session_epoch)
        if not _end_parked(sessions, session, session.fetch, is_repeated=is_repeated):
            return again()
    sessions.accept(session, request.session_epoch, broker.now)
    fetch = FirstRevisionFetch(broker, call, session, request)
    fetch.start()
    return None


def _fetch_all(
    broker: Broker,
    call: Call,
    request: FetchRequest,
    session: FirstRevisionSession | None,
    again: Callable[[], FetchResponse | None],
) -> FetchResponse | None:
    """Make a new session if there is none and there is room. Otherwise replace the partitions of the session, which
    keeps its ID and its number. Full requests have no number, so that an equal one is a repeated one."""
    sessions = broker.fetch_sessions
    if session is None:  # Decision first-full-session
        session = candidate_of(broker, call, request)
    else:
        if session.fetch is not None:
            is_repeated = isinstance(session.fetch, Fetch) and session.fetch.request == request
            if not _end_parked(sessions, session, session.fetch, is_repeated=is_repeated):
                return again()
        sessions.forget_refusal()
        sessions.unregister(session.accept_full(broker.now))
    fetch = FirstRevisionFetch(broker, call, session, request)
    fetch.start()
    return None


def candidate_of(broker: Broker, call: Call, request: FetchRequest) -> FirstRevisionSession:
    """Make the session that a full fetch works on. The request may name topic IDs, but the session is by name."""
    candidate = FirstRevisionSession(
        broker.fetch_sessions.arrivals,
        uses_topic_ids=False,
        privileged=request.replica_id >= 0,
        client_id=call.client_id,
        replica_id=request.replica_id,
        min_eviction_ms=broker.config.min_incremental_fetch_session_eviction_ms,
    )
    candidate.touch(broker.now)
    return candidate


def _lookup(
    sessions: FetchSessionCache, request: FetchRequest, named_session: FirstRevisionSession | None
) -> FirstRevisionSession | Error:
    """Return the session of an incremental request, or a top-level error."""
    # Decision session-denied
    if named_session is not None and named_session.denied and named_session.is_epoch(request.session_epoch):
        return DraftError.INCREMENTAL_FETCH_DENIED
    return sessions.lookup(request.session_id, request.session_epoch, FirstRevisionSession)


def _caches_all(session: FirstRevisionSession, request: FetchRequest) -> bool:
    """Whether the session caches all partitions that the request names. For MAX_NAMED_PARTITIONS this takes 5 ms."""
    cached, with_ids = session.partitions, session.uses_topic_ids
    for topic in request.topics:
        name = topic.topic_id if with_ids else topic.topic
        for requested in topic.partitions:
            if (name, requested.partition) not in cached:
                return False
    return True


def _end_parked(
    sessions: FetchSessionCache, session: FirstRevisionSession, parked: SessionFetch, *, is_repeated: bool
) -> bool:
    """End the parked fetch of a session that gets another request. Return whether the session may accept that now.

    If the request is a repeated one, the parked fetch gets its response now with the data that there is, since either
    of the two responses may be the one that arrives (G-3). It may go on in later events then, or a bug in it may close
    the session.
    """
    if is_repeated:  # Decision overtaken-fetch
        parked.respond()
    else:
        sessions.overtake(session, parked)
    # Decision request-behind-parked
    return not session.has_unfinished_fetch and sessions.sessions.get(session.session_id) is session


@dataclass(slots=True, eq=False)
class FirstRevisionFetch(Fetch):
    """One accepted fetch of this revision."""

    # The methods call those of Fetch by its name: super() needs the class that slots=True replaces.

    session: FirstRevisionSession

    def _update_session(self) -> Sliced[None]:
        """Update the session by the partitions that the request names. Nothing is forgotten in this revision."""
        if self.request.topics:
            yield from self._update_partitions()
        if self.session.session_id:
            self.broker.fetch_sessions.resized(self.session)

    # ``FirstRevisionSession.sent`` compares what was readable with what was sent.

    def _store_lookup(self, cached: CachedPartition, lookup: Lookup) -> None:
        self.session.readable_bytes[cached] = lookup.unlimited_bytes
        Fetch._store_lookup(self, cached, lookup)

    def _lookup_to_read(self, cached: CachedPartition) -> Lookup:
        lookup = Fetch._lookup_to_read(self, cached)
        self.session.readable_bytes[cached] = lookup.unlimited_bytes
        return lookup

    def _keep_session(self) -> bool:
        """Return whether the session caches the fetched partitions after the response. Every full fetch wants a session
        here. One of too many partitions caches nothing, and denies incremental fetches."""
        session, sessions = self.session, self.broker.fetch_sessions
        if session.session_id:
            if session.serves_full and sessions.is_too_large(session):
                self._deny()
        # Decision large-newcomer
        elif not sessions.admit(session, self.broker.now) and len(sessions.sessions) < sessions.slots:
            self._deny()
            sessions.admit(session, self.broker.now)
        return session.session_id != 0 and not session.denied

    def _deny(self) -> None:
        sessions = self.broker.fetch_sessions
        sessions.unregister(self.session.deny())
        sessions.resized(self.session)

    def _error_response(self, error_code: int) -> FetchResponse:
        named_session = self.broker.fetch_sessions.find(self.session.session_id, FirstRevisionSession)
        return error_response(known_error(error_code), self.request, named_session)


def error_response(error: Error, request: FetchRequest, session: FirstRevisionSession | None) -> FetchResponse:
    """Return a response with a top-level error. ``session`` is the one that the request names, if it exists: an error
    has its ID then."""
    flags, session_id = INCREMENTAL_FETCH_RESPONSE if request.fetch_type == INCREMENTAL_FETCH else 0, 0
    if session is not None:
        flags, session_id = flags | session.ok_flag(), session.session_id
    return FetchResponse(int(error), session_id, error_string=_TEXTS.get(error), response_flags=flags)


_TEXTS: dict[Error, str] = {
    DraftError.INVALID_FETCH_SESSION: "No such fetch session, or a sequence number that is not valid for it.",
    DraftError.INCREMENTAL_FETCH_DENIED: "This session takes full fetches only.",
    ErrorCode.invalid_request: "A partition outside the session, too many partitions, or an unknown fetch type.",
}
"""The error texts, which the final revision lacks."""
