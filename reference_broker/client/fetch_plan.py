"""The values that a fetch session's client side takes and returns. Both revisions of KIP-227 share them.

``session_handler.make_session_handler`` makes a ``SessionHandler`` for each fetcher and node. It does no I/O. Callers
alternate between ``build`` (or ``update``) and one of ``handle_response``, ``handle_lost``, ``presume_processed``.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.apis import FETCH_FIRST_REVISION, FETCH_FIRST_REVISION_REPLICAS
from reference_broker.wire.fetch import (
    FULL_FETCH,
    INCREMENTAL_FETCH,
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

INITIAL_EPOCH: Final = 0
CLOSE_SESSION_EPOCH: Final = -1
FIRST_EPOCH: Final = 1
NO_SESSION_ID: Final = 0
LAST_VERSION_BY_NAME: Final = 12
"""Fetch requests name topics by ID from version 13."""


class Wanted(NamedTuple):
    """What the fetcher wants of one partition. The session does not send a value that equals the last one. -1 in an
    epoch or in the log start means that it is not given."""

    topic_id: bytes
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The session's part of one request. ``to_forget`` holds removed partitions with the topic ID that they had.

    In the first revision ``session_epoch`` is the sequence number, which is 0 in a full request.
    """

    session_id: int
    session_epoch: int
    uses_topic_ids: bool
    to_send: Mapping[TopicPartition, Wanted]
    to_forget: tuple[tuple[TopicPartition, bytes], ...] = ()
    first_revision: bool = False

    @property
    def is_full(self) -> bool:
        return self.session_epoch in (INITIAL_EPOCH, CLOSE_SESSION_EPOCH)

    def version(self, newest: int, of_replica: bool = False) -> int:
        """Returns the version of the request, at most ``newest``. It is at most 12 if the ID of a topic is unknown. In
        the first revision it is that of the draft for followers or for clients."""
        if self.first_revision:
            return FETCH_FIRST_REVISION_REPLICAS if of_replica else FETCH_FIRST_REVISION
        return newest if self.uses_topic_ids else min(newest, LAST_VERSION_BY_NAME)

    def request(
        self,
        version: int,
        max_wait_ms: int,
        min_bytes: int,
        max_bytes: int,
        replica_id: int = -1,
        replica_epoch: int = -1,
        rack: str = "",
        isolation_level: int = 0,
    ) -> FetchRequest:
        """Makes a new request each time, so that the receiver may keep it. ``rack`` is that of a consumer. Topics carry
        the name or the ID, whichever ``version`` has. In the first revision they carry the name. Those of a follower
        carry the ID, too, and only they carry epochs."""
        with_names = version <= LAST_VERSION_BY_NAME or self.first_revision
        with_ids = version == FETCH_FIRST_REVISION_REPLICAS if self.first_revision else not with_names
        with_epochs = version != FETCH_FIRST_REVISION
        return FetchRequest(
            replica_id=replica_id,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            isolation_level=isolation_level,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=_grouped_topics(self.to_send, with_names, with_ids, with_epochs),
            forgotten=_grouped_forgotten(self.to_forget, with_names, with_ids),
            rack_id=rack,
            replica_epoch=replica_epoch,
            fetch_type=INCREMENTAL_FETCH if self.first_revision and not self.is_full else FULL_FETCH,
        )


def _grouped_topics(
    to_send: Mapping[TopicPartition, Wanted], with_names: bool, with_ids: bool, with_epochs: bool
) -> list[FetchTopic]:
    """Groups partitions by topic, in the order in which they are wanted."""
    topics: dict[tuple[str, bytes], list[FetchPartition]] = {}
    for (name, partition), wanted in to_send.items():
        topics.setdefault((name, wanted.topic_id), []).append(
            FetchPartition(
                partition,
                wanted.fetch_offset,
                wanted.max_bytes,
                wanted.current_leader_epoch if with_epochs else -1,
                wanted.last_fetched_epoch if with_epochs else -1,
                wanted.log_start_offset,
            )
        )
    return [FetchTopic(*_named(*key, with_names, with_ids), partitions) for key, partitions in topics.items()]


