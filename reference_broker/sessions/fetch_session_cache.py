"""All incremental fetch sessions of a node: a bounded number of slots, and which session may take which (KIP-227).

Finding, accepting and closing a session cost the same however many sessions there are. If all slots are taken, or too
many partitions are cached, creating one walks over the slots once for each session that is evicted (1,000 slots by
default: about a tenth of a millisecond a walk). A free slot costs no walk. A refusal takes two walks and is remembered:
until something changes that could make a session evictable, a candidate that is not larger costs no further walk.

A candidate may take the slot of another session by one of three rules (clause F-18):

* (a) the candidate is a follower's, and the session is a consumer's,
* (b) the session has been idle for longer than the minimum time,
* (c) the session is older than the minimum time, and the candidate has more partitions.

The rules use the sessions' current values and the minimum time of the old session. This is deliberately unlike Kafka,
which sorts sessions by the values that they had when last used, followers' sessions after all others
(FetchSessionCacheShard.tryEvict). So in Kafka a consumer's session never takes a follower's by (c). Here it does, as
the text of the KIP has it. While a session applies a request over several events, its size is that from before
the request (``FetchSession.counted``): a full request of the first revision empties the session first, and a smaller
candidate must not take it half filled.

MAX_SESSION_PARTITIONS bounds the partitions that one session caches, and ``max_partitions`` those of all sessions. A
cached partition takes 310 to 480 bytes (tracemalloc, in a session of 10,000). A request adds at most 50,000.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

from reference_broker.metrics.metrics import Counter, Gauge, Metrics
from reference_broker.ports.node_ports import Now, RandomSource
from reference_broker.ports.slicing import Sliced, run_to_end
from reference_broker.sessions.fetch_session import Arrivals, FetchSession, Removed, SessionFetch, leave
from reference_broker.wire.errors import Error

SessionT = TypeVar("SessionT", bound=FetchSession)
"""``FetchSession``, or the sessions of the KIP's first text, which are in the same slots (G-11)."""


@dataclass(frozen=True, slots=True)
class EvictableSession:
    """A session that a candidate may replace."""

    session: FetchSession
    rule: str
    """a, b or c, as in the list above."""


def idle_ms(session: FetchSession, wall_ms: int) -> int:
    """Return the time since its last use. It is negative after the wall clock stepped back, which evicts nothing."""
    return wall_ms - session.last_used_ms


def age_ms(session: FetchSession, wall_ms: int) -> int:
    return wall_ms - session.created_ms


def is_idle(session: FetchSession, wall_ms: int) -> bool:
    """Rule (b)."""
    return idle_ms(session, wall_ms) > session.min_eviction_ms


def is_evictable_by_privilege(session: FetchSession, candidate: FetchSession) -> bool:
    """Rule (a): a follower's session may take a consumer's."""
    return candidate.privileged and not session.privileged


def is_evictable_by_size(session: FetchSession, candidate: FetchSession, wall_ms: int) -> bool:
    """Rule (c): a larger session may take an old one, a follower's too."""
    is_old = age_ms(session, wall_ms) > session.min_eviction_ms
    return is_old and len(candidate.partitions) > session.counted


def eviction_key(session: FetchSession) -> tuple[bool, int, int]:
    """The sort key among sessions that rules (a) and (c) allow: consumers, then the smallest, then the lowest ID."""
    return (session.privileged, session.counted, session.session_id)


def find_evictable(sessions: Iterable[FetchSession], candidate: FetchSession, wall_ms: int) -> EvictableSession | None:
    """Return the session that is idle longest by (b), else the first to go by (a) and (c), or None.

    Costs one walk over all sessions.
    """
    longest_idle: FetchSession | None = None
    first: FetchSession | None = None
    for session in sessions:
        if is_idle(session, wall_ms):  # Decision eviction-idle
            if longest_idle is None or _used_before(session, longest_idle):
                longest_idle = session
        # Decision eviction-outranked
        elif (is_evictable_by_privilege(session, candidate) or is_evictable_by_size(session, candidate, wall_ms)) and (
            first is None or eviction_key(session) < eviction_key(first)
        ):
            first = session
    if longest_idle is not None:  # Decision evicted-session
        return EvictableSession(longest_idle, "b")
    if first is not None:
        # Decision eviction-rule
        return EvictableSession(first, "a" if is_evictable_by_privilege(first, candidate) else "c")
    return None


def _used_before(session: FetchSession, other: FetchSession) -> bool:
    return (session.last_used_ms, session.session_id) < (other.last_used_ms, other.session_id)


