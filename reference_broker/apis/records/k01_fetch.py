"""Fetch: reads from many partitions at once, and incremental fetch sessions (KIP-227, both revisions)."""

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.records.fetch_answer import refusal
from reference_broker.apis.records.fetch_waiting import Fetch
from reference_broker.quorum.offset_and_epoch import METADATA_TOPIC_ID
from reference_broker.sessions.fetch_session import FetchSession
from reference_broker.sessions.fetch_session_cache import MAX_SESSION_PARTITIONS
from reference_broker.sessions.final_revision import FINAL_EPOCH, FULL_EPOCH
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, ApiKey
from reference_broker.wire.errors import Error
from reference_broker.wire.fetch import FULL_FETCH, INCREMENTAL_FETCH, NO_TOPIC_ID, FetchRequest, FetchResponse

TOPIC_IDS_FROM = 13
"""The version from which topics are named by ID (KIP-516)."""

MAX_NAMED_PARTITIONS = MAX_SESSION_PARTITIONS
"""A request that names more is refused, since it would keep the node from everybody else for seconds."""

CARD = Card(
    api_key=ApiKey.FETCH,
    min_version=4,
    max_version=18,
    behaviour="Slices of the log, never decoded. An incremental fetch costs what changed and what is sent. A partition "
    "in error rides in each incremental answer, but ends a wait only when the error is new, has changed or was asked "
    "for (Kafka answers each such fetch at once, in a loop). A newer request of the same session answers one that "
    "still waits with INVALID_FETCH_SESSION_EPOCH, a closed or evicted session with FETCH_SESSION_ID_NOT_FOUND. A "
    "response that its limit cuts short ends at the first batch that does not fit what is left. The full response that "
    "opens a session moves what it sent to the end of the list, as any other does. A deleted topic's ID is unknown in "
    "a session, too. Version 1000 is KIP-227's first revision, beside the final one and in the same slots: a request "
    "sent again with its sequence number is answered again, with at least the partitions of its first answer; a full "
    "one is answered in its own order; an error rides as in the final revision; a follower says topic IDs, too; what "
    "a reader cannot read yet counts as being at the log end.",
    simplifications="No quotas, no preferred read replica; the aborted list is empty until transactions are served.",
    kips=(74, 98, 227, 320, 392, 516, 951),
)


def is_metadata_fetch(body: object) -> bool:
    """A replica of the metadata log reads it, by its topic ID; that is the quorum's to answer."""
    return isinstance(body, FetchRequest) and len(body.topics) == 1 and body.topics[0].topic_id == METADATA_TOPIC_ID


def handle(broker: Broker, call: Call, body: object) -> FetchResponse | None:
    """A top-level error stands for every partition; its session ID is 0."""
    assert isinstance(body, FetchRequest)
    if is_metadata_fetch(body):
        broker.quorum.handle_fetch(body, call.respond)
        return None
    if sum(len(topic.partitions) for topic in body.topics) > MAX_NAMED_PARTITIONS:
        if call.api_version < FIRST_DRAFT_VERSION:
            return FetchResponse(int(Error.INVALID_REQUEST))
        return refusal(Error.INVALID_REQUEST, body, _named_first(broker, call, body))
    if call.api_version >= FIRST_DRAFT_VERSION:
        return _fetch_first(broker, call, body)
    if body.session_epoch in (FULL_EPOCH, FINAL_EPOCH):
        return _fetch_all(broker, call, body)
    return _fetch_news(broker, call, body)


def _fetch_all(broker: Broker, call: Call, request: FetchRequest) -> FetchResponse | None:
    """Full: every named partition is answered. Closes the session that it names, if there is one."""
    sessions = broker.fetch_sessions
    creates = request.session_epoch == FULL_EPOCH
    if sessions.find(request.session_id, sessions.final) is not None:
        sessions.close(request.session_id, "replaced by its fetcher" if creates else "closed by its fetcher")
    draft = sessions.draft(call.client_id, request.replica_id, call.api_version >= TOPIC_IDS_FROM)
    draft.touch(broker.now)
    _name_partitions(draft, request, call.api_version >= TOPIC_IDS_FROM)
    return Fetch(broker, call, draft, request, creates).begin()


