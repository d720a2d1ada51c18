"""Fetch in the first revision of its sessions: the first text of KIP-227's page, in the private drafts 1000 and 1002.

``k01_fetch.handle`` sends these versions here; the rest of the broker serves the final revision. Both revisions share
the slots for sessions. These methods are overridden, and described with their base class:

======================= ========================================== =====================================================
``FetchSession``    final revision                             first revision, request N
======================= ========================================== =====================================================
``is_epoch``            1 to 2^31-1                                1 or more; IDs have 64 bits, too
``expects_epoch``       the next one                               the next one, or the last one again
``accept``              raises the epoch                           the same, or prepares to repeat a response
``empty``               drops the partitions                       the same, with their dirty numbers
``mark``                the partition is looked up again           and dirty for the upcoming response
``set_available_bytes`` notes what is readable                     and raises the dirty number of data that had no room
``response_flags``      none                                       INCREMENTAL_FETCH_RESPONSE, INCREMENTAL_FETCH_OK
``take_marks``          begins a response                          and sets at which partition
``place``               the order of the list                      by name and index, from N modulo their count on
``belongs_in_response`` what differs from what was last sent       what has a dirty number of N or more
``response_sent``       prepares the next response                 and notes that N has its response
``partition_sent``      a partition with records moves to the end  its dirty number is settled, or N+1 if there is more
``watch``               waits for the next change                  unless the partition is dirty for N+1
======================= ========================================== =====================================================

=================== ========================================== =========================================================
``Fetch``           final revision                             first revision, request N
=================== ========================================== =========================================================
``_update_session`` adds, updates and forgets partitions       forgets none
``_store_lookup``   stores the lookup                          and what was readable, whatever the limits
``_lookup_to_read`` returns the lookup to read from            the same
``_keep_session``   epoch 0 requests a session                 each full fetch does, and a large one is denied
``_error_response`` has the error                              and the ID of an existing session, flags and a text
=================== ========================================== =========================================================

Besides:

* A request that is repeated with its sequence number gets a response again, with at least the partitions of its first
  one.
* The response to a full request is in the request's order.
* Records that a reader may not read yet count as beyond the log end.
* v1002 is for followers, which name topic IDs and epochs and get the offsets where their logs diverge.
"""

from bisect import bisect_left, insort
from collections.abc import Collection
from dataclasses import dataclass, field
from typing import ClassVar

