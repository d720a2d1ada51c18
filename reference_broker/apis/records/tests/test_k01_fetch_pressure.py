"""Slots under pressure: followers, consumers and both revisions in one cache; sessions that outlive their topics."""

from dataclasses import dataclass
from typing import Any

import pytest

from reference_broker.apis.records.tests.fetch_naive import Naive
from reference_broker.apis.records.tests.fetch_naive_values import FIRST_MIN_MS
from reference_broker.apis.tests.fetch_world import FetchWorld, names, partitions_of
from reference_broker.wire.errors import DraftError, ErrorCode
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)

FOLLOWER, CONSUMER = 8, -1
A0, A1, B0 = ("a", 0), ("a", 1), ("b", 0)
REVISIONS = pytest.mark.parametrize("revision", ["final", "first"])


@dataclass
class Fetcher:
    """One client, which starts again after a refusal."""

    world: FetchWorld
    revision: str
    places: list[tuple[str, int]]
    replica_id: int = CONSUMER
    session_id: int = 0
    number: int = 0
    opened: int = 0
    refused: int = 0

    def fetch(self) -> FetchResponse:
        send = self.world.fetch if self.revision == "final" else self.world.fetch_first
        if not self.session_id:
            response = send(0, 0, dict.fromkeys(self.places, 0), replica_id=self.replica_id).response
            self.session_id, self.number = response.session_id, 1
            self.opened += bool(response.session_id)
            return response
        response = send(self.session_id, self.number, replica_id=self.replica_id).response
        if response.error_code:
            self.refused += 1
            self.session_id = 0
        self.number += 1
        return response


def a_world(slots: int, **fields: Any) -> FetchWorld:
    world = FetchWorld(slots=slots, **fields)
    world.create("a", 2)
    world.create("b")
    return world


def metrics(world: FetchWorld) -> tuple[int, int, int]:
    kind = "FetchSessionCache"

    def gauge(name: str) -> int:
        return int(world.metrics.gauge("kafka.server", kind, name).value)

    evictions = world.metrics.counter("kafka.server", kind, "IncrementalFetchSessionEvictionsPerSec")
    return gauge("NumIncrementalFetchSessions"), gauge("NumIncrementalFetchPartitionsCached"), int(evictions.value)


@pytest.mark.clause("F-17", "F-18", "F-21", "G-11")
@REVISIONS
def test_more_fetchers_than_slots_cause_no_thrashing(revision: str) -> None:
    """Only the first fetchers get sessions, which stay as long as they are used."""
    world = a_world(slots=4)
    fetchers = [Fetcher(world, revision, [A0]) for _ in range(12)]
    for _ in range(30):
        for fetcher in fetchers:
            fetcher.fetch()
        world.pass_ms(10_000)
        assert metrics(world) == (4, 4, 0)
    assert [fetcher.opened for fetcher in fetchers] == [1] * 4 + [0] * 8
    assert sum(fetcher.refused for fetcher in fetchers) == 0


@pytest.mark.clause("F-17", "F-18", "F-19", "F-21", "G-11")
@REVISIONS
def test_followers_evict_consumers_at_once(revision: str) -> None:
    world = a_world(slots=3)
    consumers = [Fetcher(world, revision, [A0, A1, B0]) for _ in range(3)]
    followers = [Fetcher(world, revision, [A0], FOLLOWER + number) for number in range(2)]
    for fetcher in consumers + followers:
        fetcher.fetch()
    assert metrics(world) == (3, 5, 2)
    for _ in range(3):
        world.pass_ms(1000)
        for fetcher in consumers + followers:
            fetcher.fetch()
    assert [fetcher.refused for fetcher in followers] == [0, 0]
    assert sum(fetcher.session_id != 0 for fetcher in consumers) == 1
    assert metrics(world) == (3, 5, 2)


@pytest.mark.clause("G-11", "F-17", "F-21")
def test_revisions_share_slots_with_separate_minimum_eviction_times() -> None:
    world = a_world(slots=2, first_min_eviction_ms=5_000)
    first, final = Fetcher(world, "first", [A0]), Fetcher(world, "final", [A0])
    for fetcher in (first, final):
        fetcher.fetch()
    late = Fetcher(world, "final", [A0])
    late.fetch()
    assert (late.opened, metrics(world)) == (0, (2, 2, 0))
    world.pass_ms(5_000)
    late.fetch()
    assert late.opened == 0
    world.pass_ms(1)
    late.fetch()
    assert (late.opened, metrics(world)) == (1, (2, 2, 1))
    assert first.fetch().error_code == DraftError.INVALID_FETCH_SESSION
    assert final.fetch().error_code == ErrorCode.none
    (note,) = world.ports.noted("session_evicted")
    assert (note["rule"], note["made_by"]) == ("b", "consumer 'c'")


@pytest.mark.clause("G-11")
def test_minimum_eviction_time_of_zero_admits_larger_sessions_at_once() -> None:
    world = a_world(slots=1, first_min_eviction_ms=0)
    small, large = Fetcher(world, "first", [A0]), Fetcher(world, "first", [A0, A1])
    small.fetch()
    large.fetch()
    assert large.opened == 0
    world.pass_ms(1)
    small.fetch()
    world.pass_ms(1)
    small.fetch()
    large.fetch()
    assert (large.opened, metrics(world)) == (1, (1, 2, 1))


