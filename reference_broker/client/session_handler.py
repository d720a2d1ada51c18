"""The client's side of incremental fetch sessions (KIP-227).

``make_session_handler`` makes a ``SessionHandler`` for each fetcher and node. It does no I/O. Callers alternate between
``build`` (or ``update``) and one of ``handle_response``, ``handle_lost``, ``presume_processed``.

``FetchSessionHandler`` is that of the final revision, which Kafka's client has. ``FirstRevisionSessionHandler`` follows
the first text of the KIP's page.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple, TypeAlias

from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.apis import FETCH_FIRST_REVISION, FETCH_FIRST_REVISION_REPLICAS
from reference_broker.wire.errors import DraftError, ErrorCode
from reference_broker.wire.fetch import (
    FINAL_EPOCH,
    FULL_FETCH,
    INCREMENTAL_FETCH,
    INCREMENTAL_FETCH_OK,
    INCREMENTAL_FETCH_RESPONSE,
    INITIAL_EPOCH,
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

FIRST_EPOCH: Final = 1
"""The first epoch of a session."""
MAX_EPOCH: Final = 2**31 - 1
NO_SESSION_ID: Final = 0
LAST_VERSION_BY_NAME: Final = 12
"""Fetch requests name topics by ID from version 13."""


class Wanted(NamedTuple):
    """The entry that the fetcher wants for one partition. The session does not send a value that equals the last one.
    -1 in an epoch or in the log start means that it is not given."""

    topic_id: bytes
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """The session's part of one request."""

    session_id: int
    session_epoch: int
    """In the first revision the sequence number, which is 0 in a full request."""
    uses_topic_ids: bool
    to_send: Mapping[TopicPartition, Wanted]
    to_forget: tuple[tuple[TopicPartition, bytes], ...] = ()
    """Removed partitions with the topic ID that they had."""
    first_revision: bool = False

    @property
    def is_full(self) -> bool:
        return self.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)

    def version(self, newest: int, of_replica: bool = False) -> int:
        """Return the version of the request, at most ``newest``. It is at most 12 if the ID of a topic is unknown. In
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
        """Make a new request each time, so that the receiver may keep it. ``rack`` is that of a consumer. Topics carry
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


RequestedPartitions: TypeAlias = tuple[tuple[TopicPartition, PartitionData], ...]
"""The partitions of a response with their names, in the response's order."""


@dataclass(frozen=True, slots=True)
class Handled:
    """The interpretation of a response."""

    problem: str | None
    """The reason why the response cannot be used: it has an error, or it does not fit the request. None if it can be
    used."""
    partitions: RequestedPartitions = ()
    """The response's partitions with their names, in its order, even with a problem, because histories record them."""


