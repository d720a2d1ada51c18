"""Fetch: reads from many partitions at once, in a fetch session or without one.

* A request that forgets the last partitions of a session closes it. The partitions that the request names are fetched
  all the same.
* A partition whose next batch does not fit into the remaining bytes gets nothing. The bytes go to the next partition.
* The aborted transactions of a response are those that have records in it.
* With ``replica.selector.class``, a leader sends a consumer that names its rack to a follower there. The response has
  the preferred read replica and no records, for as long as that replica is preferred.
* A follower serves consumers up to the high watermark that it knows. It returns nothing for an offset beyond that, and
  OFFSET_OUT_OF_RANGE for one that is not in its log. As in Kafka, no fetch gets OFFSET_NOT_AVAILABLE.
* A node that has no replica may not fetch as a follower: NOT_LEADER_OR_FOLLOWER, and UNKNOWN_LEADER_EPOCH if it names
  the leader epoch.

What Kafka does otherwise is at the end of this file.

Version notes:
* v9: the leader epoch that the fetcher knows is compared with the leader's.
* v11: a consumer names its rack, and may read from followers. Older versions get NOT_LEADER_OR_FOLLOWER there.
* v12: a fetcher that names its last fetched epoch gets the offset where its log diverges.
* v13: topics are named by ID.
* v16: the response has the addresses of leaders that are elsewhere.
* v1000, v1002: the first revision of KIP-227's sessions, for consumers and for followers (``first_revision``).
* v1001: a response has the offset below which tombstones may be gone (KIP-630's rejected alternative). A fetcher at the
  end of a partition gets a new marker with the next records.

KIPs: 74, 98, 227, 320, 392, 516, 951.
"""

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.records.fetch import (
    MAX_NAMED_PARTITIONS,
    TOPIC_IDS_FROM,
    Fetch,
    candidate_of,
    count_named,
    defer_until_finished,
)
from reference_broker.apis.records.first_revision import handle_first_revision
from reference_broker.apis.registry import Api
from reference_broker.quorum.raft_handlers import handle_fetch
from reference_broker.quorum.values import METADATA_TOPIC_ID
from reference_broker.sessions.fetch_session import FetchSession
from reference_broker.wire.apis import FIRST_REVISIONS
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FINAL_EPOCH, INITIAL_EPOCH, FetchRequest, FetchResponse


def is_metadata_fetch(body: object) -> bool:
    """Return whether a request is a fetch of the metadata log, by its topic ID, which the quorum handles."""
    return isinstance(body, FetchRequest) and len(body.topics) == 1 and body.topics[0].topic_id == METADATA_TOPIC_ID


def handle(broker: Broker, call: Call, body: FetchRequest) -> FetchResponse | None:
    """Serve a request now or later. These are the ways, and the first one that fits is taken:

    ================================ ==================================================================================
    metadata log                     the quorum
    v1000, v1002                     the first revision of sessions (``first_revision``)
    more than MAX_NAMED_PARTITIONS   INVALID_REQUEST
    session with an unfinished fetch the request is deferred until it ends
    session epoch 0                  a full fetch, which closes the session that it names and opens a new one
    session epoch -1                 a full fetch, which closes the session that it names and opens none
    any other session epoch          an incremental fetch of the session that it names
    ================================ ==================================================================================

    Consumers and followers are served in the same ways. A response with a top-level error has session ID 0.
    """
    if is_metadata_fetch(body):
        handle_fetch(broker.quorum, body, call.respond)
        return None
    if call.api_version in FIRST_REVISIONS:
        return handle_first_revision(broker, call, body)
    if count_named(body) > MAX_NAMED_PARTITIONS:
        return FetchResponse(ErrorCode.invalid_request)
    if defer_until_finished(broker, call, body, _handle_deferred):
        return None
    if body.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):  # Decision fetch-kind
        _fetch_all(broker, call, body)
        return None
    return _fetch_incremental(broker, call, body)


API = Api.of(FetchRequest, handle)


def _handle_deferred(broker: Broker, call: Call, request: FetchRequest) -> None:
    """Handle a deferred request. If its connection has closed, nothing of it is carried out but the end of the
    session."""
    if not call.closed:
        response = handle(broker, call, request)
        if response is not None:
            call.respond(response)
    elif request.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
        _close_named_session(broker, request)