def _fetch_news(broker: Broker, call: Call, request: FetchRequest) -> FetchResponse | None:
    """Incremental: the answer holds what changed."""
    sessions = broker.fetch_sessions
    session = sessions.lookup(request.session_id, request.session_epoch, call.api_version >= TOPIC_IDS_FROM)
    if isinstance(session, Error):
        return refusal(session, request)
    sessions.accept(session, request.session_epoch, broker.now)
    before = len(session.partitions)
    _name_partitions(session, request, call.api_version >= TOPIC_IDS_FROM)
    for topic in request.forgotten:
        session.forget(topic.topic, topic.topic_id, topic.partitions)
    sessions.resized(session, before)
    if sessions.is_too_large(session):
        sessions.close(session.session_id, "too many partitions")
        sessions.count_not_found()
        return refusal(Error.FETCH_SESSION_ID_NOT_FOUND, request)
    if not session.partitions:
        sessions.close(session.session_id, "no partition left")
        return FetchResponse()
    return Fetch(broker, call, session, request).begin()


def _name_partitions(session: FetchSession, request: FetchRequest, with_ids: bool = True) -> None:
    for topic in request.topics:
        topic_id = topic.topic_id if with_ids else NO_TOPIC_ID
        for wanted in topic.partitions:
            session.name(topic.topic, topic_id, wanted)


def _fetch_first(broker: Broker, call: Call, request: FetchRequest) -> FetchResponse | None:
    """A request of the first revision (Fetch 1000); refusals tell the session's ID while there is one."""
    sessions, named = broker.fetch_sessions, _named_first(broker, call, request)
    if request.fetch_type == FULL_FETCH:
        if request.session_epoch != 0 or (request.session_id != 0 and named is None):
            sessions.count_not_found()
            return refusal(Error.INVALID_FETCH_SESSION, request, named)
        return _fetch_all_first(broker, call, request, named)
    if request.fetch_type != INCREMENTAL_FETCH:
        return refusal(Error.INVALID_REQUEST, request, named)
    session = sessions.lookup_first(request.session_id, request.session_epoch)
    if isinstance(session, Error):
        return refusal(session, request, named)
    if not _holds_all(session, request):
        return refusal(Error.INVALID_REQUEST, request, session)
    sessions.accept(session, request.session_epoch, broker.now)
    _name_partitions(session, request)
    return Fetch(broker, call, session, request).begin()


def _fetch_all_first(
    broker: Broker, call: Call, request: FetchRequest, session: FetchSession | None
) -> FetchResponse | None:
    """Without a session a new one is made, if possible; else the request's partitions replace the session's."""
    sessions = broker.fetch_sessions
    if session is None:
        draft = sessions.draft(call.client_id, request.replica_id, False, sessions.first)
        draft.touch(broker.now)
        _name_partitions(draft, request)
        return Fetch(broker, call, draft, request, creates=True).begin()
    before = len(session.partitions)
    sessions.accept_full(session, broker.now)
    _name_partitions(session, request)
    sessions.resized(session, before)
    return Fetch(broker, call, session, request).begin()


def _named_first(broker: Broker, call: Call, request: FetchRequest) -> FetchSession | None:
    """The session of the first revision that a request of it names."""
    sessions = broker.fetch_sessions
    return sessions.find(request.session_id, sessions.first) if call.api_version >= FIRST_DRAFT_VERSION else None


def _holds_all(session: FetchSession, request: FetchRequest) -> bool:
    """Whether the session caches all partitions that the request names."""
    return all(
        session.key(topic.topic, topic.topic_id, wanted.partition) in session.partitions
        for topic in request.topics
        for wanted in topic.partitions
    )
