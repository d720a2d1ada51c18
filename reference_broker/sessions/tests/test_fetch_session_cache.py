"""The slots of the fetch session cache: who may take whose, on current values, and what is counted."""

from collections.abc import Iterator
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_broker.metrics.metrics import Metrics
from reference_broker.ports.node_ports import Now
from reference_broker.sessions import fetch_session_cache
from reference_broker.sessions.fetch_session import MIN_EVICTION_MS, FetchSession, next_epoch
from reference_broker.sessions.fetch_session_cache import FetchSessionCache, find_evictable
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition

FOLLOWER, CONSUMER = 5, -1
LIMIT = MIN_EVICTION_MS


class CacheWorld:
    """A cache with a clock."""

    def __init__(self, slots: int) -> None:
        self.metrics = Metrics()
        self.notes: list[tuple[str, dict[str, int | str]]] = []
        self.cache = FetchSessionCache(slots, Random(4), self.metrics, self.note)
        self.wall_ms = 1_000_000_000

    def note(self, what: str, *fields: tuple[str, int | str]) -> None:
        self.notes.append((what, dict(fields)))

    @property
    def now(self) -> Now:
        return Now(0, self.wall_ms)

    def candidate(self, partitions: int, replica_id: int = CONSUMER) -> FetchSession:
        candidate = self.cache.candidate("c", replica_id, False)
        for index in range(partitions):
            candidate.add_or_update("t", bytes(16), FetchPartition(index, 0, 1))
        return candidate

    def create(self, partitions: int, replica_id: int = CONSUMER) -> FetchSession | None:
        candidate = self.candidate(partitions, replica_id)
        return candidate if self.cache.admit(candidate, self.now) else None

    def made(self, partitions: int, replica_id: int = CONSUMER) -> FetchSession:
        session = self.create(partitions, replica_id)
        assert session is not None
        return session

    def use(self, session: FetchSession) -> None:
        self.cache.accept(session, session.epoch, self.now)

    def holds(self, session: FetchSession) -> bool:
        return self.cache.sessions.get(session.session_id) is session

    def metric(self, name: str) -> int:
        kind = "counter" if name.endswith("PerSec") else "gauge"
        return int(getattr(self.metrics, kind)("kafka.server", "FetchSessionCache", name).value)

    @property
    def counted(self) -> tuple[int, int, int]:
        """(sessions, partitions cached, evictions)"""
        return (
            self.metric("NumIncrementalFetchSessions"),
            self.metric("NumIncrementalFetchPartitionsCached"),
            self.metric("IncrementalFetchSessionEvictionsPerSec"),
        )

    def rules(self) -> list[str]:
        return [str(fields["rule"]) for what, fields in self.notes if what == "session_evicted"]


@pytest.mark.clause("F-2", "FetchSessionTest.testNewSessionId")
def test_session_ids_are_positive_unique_and_spread_over_whole_range() -> None:
    world = CacheWorld(5000)
    ids = [world.made(0).session_id for _ in range(5000)]
    assert len(dict.fromkeys(ids)) == 5000
    assert all(1 <= session_id <= 0x7FFFFFFF for session_id in ids)
    assert min(ids) < 0x7FFFFFFF // 100
    assert max(ids) > 0x7FFFFFFF // 100 * 99


@pytest.mark.clause("F-2")
def test_session_id_in_use_is_not_drawn_again() -> None:
    class Repeating(Random):
        def randint(self, a: int, b: int) -> int:  # noqa: ARG002
            return next(draws)

    draws: Iterator[int] = iter([7, 7, 7, 9])
    world = CacheWorld(5)
    world.cache.random = Repeating()
    assert [world.made(0).session_id for _ in range(2)] == [7, 9]


@pytest.mark.clause("F-3")
@pytest.mark.parametrize(("epoch", "successor"), [(1, 2), (2**31 - 2, 2**31 - 1), (2**31 - 1, 1)])
def test_next_epoch_increments_and_wraps_to_one(epoch: int, successor: int) -> None:
    assert next_epoch(epoch) == successor


@pytest.mark.clause("F-17")
@pytest.mark.parametrize("slots", [0, 1, 3, 8])
def test_n_slots_hold_n_sessions(slots: int) -> None:
    world = CacheWorld(slots)
    assert [world.create(1) is not None for _ in range(slots + 1)] == [True] * slots + [False]
    assert world.counted == (slots, slots, 0)