@dataclass
class Thrasher:
    """One of many fetchers. It sends a request each ``every`` turns from turn ``since`` on, every fifth time for fewer
    partitions."""

    revision: str
    places: list[tuple[str, int]]
    every: int
    since: int
    replica_id: int = CONSUMER
    session_id: int = 0
    number: int = 0

    def request(self, turn: int) -> FetchRequest:
        first, fewer = self.revision == "first", turn % 5 == 4
        is_new = not self.session_id or (first and fewer)
        named = self.places[: 1 if fewer else None] if is_new else []
        dropped = self.places[1:] if fewer and not is_new else []
        return FetchRequest(
            replica_id=self.replica_id,
            max_wait_ms=0,
            session_id=self.session_id,
            session_epoch=0 if is_new else self.number,
            topics=[FetchTopic(topic, bytes(16), [FetchPartition(index, 0, 1000)]) for topic, index in named],
            forgotten=[ForgottenTopic(topic, bytes(16), [index]) for topic, index in dropped],
            fetch_type=0 if is_new or not first else INCREMENTAL_FETCH,
        )

    def take(self, request: FetchRequest, response: FetchResponse) -> None:
        if response.session_id != self.session_id:
            self.number = 0
        if response.error_code == ErrorCode.none and (request.session_epoch or not self.number):
            self.number += 1
        self.session_id = 0 if response.error_code else response.session_id


@pytest.mark.clause("F-17", "F-18", "F-19", "F-21", "G-11")
@pytest.mark.parametrize("revisions", [("final",), ("first",), ("final", "first")], ids="+".join)
def test_metrics_are_exact_with_twice_as_many_fetchers_as_slots(revisions: tuple[str, ...]) -> None:
    """Scenario 5 at the broker: busy, idle, large and shrinking consumers, and followers that join later."""
    world = a_world(slots=6, first_min_eviction_ms=FIRST_MIN_MS)
    naive = Naive(world)
    fetchers = [
        Thrasher(revisions[one % len(revisions)], [A0, A1, B0][: 1 + one % 3], every, since, replica_id)
        for one, (every, since, replica_id) in enumerate(
            [(1, 0, CONSUMER)] * 4
            + [(20, 0, CONSUMER)] * 3
            + [(3, 10, CONSUMER)] * 2
            + [(1, 15, FOLLOWER), (2, 30, FOLLOWER + 1), (25, 31, FOLLOWER + 2)]
        )
    ]
    for turn in range(90):
        for fetcher in fetchers:
            if turn < fetcher.since or turn % fetcher.every:
                continue
            request = fetcher.request(turn)
            call = world.send(request, 1000 if fetcher.revision == "first" else 12)
            naive.request(call, request)
            sessions = naive.sessions.values()
            assert metrics(world) == (
                len(sessions),
                sum(len(session.parts) for session in sessions),
                naive.evictions,
            ), turn
            fetcher.take(request, call.response)
        world.pass_ms(7_000)
    rules = {str(note["rule"]) for note in world.ports.noted("session_evicted")}
    assert rules == {"a", "b", "c"}


@pytest.mark.clause("F-21", "G-11")
@REVISIONS
def test_metrics_stay_exact_while_fetchers_come_and_go(revision: str) -> None:
    world = a_world(slots=5, first_min_eviction_ms=120_000)
    evicted = 0
    for turn in range(40):
        Fetcher(world, revision, [A0, A1, B0][: 1 + turn % 3], FOLLOWER if turn % 4 == 0 else CONSUMER).fetch()
        world.pass_ms(30_000)
        sessions = world.sessions.sessions.values()
        evicted = len(world.ports.noted("session_evicted"))
        assert metrics(world) == (len(sessions), sum(len(session.partitions) for session in sessions), evicted)
        assert len(sessions) <= 5
    assert evicted > 10


@pytest.mark.clause("F-21", "F-13")
@REVISIONS
def test_session_outlives_deleted_topic_and_sends_recreated_one(revision: str) -> None:
    world = a_world(slots=5)
    fetcher = Fetcher(world, revision, [A0, B0])
    fetcher.fetch()
    fetcher.fetch()
    world.delete("a")
    for _ in range(3):
        gone = partitions_of(fetcher.fetch())
        assert list(gone) == [A0]
        assert gone[A0].error_code == ErrorCode.unknown_topic_or_partition
    assert metrics(world) == (1, 2, 0)
    world.create("a", 2, topic_id=b"another topic id")
    world.append("a")
    back = partitions_of(fetcher.fetch())[A0]
    assert back.error_code == ErrorCode.none
    assert len(back.records or b"") == 100
    assert back.high_watermark == 1
    world.delete("b")
    world.create("b", topic_id=b"also another one")
    again = names(fetcher.fetch())  # By comparison an empty log that replaced an empty one is no change.
    assert (B0 in again) == (revision == "first")
    assert fetcher.refused == 0


@pytest.mark.clause("F-21")
@REVISIONS
def test_evicted_session_is_not_referenced(revision: str) -> None:
    world = a_world(slots=1)
    missing = ("later", 0)
    for turn in range(20):
        Fetcher(world, revision, [A0, A1, missing]).fetch()
        world.pass_ms(120_001)
        live = list(world.sessions.sessions.values())
        for place in (A0, A1):
            assert all(watcher.session in live for watcher in world.partition(*place).watchers), turn  # type: ignore[attr-defined]
        assert all(key.session in live for key in world.sessions.arrivals.keys)


@pytest.mark.clause("F-20", "G-3")
@pytest.mark.parametrize(("revision", "accepted"), [("final", False), ("first", True)])
def test_retransmission_is_rejected_by_final_and_served_by_first_revision(revision: str, accepted: bool) -> None:
    world = a_world(slots=5)
    fetcher = Fetcher(world, revision, [A0])
    fetcher.fetch()
    world.append("a")
    before = fetcher.fetch()
    send = world.fetch if revision == "final" else world.fetch_first
    again = send(fetcher.session_id, 1, fetch_type=INCREMENTAL_FETCH).response
    assert (again.error_code == ErrorCode.none) == accepted
    if accepted:
        assert partitions_of(again) == partitions_of(before)
