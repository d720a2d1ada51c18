"""Client side of incremental fetch sessions (KIP-227, final revision), and the factory of both revisions' handlers.

The rules are those of Apache Kafka's own client. A request is written here as (session ID, epoch):

- The first request is (0, 0). An answer that carries an ID opens a session, whose next epoch is 1.
- After FETCH_SESSION_ID_NOT_FOUND the next request is (0, 0).
- After any other top-level error, a lost answer, or an answer that does not fit the request, the next request is
  (ID, 0). It closes the session and opens another.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Final

from reference_broker.client.fetch_plan import (
    CLOSE_SESSION_EPOCH,
    FIRST_EPOCH,
    INITIAL_EPOCH,
    NO_SESSION_ID,
    FetchPlan,
    Found,
    Handled,
    SessionHandler,
    Wanted,
    listed,
)
from reference_broker.client.first_session_handler import FirstSessionHandler
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchResponse, PartitionData

__all__ = [
    "FetchPlan",
    "FetchSessionHandler",
    "Handled",
    "SessionHandler",
    "Wanted",
    "make_session_handler",
    "next_epoch",
]

MAX_EPOCH: Final = 2**31 - 1
ID_NOT_FOUND: Final = 70


def make_session_handler(revision: str, sessionless: bool = False, first_epoch: int = FIRST_EPOCH) -> SessionHandler:
    """Makes the handler of a revision, which is ``final`` or ``first`` (``fetch.session.revision``). With
    ``sessionless`` every fetch is a full one outside any session. Only the final revision has such fetches, so the
    handler is then the same for both revisions. ``first_epoch`` is the first one of each session. It is 1, but in tests
    of what comes after the largest one."""
    assert revision in ("final", "first"), f"no revision {revision!r} of fetch sessions"
    if revision == "first" and not sessionless:
        return FirstSessionHandler(first_epoch=first_epoch)
    return FetchSessionHandler(first_epoch=first_epoch, sessionless=sessionless)


def next_epoch(epoch: int) -> int:
    """Returns the epoch that follows: 1 after 2^31-1, and -1 after -1 (spec F-3)."""
    if epoch < 0:
        return CLOSE_SESSION_EPOCH
    return 1 if epoch == MAX_EPOCH else epoch + 1


@dataclass(slots=True)
class FetchSessionHandler(SessionHandler):
    """The fetcher's half of a session in KIP-227's final revision. With ``sessionless`` every request is (0, -1), a
    full fetch outside any session. ``session_epoch`` is that of the next request."""

    sessionless: bool = False
    session_epoch: int = INITIAL_EPOCH
    _names: dict[bytes, str] = field(default_factory=dict)
    _without_id: int = 0
    """How many of ``partitions`` have a topic whose ID is not known. Requests use names while there are any."""

    @property
    def revision(self) -> str:
        return "final"

    def build(self, wanted: Mapping[TopicPartition, Wanted]) -> FetchPlan:
        """As ``SessionHandler.build``."""
        if self.is_due_in_full:
            self.partitions, self._without_id = {}, 0
        return SessionHandler.build(self, wanted)

    def update(self, changed: Mapping[TopicPartition, Wanted], removed: Collection[TopicPartition] = ()) -> FetchPlan:
        """As ``SessionHandler.update``."""
        assert self.in_flight is None, "two fetches in flight in one session"
        in_full = self.is_due_in_full
        to_send, to_forget = self._apply(changed, removed)
        if in_full:
            self._names = {each.topic_id: tp.topic for tp, each in self.partitions.items()}
            to_send, to_forget = self.partitions.copy(), []
        uses_ids = self._without_id == 0
        # A request that forgets all partitions closes the session. It must use IDs if the broker knows the partitions
        # by ID, and names otherwise.
        if not self.partitions and to_forget:
            uses_ids = all(topic_id != NO_TOPIC_ID for _, topic_id in to_forget)
        if self.sessionless:
            self.session_id, self.session_epoch = NO_SESSION_ID, CLOSE_SESSION_EPOCH
        self.in_flight = FetchPlan(self.session_id, self.session_epoch, uses_ids, to_send, tuple(to_forget))
        return self.in_flight

    @property
    def is_due_in_full(self) -> bool:
        """Whether the next request names all partitions."""
        return self.sessionless or self.session_epoch in (INITIAL_EPOCH, CLOSE_SESSION_EPOCH)

    def _apply(
        self, changed: Mapping[TopicPartition, Wanted], removed: Collection[TopicPartition]
    ) -> tuple[dict[TopicPartition, Wanted], list[tuple[TopicPartition, bytes]]]:
        """Brings ``partitions`` up to date. Returns what the broker has to be told: the partitions to send, and those
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
            return Handled(f"partitions outside the session: {listed(unrequested)}", found)
        if response.session_id == NO_SESSION_ID:
            self._restart()
        elif response.session_id != self.session_id:
            answered = response.session_id
            self._close_and_recreate()
            return Handled(f"answered with session {answered}, which is another one's", found)
        else:
            self.session_epoch = next_epoch(self.session_epoch)
        return Handled(None, found)

    def _handle_full(self, response: FetchResponse, found: Found, unrequested: tuple[TopicPartition, ...]) -> Handled:
        if not found and not unrequested and response.throttle_time_ms > 0:
            # A throttled full fetch opens no session.
            self._restart()
            return Handled(None)
        problem = self._missing_in(found)
        if unrequested:
            problem = f"partitions that were not asked for: {listed(unrequested)}"
        if problem is not None:
            self.session_id = response.session_id
            self._close_and_recreate()
            return Handled(problem, found)
        if response.session_id == NO_SESSION_ID:
            self._restart()
        else:
            self.session_id, self.session_epoch = response.session_id, self.first_epoch
        return Handled(None, found)

    def _named(self, response: FetchResponse) -> tuple[Found, tuple[TopicPartition, ...]]:
        """Finds the names of the answer's partitions, by topic ID if the answer has IDs, else by name (versions below
        13). Returns the partitions found, and those with a topic ID that the session does not know. The latter have the
        ID in hex instead of the topic's name."""
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

    def name_all(self) -> None:
        """As ``SessionHandler.name_all``. The next request closes the session and opens another."""
        self._close_and_recreate()

    def farewell(self) -> FetchPlan | None:
        """As ``SessionHandler.farewell``: (ID, -1), naming nothing."""
        if self.session_id == NO_SESSION_ID or self.in_flight is not None:
            return None
        self.session_epoch = CLOSE_SESSION_EPOCH
        return self.build({})

    def _restart(self) -> None:
        self.session_id, self.session_epoch = NO_SESSION_ID, INITIAL_EPOCH

    def _close_and_recreate(self) -> None:
        self.session_epoch = INITIAL_EPOCH
