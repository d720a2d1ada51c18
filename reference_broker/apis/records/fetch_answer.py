"""Puts fetch responses together."""

from collections.abc import Collection
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from reference_broker.apis.call import Call
from reference_broker.apis.parts import HasController
from reference_broker.apis.records.leader_endpoints import endpoints_of
from reference_broker.sessions.cached_partition import CachedPartition
from reference_broker.sessions.fetch_session import FetchSession
from reference_broker.wire.apis import FETCH_TOMBSTONE_HORIZON, FIRST_DRAFT_VERSION
from reference_broker.wire.errors import DraftError, Error, ErrorCode
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH,
    INCREMENTAL_FETCH_OK,
    INCREMENTAL_FETCH_RESPONSE,
    NO_TOPIC_ID,
    FetchRequest,
    FetchResponse,
    FetchTopicResponse,
    PartitionData,
)

LEADERS_FROM = 16
"""The version from which an answer tells the leader where the fetcher was wrong about it (KIP-951)."""


Told: TypeAlias = Collection[tuple[CachedPartition, PartitionData]]
"""What an answer tells of each partition, in its order."""


@dataclass(slots=True)
class Telling:
    """What an answer tells, which is put together piece by piece. A topic in two places of the list is named twice.

    Versions that name the leaders of partitions that are led elsewhere tell their addresses, too.
    """

    api_version: int
    session: FetchSession
    topics: list[FetchTopicResponse] = field(default_factory=list)
    leaders: dict[int, None] | None = None
    _topic: tuple[str, bytes] | None = None
    _partitions: list[PartitionData] = field(init=False)
    """Those of the last topic."""

    def add(self, told: Told) -> None:
        """Topics and partitions come in the answer's order."""
        names_leaders = LEADERS_FROM <= self.api_version < FIRST_DRAFT_VERSION
        uses_topic_ids, topic = self.session.uses_topic_ids, self._topic
        if self.api_version == FETCH_TOMBSTONE_HORIZON:
            told = [(cached, _with_horizon(cached, data)) for cached, data in told]
        partitions = [] if topic is None else self._partitions
        for cached, data in told:
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


def _with_horizon(cached: CachedPartition, data: PartitionData) -> PartitionData:
    """The records were read before. A marker that has moved since says more than they lack, never less."""
    partition = cached.partition
    if data.error_code or partition is None:
        return data
    return replace(data, tombstone_horizon=partition.log.horizon.offset)


def response(broker: HasController, call: Call, telling: Telling) -> FetchResponse:
    """Makes the answer. Only the first revision carries flags. As in Kafka, followers get no addresses of leaders."""
    session = telling.session
    leaders = None if session.privileged else telling.leaders
    return FetchResponse(
        0,
        session.session_id,
        telling.topics,
        node_endpoints=endpoints_of(broker, leaders, call.listener) if leaders else [],
        response_flags=_flags(session) if session.revision.name == "first" else 0,
    )


def refusal(error: Error, request: FetchRequest, session: FetchSession | None = None) -> FetchResponse:
    """Makes an answer with a top-level error.

    ``session`` is the one that the request named, if it is still there and its revision tells its ID.
    """
    flags, session_id = INCREMENTAL_FETCH_RESPONSE if request.fetch_type == INCREMENTAL_FETCH else 0, 0
    if session is not None:
        flags, session_id = flags | _may_follow(session), session.session_id
    return FetchResponse(int(error), session_id, error_string=_TEXTS.get(error), response_flags=flags)


def _flags(session: FetchSession) -> int:
    """The flags of a successful answer in the first revision."""
    return _may_follow(session) | (0 if session.answers_full else INCREMENTAL_FETCH_RESPONSE)


def _may_follow(session: FetchSession) -> int:
    """The flag that says that incremental requests may follow in the session."""
    return INCREMENTAL_FETCH_OK if session.session_id and not session.denied else 0


_TEXTS = {
    DraftError.INVALID_FETCH_SESSION: "No such fetch session, or a sequence number that is not valid for it.",
    DraftError.INCREMENTAL_FETCH_DENIED: "This session takes full fetches only.",
    ErrorCode.invalid_request: "A partition outside the session, too many partitions, or an unknown fetch type.",
}
"""Only the first revision's responses carry them."""
