"""Fetch in the first revision of its sessions (``sessions.first_revision``): the private drafts 1000 and 1002.

* Its sessions are in the same slots as those of the final revision.
* A request that is repeated with its sequence number gets a response again, with at least the partitions of its first
  one.
* The response to a full request is in the request's order.
* A top-level error has the ID of the session while that exists.
* Records that a reader may not read yet count as beyond the log end.
* v1002 is for followers, which name topic IDs and epochs and get the offsets where their logs diverge.

``k01_fetch`` has what holds in all versions.
"""

from collections.abc import Callable

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.records.fetch import Fetch
from reference_broker.sessions.fetch_session import FetchSession
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.sessions.first_revision import FirstRevisionSession
from reference_broker.wire.errors import DraftError, Error, ErrorCode
from reference_broker.wire.fetch import FULL_FETCH, INCREMENTAL_FETCH, FetchRequest, FetchResponse


def fetch_first(
    broker: Broker, call: Call, request: FetchRequest, again: Callable[[], FetchResponse | None]
) -> FetchResponse | None:
    """Begin a fetch. ``again`` handles the request once more, after the parked fetch of its session has ended."""
    sessions = broker.fetch_sessions
    revision, named = sessions.first, sessions.sessions.get(request.session_id)
    if not isinstance(named, FirstRevisionSession):
        named = None
    if request.fetch_type == FULL_FETCH:
        if request.session_epoch != 0 or (request.session_id != 0 and named is None):
            sessions.count_not_found()
            return revision.error_response(DraftError.INVALID_FETCH_SESSION, request, named)
        return _fetch_all(broker, call, request, named, again)
    if request.fetch_type != INCREMENTAL_FETCH:
        return revision.error_response(ErrorCode.invalid_request, request, named)
    session = _lookup(sessions, request)
    if not isinstance(session, FirstRevisionSession):
        return revision.error_response(session, request, named)
    if not _caches_all(session, request):
        return revision.error_response(ErrorCode.invalid_request, request, session)
    is_repeated = session.has_parked(request.session_epoch)
    if not sessions.accept(session, request.session_epoch, broker.now, repeats=is_repeated):
        return again()
    fetch = Fetch(broker, call, session, request)
    fetch.run(fetch.serve_full() if request.topics else fetch.serve())
    return None


def _fetch_all(
    broker: Broker,
    call: Call,
    request: FetchRequest,
    session: FirstRevisionSession | None,
    again: Callable[[], FetchResponse | None],
) -> FetchResponse | None:
    """Make a new session if there is none and there is room. Otherwise replace the partitions of the session."""
    sessions = broker.fetch_sessions
    # Decision first-full-session (G-4): newcomer | partitions replaced
    if session is None:
        candidate = sessions.candidate(call.client_id, request.replica_id, False, sessions.first)
        candidate.touch(broker.now)
        fetch = Fetch(broker, call, candidate, request)
    else:
        repeats = isinstance(session.fetch, Fetch) and session.fetch.request == request
        if not sessions.accept_full(session, repeats, broker.now):
            return again()
        fetch = Fetch(broker, call, session, request)
    fetch.run(fetch.serve_full())
    return None


def _lookup(sessions: FetchSessionCache, request: FetchRequest) -> FirstRevisionSession | Error:
    """Return the session of an incremental request, or a top-level error."""
    session = sessions.lookup_in_revision(request.session_id, request.session_epoch, sessions.first)
    assert not isinstance(session, FetchSession) or isinstance(session, FirstRevisionSession), "of another revision"
    return session


def _caches_all(session: FetchSession, request: FetchRequest) -> bool:
    """Whether the session caches all partitions that the request names. For MAX_NAMED_PARTITIONS this takes 5 ms."""
    cached, with_ids = session.partitions, session.uses_topic_ids
    for topic in request.topics:
        name = topic.topic_id if with_ids else topic.topic
        for requested in topic.partitions:
            if (name, requested.partition) not in cached:
                return False
    return True