@dataclass(frozen=True, slots=True)
class CandidateRefusal:
    """A remembered refusal: a candidate found no session to evict.

    For its time a candidate that is not larger and not more privileged finds none either, as long as no session leaves,
    joins, changes size or goes back in time.
    """

    privileged: bool
    partitions: int
    from_ms: int
    """The wall-clock time from which it holds."""
    until_ms: int
    """The time at which it ends, exclusive."""

    def holds_for(self, candidate: FetchSession, wall_ms: int) -> bool:
        return (
            self.from_ms <= wall_ms < self.until_ms
            and candidate.privileged <= self.privileged
            and len(candidate.partitions) <= self.partitions
        )


def candidate_refusal(sessions: Iterable[FetchSession], candidate: FetchSession, wall_ms: int) -> CandidateRefusal:
    """Return the refusal of a candidate for which no session may be evicted. Costs one walk over all sessions.

    Repeats the time limits of ``is_idle`` and ``is_evictable_by_size``: change all three together.
    """
    until_ms = 1 << 63
    for session in sessions:
        min_ms = session.min_eviction_ms
        until_ms = min(until_ms, session.last_used_ms + min_ms + 1)
        if age_ms(session, wall_ms) <= min_ms:
            until_ms = min(until_ms, session.created_ms + min_ms + 1)
    return CandidateRefusal(candidate.privileged, len(candidate.partitions), wall_ms, until_ms)


MAX_SESSION_PARTITIONS = 250_000
"""A session that would cache more is closed, and none of that size is created."""

MAX_PARTITIONS = 2_000_000
"""The default of ``crucible.fetch.session.cache.partitions``: about 1 GB."""


class Noter(Protocol):
    """Adds a line to the trace (``ports.node_ports.Ports.note``)."""

    def __call__(self, what: str, *fields: tuple[str, int | str]) -> None: ...