@pytest.mark.clause("F-18", "FetchSessionTest.testSessionCache")
def test_full_cache_declines_new_session_of_any_size() -> None:
    world = CacheWorld(3)
    sessions = [world.made(size) for size in (10, 20, 30)]
    assert world.create(40) is None
    assert world.create(5) is None
    assert all(world.holds(session) for session in sessions)


@pytest.mark.clause("F-18", "FetchSessionTest.testSessionCache")
@pytest.mark.parametrize(("idle", "evicted"), [(LIMIT, False), (LIMIT + 1, True)])
def test_rule_b_evicts_longest_idle_session_beyond_limit(idle: int, evicted: bool) -> None:
    world = CacheWorld(2)
    first, second = world.made(10), world.made(1)
    world.wall_ms += idle - 5
    world.use(second)
    world.wall_ms += 5
    assert (world.create(1) is not None) == evicted
    assert world.holds(first) != evicted
    assert world.holds(second)
    assert world.rules() == (["b"] if evicted else [])


@pytest.mark.clause("F-18", "FetchSessionTest.testPrivilegedSessionHandling")
def test_rule_b_holds_for_idle_followers_and_against_small_consumers() -> None:
    world = CacheWorld(1)
    world.made(100, FOLLOWER)
    world.wall_ms += LIMIT + 1
    assert world.create(0) is not None


@pytest.mark.clause("F-18")
def test_rule_b_is_applied_before_other_rules() -> None:
    world = CacheWorld(2)
    idle, small = world.made(50), world.made(1)
    world.wall_ms += LIMIT + 1
    world.use(small)
    world.made(60, FOLLOWER)
    assert not world.holds(idle)
    assert world.holds(small)
    assert world.rules() == ["b"]


@pytest.mark.clause("F-18", "FetchSessionTest.testSessionCache")
@pytest.mark.parametrize(
    ("age", "size", "evicted"),
    [(LIMIT, 11, False), (LIMIT + 1, 11, True), (LIMIT + 1, 10, False), (LIMIT + 1, 9, False)],
)
@pytest.mark.parametrize("kind", [CONSUMER, FOLLOWER])
def test_rule_c_evicts_old_session_for_larger_one(age: int, size: int, evicted: bool, kind: int) -> None:
    world = CacheWorld(1)
    old = world.made(10, kind)
    world.wall_ms += age
    world.use(old)
    assert (world.create(size, kind) is not None) == evicted
    assert world.rules() == (["c"] if evicted else [])


@pytest.mark.clause("F-18")
def test_rule_c_evicts_old_follower_for_larger_consumer() -> None:
    world = CacheWorld(1)
    world.use(world.made(10, FOLLOWER))
    world.wall_ms += LIMIT + 1
    world.use(next(iter(world.cache.sessions.values())))
    assert world.create(11) is not None


@pytest.mark.clause(
    "F-18",
    "F-19",
    "FetchSessionTest.testSessionCache",
    "FetchSessionTest.testPrivilegedSessionHandling",
)
def test_rule_a_evicts_consumer_of_any_age_and_size_for_follower() -> None:
    world = CacheWorld(2)
    follower, consumer = world.made(1, FOLLOWER), world.made(100)
    assert world.create(5, FOLLOWER) is not None
    assert world.holds(follower)
    assert not world.holds(consumer)
    assert world.rules() == ["a"]
    assert world.create(1000, FOLLOWER) is None  # no consumer left
    assert world.create(1000, CONSUMER) is None


@pytest.mark.clause("F-18")
def test_equal_evictable_sessions_are_evicted_consumers_first_then_by_size_and_id() -> None:
    world = CacheWorld(5)
    followers = [world.made(size, FOLLOWER) for size in (1, 2)]
    consumers = [world.made(size) for size in (3, 2, 2)]
    world.wall_ms += LIMIT + 1
    for session in (*followers, *consumers):
        world.use(session)
    small = sorted(consumers[1:], key=lambda session: session.session_id)
    gone = []
    for _ in range(5):
        world.made(9)
        left = [follower for follower in (*followers, *consumers) if world.holds(follower)]
        gone.append(
            next(follower for follower in (*followers, *consumers) if follower not in left and follower not in gone)
        )
    assert gone == [*small, consumers[0], *followers]