from reference_broker.apis.broker import Broker
from reference_broker.apis.call import Call
from reference_broker.apis.records.fetch import MAX_NAMED_PARTITIONS, Fetch, count_named, defer_until_finished
from reference_broker.apis.records.fetch_partition import Lookup
from reference_broker.ports.node_ports import Now
from reference_broker.ports.slicing import SESSION_PARTITIONS_PER_SLICE, Sliced, in_slices, sort_in_slices
from reference_broker.replication.partitions import Partitions
from reference_broker.sessions.fetch_session import (
    CachedPartition,
    DataQueue,
    FetchSession,
    Removed,
    SessionFetch,
    is_lasting,
)
from reference_broker.sessions.fetch_session_cache import FetchSessionCache
from reference_broker.wire.errors import DraftError, Error, ErrorCode, known_error
from reference_broker.wire.fetch import (
    FULL_FETCH,
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

    Response N has the partitions whose dirty sequence number is N or more. A partition that is queued with data
    counts as dirty for whichever response comes next. Its number is written only when the partition is looked at, so
    that a response whose limit excludes 10,000 partitions does not touch them.
    """

    # The methods call those of FetchSession by its name: super() needs the class that slots=True replaces.

    revision: ClassVar[str] = "first"
    largest_id: ClassVar[int] = 0x7FFFFFFFFFFFFFFF
    unknown_id: ClassVar[Error] = DraftError.INVALID_FETCH_SESSION
    wrong_epoch: ClassVar[Error] = DraftError.INVALID_FETCH_SESSION

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
    dirty_sequence_numbers: dict[CachedPartition, int] = field(default_factory=dict)
    """By partition: the last response that must have its changes, or 0. A partition that never had any is missing."""
    readable_bytes: dict[CachedPartition, int] = field(default_factory=dict)
    """By partition: the bytes that were readable at the last lookup by the fetch in hand, whatever the limits.
    ``FirstRevisionFetch`` fills it."""

    # requests

    @staticmethod
    def is_epoch(request_epoch: int) -> bool:
        return request_epoch >= 1

    def expects_epoch(self, request_epoch: int) -> bool:
        return request_epoch in (self.sequence_number, self.sequence_number + 1)

    def accept(self, request_epoch: int, now: Now) -> None:
        self.serves_full = False
        self.readable_bytes = {}
        self.advance(request_epoch)
        self.touch(now)
        self.responded_before_full = None

    def advance(self, request_epoch: int) -> None:
        if request_epoch == self.sequence_number:  # Decision first-request-number
            for cached in self.last_sent:
                self.recheck(cached)
            if self.responded_before_full is not None:  # Nothing of the full request was sent.
                for cached in self.marked:
                    self._raise_dirty(cached, request_epoch)
            return
        dirty = self.dirty_sequence_numbers
        if self.responded_sequence_number < self.sequence_number:  # Decision previous-request
            # The previous request never got its response, so its changes are sent now, or all of a full request.
            is_full = self.responded_before_full is not None
            for cached in self.marked:
                if is_full or dirty.get(cached, 0) >= self.sequence_number:
                    dirty[cached] = request_epoch
        for cached in self.last_sent:
            if cached.available_bytes and dirty.get(cached, 0) <= self.sequence_number:  # Decision sent-data-processed
                # The previous request was repeated, and got no second response. The fetcher has processed the first.
                self.marked.pop(cached, None)
                self._rest(cached, dirty.get(cached, 0))
        self.sequence_number, self.epoch = request_epoch, request_epoch + 1
        self.accepted_requests += 1
        self.last_sent = {}

    def accept_full(self, now: Now) -> Removed:
        """Accept a full request, which replaces all partitions and keeps ID and number."""
        removed = self.empty()
        self.readable_bytes = {}
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
        self.last_sent, self.dirty_sequence_numbers = {}, {}
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
        with data behind it is one (``set_available_bytes``)."""
        self.dirty_sequence_numbers[cached] = self.upcoming_sequence_number()
        self.marked[cached] = None

    def recheck(self, cached: CachedPartition) -> None:
        """Make the next response look up the partition although nothing of it has changed."""
        self.marked[cached] = None

    def set_available_bytes(self, cached: CachedPartition, available_bytes: int) -> None:
        """A partition with data that no response had room for is dirty for the number after the last response's.

        That last response may have been the first one to the present number.
        """
        if cached.available_bytes:
            self._raise_dirty(cached, self.upcoming_sequence_number())
        elif available_bytes and cached.is_requested:
            self._raise_dirty(cached, self.sequence_number)
        FetchSession.set_available_bytes(self, cached, available_bytes)

    def _raise_dirty(self, cached: CachedPartition, number: int) -> None:
        """Note that the responses up to this number must have the partition's changes, as well as those up to an
        earlier note."""
        self.dirty_sequence_numbers[cached] = max(self.dirty_sequence_numbers.get(cached, 0), number)

    # a response

    def response_flags(self) -> int:
        return self.ok_flag() | (0 if self.serves_full else INCREMENTAL_FETCH_RESPONSE)

    def ok_flag(self) -> int:
        """Return INCREMENTAL_FETCH_OK if the session accepts incremental requests, else 0."""
        return INCREMENTAL_FETCH_OK if self.session_id and not self.denied else 0

    def take_marks(self) -> dict[CachedPartition, None]:
        self._with_data.start = self.start()
        return FetchSession.take_marks(self)

    def start(self) -> int:
        """Return where the response to the latest request begins."""
        # Decision response-start
        return 0 if self.serves_full or not self.partitions else self.sequence_number % len(self.partitions)

    def place(self, cached: CachedPartition) -> int:
        """A full response keeps the request's order. Any other begins at ``start`` and wraps around (G-7)."""
        if self.serves_full:
            return cached.order
        return (cached.order - self._with_data.start) % len(self.partitions)

    def belongs_in_response(self, cached: CachedPartition, data: PartitionData) -> bool:
        """A partition with data gets here only if the response had no room for it, so it waits for the next response.

        The exception is a repeated response that had the partition before.
        """
        if self.serves_full or is_lasting(data) or cached in self.last_sent:
            return True
        # Decision partition-dirty
        return self.dirty_sequence_numbers.get(cached, 0) >= self.sequence_number and not cached.available_bytes

    def response_sent(
        self, sent: dict[CachedPartition, PartitionData], marked: dict[CachedPartition, None], partitions: Partitions
    ) -> Sliced[None]:
        """A response to a full request is none to ``sequence_number``. An incremental request with it may still come
        (G-4)."""
        before_full, self.responded_before_full = self.responded_before_full, None
        self.responded_sequence_number = self.sequence_number if before_full is None else before_full
        self.last_sent = {}
        for cached in self.marked:  # They changed while the response was made, and belong to the next one.
            self.mark(cached)
        yield from FetchSession.response_sent(self, sent, marked, partitions)
        if self.serves_full:
            yield from self.full_response_sent()

    def partition_sent(self, cached: CachedPartition, data: PartitionData) -> None:
        self.last_sent[cached] = None
        if self.readable_bytes[cached] > len(data.records or b""):  # There is more to send.
            self._raise_dirty(cached, self.sequence_number + 1)
            return
        # A full response is settled, also if its number is repeated.
        dirty = 0 if self.serves_full else max(self.dirty_sequence_numbers.get(cached, 0), self.sequence_number)
        self._rest(cached, dirty)

    def _rest(self, cached: CachedPartition, dirty: int) -> None:
        """The partition is not sent again before something changes."""
        self.set_available_bytes(cached, 0)
        self.dirty_sequence_numbers[cached] = dirty

    def watch(self, cached: CachedPartition, partitions: Partitions) -> None:
        if cached.available_bytes:  # The response had no room for its records, or not for all of them.
            self._raise_dirty(cached, self.sequence_number + 1)
        dirty = self.dirty_sequence_numbers.get(cached, 0)
        if dirty > self.sequence_number and not cached.available_bytes:  # Decision rested-partition-dirty
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


def _name_and_index(cached: CachedPartition) -> tuple[str, int]:
    return cached.topic, cached.index


@dataclass(slots=True)
class RingQueue(DataQueue):
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


def handle_first_revision(broker: Broker, call: Call, request: FetchRequest) -> FetchResponse | None:
    """Serve a request now or later, as ``k01_fetch.handle`` does. A top-level error has the ID of the session while
    that exists."""
    sessions = broker.fetch_sessions
    named_session = sessions.find(request.session_id, FirstRevisionSession)
    if count_named(request) > MAX_NAMED_PARTITIONS:
        return error_response(ErrorCode.invalid_request, request, named_session)
    if defer_until_finished(broker, call, request, _handle_deferred):
        return None
    if request.fetch_type == FULL_FETCH:
        if request.session_epoch != 0 or (request.session_id != 0 and named_session is None):
            sessions.count_not_found()
            return error_response(DraftError.INVALID_FETCH_SESSION, request, named_session)
        return _fetch_all(broker, call, request, named_session)
    if request.fetch_type != INCREMENTAL_FETCH:
        return error_response(ErrorCode.invalid_request, request, named_session)
    session = _lookup(sessions, request, named_session)
    if not isinstance(session, FirstRevisionSession):
        return error_response(session, request, named_session)
    if not _caches_all(session, request):
        return error_response(ErrorCode.invalid_request, request, session)
    if session.fetch is not None:
        is_repeated = session.has_parked(request.session_epoch)
        if not _end_parked(sessions, session, session.fetch, is_repeated=is_repeated):
            return handle_first_revision(broker, call, request)
    sessions.accept(session, request.session_epoch, broker.now)
    FirstRevisionFetch(broker, call, session, request).start()
    return None


def _handle_deferred(broker: Broker, call: Call, request: FetchRequest) -> None:
    if not call.closed:
        response = handle_first_revision(broker, call, request)
        if response is not None:
            call.respond(response)


def _fetch_all(
    broker: Broker, call: Call, request: FetchRequest, session: FirstRevisionSession | None
) -> FetchResponse | None:
    """Make a new session if there is none and there is room. Otherwise replace the partitions of the session, which
    keeps its ID and its number. Full requests have no number, so that an equal one is a repeated one."""
    sessions = broker.fetch_sessions
    if session is None:  # Decision first-full-session
        session = candidate_of(broker, call, request)
    else:
        if session.fetch is not None:
            is_repeated = isinstance(session.fetch, Fetch) and session.fetch.request == request
            if not _end_parked(sessions, session, session.fetch, is_repeated=is_repeated):
                return handle_first_revision(broker, call, request)
        sessions.forget_refusal()
        sessions.unregister(session.accept_full(broker.now))
    FirstRevisionFetch(broker, call, session, request).start()
    return None


def candidate_of(broker: Broker, call: Call, request: FetchRequest) -> FirstRevisionSession:
    """Make the session that a full fetch works on. The request may name topic IDs, but the session is by name."""
    candidate = FirstRevisionSession(
        broker.fetch_sessions.arrivals,
        uses_topic_ids=False,
        privileged=request.replica_id >= 0,
        client_id=call.client_id,
        replica_id=request.replica_id,
        min_eviction_ms=broker.config.min_incremental_fetch_session_eviction_ms,
    )
    candidate.touch(broker.now)
    return candidate


def _lookup(
    sessions: FetchSessionCache, request: FetchRequest, named_session: FirstRevisionSession | None
) -> FirstRevisionSession | Error:
    """Return the session of an incremental request, or a top-level error."""
    # Decision session-denied
    if named_session is not None and named_session.denied and named_session.is_epoch(request.session_epoch):
        return DraftError.INCREMENTAL_FETCH_DENIED
    return sessions.lookup(request.session_id, request.session_epoch, FirstRevisionSession)


def _caches_all(session: FirstRevisionSession, request: FetchRequest) -> bool:
    """Whether the session caches all partitions that the request names. For MAX_NAMED_PARTITIONS this takes 5 ms."""
    cached, with_ids = session.partitions, session.uses_topic_ids
    for topic in request.topics:
        name = topic.topic_id if with_ids else topic.topic
        for requested in topic.partitions:
            if (name, requested.partition) not in cached:
                return False
    return True


def _end_parked(
    sessions: FetchSessionCache, session: FirstRevisionSession, parked: SessionFetch, *, is_repeated: bool
) -> bool:
    """End the parked fetch of a session that gets another request. Return whether the session may accept that now.

    If the request is a repeated one, the parked fetch gets its response now with the data that there is, since either
    of the two responses may be the one that arrives (G-3). It may go on in later events then, or a bug in it may close
    the session.
    """
    if is_repeated:  # Decision overtaken-fetch
        parked.respond()
    else:
        sessions.overtake(session, parked)
    # Decision request-behind-parked
    return not session.has_unfinished_fetch and sessions.sessions.get(session.session_id) is session


@dataclass(slots=True, eq=False)
class FirstRevisionFetch(Fetch):
    """One accepted fetch of this revision."""

    # The methods call those of Fetch by its name: super() needs the class that slots=True replaces.

    session: FirstRevisionSession

    def _update_session(self) -> Sliced[None]:
        """Update the session by the partitions that the request names. Nothing is forgotten in this revision."""
        if self.request.topics:
            yield from self._update_partitions()
        if self.session.session_id:
            self.broker.fetch_sessions.resized(self.session)

    # ``FirstRevisionSession.partition_sent`` compares what was readable with what was sent.

    def _store_lookup(self, cached: CachedPartition, lookup: Lookup) -> None:
        self.session.readable_bytes[cached] = lookup.unlimited_bytes
        Fetch._store_lookup(self, cached, lookup)

    def _lookup_to_read(self, cached: CachedPartition) -> Lookup:
        lookup = Fetch._lookup_to_read(self, cached)
        self.session.readable_bytes[cached] = lookup.unlimited_bytes
        return lookup

    def _keep_session(self) -> bool:
        """Return whether the session caches the fetched partitions after the response. Every full fetch wants a session
        here. One of too many partitions caches nothing, and denies incremental fetches."""
        session, sessions = self.session, self.broker.fetch_sessions
        if session.session_id:
            if session.serves_full and sessions.is_too_large(session):
                self._deny()
        # Decision large-new-session
        elif not sessions.admit(session, self.broker.now) and len(sessions.sessions) < sessions.slots:
            self._deny()
            sessions.admit(session, self.broker.now)
        return session.session_id != 0 and not session.denied

    def _deny(self) -> None:
        sessions = self.broker.fetch_sessions
        sessions.unregister(self.session.deny())
        sessions.resized(self.session)

    def _error_response(self, error_code: int) -> FetchResponse:
        named_session = self.broker.fetch_sessions.find(self.session.session_id, FirstRevisionSession)
        return error_response(known_error(error_code), self.request, named_session)


def error_response(error: Error, request: FetchRequest, session: FirstRevisionSession | None) -> FetchResponse:
    """Return a response with a top-level error. ``session`` is the one that the request names, if it exists: an error
    has its ID then."""
    flags, session_id = INCREMENTAL_FETCH_RESPONSE if request.fetch_type == INCREMENTAL_FETCH else 0, 0
    if session is not None:
        flags, session_id = flags | session.ok_flag(), session.session_id
    return FetchResponse(int(error), session_id, error_string=_TEXTS.get(error), response_flags=flags)


_TEXTS: dict[Error, str] = {
    DraftError.INVALID_FETCH_SESSION: "No such fetch session, or a sequence number that is not valid for it.",
    DraftError.INCREMENTAL_FETCH_DENIED: "This session takes full fetches only.",
    ErrorCode.invalid_request: "A partition outside the session, too many partitions, or an unknown fetch type.",
}
"""The error texts, which the final revision lacks."""