@dataclass(slots=True, eq=False)
class FetchSessionCache:
    """The sessions of a node, and what is counted of them."""

    slots: int
    """The maximal number of sessions."""
    random: RandomSource
    metrics: Metrics
    note: Noter
    max_partitions: int = MAX_PARTITIONS
    """``crucible.fetch.session.cache.partitions``. A candidate beyond it is treated as if all slots were taken. A
    session that grows beyond it is closed."""
    run: Callable[[Sliced[None]], None] = run_to_end
    """Runs long work (``ports.slicing``)."""
    sessions: dict[int, FetchSession] = field(default_factory=dict)
    """By ID, in order of creation."""
    arrivals: Arrivals = field(default_factory=Arrivals)
    partitions_cached: int = 0
    _refusal: CandidateRefusal | None = None
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

    def candidate(self, client_id: str, replica_id: int, uses_topic_ids: bool) -> FetchSession:
        """Make the session that a full fetch works on. It has no ID before ``admit``."""
        return FetchSession(self.arrivals, uses_topic_ids, replica_id >= 0, client_id, replica_id)

    def new_id(self, largest_id: int) -> int:
        """Return an unused ID from the RandomSource, so that no client can guess it."""
        while True:
            session_id = self.random.randint(1, largest_id)
            if session_id not in self.sessions:
                return session_id

    def find(self, session_id: int, kind: type[SessionT]) -> SessionT | None:
        """Return the session with this ID, if it is of this kind. No request finds a session of another revision."""
        session = self.sessions.get(session_id)
        return session if type(session) is kind else None

    def lookup(self, session_id: int, request_epoch: int, kind: type[SessionT]) -> SessionT | Error:
        """Return the session of an incremental request, or a top-level error. A refused request changes nothing."""
        session = self.sessions.get(session_id)
        if type(session) is not kind or not kind.is_epoch(request_epoch):  # Decision session-unknown
            self.count_not_found()
            return kind.unknown_id
        return session if session.expects_epoch(request_epoch) else kind.wrong_epoch  # Decision session-epoch

    def admit(self, candidate: FetchSession, now: Now) -> bool:
        """Make the candidate a session if a slot is free or may be taken. Return whether it is one now.

        No session is evicted unless the candidate is admitted.
        """
        if len(candidate.partitions) > min(MAX_SESSION_PARTITIONS, self.max_partitions):
            return False
        evictable = self._evictable_for(candidate, now.wall_ms)
        if evictable is None:  # Decision new-session-without-slot
            return False
        self.unregister(*[self._evict(each, candidate, now.wall_ms) for each in evictable])
        candidate.session_id = self.new_id(candidate.largest_id)
        candidate.created_ms = now.wall_ms
        candidate.touch(now)
        self.sessions[candidate.session_id] = candidate
        self.resized(candidate)
        self._recount(0)
        self.note(
            "session_created",
            ("session_id", candidate.session_id),
            ("partitions", len(candidate.partitions)),
            ("privileged", int(candidate.privileged)),
            ("client_id", candidate.client_id),
            ("made_by", candidate.made_by),
            ("revision", candidate.revision),
        )
        return True

    def accept(self, session: FetchSession, request_epoch: int, now: Now) -> None:
        """Accept a valid incremental request. An older one that is still parked is ended."""
        if session.fetch is not None:
            self.overtake(session, session.fetch)
        if now.wall_ms < session.last_used_ms:
            self._refusal = None
        session.accept(request_epoch, now)

    def overtake(self, session: FetchSession, parked: SessionFetch) -> None:
        """End the parked fetch of a session that gets another request. Only the response to that one counts now."""
        parked.abandon(session.wrong_epoch)

    def forget_refusal(self) -> None:
        """Look for an evictable session again at the next candidate, since the time of last use of one goes back."""
        self._refusal = None

    def release(self, candidate: FetchSession) -> None:
        """Drop a candidate that was not admitted."""
        self.unregister(candidate.empty())

    def resized(self, session: FetchSession) -> None:
        """Update the counts after a request that may have changed the number of cached partitions."""
        added = len(session.partitions) - session.counted
        if added:
            session.counted += added
            self._recount(added)

    def is_too_large(self, session: FetchSession) -> bool:
        # Decision session-too-large
        return len(session.partitions) > MAX_SESSION_PARTITIONS or self.partitions_cached > self.max_partitions

    def close(self, session_id: int, reason: str) -> None:
        """End a session for a reason other than eviction; an unknown ID is ignored."""
        session = self.sessions.get(session_id)
        if session is not None:
            made_by = ("made_by", session.made_by)
            self.note("session_closed", ("session_id", session_id), ("reason", reason), made_by)
            self.unregister(self._remove(session))

    def count_not_found(self) -> None:
        """Count a response with FETCH_SESSION_ID_NOT_FOUND, or the error that the session's revision has for it."""
        self._ids_not_found.value += 1

    def find_evictable(
        self, candidate: FetchSession, wall_ms: int, among: Iterable[FetchSession]
    ) -> EvictableSession | None:
        """Return the session among these whose slot the candidate may take, and the rule."""
        return find_evictable(among, candidate, wall_ms)

    def _evictable_for(self, candidate: FetchSession, wall_ms: int) -> list[EvictableSession] | None:
        """Return the sessions to evict for the candidate, or None if the rules do not allow enough of them."""
        evicted: list[EvictableSession] = []
        slots, partitions = len(self.sessions), self.partitions_cached + len(candidate.partitions)
        if slots < self.slots and partitions <= self.max_partitions:  # Decision slot-free
            return evicted
        if self._refusal is not None and self._refusal.holds_for(candidate, wall_ms):
            return None
        remaining = dict(self.sessions)
        while slots >= self.slots or partitions > self.max_partitions:
            evictable = self.find_evictable(candidate, wall_ms, remaining.values())
            if evictable is None:
                if not evicted:
                    self._refusal = candidate_refusal(self.sessions.values(), candidate, wall_ms)
                return None
            evicted.append(evictable)
            del remaining[evictable.session.session_id]
            slots, partitions = slots - 1, partitions - evictable.session.counted
        return evicted

    def _evict(self, evictable: EvictableSession, candidate: FetchSession, wall_ms: int) -> Removed:
        session = evictable.session
        self._evictions.value += 1
        self.note(
            "session_evicted",
            ("session_id", session.session_id),
            ("rule", evictable.rule),
            ("idle_ms", idle_ms(session, wall_ms)),
            ("age_ms", age_ms(session, wall_ms)),
            ("partitions", session.counted),
            ("by_partitions", len(candidate.partitions)),
            ("privileged", int(session.privileged)),
            ("by_privileged", int(candidate.privileged)),
            ("made_by", session.made_by),
        )
        return self._remove(session)

    def _remove(self, session: FetchSession) -> Removed:
        del self.sessions[session.session_id]
        self._recount(-session.counted)
        if session.fetch is not None and session.fetch.abandon(session.unknown_id):  # Decision removed-session-fetch
            self.count_not_found()
        session.closed_partitions = removed = session.empty()
        return removed

    def unregister(self, *removed: Removed) -> None:
        """Have partitions that their sessions no longer cache leave what they watch."""
        self.run(leave(removed))

    def _recount(self, added: int) -> None:
        self.partitions_cached += added
        self._num_partitions.value = self.partitions_cached
        self._num_sessions.value = len(self.sessions)
        self._refusal = None
