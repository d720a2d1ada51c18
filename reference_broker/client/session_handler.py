"""Client side of incremental fetch sessions (KIP-227): which partitions a fetch has to name, and what an answer means.

Without I/O. One handler for each pair of fetcher and node. ``build`` and one of ``handle_response``, ``handle_lost``,
``presume_processed`` alternate. Rules as in Apache Kafka's own client: the first request is (0, 0); an answer that
carries an ID opens a session whose next epoch is 1; after FETCH_SESSION_ID_NOT_FOUND the next request is (0, 0); after
any other top-level error, a lost answer or an answer that does not fit the request it is (ID, 0), which closes the
session and opens another.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.fetch import (
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
    PartitionData,
)

INITIAL_EPOCH: Final = 0
FINAL_EPOCH: Final = -1
MAX_EPOCH: Final = 2**31 - 1
ID_NOT_FOUND: Final = 70
NO_SESSION_ID: Final = 0
LAST_VERSION_BY_NAME: Final = 12
"""Fetch requests name topics by ID from version 13."""


def next_epoch(epoch: int) -> int:
    """Spec F-3: after 2^31-1 comes 1; -1 stays -1."""
    if epoch < 0:
        return FINAL_EPOCH
    return 1 if epoch == MAX_EPOCH else epoch + 1


class Wanted(NamedTuple):
    """What the fetcher wants of one partition; equal values need not be sent again. -1: not given."""

    topic_id: bytes
    fetch_offset: int
    max_bytes: int
    current_leader_epoch: int = -1
    last_fetched_epoch: int = -1
    log_start_offset: int = -1


@dataclass(frozen=True, slots=True)
class FetchPlan:
    """One request's part that belongs to the session. ``to_forget`` holds removed partitions with the ID they had."""

    session_id: int
    session_epoch: int
    uses_topic_ids: bool
    to_send: Mapping[TopicPartition, Wanted]
    to_forget: tuple[tuple[TopicPartition, bytes], ...] = ()

    @property
    def is_full(self) -> bool:
        return self.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)

    def version(self, newest: int) -> int:
        """The request version: below 13 where a topic's ID is unknown."""
        return newest if self.uses_topic_ids else min(newest, LAST_VERSION_BY_NAME)

    def request(self, max_wait_ms: int, min_bytes: int, max_bytes: int, replica_id: int = -1) -> FetchRequest:
        """A new request value each time, so that the receiver may keep it."""
        return FetchRequest(
            replica_id=replica_id,
            max_wait_ms=max_wait_ms,
            min_bytes=min_bytes,
            max_bytes=max_bytes,
            session_id=self.session_id,
            session_epoch=self.session_epoch,
            topics=_grouped_topics(self.to_send),
            forgotten=_grouped_forgotten(self.to_forget),
        )


def _grouped_topics(to_send: Mapping[TopicPartition, Wanted]) -> list[FetchTopic]:
    """By topic, in the order in which the partitions are wanted."""
    topics: dict[tuple[str, bytes], FetchTopic] = {}
    for (name, partition), wanted in to_send.items():
        key = (name, wanted.topic_id)
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = FetchTopic(name, wanted.topic_id, [])
        topic.partitions.append(
            FetchPartition(
                partition,
                wanted.fetch_offset,
                wanted.max_bytes,
                wanted.current_leader_epoch,
                wanted.last_fetched_epoch,
                wanted.log_start_offset,
            )
        )
    return list(topics.values())


def _grouped_forgotten(to_forget: Iterable[tuple[TopicPartition, bytes]]) -> list[ForgottenTopic]:
    topics: dict[tuple[str, bytes], ForgottenTopic] = {}
    for (name, partition), topic_id in to_forget:
        key = (name, topic_id)
        topic = topics.get(key)
        if topic is None:
            topic = topics[key] = ForgottenTopic(name, topic_id, [])
        topic.partitions.append(partition)
    return list(topics.values())


@dataclass(frozen=True, slots=True)
class Handled:
    """``problem``: why the answer cannot be used (its error, or what does not fit), None if it can.

    ``partitions``: the answer's partitions by name, in its order, also where there is a problem (the history records
    them). ``unrequested``: those that the session does not hold; topic IDs that it does not know are shown as hex.
    """

    problem: str | None
    partitions: tuple[tuple[TopicPartition, PartitionData], ...] = ()
    unrequested: tuple[TopicPartition, ...] = ()


