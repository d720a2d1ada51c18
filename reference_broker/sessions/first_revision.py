"""The first revision of fetch sessions (KIP-227's first text): IDs and sequence numbers have 64 bits,
and dirty numbers are compared.

It plays beside the final revision, in the private drafts of Fetch 1000 and 1002.
"""

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass, field

from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import SESSION_PARTITIONS_PER_SLICE, Sliced, in_slices, sort_in_slices
from reference_broker.replication.partitions import Partitions
from reference_broker.sessions.fetch_session import CachedPartition, FetchSession, Removed, Revision, is_lasting
from reference_broker.wire.errors import DraftError, Error, ErrorCode
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH,
    INCREMENTAL_FETCH_OK,
    INCREMENTAL_FETCH_RESPONSE,
    FetchRequest,
    FetchResponse,
    PartitionData,
)


@dataclass(slots=True, eq=False)
class FirstRevisionSession(FetchSession):
    """A session of the first text of the KIP's page.

    Request N+1 proves that response N was processed. A repeated request N gets at least the partitions that its first
    response held. Partitions are ordered by name and index, and response N begins at N modulo their count. Errors are
    reported as in the final revision, since the page does not say.

    Response N has the partitions whose ``dirty_sequence_number`` is N or more. A partition that is queued with data
    counts as dirty for whichever response comes next. Its number is written only when the partition is looked at, so
    that a response whose limit excludes 10,000 partitions does not touch them.
    """

    # The methods call those of FetchSession by its name: super() needs the class that slots=True replaces.

    serves_full: bool = True
    """Whether the request in hand is a full one."""
    sequence_number: int = 0
    """The sequence number of the latest incremental request. A request carries it as its session epoch."""
    responded_sequence_number: int = -1
    """The last incremental request that got its response, -1 before even the full fetch did."""
    responded_before_full: int | None = None
    """``responded_sequence_number`` before a full request in the session, while that has no response."""
    denied: bool = False
    """Whether the session refuses incremental fetches and caches nothing."""
    _with_data: "RingQueue" = field(default_factory=lambda: RingQueue())
    last_sent: dict[CachedPartition, None] = field(default_factory=dict)
    """The partitions in the response to ``sequence_number``, if that may have to be repeated."""

    # requests

    def expects_epoch(self, request_epoch: int) -> bool:
        return request_epoch in (self.sequence_number, self.sequence_number + 1)

    def accept(self, request_epoch: int, now: Now) -> None:
        self.serves_full = False
        self.advance(request_epoch)
        self.touch(now)
        self.responded_before_full = None

    def advance(self, request_epoch: int) -> None:
        # Decision first-request-number (G-3): sent again | next
        if request_epoch == self.sequence_number:
            for cached in self.last_sent:
                self.recheck(cached)
            if self.responded_before_full is not None:  # Nothing of the full request was sent.
                for cached in self.changed:
                    _raise_dirty(cached, request_epoch)
            return
        # Decision previous-request (G-6): got no response | got one
        if self.responded_sequence_number < self.sequence_number:
            # The previous request never got its response, so its changes are sent now, or all of a full request.
            is_full = self.responded_before_full is not None
            for cached in self.changed:
                if is_full or cached.dirty_sequence_number >= self.sequence_number:
                    cached.dirty_sequence_number = request_epoch
        for cached in self.last_sent:
            # Decision sent-data-processed (G-5): at rest | still dirty
            if cached.available_bytes and cached.dirty_sequence_number <= self.sequence_number:
                # The previous request was repeated, and got no second response. The fetcher has processed the first.
                self.changed.pop(cached, None)
                self._rest(cached, cached.dirty_sequence_number)
        self.sequence_number, self.epoch = request_epoch, request_epoch + 1
        self.accepted_requests += 1
        self.last_sent = {}

    def accept_full(self, now: Now) -> Removed:
        """Accept a full request, which replaces all partitions and keeps ID and number."""
        removed = self.empty()
        self.serves_full, self.denied = True, False
        if self.responded_before_full is None:
            self.responded_before_full = self.responded_sequence_number
        self.responded_sequence_number = self.sequence_number - 1
        self.touch(now)
        return removed

    def deny(self) -> Removed:
        """Keep only the ID. From now on only full requests are accepted."""
        self.denied = True
        return self.empty()

    def empty(self) -> Removed:
        self.last_sent = {}
        return FetchSession.empty(self)

    def has_parked(self, request_epoch: int) -> bool:
        """Whether an incremental fetch with this number is parked, and may be repeated."""
        return self.fetch is not None and not self.serves_full and request_epoch == self.sequence_number

    def upcoming_sequence_number(self) -> int:
        """Return the number of the response that will have the current changes."""
        is_responded = self.responded_sequence_number >= self.sequence_number
        return self.sequence_number + 1 if is_responded else self.sequence_number

    # partitions

    def mark(self, cached: CachedPartition) -> None:
        """Mark a partition that changed. One that a request names is only rechecked: that is no change, but an offset
        with data behind it is one (``assess``)."""
        cached.dirty_sequence_number = self.upcoming_sequence_number()
        self.changed[cached] = None

    def recheck(self, cached: CachedPartition) -> None:
        """Make the next response look up the partition although nothing of it has changed."""
        self.changed[cached] = None

    def assess(self, cached: CachedPartition, available_bytes: int) -> None:
        """A partition with data that no response had room for is dirty for the number after the last response's.

        That last response may have been the first one to the present number.
        """
        if cached.available_bytes:
            _raise_dirty(cached, self.upcoming_sequence_number())
        elif available_bytes and cached.is_requested:
            _raise_dirty(cached, self.sequence_number)
        FetchSession.assess(self, cached, available_bytes)

    # a response

    def take_marks(self) -> dict[CachedPartition, None]:
        self._with_data.start = self.start()
        return FetchSession.take_marks(self)

    def start(self) -> int:
        """Return where the response to the latest request begins."""
        # Decision response-start (G-7): first partition | rotated
        return 0 if self.serves_full or not self.partitions else self.sequence_number % len(self.partitions)

    def place(self, cached: CachedPartition) -> int:
        """A full response keeps the request's order. Any other begins at ``start`` and wraps around."""
        if self.serves_full:
            return cached.order
        return (cached.order - self.start()) % len(self.partitions)

    def reports(self, cached: CachedPartition, data: PartitionData) -> bool:
        """A partition with data gets here only if the response had no room for it, so it waits for the next response.

        The exception is a repeated response that had the partition before.
        """
        if self.serves_full or is_lasting(data) or cached in self.last_sent:
            return True
        # Decision partition-dirty (G-6): sent | omitted
        return cached.dirty_sequence_number >= self.sequence_number and not cached.available_bytes

    def response_sent(
        self, sent: dict[CachedPartition, PartitionData], marked: dict[CachedPartition, None], partitions: Partitions
    ) -> Sliced[None]:
        """A response to a full request is none to ``sequence_number``. An incremental request with it may still come
        (G-4)."""
        before_full, self.responded_before_full = self.responded_before_full, None
        self.responded_sequence_number = self.sequence_number if before_full is None else before_full
        self.last_sent = {}
        for cached in self.changed:  # They changed while the response was made, and belong to the next one.
            self.mark(cached)
        yield from FetchSession.response_sent(self, sent, marked, partitions)
        if self.serves_full:
            yield from self.full_response_sent()

    def sent(self, cached: CachedPartition, data: PartitionData) -> None:
        self.last_sent[cached] = None
        if cached.unlimited_bytes > len(data.records or b""):  # There is more to send.
            _raise_dirty(cached, self.sequence_number + 1)
            return
        # A full response is settled, also if its number is repeated.
        dirty = 0 if self.serves_full else max(cached.dirty_sequence_number, self.sequence_number)
        self._rest(cached, dirty)

    def _rest(self, cached: CachedPartition, dirty: int) -> None:
        """The partition is not sent again before something changes."""
        self.assess(cached, 0)
        cached.dirty_sequence_number = dirty

    def watch(self, cached: CachedPartition, partitions: Partitions) -> None:
        if cached.available_bytes:  # The response had no room for its records, or not for all of them.
            _raise_dirty(cached, self.sequence_number + 1)
        # Decision rested-partition-dirty (G-5): looked up next time | watched for changes
        if cached.dirty_sequence_number > self.sequence_number and not cached.available_bytes:
            self.recheck(cached)
        else:
            cached.watch(partitions)

    def full_response_sent(self) -> Sliced[None]:
        """From now on partitions are ordered by name and index. A repeated response is built from their numbers."""
        self.last_sent = {}
        unordered = self.partitions.values()
        ordered = yield from sort_in_slices(unordered, SESSION_PARTITIONS_PER_SLICE, _name_and_index)
        yield from self._rank(ordered)

    def _rank(self, ordered: list[CachedPartition]) -> Sliced[None]:
        """Reorder the partitions, from 0 on."""
        self._with_data.clear()
        rank = 0

        def rank_next(partitions: Collection[CachedPartition]) -> None:
            nonlocal rank
            for cached in partitions:
                cached.order = rank
                rank += 1
                if cached.queued:
                    self._with_data.push(cached)

        yield from in_slices(ordered, SESSION_PARTITIONS_PER_SLICE, rank_next)


