"""The response to a Fetch, built piece by piece from the parts of its partitions."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.records.partition_errors import endpoints_of
from reference_broker.sessions.fetch_session import CachedPartition, FetchSession
from reference_broker.wire.apis import FETCH_TOMBSTONE_HORIZON, FIRST_DRAFT_VERSION
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchResponse, FetchTopicResponse, PartitionData

LEADERS_FROM = 16
"""The version from which a response names the leader if the fetcher has a wrong one (KIP-951)."""

PartitionResult: TypeAlias = tuple[CachedPartition, PartitionData]
"""A partition's part of the response."""


@dataclass(slots=True)
class ResponseBuilder:
    """The topics of a response, added piece by piece. A topic in two places of the list is named twice."""

    api_version: int
    session: FetchSession
    topics: list[FetchTopicResponse] = field(default_factory=list)
    leaders: dict[int, None] | None = None
    """The leaders named in a version that also has their addresses."""
    _topic: tuple[str, bytes] | None = None
    _partitions: list[PartitionData] = field(init=False)
    """The partitions of the last topic."""

    def add(self, results: Collection[PartitionResult]) -> None:
        """Add partitions in the order of the response."""
        names_leaders = LEADERS_FROM <= self.api_version < FIRST_DRAFT_VERSION
        uses_topic_ids, topic = self.session.uses_topic_ids, self._topic
        if self.api_version == FETCH_TOMBSTONE_HORIZON:
            results = [(cached, _with_horizon(cached, data)) for cached, data in results]
        partitions = [] if topic is None else self._partitions
        for cached, data in results:
            name = ("", cached.topic_id) if uses_topic_ids else (cached.topic, NO_TOPIC_ID)
            if name != topic:
                partitions = []
                self.topics.append(FetchTopicResponse(*name, partitions))
                topic = name
            if data.current_leader is None:
                partitions.append(data)
            elif names_leaders:
                partitions.append(data)
                self.leaders = self.leaders or {}
                self.leaders[data.current_leader.leader_id] = None
            else:
                partitions.append(replace(data, current_leader=None))
        self._topic, self._partitions = topic, partitions

    def response(self, broker: Broker, call: Call) -> FetchResponse:
        """Return the response. As in Kafka, followers get no addresses of leaders."""
        session = self.session
        leaders = None if session.privileged else self.leaders
        return FetchResponse(
            0,
            session.session_id,
            self.topics,
            node_endpoints=endpoints_of(broker, leaders, call.listener) if leaders else [],
            response_flags=session.response_flags(),
        )


def _with_horizon(cached: CachedPartition, data: PartitionData) -> PartitionData:
    """Add the tombstone horizon. The records were read before, so a horizon that has moved since is too high, never too
    low."""
    partition = cached.partition
    if data.error_code or partition is None:
        return data
    return replace(data, tombstone_horizon=partition.log.horizon.offset)