@dataclass(slots=True)
class SessionHandler(ABC):
    """The fetcher's half of a session, in either revision."""

    first_epoch: int = FIRST_EPOCH
    """The first epoch, or sequence number, of each session."""
    session_id: int = NO_SESSION_ID
    """0 before there is a session."""
    partitions: dict[TopicPartition, Wanted] = field(default_factory=dict)
    """The partitions that the broker has in the session once it has accepted all requests sent so far."""
    in_flight: FetchPlan | None = None
    """The plan that was built and not handled yet."""

    @property
    @abstractmethod
    def revision(self) -> str:
        """``final`` or ``first``."""

    @property
    def retransmits(self) -> bool:
        """Whether a request without a response is sent again with the same number. The first revision does that. In the
        final revision a full fetch follows instead."""
        return self.revision == "first"

    def build(self, partitions: Mapping[TopicPartition, Wanted]) -> FetchPlan:
        """Make the next request, for exactly these partitions. Its cost grows with their number.

        :raises AssertionError: the request before has not been handled yet.
        """
        held = self.partitions
        changed = {tp: new for tp, new in partitions.items() if held.get(tp) != new}
        return self.update(changed, [tp for tp in held if tp not in partitions])

    @abstractmethod
    def update(self, changed: Mapping[TopicPartition, Wanted], removed: Collection[TopicPartition] = ()) -> FetchPlan:
        """Make the next request from the difference to the one before. Unless the request must be full, its cost grows
        with the size of that difference.

        Values that are equal to what the broker holds are omitted. A partition in both arguments is removed.

        :raises AssertionError: the request before has not been handled yet.
        """

    @abstractmethod
    def handle_response(self, response: FetchResponse) -> Handled:
        """Interpret the response to the request in flight, and decide what the next request will be."""

    @abstractmethod
    def handle_lost(self) -> None:
        """Record that the request in flight got no response (timeout, lost connection). It is not known whether the
        request arrived."""

    @abstractmethod
    def presume_processed(self) -> bool:
        """Continue as if the request in flight, which got no response, had got one without partitions. Returns
        False, and changes nothing, if that is impossible."""

    @abstractmethod
    def make_next_full(self) -> None:
        """Make the next request a full one."""

    def close(self) -> FetchPlan | None:
        """Make the last request of the session, which closes it at the broker (F-8). None if there is no session, or
        if its revision has no such request: the first one's sessions go by eviction."""
        return None

    def _take_in_flight(self) -> FetchPlan:
        plan, self.in_flight = self.in_flight, None
        assert plan is not None, "a response without a request"
        return plan

    def _missing_in(self, requested: RequestedPartitions) -> str | None:
        """Return which partitions are missing in a full response; None if none are."""
        present = {tp for tp, _ in requested}
        missing = [tp for tp in self.partitions if tp not in present]
        return f"partitions missing in a full response: {listed(missing)}" if missing else None


def listed(partitions: Iterable[TopicPartition]) -> str:
    """Return the partitions as text for messages."""
    return ", ".join(f"{partition.topic}-{partition.partition}" for partition in partitions)


def make_session_handler(revision: str, sessionless: bool = False, first_epoch: int = FIRST_EPOCH) -> SessionHandler:
    """Make the handler of a revision, which is ``final`` or ``first`` (``fetch.session.revision``). With
    ``sessionless`` every fetch is a full one outside any session. Only the final revision has such fetches, so the
    handler is then the same for both revisions. ``first_epoch`` is the first one of each session. It is 1, but in tests
    of what comes after the largest one."""
    assert revision in ("final", "first"), f"no revision {revision!r} of fetch sessions"
    if revision == "first" and not sessionless:
        return FirstRevisionSessionHandler(first_epoch=first_epoch)
    return FetchSessionHandler(first_epoch=first_epoch, sessionless=sessionless)


