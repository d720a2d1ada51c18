"""Fetch: reads from many partitions at once, and incremental fetch sessions (KIP-227, final revision)."""

from reference_broker.apis.broker import Broker, Call
from reference_broker.apis.card import Card
from reference_broker.apis.fetch_waiting import Fetch
from reference_broker.model.fetch_session import FINAL_EPOCH, FULL_EPOCH, FetchSession
from reference_broker.model.fetch_session_cache import MAX_SESSION_PARTITIONS
from reference_broker.raft.offset_and_epoch import METADATA_TOPIC_ID
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error
from reference_broker.wire.fetch import FetchRequest, FetchResponse

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
    "a session, too.",
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
        return FetchResponse(error_code=int(Error.INVALID_REQUEST))
    if body.session_epoch in (FULL_EPOCH, FINAL_EPOCH):
        return _fetch_all(broker, call, body)
    return _fetch_news(broker, call, body)


def _fetch_all(broker: Broker, call: Call, request: FetchRequest) -> FetchResponse | None:
    """Full: every named partition is answered. Closes the session that it names, if there is one."""
    sessions = broker.fetch_sessions
    creates = request.session_epoch == FULL_EPOCH
    sessions.close(request.session_id, "replaced by its fetcher" if creates else "closed by its fetcher")
    draft = sessions.draft(call.client_id, request.replica_id, call.api_version >= TOPIC_IDS_FROM)
    draft.touch(broker.now)
    _name_partitions(draft, request)
    return Fetch(broker, call, draft, request, creates).begin()


def _fetch_news(broker: Broker, call: Call, request: FetchRequest) -> FetchResponse | None:
    """Incremental: the answer holds what changed."""
    sessions = broker.fetch_sessions
    session = sessions.lookup(request.session_id, request.session_epoch, call.api_version >= TOPIC_IDS_FROM)
    if isinstance(session, Error):
        return FetchResponse(error_code=int(session))
    sessions.accept(session, broker.now)
    before = len(session.partitions)
    _name_partitions(session, request)
    for topic in request.forgotten:
        session.forget(topic.topic, topic.topic_id, topic.partitions)
    sessions.resized(session, before)
    if sessions.is_too_large(session):
        sessions.close(session.session_id, "too many partitions")
        sessions.count_not_found()
        return FetchResponse(error_code=int(Error.FETCH_SESSION_ID_NOT_FOUND))
    if not session.partitions:
        sessions.close(session.session_id, "no partition left")
        return FetchResponse()
    return Fetch(broker, call, session, request).begin()


def _name_partitions(session: FetchSession, request: FetchRequest) -> None:
    for topic in request.topics:
        for wanted in topic.partitions:
            session.name(topic.topic, topic.topic_id, wanted)