def _raise_dirty(cached: CachedPartition, number: int) -> None:
    """Note that the responses up to this number must have the partition's changes, as well as those up to an earlier
    note."""
    cached.dirty_sequence_number = max(cached.dirty_sequence_number, number)


def _name_and_index(cached: CachedPartition) -> tuple[str, int]:
    return cached.topic, cached.index


def _may_follow(session: FirstRevisionSession) -> int:
    """Return the flag for sessions that accept incremental requests."""
    return INCREMENTAL_FETCH_OK if session.session_id and not session.denied else 0


class FirstRevision(Revision):
    """The first text of the KIP's page. ``FirstRevisionSession`` has what its sessions do."""

    name = "first"
    session_type = FirstRevisionSession
    largest_id = 0x7FFFFFFFFFFFFFFF
    unknown_id = DraftError.INVALID_FETCH_SESSION
    wrong_epoch = DraftError.INVALID_FETCH_SESSION

    def is_epoch(self, request_epoch: int) -> bool:
        return request_epoch >= 1

    def response_flags(self, session: FetchSession) -> int:
        assert isinstance(session, FirstRevisionSession), "the session of another revision"
        return _may_follow(session) | (0 if session.serves_full else INCREMENTAL_FETCH_RESPONSE)

    def error_response(self, error: Error, request: FetchRequest, session: FetchSession | None = None) -> FetchResponse:
        """While the session exists, an error has its ID."""
        flags, session_id = INCREMENTAL_FETCH_RESPONSE if request.fetch_type == INCREMENTAL_FETCH else 0, 0
        if isinstance(session, FirstRevisionSession):
            flags, session_id = flags | _may_follow(session), session.session_id
        return FetchResponse(int(error), session_id, error_string=_TEXTS.get(error), response_flags=flags)


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
    start: int = 0
    """The place at which the response begins."""

    def push(self, cached: CachedPartition) -> None:
        insort(self._orders, cached.order)
        self._by_order[cached.order] = cached

    def take(self) -> CachedPartition | None:
        if not self._orders:
            return None
        following = bisect_left(self._orders, self.start)
        return self._by_order.pop(self._orders.pop(following if following < len(self._orders) else 0))

    def clear(self) -> None:
        self._orders, self._by_order = [], {}