def next_epoch(epoch: int) -> int:
    """Return the epoch that follows: 1 after 2^31-1, and -1 after -1 (spec F-3)."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == MAX_EPOCH else epoch + 1


@dataclass(slots=True)
class FetchSessionHandler(SessionHandler):
    """The fetcher's half of a session in KIP-227's final revision. The rules are those of Apache Kafka's own client.

    A request is written here as (session ID, epoch):

    - The first request is (0, 0). A response with an ID opens a session, whose next epoch is 1.
    - After FETCH_SESSION_ID_NOT_FOUND the next request is (0, 0).
    - After any other top-level error, a lost response, or a response that does not fit the request, the next request is
      (ID, 0). It closes the session and opens another.
    """

    sessionless: bool = False
    """Every request is (0, -1), a full fetch outside any session."""
    session_epoch: int = INITIAL_EPOCH
    """The epoch of the next request."""
    _names: dict[bytes, str] = field(default_factory=dict)
    _without_id: int = 0
    """Number of ``partitions`` whose topic has an unknown ID. Requests use names while there are any."""

    @property
    def revision(self) -> str:
        return "final"

    def build(self, partitions: Mapping[TopicPartition, Wanted]) -> FetchPlan:
        """As ``SessionHandler.build``."""
        if self.is_due_in_full:
            self.partitions, self._without_id = {}, 0
        return SessionHandler.build(self, partitions)

    def update(self, changed: Mapping[TopicPartition, Wanted], removed: Collection[TopicPartition] = ()) -> FetchPlan:
        """As ``SessionHandler.update``."""
        assert self.in_flight is None, "two fetches in flight in one session"
        in_full = self.is_due_in_full
        to_send, to_forget = self._apply(changed, removed)
        if in_full:
            self._names = {partition.topic_id: tp.topic for tp, partition in self.partitions.items()}
            to_send, to_forget = self.partitions.copy(), []
        uses_ids = self._without_id == 0
        # A request that forgets all partitions closes the session. It must use IDs if the broker knows the partitions
        # by ID, and names otherwise.
        if not self.partitions and to_forget:
            uses_ids = all(topic_id != NO_TOPIC_ID for _, topic_id in to_forget)
        if self.sessionless:
            self.session_id, self.session_epoch = NO_SESSION_ID, FINAL_EPOCH
        self.in_flight = FetchPlan(self.session_id, self.session_epoch, uses_ids, to_send, tuple(to_forget))
        return self.in_flight

    @property
    def is_due_in_full(self) -> bool:
        """Whether the next request names all partitions."""
        return self.sessionless or self.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)

    def _apply(
        self, changed: Mapping[TopicPartition, Wanted], removed: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, Wanted], list[tuple[TopicPartition, bytes]]]:
        """Bring ``partitions`` up to date. Return the difference for the broker: the partitions to send, and those
        to forget with their topic IDs."""
        to_send: dict[TopicPartition, Wanted] = {}
        to_forget: list[tuple[TopicPartition, bytes]] = []
        gone = frozenset(removed)
        for tp, new in changed.items():
            old = self.partitions.get(tp)
            if old == new or tp in gone:
                continue
            if old is not None and old.topic_id not in (new.topic_id, NO_TOPIC_ID) and new.topic_id != NO_TOPIC_ID:
                # The topic was deleted and created again. For the broker these are two partitions.
                to_forget.append((tp, old.topic_id))
            if old is None or old.topic_id != new.topic_id:
                self._names[new.topic_id] = tp.topic
            self._without_id += (new.topic_id == NO_TOPIC_ID) - (old is not None and old.topic_id == NO_TOPIC_ID)
            to_send[tp] = self.partitions[tp] = new
        for tp in removed:
            old = self.partitions.pop(tp, None)
            if old is not None:
                self._without_id -= old.topic_id == NO_TOPIC_ID
                to_forget.append((tp, old.topic_id))
        return to_send, to_forget

    def handle_response(self, response: FetchResponse) -> Handled:
        """As ``SessionHandler.handle_response``."""
        plan = self._take_in_flight()
        if response.error_code != 0:
            if response.error_code == ErrorCode.fetch_session_id_not_found:
                self._restart()
            else:
                self._close_and_recreate()
            return Handled(f"top-level error {response.error_code}")
        found, unknown_ids = self._named(response)
        unrequested = tuple(tp for tp, _ in found if tp not in self.partitions) + unknown_ids
        if plan.is_full:
            return self._handle_full(response, found, unrequested)
        if unrequested:
            self._close_and_recreate()
            return Handled(f"partitions outside the session: {listed(unrequested)}", found)
        if response.session_id == NO_SESSION_ID:
            self._restart()
        elif response.session_id != self.session_id:
            session_id = response.session_id
            self._close_and_recreate()
            return Handled(f"a response with session {session_id}, which is another one's", found)
        else:
            self.session_epoch = next_epoch(self.session_epoch)
        return Handled(None, found)

    def _handle_full(
        self, response: FetchResponse, requested: RequestedPartitions, unrequested: tuple[TopicPartition, ...]
    ) -> Handled:
        if not requested and not unrequested and response.throttle_time_ms > 0:
            # A throttled full fetch opens no session.
            self._restart()
            return Handled(None)
        problem = self._missing_in(requested)
        if unrequested:
            problem = f"partitions that were not requested: {listed(unrequested)}"
        if problem is not None:
            self.session_id = response.session_id
            self._close_and_recreate()
            return Handled(problem, requested)
        if response.session_id == NO_SESSION_ID:
            self._restart()
        else:
            self.session_id, self.session_epoch = response.session_id, self.first_epoch
        return Handled(None, requested)

    def _named(self, response: FetchResponse) -> tuple[RequestedPartitions, tuple[TopicPartition, ...]]:
        """Find the names of the response's partitions, by topic ID if the response has IDs, else by name (versions
        below 13). Returns the partitions found, and those with a topic ID that the session does not know. The latter
        have the ID in hex instead of the topic's name."""
        found: list[tuple[TopicPartition, PartitionData]] = []
        unknown: list[TopicPartition] = []
        for topic in response.responses:
            name = topic.topic if topic.topic_id == NO_TOPIC_ID else self._names.get(topic.topic_id)
            if name is None:
                shown = topic.topic_id.hex()
                unknown.extend(TopicPartition(shown, data.partition) for data in topic.partitions)
                continue
            found.extend((TopicPartition(name, data.partition), data) for data in topic.partitions)
        return tuple(found), tuple(unknown)

    def handle_lost(self) -> None:
        """As ``SessionHandler.handle_lost``. The next request closes the session and opens another."""
        self._take_in_flight()
        self._close_and_recreate()

    def presume_processed(self) -> bool:
        """As ``SessionHandler.presume_processed``. It is impossible for a full fetch."""
        if self.in_flight is None or self.in_flight.is_full:
            return False
        self._take_in_flight()
        self.session_epoch = next_epoch(self.session_epoch)
        return True

    def make_next_full(self) -> None:
        """As ``SessionHandler.make_next_full``. The next request closes the session and opens another."""
        self._close_and_recreate()

    def close(self) -> FetchPlan | None:
        """As ``SessionHandler.close``: (ID, -1), naming nothing."""
        if self.session_id == NO_SESSION_ID or self.in_flight is not None:
            return None
        self.session_epoch = FINAL_EPOCH
        return self.build({})

    def _restart(self) -> None:
        self.session_id, self.session_epoch = NO_SESSION_ID, INITIAL_EPOCH

    def _close_and_recreate(self) -> None:
        self.session_epoch = INITIAL_EPOCH


