"""Puts fetch responses together."""

from collections.abc import Sequence

from reference_broker.apis.broker import Broker
from reference_broker.model.fetch_session import CachedPartition, FetchSession
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchResponse,
    FetchTopicResponse,
    NodeEndpoint,
    PartitionData,
)

LEADERS_FROM = 16
"""The version from which an answer tells the leader where the fetcher was wrong about it (KIP-951)."""


def response(session: FetchSession, told: Sequence[tuple[CachedPartition, PartitionData]]) -> FetchResponse:
    """Topics in the order of the partitions; one that appears in two places of the list is named twice."""
    topics: list[FetchTopicResponse] = []
    last: tuple[str, bytes] | None = None
    for cached, data in told:
        name = ("", cached.topic_id) if session.uses_topic_ids else (cached.topic, NO_TOPIC_ID)
        if name != last:
            topics.append(FetchTopicResponse(*name, []))
            last = name
        topics[-1].partitions.append(data)
    return FetchResponse(session_id=session.session_id, responses=topics)


def with_leaders(broker: Broker, api_version: int, answer: FetchResponse) -> FetchResponse:
    """Adds the addresses of the leaders that partitions name; older versions do not carry them."""
    leaders: dict[int, None] = {}
    for topic in answer.responses:
        for data in topic.partitions:
            if data.current_leader is None:
                continue
            if api_version < LEADERS_FROM:
                data.current_leader = None
            else:
                leaders[data.current_leader.leader_id] = None
    if leaders:
        brokers = broker.controller.image.brokers
        known = [brokers[leader] for leader in leaders if leader in brokers]
        answer.node_endpoints = [NodeEndpoint(one.broker_id, one.host, one.port, one.rack) for one in known]
    return answer
