"""The first revision of fetch sessions, from the first text of KIP-227's page: IDs and sequence numbers have 64 bits,
and dirty numbers are compared.

It plays beside the final revision, in the private drafts of Fetch 1000 and 1002.
"""

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import SESSION_PARTITIONS_PER_SLICE, Sliced, sort_in_slices
from reference_broker.sessions.cached_partition import CachedPartition, is_lasting
from reference_broker.sessions.fetch_session import AdmitsSessions, DataQueue, FetchSession, Revision
from reference_broker.wire.errors import DraftError, Error, ErrorCode
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH,
    INCREMENTAL_FETCH_OK,
    INCREMENTAL_FETCH_RESPONSE,
    FetchRequest,
    FetchResponse,
    PartitionData,
)


class FirstRevision(Revision):
    """The first text of the KIP's page.

    Request N+1 proves that response N was processed. A repeated request N gets at least the partitions that its first
    response held. Partitions are ordered by name and index, and response N begins at N modulo their count. Errors are
    reported as in the final revision, since the page does not say.

    ``CachedPartition.change_number`` is the partition's last dirty sequence number. Response N holds the partitions
    whose number is N or more. A partition that is queued with data counts as dirty for whichever response comes
    next. Its number is written only when the partition is looked at, so that a response whose limit excludes 10,000
    partitions does not touch them.
    """

    name = "first"
    repeats = True
    largest_id = 0x7FFFFFFFFFFFFFFF
    unknown_id = DraftError.INVALID_FETCH_SESSION
    wrong_number = DraftError.INVALID_FETCH_SESSION

    def is_number(self, number: int) -> bool:
        return number >= 1

    def accepts(self, session: FetchSession, number: int) -> bool:
        return number in (session.number, session.number + 1)

    def advance(self, session: FetchSession, number: int) -> None:
        # Decision first-request-number (G-3): sent again | next
        if number == session.number:
            for cached in session.last_sent:
                session.recheck(cached)
            if session.responded_before_full is not None:  # Nothing of the full request was sent.
                for cached in session.changed:
                    cached.change_number = max(cached.change_number, number)
            return
        # Decision previous-request (G-6): got no response | got one
        if session.responded_number < session.number:
            # The previous request never got its response, so its changes are sent now.
            for cached in session.changed:
                cached.change_number = number
        for cached in session.last_sent:
            # Decision sent-data-processed (G-5): at rest | still dirty
            if cached.available_bytes and cached.change_number <= session.number:
                # The previous request was repeated, and got no second response. The fetcher has processed the first.
                session.changed.pop(cached, None)
                self._rest(session, cached, cached.change_number)
        session.number, session.epoch = number, number + 1
        session.last_sent = {}

    def keep(self, sessions: AdmitsSessions, session: FetchSession, wants_session: bool, now: Now) -> bool:
        """If the partitions are too many, the session caches nothing and denies incremental fetches."""
        if session.session_id:
            if session.serves_full and sessions.is_too_large(session):
                sessions.deny(session)
        elif not wants_session:
            return False
        # Decision large-newcomer (G-10): admitted empty | admitted or declined
        elif not sessions.admit(session, now) and len(sessions.sessions) < sessions.slots:
            sessions.deny(session)
            sessions.admit(session, now)
        return bool(session.session_id) and not session.denied

    def response_flags(self, session: FetchSession) -> int:
        return _may_follow(session) | (0 if session.serves_full else INCREMENTAL_FETCH_RESPONSE)

    def error_response(self, error: Error, request: FetchRequest, session: FetchSession | None = None) -> FetchResponse:
        """While the session exists, an error has its ID."""
        flags, session_id = INCREMENTAL_FETCH_RESPONSE if request.fetch_type == INCREMENTAL_FETCH else 0, 0
        if session is not None:
            flags, session_id = flags | _may_follow(session), session.session_id
        return FetchResponse(int(error), session_id, error_string=_TEXTS.get(error), response_flags=flags)

    def queue(self) -> DataQueue:
        return RingQueue()

    def start(self, session: FetchSession) -> int:
        # Decision response-start (G-7): first partition | rotated
        return 0 if session.serves_full or not session.partitions else session.number % len(session.partitions)

    def place(self, session: FetchSession, cached: CachedPartition) -> int:
        """A full response keeps the request's order. Any other begins at ``start`` and wraps around."""
        if session.serves_full:
            return cached.order
        return (cached.order - self.start(session)) % len(session.partitions)

    def named(self, session: FetchSession, cached: CachedPartition) -> None:
        """Being named is no change. An offset with data behind it is one (``assessed``)."""
        session.recheck(cached)

    def assessed(self, session: FetchSession, cached: CachedPartition, available_bytes: int) -> None:
        """A partition with data that no response had room for is dirty for the number after the last response's.

        That last response may have been the first one to the present number.
        """
        if cached.available_bytes:
            cached.change_number = max(cached.change_number, session.upcoming_number())
        elif available_bytes and cached.named:
            cached.change_number = max(cached.change_number, session.number)

    def reports(self, session: FetchSession, cached: CachedPartition, data: PartitionData) -> bool:
        """A partition with data gets here only if the response had no room for it, so it waits for the next response.

        The exception is a repeated response that had the partition before.
        """
        if session.serves_full or is_lasting(data) or cached in session.last_sent:
            return True
        # Decision partition-dirty (G-6): sent | omitted
        return cached.change_number >= session.number and not cached.available_bytes

    def sent(self, session: FetchSession, cached: CachedPartition, data: PartitionData, more: bool) -> None:  # noqa: ARG002
        session.last_sent[cached] = None
        if more:
            cached.change_number = max(cached.change_number, session.number + 1)
            return
        # A full response is settled, also if its number is repeated.
        dirty = 0 if session.serves_full else max(cached.change_number, session.number)
        self._rest(session, cached, dirty)

    def _rest(self, session: FetchSession, cached: CachedPartition, dirty: int) -> None:
        """The partition is not sent again before something changes."""
        session.assess(cached, 0)
        cached.change_number = dirty

    def omitted(self, session: FetchSession, cached: CachedPartition) -> None:
        if cached.available_bytes:
            cached.change_number = max(cached.change_number, session.number + 1)

    def stays_marked(self, session: FetchSession, cached: CachedPartition) -> bool:
        return cached.change_number > session.number and not cached.available_bytes

    def full_response_sent(self, session: FetchSession) -> Sliced[None]:
        """From now on partitions are ordered by name and index. A repeated response is built from their numbers."""
        session.last_sent = {}
        cached = session.partitions.values()
        ordered = yield from sort_in_slices(cached, SESSION_PARTITIONS_PER_SLICE, lambda one: (one.topic, one.index))
        yield from session.rank(ordered)