def _fetch_all(broker: Broker, call: Call, request: FetchRequest) -> None:
    """Begin a full fetch of every partition that it names. Close the session that it names, if there is one."""
    _close_named_session(broker, request)
    Fetch(broker, call, candidate_of(broker, call, request), request).start()


def _close_named_session(broker: Broker, request: FetchRequest) -> None:
    """Close the session that a full request names, if there is one."""
    sessions = broker.fetch_sessions
    if sessions.find(request.session_id, FetchSession) is not None:  # Decision named-session-ended
        is_replaced = request.session_epoch == INITIAL_EPOCH
        sessions.close(request.session_id, "replaced by its fetcher" if is_replaced else "closed by its fetcher")


def _fetch_incremental(broker: Broker, call: Call, request: FetchRequest) -> FetchResponse | None:
    """Begin an incremental fetch of what changed, or return the error if the session does not accept the request."""
    sessions = broker.fetch_sessions
    session = sessions.lookup(request.session_id, request.session_epoch, FetchSession)
    if not isinstance(session, FetchSession):
        return FetchResponse(int(session))
    if session.uses_topic_ids != (call.api_version >= TOPIC_IDS_FROM):
        return FetchResponse(ErrorCode.fetch_session_topic_id_error)
    sessions.accept(session, request.session_epoch, broker.now)
    Fetch(broker, call, session, request).start()
    return None


# Unlike Kafka
#
# Records and limits:
# * Records end with a whole batch. Kafka fills the remaining bytes with the beginning of the next one.
# * A response to a follower has up to ``replica.fetch.response.max.bytes`` of this node, where that is more than
#   ``fetch.max.bytes``. In Kafka the latter holds for all, but its default is larger than what followers request.
# * An isolation level above 1 is read_uncommitted. Kafka fails on it: UNKNOWN_SERVER_ERROR.
# * There are no quotas.
#
# Sessions:
# * An epoch below -1 gets FETCH_SESSION_ID_NOT_FOUND, whatever the session ID (F-9). Kafka compares it with the epoch
#   of a known session: INVALID_FETCH_SESSION_EPOCH (FetchManager.newContext).
# * A parked request gets INVALID_FETCH_SESSION_EPOCH as soon as a newer request of its session comes, and
#   FETCH_SESSION_ID_NOT_FOUND as soon as the session is closed or evicted. F-10 and F-9 hold here also for the moment
#   of the response. Kafka notices neither before the parked request completes, and compares only the epoch then. So an
#   overtaken request gets its error late and with the session's ID, and one whose session was evicted gets its
#   partitions with the ID of a session that no longer exists (IncrementalFetchContext.updateAndGenerateResponseData).
# * A partition that sent data moves to the end of the list also in the full response that opens the session, and
#   partitions in error keep their place there. Kafka begins with the readable ones, in request order.
# * A consumer's session may take the slot of a follower's old and smaller one, as the KIP says (F-18). In Kafka none
#   does: its keys order followers' sessions after all others (FetchSessionCacheShard.tryEvict).
# * A session of more than 250,000 partitions, or one that grows when all sessions together have reached
#   ``crucible.fetch.session.cache.partitions``, is closed with FETCH_SESSION_ID_NOT_FOUND.
# * Each slot may have a session. Kafka has eight shards of slots, and declines one whose shard is full.
# * A partition in error or with a preferred read replica is in each incremental response, but ends a wait only when
#   that is new, has changed, or the request named the partition. Kafka responds to each such fetch at once.
# * Where a session with last fetched epochs goes on in a version below 12, a divergence is omitted from the response.
#   Kafka fails to write it and returns UNSUPPORTED_VERSION.
#
# Replicas:
# * A topic that was deleted and created again has INCONSISTENT_TOPIC_ID also where this node has no replica of the new
#   one. Kafka checks for the replica first. (The ID of a deleted topic is unknown, in a session, too.)
# * A follower returns NOT_LEADER_OR_FOLLOWER for an offset beyond its log if the fetcher names no leader epoch. Such a
#   fetcher may take the follower for the leader, and would rewind.
# * A session whose offset is not committed yet may get a preferred read replica only when the high watermark moves.
