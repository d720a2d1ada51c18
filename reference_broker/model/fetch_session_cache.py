"""All incremental fetch sessions of a node: a bounded number of slots, and who may take whose (KIP-227).

Finding, accepting and closing a session cost the same however many there are. Creating one while all slots are
taken walks over the slots once (1,000 by default: about a tenth of a millisecond), on current values, and a
refusal is remembered: until something changes that could make a session evictable, no newcomer that is not larger
costs another walk. How many partitions a session caches is bounded by MAX_SESSION_PARTITIONS, and all
together by MAX_PARTITIONS; how many one request adds, by the frame size (``socket.request.max.bytes``).
"""

from dataclasses import dataclass, field
from random import Random
from typing import Protocol

from reference_broker.log.now import Now
from reference_broker.model.fetch_arrivals import Arrivals
from reference_broker.model.fetch_eviction import Refusal, Victim, age_ms, find_victim, idle_ms, refusal
from reference_broker.model.fetch_session import LARGEST_EPOCH, FetchSession
from reference_broker.model.metrics import Counter, Gauge, Metrics
from reference_broker.wire.errors import Error

MAX_SESSION_PARTITIONS = 250_000
"""A session that would cache more is closed, and none of that size is created."""

MAX_PARTITIONS = 4_000_000
"""Of all sessions together (about 1 GB). A newcomer beyond it is treated as if all slots were taken; a session that
grows beyond it is closed."""

LARGEST_ID = 0x7FFFFFFF


class Noter(Protocol):
    """Adds a line to the trace (``raft.ports.Ports.note``)."""

    def __call__(self, what: str, *fields: tuple[str, int | str]) -> None: ...


