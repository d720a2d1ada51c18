"""Slots and evictions of fetch sessions."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, product
from operator import attrgetter
from typing import TYPE_CHECKING, NamedTuple

from chaos.checks.check import Check, CheckContext, Inspection
from chaos.checks.sessions.fetch_model import FETCH, FIRST_REVISIONS, PartitionName, partitions_of
from reference_broker.core.events import Close, Closed, Effect, Event, Note, Reply, Request
from reference_broker.metrics.metrics import Counter, Gauge
from reference_broker.wire.fetch import INCREMENTAL_FETCH_OK, FetchRequest, FetchResponse
from reports.rows import TraceRow

if TYPE_CHECKING:
    from reference_broker.core.node import Node


MIN_EVICTION_MS = 120_000
"""The least time that a session of the final revision lives (F-17). For the first revision's sessions it is a setting
(G-11)."""
INITIAL_EPOCH, FINAL_EPOCH = 0, -1
INCREMENTAL = 1
"""the fetch type of an incremental fetch of the first revision (G-4)"""


@dataclass(slots=True)
class _Session:
    """A session. Its times are those of the node's wall clock."""

    is_first: bool
    by_follower: bool
    held: dict[PartitionName, None]
    created_ms: int
    used_ms: int
    min_ms: int
    """least time that it lives before another session may evict it"""

    @property
    def state(self) -> "_State":
        return _State(len(self.held), self.used_ms)


class _State(NamedTuple):
    """What a request changes in its session, as F-18 compares it."""

    size: int
    """number of partitions"""
    used_ms: int


@dataclass(slots=True)
class _PendingFetch:
    """A Fetch request that waits for its response."""

    session_id: int
    is_first: bool
    by_follower: bool
    min_ms: int
    opening: bool
    """a full fetch outside any session; a full fetch that is not opening replaces the partitions of its session
    (G-4)"""
    wants: bool
    """whether it wants a session"""
    full: bool
    named: dict[PartitionName, None]
    came_us: int
    emptying: bool = False
    """whether it forgets the last partition of its session"""
    before: _State | None = None
    """its session before it, None if no session accepts it"""


@dataclass(slots=True)
class _Sessions:
    """The sessions and pending requests of one process of a node."""

    node: "Node"
    alive: dict[int, _Session] = field(default_factory=dict)
    pending: dict[int, dict[int, _PendingFetch]] = field(default_factory=dict)
    """by connection, then by correlation ID"""
    cut: list[_PendingFetch] = field(default_factory=list)
    """fetches whose connection closed before the response; the node carries out what it has accepted"""

    def pop_pending(self, reply: Reply) -> _PendingFetch | None:
        return self.pending.get(reply.connection, {}).pop(reply.correlation_id, None)


