"""Puts fetch responses together."""

from collections.abc import Sequence

from reference_broker.apis.parts import HasController
from reference_broker.sessions.cached_partition import CachedPartition
from reference_broker.sessions.fetch_session import FetchSession
from reference_broker.wire.apis import FIRST_DRAFT_VERSION
from reference_broker.wire.errors import Error
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH,
    INCREMENTAL_FETCH_OK,
    INCREMENTAL_FETCH_RESPONSE,
    NO_TOPIC_ID,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    NodeEndpoint,
    PartitionData,
)

LEADERS_FROM = 16
"""The version from which an answer tells the leader where the fetcher was wrong about it (KIP-951)."""


def response(session: FetchSession, told: Sequence[tuple[CachedPartition, PartitionData]]) -> FetchResponse:
    """Topics in the order of the partitions; one that appears in two places of the list is named twice.

    The flags are for versions that carry them.
    """
    topics: list[FetchTopicResponse] = []
    last: tuple[str, bytes] | None = None
    for cached, data in told:
        name = ("", cached.topic_id) if session.uses_topic_ids else (cached.topic, NO_TOPIC_ID)
        if name != last:
            topics.append(FetchTopicResponse(*name, []))
            last = name
        topics[-1].partitions.append(data)
    flags = 0 if session.answers_full else INCREMENTAL_FETCH_RESPONSE
    return FetchResponse(0, session.session_id, topics, response_flags=flags | _may_follow(session))


def refusal(error: Error, request: FetchRequest, session: FetchSession | None = None) -> FetchResponse:
    """A top-level error. ``session``: the one that the request named, if it is still there and its revision says so."""
    flags = INCREMENTAL_FETCH_RESPONSE if request.fetch_type == INCREMENTAL_FETCH else 0
    if session is None:
        return FetchResponse(int(error), error_string=_TEXTS.get(error), response_flags=flags)
    flags |= _may_follow(session)
    return FetchResponse(int(error), session.session_id, error_string=_TEXTS.get(error), response_flags=flags)


def _may_follow(session: FetchSession) -> int:
    """Whether incremental requests may follow in it."""
    return INCREMENTAL_FETCH_OK if session.session_id and not session.denied else 0


_TEXTS = {
    Error.INVALID_FETCH_SESSION: "No such fetch session, or a sequence number that is not valid for it.",
    Error.INCREMENTAL_FETCH_DENIED: "This session takes full fetches only.",
    Error.INVALID_REQUEST: "A partition outside the session, too many partitions, or an unknown fetch type.",
}
"""Only the first revision's responses carry them."""


def with_leaders(broker: HasController, api_version: int, answer: FetchResponse) -> FetchResponse:
    """Adds the addresses of the leaders that partitions name; older versions do not carry them."""
    leaders: dict[int, None] = {}
    for topic in answer.responses:
        for data in topic.partitions:
            if data.current_leader is None:
                continue
            if not LEADERS_FROM <= api_version < FIRST_DRAFT_VERSION:
                data.current_leader = None
            else:
                leaders[data.current_leader.leader_id] = None
    if leaders:
        brokers = broker.controller.image.brokers
        known = [brokers[leader] for leader in leaders if leader in brokers]
        answer.node_endpoints = [NodeEndpoint(one.broker_id, one.host, one.port, one.rack) for one in known]
    return answer
