"""Client side of incremental fetch sessions in KIP-227's first revision (Fetch 1000, and 1002 for followers).

A full request without a session ID opens a session. The first incremental request of a session has number 1. Request
N+1 tells the broker that answer N was processed. So a request whose answer was lost is sent again with its number. To
add or remove partitions the client sends a full request with the session's ID, which does not change the number. After
an error the next request is full.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from reference_broker.client.fetch_plan import (
    INITIAL_EPOCH,
    NO_SESSION_ID,
    FetchPlan,
    Found,
    Handled,
    SessionHandler,
    Wanted,
    listed,
)
from reference_broker.client.partitions import TopicPartition
from reference_broker.wire.errors import DraftError
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH_OK,
    INCREMENTAL_FETCH_RESPONSE,
    FetchResponse,
)


@dataclass(slots=True)
class FirstSessionHandler(SessionHandler):
    """The fetcher's half of a session in KIP-227's first revision.

    ``sequence_number`` is that of the next incremental request. ``full_next`` says that the next request must be full.

    ``lost`` is an incremental request that got no answer. Nobody knows whether it arrived, so the next request has its
    number and repeats its content.

    ``served`` lists the partitions with records in the last answer. The broker takes those records for processed. A
    fetcher that wants the same records again must therefore name the partition, even if nothing has changed.
    """

    sequence_number: int = 1
    full_next: bool = True
    lost: FetchPlan | None = None
    served: dict[TopicPartition, None] = field(default_factory=dict)

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
        """Moves the first partition to the end, so that the next full request begins at another one. The broker answers
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
                self._take_up(response.session_id)
            return Handled(problem, found)
        if not plan.is_full:
            self.sequence_number += 1
        self._take_up(response.session_id)
        self.full_next = not response.response_flags & INCREMENTAL_FETCH_OK or response.session_id == NO_SESSION_ID
        self.served = {tp: None for tp, data in found if data.records}
        return Handled(None, found)

    def _take_up(self, session_id: int) -> None:
        """Continues in the answer's session. A new session begins with ``first_epoch``."""
        if session_id not in (NO_SESSION_ID, self.session_id):
            self.sequence_number = self.first_epoch
        self.session_id = session_id

    def _problem(
        self, plan: FetchPlan, response: FetchResponse, found: Found, unrequested: tuple[TopicPartition, ...]
    ) -> str | None:
        """Says what in the answer does not fit the request; None if it fits."""
        if unrequested:
            return f"partitions that were not asked for: {listed(unrequested)}"
        if bool(response.response_flags & INCREMENTAL_FETCH_RESPONSE) == plan.is_full:
            return "an incremental answer to a full request" if plan.is_full else "a full answer to an incremental one"
        if response.session_id not in (NO_SESSION_ID, plan.session_id) and plan.session_id != NO_SESSION_ID:
            return f"answered with session {response.session_id}, which is another one's"
        return self._missing_in(found) if plan.is_full else None

    def handle_lost(self) -> None:
        """As ``SessionHandler.handle_lost``. The number stays, even if a full request comes in between. The broker
        recognises it as the next request or as a retransmission, whichever it is."""
        plan = self._take_in_flight()
        if not plan.is_full:
            self.lost = plan

    def name_all(self) -> None:
        """As ``SessionHandler.name_all``. The session and its number stay."""
        self.full_next = True

    def presume_processed(self) -> bool:
        """As ``SessionHandler.presume_processed``. It is impossible for a full fetch.

        The next number tells the broker that the records of the lost answer were processed. They were not, so the next
        request names all partitions, with the offsets that the fetcher wants.
        """
        if self.in_flight is None or self.in_flight.is_full:
            return False
        self._take_in_flight()
        self.sequence_number += 1
        self.served = dict.fromkeys(self.partitions)
        return True