class EvictionRules(Check):
    """eviction-rules: a full fetch gets a session if and only if F-17 and F-18 allow it, and only these evict sessions.

    A full fetch of the final revision also ends the session that it names (F-6, F-8), and frees its slot. So does an
    incremental fetch that forgets the last partition (F-7); its response has session ID 0.

    The broker also limits the partitions of all sessions together. A new session beyond that limit is treated as if all
    slots were taken. In the first revision it may get a session that caches nothing (G-10).

    The check models each session (its creator, its partitions, the times of its creation and last use) from requests,
    responses and the node's clock alone. It uses the node's notes only for the end of sessions.

    Physical: with short slices a node applies a request in events after that of its arrival (``Settings.slices_us``).
    So until the response, and no longer than that, a session may have the size and the last use from before the request
    or those from after it, but never a size between the two (G-4: a full request replaces all partitions). It may also
    have been used later than its last request arrived.
    """

    guarantee = "eviction-rules"
    needs_one_node = True
    acts_on = (FETCH, Closed, "session_evicted", "session_closed")

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._nodes: dict[int, _Sessions] = {}

    def acted(self, at_us: int, node: "Node", event: Event | None, effects: Sequence[Effect]) -> None:
        node_id, wall_ms = node.broker.node_id, node.broker.now.wall_ms
        sessions = self._nodes.get(node_id)
        if sessions is None or sessions.node is not node:
            sessions = self._nodes[node_id] = _Sessions(node)
        if type(event) is Closed:
            sessions.cut += sessions.pending.pop(event.connection, {}).values()
        if type(event) is Request and event.api_key == FETCH and isinstance(event.body, FetchRequest):
            first_min_ms = node.broker.config.min_incremental_fetch_session_eviction_ms
            fetch = _read(sessions.alive, event.api_version, event.body, first_min_ms, at_us)
            fetch.emptying = _use(sessions.alive, fetch, event, effects, wall_ms)
            sessions.pending.setdefault(event.connection, {})[event.correlation_id] = fetch
        states = self._earlier_states(at_us, sessions)
        evicted: dict[int, _Session] = {}
        for effect in effects:
            if type(effect) is Note and effect.what in ("session_evicted", "session_closed"):
                session_id = int(dict(effect.fields)["session_id"])
                session = sessions.alive.pop(session_id, None)
                if session is not None and effect.what == "session_evicted":
                    evicted[session_id] = session
            elif type(effect) is Reply and effect.api_key == FETCH and isinstance(effect.body, FetchResponse):
                served = sessions.pop_pending(effect)
                if served is None or effect.body.error_code != 0:
                    continue
                kept = sessions.alive.get(served.session_id) if served.opening and not served.is_first else None
                if kept is not None and not kept.is_first:
                    self.violated(
                        at_us, f"node-{node_id} kept session {served.session_id}, which a full fetch has named"
                    )
                if served.emptying and (effect.body.session_id or served.session_id in sessions.alive):
                    explanation = f"node-{node_id} kept session {served.session_id}, whose last partition was forgotten"
                    self.violated(at_us, explanation)
                if served.opening:
                    self._opened(at_us, node, sessions.alive, evicted, served, effect.body, states)
                    evicted = {}
                elif served.full and _denies(served, effect.body) and served.session_id in sessions.alive:
                    sessions.alive[served.session_id].held = {}
        if evicted:
            self.violated(at_us, f"node-{node_id} evicted {_listed(evicted)}, but nobody got a session")

    def _earlier_states(self, at_us: int, sessions: _Sessions) -> dict[int, list[_State]]:
        """Return, by session, its states from before the requests that the node may not have applied yet."""
        states: dict[int, list[_State]] = {}
        slices_us = self.context.settings.slices_us
        sessions.cut = [fetch for fetch in sessions.cut if at_us - fetch.came_us <= slices_us]
        for fetch in chain(sessions.cut, *map(dict.values, sessions.pending.values())) if slices_us else ():
            if fetch.before is not None and at_us - fetch.came_us <= slices_us:
                states.setdefault(fetch.session_id, []).append(fetch.before)
        return states

    def _opened(
        self,
        at_us: int,
        node: "Node",
        alive: dict[int, _Session],
        evicted: dict[int, _Session],
        fetch: _PendingFetch,
        response: FetchResponse,
        earlier: Mapping[int, Sequence[_State]],
    ) -> None:
        """Judge a full fetch outside any session, which got one or was declined (ID 0). ``earlier``: states that
        sessions may still have."""
        node_id, wall_ms, config = node.broker.node_id, node.broker.now.wall_ms, node.broker.config
        slots, most = config.max_incremental_fetch_session_cache_slots, config.crucible_fetch_session_cache_partitions
        size = len(fetch.named)
        before = {**alive, **evicted}
        late_ms = self.context.settings.slices_us // 1000
        new_session = f"a new session of {size} partitions"
        is_declined = size > 0 and (response.session_id == 0 or _denies(fetch, response))
        wanted: list[int] | None = None
        for each in _combinations(before, earlier):
            wanted = _sessions_to_evict(before, each, fetch, wall_ms, slots, most)
            is_certain = not late_ms or wanted == _sessions_to_evict(before, each, fetch, wall_ms, slots, most, late_ms)
            if not is_certain or (list(evicted) == (wanted or []) and not (is_declined and wanted is not None)):
                break
        else:
            if list(evicted) != (wanted or []):
                named = _listed(wanted or [])
                self.violated(
                    at_us, f"node-{node_id} evicted {_listed(evicted)} for {new_session}; the rules name {named}"
                )
            if is_declined and wanted is not None:
                left = len(before) - len(wanted)
                self.violated(at_us, f"node-{node_id} declined {new_session}, with {left} in {slots} slots")
        if response.session_id:
            held: dict[PartitionName, None] = {} if _denies(fetch, response) else fetch.named
            alive[response.session_id] = _Session(
                fetch.is_first, fetch.by_follower, held, wall_ms, wall_ms, fetch.min_ms
            )
            if len(alive) > slots:
                self.violated(at_us, f"{len(alive)} sessions live on node-{node_id} in {slots} slots")
            total = sum(min((each.state, *earlier.get(number, ()))).size for number, each in alive.items())
            if total > most:
                self.violated(at_us, f"the sessions of node-{node_id} hold {total} partitions, at most {most}")