def _grouped_forgotten(
    to_forget: Iterable[tuple[TopicPartition, bytes]], with_names: bool, with_ids: bool
) -> list[ForgottenTopic]:
    topics: dict[tuple[str, bytes], list[int]] = {}
    for (name, partition), topic_id in to_forget:
        topics.setdefault((name, topic_id), []).append(partition)
    return [ForgottenTopic(*_named(*key, with_names, with_ids), partitions) for key, partitions in topics.items()]


def _named(name: str, topic_id: bytes, with_names: bool, with_ids: bool) -> tuple[str, bytes]:
    return name if with_names else "", topic_id if with_ids else NO_TOPIC_ID


Found: TypeAlias = tuple[tuple[TopicPartition, PartitionData], ...]
"""The partitions of an answer with their names, in the answer's order."""


@dataclass(frozen=True, slots=True)
class Handled:
    """How an answer was understood.

    ``problem`` says why the answer cannot be used: it has an error, or it does not fit the request. It is None if the
    answer can be used. ``partitions`` holds the answer's partitions with their names, in its order. They are there even
    with a problem, because histories record them.
    """

    problem: str | None
    partitions: Found = ()


@dataclass(slots=True)
class SessionHandler(ABC):
    """The fetcher's half of a session, in either revision.

    ``session_id`` is 0 before there is a session. ``partitions`` holds what the broker will hold for the session once
    it has accepted all requests sent so far. ``in_flight`` is the plan that was built and not handled yet.
    ``first_epoch`` is the first epoch, or sequence number, of each session.
    """

    first_epoch: int = FIRST_EPOCH
    session_id: int = NO_SESSION_ID
    partitions: dict[TopicPartition, Wanted] = field(default_factory=dict)
    in_flight: FetchPlan | None = None

    @property
    @abstractmethod
    def revision(self) -> str:
        """``final`` or ``first``."""

    @property
    def retransmits(self) -> bool:
        """Whether a request without an answer is sent again with the same number. The first revision does that. In the
        final revision a full fetch follows instead."""
        return self.revision == "first"

    def build(self, wanted: Mapping[TopicPartition, Wanted]) -> FetchPlan:
        """Makes the next request, for exactly these partitions. Its cost grows with their number.

        :raises AssertionError: the request before has not been handled yet.
        """
        held = self.partitions
        changed = {tp: new for tp, new in wanted.items() if held.get(tp) != new}
        return self.update(changed, [tp for tp in held if tp not in wanted])

    @abstractmethod
    def update(self, changed: Mapping[TopicPartition, Wanted], removed: Collection[TopicPartition] = ()) -> FetchPlan:
        """Makes the next request from the difference to the one before. Unless the request must be full, its cost grows
        with the size of that difference.

        Values that are equal to what the broker holds are left out. A partition in both arguments is removed.

        :raises AssertionError: the request before has not been handled yet.
        """

    @abstractmethod
    def handle_response(self, response: FetchResponse) -> Handled:
        """Interprets the answer to the request in flight, and decides what the next request will be."""

    @abstractmethod
    def handle_lost(self) -> None:
        """Notes that the request in flight got no answer (timeout, lost connection). It is not known whether the
        request arrived."""

    @abstractmethod
    def presume_processed(self) -> bool:
        """Continues as if the request in flight, which got no answer, had been answered with no partitions. Returns
        False, and changes nothing, if that is impossible."""

    @abstractmethod
    def name_all(self) -> None:
        """Makes the next request a full one."""

    def farewell(self) -> FetchPlan | None:
        """Makes the last request of the session, which closes it at the broker (F-8). None if there is no session, or
        if its revision has no such request: the first one's sessions go by eviction."""
        return None

    def _take_in_flight(self) -> FetchPlan:
        plan, self.in_flight = self.in_flight, None
        assert plan is not None, "an answer without a request"
        return plan

    def _missing_in(self, found: Found) -> str | None:
        """Says which partitions are missing in a full answer; None if none are."""
        answered = {tp for tp, _ in found}
        missing = [tp for tp in self.partitions if tp not in answered]
        return f"partitions missing in a full answer: {listed(missing)}" if missing else None


def listed(partitions: Iterable[TopicPartition]) -> str:
    """Returns the partitions as text for messages."""
    return ", ".join(f"{each.topic}-{each.partition}" for each in partitions)
