"""Requests of fetch sessions that Kafka's clients do not send, or send in a rare race only.

A wild fetcher opens sessions with any partitions at any node, also at one that leads none of them, and uses several at
a time. It names partitions again with other offsets, limits, epochs and log starts, adds and forgets some, and names
some that do not exist. It sends old epochs, closes sessions or abandons them, and sends requests that name topics by ID
in a session that names them by name. A broker must respond to each such request according to the state of the session.
In between a wild fetcher requests offsets of the partitions (ListOffsets), also from a leader that was just elected.

It keeps no records: what it reads is no evidence of what was written.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from kio.schema.list_offsets.v10.request import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from kio.schema.types import BrokerId, TopicName
from kio.static.primitive import i8, i32, i64

from bench.fleet.behaviours.bodies import EARLIEST, LATEST, milliseconds
from bench.fleet.behaviours.protocol import Chance
from reference_broker.wire.apis import FETCH_FIRST_REVISION
from reference_broker.wire.fetch import (
    FULL_FETCH,
    INCREMENTAL_FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

MAX_SESSIONS: Final = 4
"""number of sessions of one client; the one that it has had longest is left"""
NO_PARTITIONS: Final = 2
"""number of indexes behind the topic's last one that are requested, too"""
VERSIONS: Final = (7, 11, 12, 13, 17, FETCH_FIRST_REVISION, FETCH_FIRST_REVISION)
FIRST_WITH_LEADER_EPOCH, FIRST_WITH_RACK, FIRST_WITH_LAST_EPOCH, FIRST_WITH_TOPIC_IDS = 9, 11, 12, 13
RACKS: Final = ("", "", "a", "b", "c")
"""The client's rack in each request. Brokers without a selector of replicas ignore it (KIP-392)."""
OPENED, CLOSED = 0, -1
"""The epochs of full requests (KIP-227)."""
WRONG_PERCENT: Final = 10
"""Share of incremental requests that have a wrong epoch, or the other name of the topic."""
TIMESTAMPS: Final = (LATEST, LATEST, LATEST, LATEST, EARLIEST, -3, -4, -5)
"""Timestamps in ListOffsets requests; the last ones are those of version 7 to 9."""


@dataclass(slots=True)
class WildSession:
    """One session at one node."""

    node_id: int
    session_id: int
    version: int
    number: int
    """epoch of its next request or, in the first revision, number of its last one"""
    partitions: dict[int, None] = field(default_factory=dict)
    """indexes that it has"""

    @property
    def is_first(self) -> bool:
        return self.version == FETCH_FIRST_REVISION


@dataclass(frozen=True, slots=True)
class WildFetch:
    """One request."""

    node_id: int
    version: int
    body: FetchRequest
    session: WildSession | None = None  # the session of an incremental request; None for a full one