def _read(
    alive: Mapping[int, _Session], version: int, body: FetchRequest, first_min_ms: int, at_us: int
) -> _PendingFetch:
    is_first = version in FIRST_REVISIONS
    if is_first:
        full = body.fetch_type != INCREMENTAL
        opening = wants = full and body.session_id not in alive
    else:
        opening = full = body.session_epoch in (INITIAL_EPOCH, FINAL_EPOCH)
        wants = body.session_epoch == INITIAL_EPOCH
    named = dict.fromkeys(key for key, _ in partitions_of(version, body.topics))
    min_ms = first_min_ms if is_first else MIN_EVICTION_MS
    is_follower = body.replica_id >= 0
    return _PendingFetch(body.session_id, is_first, is_follower, min_ms, opening, wants, full, named, at_us)


def _use(
    alive: Mapping[int, _Session], fetch: _PendingFetch, event: Request, effects: Sequence[Effect], wall_ms: int
) -> bool:
    """Record a request that its session accepts: it is a use of the session, and changes its partitions. Return whether
    it forgets the last partition of a session of the final revision."""
    session = alive.get(fetch.session_id)
    if session is None or fetch.opening or _is_refused(event, effects):
        return False
    fetch.before = session.state
    session.used_ms = wall_ms
    if fetch.full:
        session.held = fetch.named
    else:
        session.held.update(fetch.named)
    assert isinstance(event.body, FetchRequest)
    for named, _ in partitions_of(event.api_version, event.body.forgotten):
        session.held.pop(named, None)
    return fetch.before.size > 0 and not session.held and not fetch.is_first


def _combinations(
    sessions: Mapping[int, _Session], earlier: Mapping[int, Sequence[_State]]
) -> Iterator[dict[int, _State]]:
    """Return each combination of the states that the sessions may have, the present one last."""
    possible = [dict.fromkeys((*earlier.get(number, ()), each.state)) for number, each in sessions.items()]
    for states in product(*possible):
        yield dict(zip(sessions, states, strict=True))


def _sessions_to_evict(
    alive: Mapping[int, _Session],
    states: Mapping[int, _State],
    new: _PendingFetch,
    wall_ms: int,
    slots: int,
    most: int,
    late_ms: int = 0,
) -> list[int] | None:
    """Return the sessions that F-18 evicts for the new one, in order. None if it has no place (F-17).

    ``late_ms`` is how much later than its last request came each session may have been used.
    """
    size, remaining, evicted = len(new.named), dict(alive), list[int]()
    if not new.wants or size > most:
        return None
    while not (len(remaining) < slots and size + sum(states[each].size for each in remaining) <= most):
        evicted_id = _session_to_evict(remaining, states, new, wall_ms, late_ms)
        if evicted_id is None:
            return None
        evicted.append(evicted_id)
        del remaining[evicted_id]
    return evicted


def _session_to_evict(
    alive: Mapping[int, _Session], states: Mapping[int, _State], new: _PendingFetch, wall_ms: int, late_ms: int
) -> int | None:
    """Return the session that F-18 evicts next for the new one. None if there is none, or if ``late_ms`` decides which
    of them."""
    idle = [
        (states[session_id].used_ms, session_id)
        for session_id, session in alive.items()
        if wall_ms - states[session_id].used_ms - late_ms > session.min_ms
    ]  # rule (b)
    if idle:
        used_ms, session_id = min(idle)
        is_only = sum(each <= used_ms + late_ms for each, _ in idle) == 1
        return session_id if is_only or not late_ms else None
    others = [
        (session.by_follower, states[session_id].size, session_id)
        for session_id, session in alive.items()
        if (new.by_follower and not session.by_follower)  # rule (a)
        or (wall_ms - session.created_ms > session.min_ms and len(new.named) > states[session_id].size)  # rule (c)
    ]
    return min(others)[2] if others else None