@pytest.mark.clause("F-18", "FetchSessionTest.testResizeCachedSessions")
def test_eviction_uses_current_session_size() -> None:
    world = CacheWorld(1)
    old = world.made(10)
    world.wall_ms += LIMIT + 1
    world.use(old)
    assert world.create(5) is None
    old.forget("t", bytes(16), range(8))
    world.cache.resized(old)
    assert world.counted == (1, 2, 0)
    assert world.create(5) is not None
    assert world.counted == (1, 5, 1)


@pytest.mark.clause("F-18", "FetchSessionTest.testFetchSessionExpiration")
def test_incremental_fetch_makes_a_session_recent() -> None:
    world = CacheWorld(2)
    first, second = world.made(1), world.made(1)
    world.wall_ms += LIMIT
    world.use(first)
    world.wall_ms += 1
    world.made(1)
    assert world.holds(first)
    assert not world.holds(second)


@pytest.mark.clause("F-18")
@pytest.mark.parametrize("step", [-3_600_000, -1])
def test_wall_clock_step_backwards_evicts_no_session(step: int) -> None:
    world = CacheWorld(1)
    session = world.made(1)
    world.wall_ms += step
    assert world.create(100) is None
    assert world.create(100) is None
    world.use(session)
    world.wall_ms += LIMIT
    assert world.create(1) is None
    world.wall_ms += 1
    assert world.create(1) is not None


@pytest.mark.clause("F-18")
def test_refusal_is_cached_until_a_session_may_be_evicted(monkeypatch: pytest.MonkeyPatch) -> None:
    walks: list[int] = []

    def counted(*given: Any) -> Any:
        walks.append(1)
        return find_evictable(*given)

    monkeypatch.setattr(fetch_session_cache, "find_evictable", counted)
    world = CacheWorld(1)
    old = world.made(10)
    assert [world.create(size) for size in (5, 5, 4)] == [None] * 3
    assert len(walks) == 1
    assert world.create(6) is None  # larger than the one refused
    assert len(walks) == 2
    world.wall_ms += LIMIT + 1
    world.use(old)
    assert world.create(6) is None
    assert world.create(11) is not None


@pytest.mark.clause("F-18")
def test_eviction_note_has_rule_and_its_inputs() -> None:
    world = CacheWorld(1)
    old = world.made(2)
    world.wall_ms += LIMIT + 100
    world.use(old)
    world.wall_ms += 7
    world.made(3)
    assert (
        "session_evicted",
        {
            "session_id": old.session_id,
            "rule": "c",
            "idle_ms": 7,
            "age_ms": LIMIT + 107,
            "partitions": 2,
            "by_partitions": 3,
            "privileged": 0,
            "by_privileged": 0,
            "made_by": "consumer 'c'",
        },
    ) in world.notes


@pytest.mark.clause("F-21", "FetchSessionTest.testResizeCachedSessions")
def test_close_is_no_eviction_and_gauges_are_updated() -> None:
    world = CacheWorld(3)
    first, second = world.made(4), world.made(5)
    assert world.counted == (2, 9, 0)
    world.cache.close(first.session_id, "closed by its fetcher")
    world.cache.close(first.session_id, "closed by its fetcher")
    assert world.counted == (1, 5, 0)
    second.add_or_update("u", bytes(16), FetchPartition(0, 0, 1))
    world.cache.resized(second)
    assert world.counted == (1, 6, 0)
    assert [what for what, _ in world.notes] == ["session_created", "session_created", "session_closed"]


def test_session_larger_than_the_limit_is_not_created(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fetch_session_cache, "MAX_SESSION_PARTITIONS", 10)
    world = CacheWorld(3)
    assert world.create(10) is not None
    assert world.create(11) is None


@pytest.mark.clause("F-18")
def test_no_session_is_evicted_for_a_declined_new_session() -> None:
    world = CacheWorld(2)
    world.cache.max_partitions = 10
    idle = world.made(2)
    world.wall_ms += LIMIT + 1
    busy = world.made(6)
    assert world.create(9) is None
    assert world.create(11) is None
    assert world.holds(idle)
    assert world.holds(busy)
    assert world.rules() == []
    assert world.create(4) is not None
    assert (world.holds(idle), world.rules()) == (False, ["b"])