@dataclass(slots=True)
class FirstRevisionSessionHandler(SessionHandler):
    """The fetcher's half of a session in KIP-227's first revision (Fetch 1000, and 1002 for followers).

    A full request without a session ID opens a session. The first incremental request of a session has number 1.
    Request N+1 acknowledges response N. So a request whose response was lost is sent again with
    its number. To add or remove partitions the client sends a full request with the session's ID, which does not change
    the number. After an error the next request is full.
    """

    sequence_number: int = 1
    """The number of the next incremental request."""
    full_next: bool = True
    """The next request must be full."""
    lost: FetchPlan | None = None
    """An incremental request without a response. It may have arrived, so the next request has its number and repeats
    its content."""
    served: dict[TopicPartition, None] = field(default_factory=dict)
    """The partitions with records in the last response. The broker takes those records for processed. A fetcher that
    wants the same records again must therefore name the partition, even if nothing has changed."""

    @property
    def revision(self) -> str:
        return "first"

    def update(self, changed: Mapping[TopicPartition, Wanted], removed: Collection[TopicPartition] = ()) -> FetchPlan:
        """As ``SessionHandler.update``. Adding or removing a partition makes the request full."""
        assert self.in_flight is None, "two fetches in flight in one session"
        gone, held = frozenset(removed), self.partitions
        to_send = dict(self.lost.to_send) if self.lost is not None else {}
        for tp, new in changed.items():
            old = held.get(tp)
            if (old == new and tp not in self.served) or tp in gone:
                continue
            self.full_next = self.full_next or old is None
            to_send[tp] = held[tp] = new
        for tp in removed:
            self.full_next = held.pop(tp, None) is not None or self.full_next
        for tp in self.served:
            if tp not in changed and tp in held:
                to_send[tp] = held[tp]
        self.served = {}
        self.in_flight = self._plan(to_send)
        return self.in_flight

    def _plan(self, to_send: Mapping[TopicPartition, Wanted]) -> FetchPlan:
        self.lost = None
        if self.full_next:
            plan = FetchPlan(self.session_id, INITIAL_EPOCH, False, self.partitions.copy(), first_revision=True)
            self._rotate()
            return plan
        return FetchPlan(self.session_id, self.sequence_number, False, to_send, first_revision=True)

    def _rotate(self) -> None:
        """Move the first partition to the end, so that the next full request begins at another one. The broker returns
        partitions in the order of the request. If several full requests followed each other in the same order, a byte
        limit would starve the last partitions."""
        first = next(iter(self.partitions), None)
        if first is not None:
            self.partitions[first] = self.partitions.pop(first)

    def handle_response(self, response: FetchResponse) -> Handled:
        """As ``SessionHandler.handle_response``."""
        plan = self._take_in_flight()
        if response.error_code != 0:
            # The session ID or the number did not fit. A full request in the same session does not change the number
            # that the broker expects, so only a new session helps.
            foreign = response.error_code == DraftError.INVALID_FETCH_SESSION
            self.session_id, self.full_next = NO_SESSION_ID if foreign else response.session_id, True
            return Handled(f"top-level error {response.error_code}")
        found = tuple(
            (TopicPartition(topic.topic, data.partition), data)
            for topic in response.responses
            for data in topic.partitions
        )
        unrequested = tuple(tp for tp, _ in found if tp not in self.partitions)
        problem = self._problem(plan, response, found, unrequested)
        if problem is not None:
            self.full_next = True
            if plan.session_id == NO_SESSION_ID:
                self._continue_in(response.session_id)
            return Handled(problem, found)
        if not plan.is_full:
            self.sequence_number += 1
        self._continue_in(response.session_id)
        self.full_next = not response.response_flags & INCREMENTAL_FETCH_OK or response.session_id == NO_SESSION_ID
        self.served = {tp: None for tp, data in found if data.records}
        return Handled(None, found)

    def _continue_in(self, session_id: int) -> None:
        """Continue in the response's session. A new session begins with ``first_epoch``."""
        if session_id not in (NO_SESSION_ID, self.session_id):
            self.sequence_number = self.first_epoch
        self.session_id = session_id

    def _problem(
        self,
        plan: FetchPlan,
        response: FetchResponse,
        requested: RequestedPartitions,
        unrequested: tuple[TopicPartition, ...],
    ) -> str | None:
        """Return what in the response does not fit the request; None if it fits."""
        if unrequested:
            return f"partitions that were not requested: {listed(unrequested)}"
        if bool(response.response_flags & INCREMENTAL_FETCH_RESPONSE) == plan.is_full:
            return (
                "an incremental response to a full request" if plan.is_full else "a full response to an incremental one"
            )
        if response.session_id not in (NO_SESSION_ID, plan.session_id) and plan.session_id != NO_SESSION_ID:
            return f"a response with session {response.session_id}, which is another one's"
        return self._missing_in(requested) if plan.is_full else None

    def handle_lost(self) -> None:
        """As ``SessionHandler.handle_lost``. The number stays, even if a full request comes in between. The broker
        recognises it as the next request or as a retransmission, whichever it is."""
        plan = self._take_in_flight()
        if not plan.is_full:
            self.lost = plan

    def make_next_full(self) -> None:
        """As ``SessionHandler.make_next_full``. The session and its number stay."""
        self.full_next = True

    def presume_processed(self) -> bool:
        """As ``SessionHandler.presume_processed``. It is impossible for a full fetch.

        The next number acknowledges the lost response. Its records were not processed, so the
        next request names all partitions, with the offsets that the fetcher wants.
        """
        if self.in_flight is None or self.in_flight.is_full:
            return False
        self._take_in_flight()
        self.sequence_number += 1
        self.served = dict.fromkeys(self.partitions)
        return True