def _denies(fetch: _PendingFetch, response: FetchResponse) -> bool:
    """Return whether the session caches nothing and serves only full fetches (G-10), as in the first revision only."""
    return fetch.is_first and not response.response_flags & INCREMENTAL_FETCH_OK


def _is_refused(request: Request, effects: Sequence[Effect]) -> bool:
    """Return whether the request gets a top-level error at once, or its connection is closed instead. Then it changes
    nothing in its session (F-10)."""
    for effect in effects:
        if type(effect) is Reply:
            is_own = effect.connection == request.connection and effect.correlation_id == request.correlation_id
            if is_own and isinstance(effect.body, FetchResponse) and effect.body.error_code != 0:
                return True
        elif type(effect) is Close and effect.connection == request.connection:
            return True
    return False


def _listed(sessions: Sequence[int] | Mapping[int, _Session]) -> str:
    return ", ".join(map(str, sessions)) or "none"


FEW_SESSIONS = 16
"""If there are more sessions than this, their partitions are counted only in the thorough comparison, because to count
them after each event takes too long. The number of sessions and of evictions is compared after each event."""

_Numbers = tuple[Gauge, Gauge, Counter]
_HAS_UNFINISHED_FETCH = attrgetter("has_unfinished_fetch")


class MetricsExact(Check):
    """metrics-exact: after each event the three session metrics show the true numbers (F-21).

    Physical: a long request is applied in several events, and its partitions are counted in the last one. So the number
    of partitions is compared only while no session is applying a request.
    """

    guarantee = "metrics-exact"
    inspection = Inspection.AFTER_EVENTS
    needs_one_node = True
    rows = ("session_evicted",)

    def __init__(self, context: CheckContext) -> None:
        super().__init__(context)
        self._evictions: dict[tuple[int, int], int] = {}
        self._numbers: dict[tuple[int, int], _Numbers] = {}
        self._sessions: dict[int, int] = {}

    def trace(self, row: TraceRow) -> None:
        if row.what == "session_evicted":
            key = (row.node, row.incarnation)
            self._evictions[key] = self._evictions.get(key, 0) + 1

    def inspect(self, at_us: int, incarnation: int, node: "Node", event: Event | None, thorough: bool) -> None:
        node_id = node.broker.node_id
        key = (node_id, incarnation)
        numbers = self._numbers.get(key)
        if numbers is None:
            numbers = self._numbers[key] = session_metrics(node)
        sessions = node.broker.fetch_sessions.sessions
        count, evictions = len(sessions), self._evictions.get(key, 0)
        if numbers[0].value != count or numbers[2].value != evictions:
            shown = (numbers[0].value, numbers[2].value)
            self.violated(at_us, f"metrics say (sessions, evictions) = {shown}, there are {(count, evictions)}")
        fetched = type(event) is Request and event.api_key == FETCH and event.tag.role == "client"
        touched = fetched or event is None or self._sessions.get(node_id) != count
        if any(map(_HAS_UNFINISHED_FETCH, sessions.values())):
            self._sessions[node_id] = -1  # Compare at the next event.
        elif thorough or (touched and count <= FEW_SESSIONS):
            self._sessions[node_id] = count
            partitions = sum(len(session.partitions) for session in sessions.values())
            if numbers[1].value != partitions:
                self.violated(at_us, f"metrics say {numbers[1].value} cached partitions, there are {partitions}")


def session_metrics(node: "Node") -> _Numbers:
    """Return sessions, cached partitions and evictions as the node's registry shows them."""
    metrics, kind = node.broker.metrics, "FetchSessionCache"
    return (
        metrics.gauge("kafka.server", kind, "NumIncrementalFetchSessions"),
        metrics.gauge("kafka.server", kind, "NumIncrementalFetchPartitionsCached"),
        metrics.counter("kafka.server", kind, "IncrementalFetchSessionEvictionsPerSec"),
    )