@pytest.mark.clause("F-18")
def test_total_partition_limit_evicts_only_by_rules() -> None:
    world = CacheWorld(100)
    world.cache.max_partitions = 10
    first, second = world.made(4), world.made(6)
    assert world.create(1) is None
    world.wall_ms += LIMIT + 1
    assert world.create(10) is not None
    assert not world.holds(first)
    assert not world.holds(second)
    assert world.rules() == ["b", "b"]


def test_session_growing_beyond_total_partition_limit_is_too_large() -> None:
    world = CacheWorld(3)
    world.cache.max_partitions = 5
    session = world.made(5)
    assert not world.cache.is_too_large(session)
    session.add_or_update("u", bytes(16), FetchPartition(0, 0, 1))
    world.cache.resized(session)
    assert world.cache.is_too_large(session)


@pytest.mark.clause("F-9", "F-10")
def test_lookup_checks_id_then_epoch() -> None:
    world = CacheWorld(3)
    session = world.made(1)
    lookup = world.cache.lookup
    assert lookup(session.session_id + 1, 2, FetchSession) is ErrorCode.fetch_session_id_not_found
    assert lookup(session.session_id, 2, FetchSession) is ErrorCode.invalid_fetch_session_epoch
    assert lookup(session.session_id, 1, FetchSession) is session


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["create", "use", "close", "grow", "wait"]),
        st.integers(0, 5),
        st.booleans(),
        st.sampled_from([-200_000, -1, 0, 1, 60_000, LIMIT, LIMIT + 1]),
    ),
    max_size=40,
)


@pytest.mark.clause("F-18", "G-4")
def test_size_is_from_before_a_request_that_is_half_applied() -> None:
    """The session empties and fills again over several events."""
    world = CacheWorld(1)
    old = world.made(10)
    world.wall_ms += LIMIT + 1
    world.use(old)
    world.cache.unregister(old.empty())
    old.add_or_update("t", bytes(16), FetchPartition(0, 0, 1))
    assert world.create(5) is None
    old.add_or_update("t", bytes(16), FetchPartition(1, 0, 1))
    world.cache.resized(old)
    assert world.create(5) is not None


@pytest.mark.clause("F-17", "F-18", "F-21")
@given(STEPS)
def test_cached_refusals_do_not_change_evictions(steps: list[tuple[str, int, bool, int]]) -> None:
    """Against a cache that judges every candidate by the three rules as they are written down."""
    world = CacheWorld(3)
    for what, number, follower, wait_ms in steps:
        sessions = list(world.cache.sessions.values())
        some = sessions[number % len(sessions)] if sessions else None
        world.wall_ms += wait_ms
        if what == "create":
            candidate = world.candidate(number, FOLLOWER if follower else CONSUMER)
            full = len(sessions) == 3
            evictable = find_evictable(sessions, candidate, world.wall_ms) if full else None
            allowed = [session for session in sessions if may_take(session, candidate, world.wall_ms)] if full else []
            assert world.cache.admit(candidate, world.now) == (not full or bool(allowed))
            assert [session for session in sessions if not world.holds(session)] == (
                [evictable.session] if evictable else []
            )
            assert evictable is None or evictable.session in allowed
        elif some is not None and what == "use":
            world.use(some)
        elif some is not None and what == "close":
            world.cache.close(some.session_id, "test")
        elif some is not None and what == "grow":
            if follower:
                some.forget("t", bytes(16), range(number, 9))
            else:
                some.add_or_update("t", bytes(16), FetchPartition(number, 0, 1))
            world.cache.resized(some)
        now = world.cache.sessions.values()
        assert world.counted == (len(now), sum(len(session.partitions) for session in now), len(world.rules()))


def may_take(old: FetchSession, new: FetchSession, wall_ms: int) -> bool:
    return (
        (new.privileged and not old.privileged)
        or wall_ms - old.last_used_ms > 120_000
        or (wall_ms - old.created_ms > 120_000 and len(new.partitions) > len(old.partitions))
    )