def _may_follow(session: FetchSession) -> int:
    """Return the flag for sessions that accept incremental requests."""
    return INCREMENTAL_FETCH_OK if session.session_id and not session.denied else 0


_TEXTS: dict[Error, str] = {
    DraftError.INVALID_FETCH_SESSION: "No such fetch session, or a sequence number that is not valid for it.",
    DraftError.INCREMENTAL_FETCH_DENIED: "This session takes full fetches only.",
    ErrorCode.invalid_request: "A partition outside the session, too many partitions, or an unknown fetch type.",
}
"""The error texts, which the final revision lacks."""


@dataclass(slots=True)
class RingQueue:
    """Ordered by ``order`` from ``start`` on, then from the lowest again. Orders are unique.

    Taking and putting move the later places in memory: about a microsecond for 10,000 partitions with data.
    """

    _orders: list[int] = field(default_factory=list)
    _by_order: dict[int, CachedPartition] = field(default_factory=dict)

    def push(self, cached: CachedPartition) -> None:
        insort(self._orders, cached.order)
        self._by_order[cached.order] = cached

    def take(self, start: int) -> CachedPartition | None:
        if not self._orders:
            return None
        found = bisect_left(self._orders, start)
        return self._by_order.pop(self._orders.pop(found if found < len(self._orders) else 0))