class WildFetches:
    """The sessions of one wild client, and its requests for partitions of one topic."""

    def __init__(self, topic: str, partitions: int, random: Chance) -> None:
        self._topic = topic
        self._count = partitions
        self._random = random
        self._high_watermarks: dict[int, int] = {}
        self.sessions: list[WildSession] = []

    def next_request(self, node_id: int, topic_id: bytes, leader_epochs: Sequence[int]) -> WildFetch:
        """Return the next request to a node, mostly one in a session with it. ``leader_epochs`` are those of the
        topic's partitions."""
        here = [session for session in self.sessions if session.node_id == node_id]
        draw = self._random.randrange(10)
        if here and draw < 7:
            return self._incremental(self._random.choice(here), topic_id, leader_epochs)
        known = self._random.choice(here) if here and draw < 9 else None
        return self._full(node_id, known, topic_id, leader_epochs)

    def next_listing(self, leader_epochs: Sequence[int]) -> ListOffsetsRequest:
        """Return a request of an offset of each partition, with any leader epoch."""
        random, timestamp = self._random, self._random.choice(TIMESTAMPS)
        partitions = tuple(
            ListOffsetsPartition(
                partition_index=i32(index),
                current_leader_epoch=i32(random.choice((-1, -1, -1, epoch, max(epoch - 1, 0), epoch + 1))),
                timestamp=i64(timestamp),
            )
            for index, epoch in enumerate(leader_epochs)
        )
        return ListOffsetsRequest(
            replica_id=BrokerId(-1),
            isolation_level=i8(random.randrange(2)),
            topics=(ListOffsetsTopic(name=TopicName(self._topic), partitions=partitions),),
            timeout=milliseconds(1000),
        )

    def responded(self, request: WildFetch, body: FetchResponse | None) -> None:
        """Learn from a response, or from the loss of one, after which the request may have been accepted."""
        session, epoch = request.session, request.body.session_epoch
        if body is None:
            if session is not None and not session.is_first and self._random.randrange(2):
                session.number = epoch + 1
            return
        for topic in body.responses:
            for partition in topic.partitions:
                if not partition.error_code:
                    self._high_watermarks[partition.partition] = partition.high_watermark
        if session is None:
            if not body.error_code and body.session_id:
                is_first = request.version == FETCH_FIRST_REVISION
                named = {partition.partition: None for topic in request.body.topics for partition in topic.partitions}
                opened = WildSession(request.node_id, body.session_id, request.version, 0 if is_first else 1, named)
                self._forget(request.node_id, body.session_id)
                self.sessions.append(opened)
                del self.sessions[:-MAX_SESSIONS]
        elif not body.error_code and body.session_id:
            session.number = epoch if session.is_first else epoch + 1
        elif not body.error_code or self._random.randrange(2):
            self._forget(session.node_id, session.session_id)

    # -- requests -----------------------------------------------------------------------------------------------

    def _full(
        self, node_id: int, known: WildSession | None, topic_id: bytes, leader_epochs: Sequence[int]
    ) -> WildFetch:
        version = self._random.choice(VERSIONS) if known is None else known.version
        is_first = version == FETCH_FIRST_REVISION
        epoch = CLOSED if not is_first and self._random.randrange(4) == 0 else OPENED
        if known is not None and not is_first:
            self._forget(node_id, known.session_id)
        indexes = range(self._count + NO_PARTITIONS)
        named = self._random.sample(indexes, self._random.randrange(len(indexes) + 1))
        session_id = 0 if known is None else known.session_id
        body = self._request(version, session_id, epoch, FULL_FETCH, named, (), topic_id, leader_epochs)
        return WildFetch(node_id, version, body)

    def _incremental(self, session: WildSession, topic_id: bytes, leader_epochs: Sequence[int]) -> WildFetch:
        random, version = self._random, session.version
        number = session.number + 1 if session.is_first and random.randrange(4) else session.number
        wrong = random.randrange(100) < WRONG_PERCENT
        if wrong and random.randrange(2):
            number = max(number + random.choice((-1, 1, 2)), 1)
        elif wrong and not session.is_first:
            version = FIRST_WITH_LAST_EPOCH if version >= FIRST_WITH_TOPIC_IDS else FIRST_WITH_TOPIC_IDS
        number = max(number, 1)
        held = list(session.partitions)
        named = random.sample(held, random.randrange(len(held) + 1)) if random.randrange(2) else []
        if random.randrange(4) == 0:
            added = random.randrange(self._count + NO_PARTITIONS)
            named += [] if added in named else [added]
        forgotten = []
        if held and not session.is_first and random.randrange(5) == 0:  # The first revision's page has no such list.
            forgotten = [each for each in random.sample(held, random.randint(1, len(held))) if each not in named]
        session.partitions.update(dict.fromkeys(named))
        for each in forgotten:
            session.partitions.pop(each, None)
        body = self._request(
            version, session.session_id, number, INCREMENTAL_FETCH, named, forgotten, topic_id, leader_epochs
        )
        return WildFetch(session.node_id, version, body, session)

    def _request(
        self,
        version: int,
        session_id: int,
        epoch: int,
        fetch_type: int,
        named: Sequence[int],
        forgotten: Sequence[int],
        topic_id: bytes,
        leader_epochs: Sequence[int],
    ) -> FetchRequest:
        random, is_first = self._random, version == FETCH_FIRST_REVISION
        with_id = version >= FIRST_WITH_TOPIC_IDS and not is_first
        name = ("", topic_id) if with_id else (self._topic, bytes(16))
        partitions = [self._partition(version, each, leader_epochs) for each in named]
        return FetchRequest(
            max_wait_ms=random.choice((0, 0, 100, 700)),
            min_bytes=random.choice((0, 1, 1, 1000, 1_000_000)),
            max_bytes=random.choice((0, 300, 1 << 20, 1 << 20)),
            isolation_level=random.randrange(2),
            session_id=session_id,
            session_epoch=epoch,
            topics=[FetchTopic(*name, partitions)] if partitions else [],
            forgotten=[ForgottenTopic(*name, list(forgotten))] if forgotten else [],
            fetch_type=fetch_type if is_first else FULL_FETCH,
            rack_id=random.choice(RACKS) if version >= FIRST_WITH_RACK and not is_first else "",
        )

    def _partition(self, version: int, index: int, leader_epochs: Sequence[int]) -> FetchPartition:
        random, end = self._random, self._high_watermarks.get(index, 0)
        behind = max(end - random.randrange(1, 60), 0)
        beyond = end + random.choice((1, 5, 50))
        offset = random.choice((0, behind, random.randrange(end + 1), end, end, end, beyond))
        epoch = leader_epochs[index] if index < len(leader_epochs) else 0
        is_draft = version == FETCH_FIRST_REVISION
        known = last = -1
        if version >= FIRST_WITH_LEADER_EPOCH and not is_draft:
            known = random.choice((-1, epoch, epoch, max(epoch - 1, 0), epoch + 1))
        if version >= FIRST_WITH_LAST_EPOCH and not is_draft:
            last = random.choice((-1, epoch, epoch, max(epoch - 1, 0), epoch + 1))
        limit = random.choice((0, 100, 1 << 20, 1 << 20))
        return FetchPartition(index, offset, limit, known, last, random.choice((-1, 0, end)))

    def _forget(self, node_id: int, session_id: int) -> None:
        self.sessions = [
            session for session in self.sessions if (session.node_id, session.session_id) != (node_id, session_id)
        ]