@dataclass(slots=True, eq=False)
class FetchSessionCache:
    """``sessions``: by ID, in order of creation; never more than ``slots``."""

    slots: int
    random: Random
    metrics: Metrics
    note: Noter
    sessions: dict[int, FetchSession] = field(default_factory=dict)
    arrivals: Arrivals = field(default_factory=Arrivals)
    partitions_cached: int = 0
    _refusal: Refusal | None = None
    _num_sessions: Gauge = field(init=False)
    _num_partitions: Gauge = field(init=False)
    _evictions: Counter = field(init=False)
    _ids_not_found: Counter = field(init=False)

    def __post_init__(self) -> None:
        metrics, kind = self.metrics, "FetchSessionCache"
        self._num_sessions = metrics.gauge("kafka.server", kind, "NumIncrementalFetchSessions")
        self._num_partitions = metrics.gauge("kafka.server", kind, "NumIncrementalFetchPartitionsCached")
        self._evictions = metrics.counter("kafka.server", kind, "IncrementalFetchSessionEvictionsPerSec")
        self._ids_not_found = metrics.counter("crucible.server", kind, "FetchSessionIdNotFoundPerSec")

    def draft(self, client_id: str, replica_id: int, uses_topic_ids: bool) -> FetchSession:
        """The session that a full fetch works on; it becomes one of the cache's when admitted."""
        return FetchSession(self.arrivals, uses_topic_ids, replica_id >= 0, client_id, replica_id)

    def new_id(self) -> int:
        """Random, so that nobody can guess it; unused here."""
        while True:
            session_id = self.random.randint(1, LARGEST_ID)
            if session_id not in self.sessions:
                return session_id

    def lookup(self, session_id: int, request_epoch: int, uses_topic_ids: bool) -> FetchSession | Error:
        """The session of an incremental request, or the top-level error. A refused request changes nothing."""
        session = self.sessions.get(session_id)
        if session is None or not 1 <= request_epoch <= LARGEST_EPOCH:
            self.count_not_found()
            return Error.FETCH_SESSION_ID_NOT_FOUND
        if not session.accept_epoch(request_epoch):
            return Error.INVALID_FETCH_SESSION_EPOCH
        if session.uses_topic_ids != uses_topic_ids:
            return Error.FETCH_SESSION_TOPIC_ID_ERROR
        return session

    def admit(self, draft: FetchSession, now: Now) -> bool:
        """Makes the draft a session, if there is a slot or one that it may take; says whether it is one now."""
        if len(draft.partitions) > MAX_SESSION_PARTITIONS:
            return False
        while not self._has_room(draft):
            if not self._make_room(draft, now.wall_ms):
                return False
        draft.session_id = self.new_id()
        draft.created_ms = now.wall_ms
        draft.touch(now)
        self.sessions[draft.session_id] = draft
        self._recount(len(draft.partitions))
        self.note(
            "session_created",
            ("session_id", draft.session_id),
            ("partitions", len(draft.partitions)),
            ("privileged", int(draft.privileged)),
            ("client_id", draft.client_id),
        )
        return True

    def accept(self, session: FetchSession, now: Now) -> None:
        """An incremental request is valid: one that still waits on this session can no longer be answered from it."""
        if session.waiter is not None:
            session.waiter.abandon(Error.INVALID_FETCH_SESSION_EPOCH)
        if now.wall_ms < session.last_used_ms:
            self._refusal = None
        session.accept(now)

    def resized(self, session: FetchSession, before: int) -> None:
        """An incremental request changed what the session caches: ``before`` so many partitions."""
        if len(session.partitions) != before:
            self._recount(len(session.partitions) - before)

    def is_too_large(self, session: FetchSession) -> bool:
        return len(session.partitions) > MAX_SESSION_PARTITIONS or self.partitions_cached > MAX_PARTITIONS

    def close(self, session_id: int, reason: str) -> None:
        """Ends a session for a reason other than eviction; an unknown ID is no error."""
        session = self.sessions.get(session_id)
        if session is not None:
            self.note("session_closed", ("session_id", session_id), ("reason", reason))
            self._remove(session)

    def count_not_found(self) -> None:
        """One more answer FETCH_SESSION_ID_NOT_FOUND."""
        self._ids_not_found.value += 1

    def victim(self, newcomer: FetchSession, wall_ms: int) -> Victim | None:
        """The session that ``newcomer`` may take the slot of, and by which rule."""
        return find_victim(self.sessions.values(), newcomer, wall_ms)

    def _has_room(self, newcomer: FetchSession) -> bool:
        partitions = self.partitions_cached + len(newcomer.partitions)
        return len(self.sessions) < self.slots and partitions <= MAX_PARTITIONS

    def _make_room(self, newcomer: FetchSession, wall_ms: int) -> bool:
        if self._refusal is not None and self._refusal.holds_for(newcomer, wall_ms):
            return False
        victim = self.victim(newcomer, wall_ms)
        if victim is None:
            self._refusal = refusal(self.sessions.values(), newcomer, wall_ms)
            return False
        self._evict(victim, newcomer, wall_ms)
        return True

    def _evict(self, victim: Victim, newcomer: FetchSession, wall_ms: int) -> None:
        session = victim.session
        self._evictions.value += 1
        self.note(
            "session_evicted",
            ("session_id", session.session_id),
            ("rule", victim.rule),
            ("idle_ms", idle_ms(session, wall_ms)),
            ("age_ms", age_ms(session, wall_ms)),
            ("partitions", len(session.partitions)),
            ("by_partitions", len(newcomer.partitions)),
            ("privileged", int(session.privileged)),
            ("by_privileged", int(newcomer.privileged)),
        )
        self._remove(session)

    def _remove(self, session: FetchSession) -> None:
        del self.sessions[session.session_id]
        self._recount(-len(session.partitions))
        if session.waiter is not None:
            self.count_not_found()
            session.waiter.abandon(Error.FETCH_SESSION_ID_NOT_FOUND)
        session.release()

    def _recount(self, added: int) -> None:
        self.partitions_cached += added
        self._num_partitions.value = self.partitions_cached
        self._num_sessions.value = len(self.sessions)
        self._refusal = None