@dataclass(slots=True)
class FetchSessionHandler:
    """``sessionless``: always full fetches outside any session, (0, -1)."""

    sessionless: bool = False
    session_id: int = NO_SESSION_ID
    session_epoch: int = INITIAL_EPOCH
    partitions: dict[TopicPartition, Wanted] = field(default_factory=dict)
    """What the broker will hold for the session once it has accepted all requests sent so far."""
    in_flight: FetchPlan | None = None
    _names: dict[bytes, str] = field(default_factory=dict)

    def build(self, wanted: Mapping[TopicPartition, Wanted]) -> FetchPlan:
        """The next request, for exactly these partitions.

        :raises AssertionError: the request before has not been handled yet.
        """
        assert self.in_flight is None, "two fetches in flight in one session"
        uses_ids = all(each.topic_id != NO_TOPIC_ID for each in wanted.values())
        if self.sessionless:
            self.session_id, self.session_epoch = NO_SESSION_ID, FINAL_EPOCH
        if self.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH):
            self.partitions = dict(wanted)
            self._names = {each.topic_id: tp.topic for tp, each in wanted.items()}
            plan = FetchPlan(self.session_id, self.session_epoch, uses_ids, self.partitions.copy())
        else:
            plan = self._build_incremental(wanted, uses_ids)
        self.in_flight = plan
        return plan

    def _build_incremental(self, wanted: Mapping[TopicPartition, Wanted], uses_ids: bool) -> FetchPlan:
        held = self.partitions
        to_send: dict[TopicPartition, Wanted] = {}
        to_forget: list[tuple[TopicPartition, bytes]] = []
        for tp, new in wanted.items():
            old = held.get(tp)
            if old == new:
                continue
            if old is None:
                self._names[new.topic_id] = tp.topic
            elif old.topic_id not in (new.topic_id, NO_TOPIC_ID) and new.topic_id != NO_TOPIC_ID:
                # Deleted and created again: for the broker these are two partitions.
                to_forget.append((tp, old.topic_id))
                self._names[new.topic_id] = tp.topic
            elif old.topic_id == NO_TOPIC_ID:
                self._names[new.topic_id] = tp.topic
            to_send[tp] = new
        removed = [tp for tp in held if tp not in wanted]
        to_forget.extend((tp, held.pop(tp).topic_id) for tp in removed)
        held.update(to_send)
        # With nothing left the broker closes the session; it decides by what it holds whether IDs or names are meant.
        if not wanted and to_forget:
            uses_ids = all(topic_id != NO_TOPIC_ID for _, topic_id in to_forget)
        return FetchPlan(self.session_id, self.session_epoch, uses_ids, to_send, tuple(to_forget))

    def handle_response(self, response: FetchResponse) -> Handled:
        """What the answer to the request in flight means; decides what the next one will be."""
        plan = self._take_in_flight()
        if response.error_code != 0:
            if response.error_code == ID_NOT_FOUND:
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
            return Handled(f"partitions outside the session: {_list(unrequested)}", found, unrequested)
        if response.session_id == NO_SESSION_ID:
            self._restart()
        elif response.session_id != self.session_id:
            answered = response.session_id
            self._close_and_recreate()
            return Handled(f"answered with session {answered}, which is another one's", found)
        else:
            self.session_epoch = next_epoch(self.session_epoch)
        return Handled(None, found)

    def _handle_full(
        self,
        response: FetchResponse,
        found: tuple[tuple[TopicPartition, PartitionData], ...],
        unrequested: tuple[TopicPartition, ...],
    ) -> Handled:
        if not found and not unrequested and response.throttle_time_ms > 0:
            # A throttled full fetch opens no session.
            self._restart()
            return Handled(None)
        problem = None
        if unrequested:
            problem = f"partitions that were not asked for: {_list(unrequested)}"
        else:
            answered = {tp for tp, _ in found}
            missing = [tp for tp in self.partitions if tp not in answered]
            if missing:
                problem = f"partitions missing in a full answer: {_list(missing)}"
        if problem is not None:
            self.session_id = response.session_id
            self._close_and_recreate()
            return Handled(problem, found, unrequested)
        if response.session_id == NO_SESSION_ID:
            self._restart()
        else:
            self.session_id, self.session_epoch = response.session_id, 1
        return Handled(None, found)

    def _named(
        self, response: FetchResponse
    ) -> tuple[tuple[tuple[TopicPartition, PartitionData], ...], tuple[TopicPartition, ...]]:
        """By topic ID where the answer gives one, else by name (versions below 13)."""
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
        """No answer came (timeout, lost connection): close that session and open another."""
        self._take_in_flight()
        self._close_and_recreate()

    def presume_processed(self) -> bool:
        """No answer came; go on as if it had been an empty one. False where that is impossible (a full fetch)."""
        if self.in_flight is None or self.in_flight.is_full:
            return False
        self._take_in_flight()
        self.session_epoch = next_epoch(self.session_epoch)
        return True

    def close_session(self) -> None:
        """The next request shall be the session's last: (ID, -1)."""
        self.session_epoch = FINAL_EPOCH

    def _take_in_flight(self) -> FetchPlan:
        plan, self.in_flight = self.in_flight, None
        assert plan is not None, "an answer without a request"
        return plan

    def _restart(self) -> None:
        self.session_id, self.session_epoch = NO_SESSION_ID, INITIAL_EPOCH

    def _close_and_recreate(self) -> None:
        self.session_epoch = INITIAL_EPOCH


def _list(partitions: Iterable[TopicPartition]) -> str:
    return ", ".join(f"{each.topic}-{each.partition}" for each in partitions)
