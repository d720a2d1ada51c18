"""Evictions of fetch sessions (F-17, F-18), and metrics of the session cache."""

from dataclasses import dataclass, replace
from typing import Any

import pytest

from chaos.checks.sessions.fetch_session_cache import FEW_SESSIONS, EvictionRules, MetricsExact, session_metrics
from chaos.checks.tests.check_context import check_context
from chaos.checks.tests.stub_node import StubBroker, StubNode, StubSessions
from chaos.sim.disk import SimDisk
from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.core.events import Close, Closed, Note, Reply, Request
from reference_broker.core.node import Node
from reference_broker.ports.node_ports import Now
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import (
    INCREMENTAL_FETCH_OK,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    ForgottenTopic,
)
from reference_broker.wire.tags import Tag

FETCH, FINAL_VERSION, FIRST_REVISION = 1, 12, 1000
MIN_MS = 120_000


class Fetchers:
    """One node with a fetcher for each connection. ``ms`` is the node's wall clock."""

    def __init__(
        self, slots: int, min_eviction_ms: int = MIN_MS, most_partitions: int = 1000, slices_us: int = 0
    ) -> None:
        context = check_context()
        self.check = EvictionRules(replace(context, settings=replace(context.settings, slices_us=slices_us)))
        self.ms = 1_000_000
        config = replace(
            BrokerConfig(),
            max_incremental_fetch_session_cache_slots=slots,
            min_incremental_fetch_session_eviction_ms=min_eviction_ms,
            crucible_fetch_session_cache_partitions=most_partitions,
        )
        self._broker = StubBroker(config=config)
        self._requests = 0
        self._node: Any = None
        self.start()

    def start(self) -> None:
        """Another process of the node begins."""
        self._node = StubNode(self._broker)
        self.check.acted(0, self._node, None, ())

    def leaves(self) -> None:
        """The process begins to end in good order. It still serves followers."""
        self.check.acted(0, self._node, None, ())

    def hangs_up_before_response(self) -> None:
        """The connection of a full fetch closes before its response."""
        request = self._request(0, 0, 1)
        self.check.acted(0, self._node, request, ())
        self.check.acted(0, self._node, Closed(request.connection), ())

    def replaces(self, session_id: int, partitions: int, response: str) -> None:
        """A full fetch of the first revision replaces the partitions of the session. Its response is sent now, later,
        or never, since its connection closes."""
        self._broker.now = Now(0, self.ms)
        request = self._request(session_id, 0, partitions, version=FIRST_REVISION)
        body = FetchResponse(session_id=session_id, response_flags=INCREMENTAL_FETCH_OK)
        reply = Reply(self._requests, 1, FETCH, FIRST_REVISION, body, request.tag)
        self.check.acted(self.us, self._node, request, [reply] if response == "now" else [])
        if response == "never":
            self.check.acted(self.us, self._node, Closed(request.connection), ())

    def is_closed_on(self, session_id: int) -> None:
        """An incremental fetch finds its connection closed instead of a response."""
        request = self._request(session_id, 1, 3)
        self._broker.now = Now(0, self.ms)
        self.check.acted(0, self._node, request, [Close(request.connection, "the node is shutting down")])

    @property
    def waiting(self) -> int:
        """Number of requests that the check takes to be in flight."""
        return sum(map(len, self.check._nodes[0].pending.values()))

    def opens(self, session_id: int, partitions: int = 1, evicting: int = 0, **how: int) -> None:
        """A full fetch that wants a session gets this one (0: none), in place of the session ``evicting``."""
        notes = [Note("session_evicted", (("session_id", evicting),))] if evicting else []
        self._acts(0, 0, partitions, session_id, notes, **how)

    def fetches(self, session_id: int, partitions: int = 0, error: int = 0, **how: int) -> None:
        """An incremental fetch that names as many partitions, and is refused with the error."""
        self._acts(session_id, 1, partitions, 0 if error else session_id, [], error=error, **how)

    def empties(self, session_id: int, *, is_closed: bool, version: int = FINAL_VERSION) -> None:
        """An incremental fetch forgets the three partitions of the session."""
        request = self._request(session_id, 1, 0, version=version)
        assert isinstance(request.body, FetchRequest)
        body = replace(request.body, forgotten=[ForgottenTopic("t", bytes(16), [0, 1, 2])])
        notes = [Note("session_closed", (("session_id", session_id),))] if is_closed else []
        response = FetchResponse(session_id=0 if is_closed else session_id)
        reply = Reply(self._requests, 1, FETCH, version, response, request.tag)
        self.check.acted(0, self._node, request._replace(body=body), [*notes, reply])

    def closes(self, session_id: int) -> None:
        self._acts(session_id, -1, 0, 0, [Note("session_closed", (("session_id", session_id),))])

    def keeps(self, session_id: int, version: int = FINAL_VERSION) -> None:
        """A full fetch that closes the session gets its response, and nothing ends."""
        self._acts(session_id, -1, 0, 0, [], version=version)

    def evicts_for_no_session(self, session_id: int) -> None:
        """The session ends in an event without a response to a full fetch."""
        evicted = Note("session_evicted", (("session_id", session_id),))
        self.check.acted(0, self._node, self._request(0, 0, 1), [evicted])

    def _request(
        self, session_id: int, epoch: int, partitions: int, replica: int = -1, version: int = FINAL_VERSION
    ) -> Request:
        self._requests += 1
        named = [FetchPartition(index, 0, 1000) for index in range(partitions)]
        body = FetchRequest(
            replica_id=replica,
            session_id=session_id,
            session_epoch=epoch,
            topics=[FetchTopic("t", bytes(16), named)],
            fetch_type=int(epoch > 0),
        )
        tag = Tag(FETCH, version, "c", session_id, epoch)
        return Request(self._requests, 1, FETCH, version, "c", body, tag)

    def _acts(
        self,
        session_id: int,
        epoch: int,
        partitions: int,
        response_session_id: int,
        notes: list[Note],
        error: int = 0,
        replica: int = -1,
        version: int = FINAL_VERSION,
        flags: int = INCREMENTAL_FETCH_OK,
    ) -> None:
        self._broker.now = Now(0, self.ms)
        request = self._request(session_id, epoch, partitions, replica, version)
        body = FetchResponse(error_code=error, session_id=response_session_id, response_flags=flags)
        reply = Reply(self._requests, 1, FETCH, version, body, request.tag)
        self.check.acted(self.us, self._node, request, [*notes, reply])

    @property
    def us(self) -> int:
        return self.ms * 1000

    @property
    def explanations(self) -> list[str]:
        return [violation.explanation for violation in self.check.violations]


@pytest.mark.clause("F-5", "F-17")
def test_free_slot_is_given_and_no_slot_twice() -> None:
    node = Fetchers(slots=2)
    node.opens(1)
    node.opens(2)
    node.opens(0)
    assert node.explanations == []
    node.opens(3)
    assert "3 sessions live on node-0 in 2 slots" in node.explanations[-1]
    node = Fetchers(slots=2)
    node.opens(1)
    node.opens(0)
    assert "declined a new session" in node.explanations[0]
    assert "1 in 2 slots" in node.explanations[0]


@pytest.mark.clause("F-17")
def test_closed_session_frees_its_slot_and_a_start_frees_all() -> None:
    node = Fetchers(slots=1)
    node.opens(1)
    node.closes(1)
    node.opens(2)
    node.start()
    node.opens(3)
    assert node.explanations == []


@pytest.mark.clause("F-6", "F-8")
def test_full_fetch_ends_the_session_that_it_names() -> None:
    node = Fetchers(slots=2)
    node.opens(1)
    node.keeps(2)
    node.opens(3, version=FIRST_REVISION)
    node.keeps(3)
    assert node.explanations == []
    node.keeps(1)
    assert node.explanations == ["node-0 kept session 1, which a full fetch has named"]


@pytest.mark.clause("F-17")
def test_sessions_of_a_node_that_leaves_still_hold_their_slots() -> None:
    node = Fetchers(slots=1)
    node.opens(1, replica=5)
    node.leaves()
    node.opens(0, replica=6)
    assert node.explanations == []


def test_request_whose_connection_closes_is_forgotten() -> None:
    node = Fetchers(slots=1)
    node.hangs_up_before_response()
    assert node.waiting == 0


@pytest.mark.clause("F-18")
def test_request_that_finds_its_connection_closed_is_no_use() -> None:
    node = Fetchers(slots=1)
    node.opens(1)
    node.ms += MIN_MS + 1
    node.is_closed_on(1)
    node.opens(2, evicting=1)
    assert node.explanations == []


@pytest.mark.clause("F-18", "F-19")
def test_follower_evicts_only_consumer_session() -> None:
    node = Fetchers(slots=1)
    node.opens(1)
    node.opens(2, evicting=1, replica=5)
    node.opens(0, replica=6)
    assert node.explanations == []
    node.opens(3, evicting=2)
    assert "evicted 2 for a new session of 1 partitions; the rules name none" in node.explanations[0]


@pytest.mark.clause("F-1", "F-18")
@pytest.mark.parametrize(("after_ms", "goes"), [(MIN_MS, False), (MIN_MS + 1, True), (-1, False)])
def test_session_is_idle_from_its_last_use_on(after_ms: int, goes: bool) -> None:
    node = Fetchers(slots=1)
    node.opens(1)
    node.ms += 50_000
    node.fetches(1)
    node.ms += after_ms
    node.opens(2 if goes else 0, evicting=int(goes))
    assert node.explanations == []
    node = Fetchers(slots=1)
    node.opens(1)
    node.ms += 50_000
    node.fetches(1)
    node.ms += after_ms
    node.opens(0 if goes else 2, evicting=int(not goes))
    assert node.explanations != []


@pytest.mark.clause("F-10", "F-18")
def test_refused_request_is_no_use() -> None:
    node = Fetchers(slots=1)
    node.opens(1)
    node.ms += MIN_MS
    node.fetches(1, error=ErrorCode.invalid_fetch_session_epoch)
    node.ms += 1
    node.opens(2, evicting=1)
    assert node.explanations == []


@pytest.mark.clause("F-18")
@pytest.mark.parametrize(("partitions", "goes"), [(3, False), (4, True)])
def test_larger_session_evicts_old_session(partitions: int, goes: bool) -> None:
    node = Fetchers(slots=1)
    node.opens(1, partitions=1)
    node.ms += MIN_MS + 1
    node.fetches(1, partitions=3)
    node.opens(2 if goes else 0, partitions=partitions, evicting=int(goes))
    assert node.explanations == []
    node = Fetchers(slots=1)
    node.opens(1, partitions=1)
    node.ms += MIN_MS
    node.fetches(1, partitions=3)
    node.opens(2, partitions=4, evicting=1)
    assert node.explanations != [], "it is not old yet"


@pytest.mark.clause("F-18")
def test_session_that_is_idle_longest_goes_first() -> None:
    node = Fetchers(slots=2)
    node.opens(1)
    node.ms += 10
    node.opens(2)
    node.ms += MIN_MS + 1
    node.opens(3, evicting=2)
    assert "evicted 2 for a new session of 1 partitions; the rules name 1" in node.explanations[0]


@pytest.mark.clause("G-11")
@pytest.mark.parametrize(
    ("version", "after_ms", "goes"), [(FIRST_REVISION, 501, True), (FIRST_REVISION, 500, False), (12, 501, False)]
)
def test_each_revision_has_its_own_least_time(version: int, after_ms: int, goes: bool) -> None:
    node = Fetchers(slots=1, min_eviction_ms=500)
    node.opens(1, version=version)
    node.ms += after_ms
    node.opens(2 if goes else 0, evicting=int(goes))
    assert node.explanations == []


@pytest.mark.clause("F-7")
def test_forgetting_the_last_partition_ends_the_session() -> None:
    node = Fetchers(slots=2)
    node.opens(1, partitions=3)
    node.empties(1, is_closed=True)
    node.opens(2, partitions=4)
    node.empties(2, is_closed=False)
    assert node.explanations == [], "one partition is left"
    node.opens(3, partitions=3)
    node.empties(3, is_closed=False)
    assert node.explanations == ["node-0 kept session 3, whose last partition was forgotten"]


@pytest.mark.clause("F-18")
def test_session_is_not_evicted_without_new_session() -> None:
    node = Fetchers(slots=1)
    node.opens(1)
    node.ms += MIN_MS + 1
    node.opens(0, evicting=1)
    assert node.explanations != [], "it was declined all the same"
    node = Fetchers(slots=1)
    node.opens(1)
    node.evicts_for_no_session(1)
    assert "nobody got a session" in node.explanations[0]


@pytest.mark.clause("G-10", "F-17")
def test_partitions_of_all_sessions_have_a_limit() -> None:
    node = Fetchers(slots=9, most_partitions=5)
    node.opens(1, partitions=3)
    node.opens(0, partitions=3)
    node.opens(2, partitions=3, version=FIRST_REVISION, flags=0)
    node.opens(3, partitions=2)
    assert node.explanations == []
    node.opens(4, partitions=1)
    assert "hold 6 partitions, at most 5" in node.explanations[0]
    node = Fetchers(slots=9, most_partitions=5)
    node.opens(1, partitions=5, version=FIRST_REVISION, flags=0)
    assert "declined a new session" in node.explanations[0]


@pytest.mark.clause("F-18")
@pytest.mark.parametrize(
    ("slices_us", "idle_beyond_ms", "is_red"),
    [(0, 1, True), (400_000, 1, False), (400_000, 400, False), (400_000, 401, True)],
)
def test_with_short_slices_a_session_may_have_been_used_later(
    slices_us: int, idle_beyond_ms: int, is_red: bool
) -> None:
    node = Fetchers(slots=1, slices_us=slices_us)
    node.opens(1, partitions=3)
    node.ms += MIN_MS + idle_beyond_ms
    node.opens(0)
    assert bool(node.explanations) is is_red


@pytest.mark.clause("F-18")
def test_with_short_slices_either_of_two_idle_sessions_may_be_evicted() -> None:
    for slices_us, is_red in ((400_000, False), (0, True)):
        node = Fetchers(slots=2, slices_us=slices_us)
        node.opens(1, partitions=3)
        node.ms += 400
        node.opens(2, partitions=3)
        node.ms += MIN_MS + 1_000
        node.opens(3, evicting=2)
        assert bool(node.explanations) is is_red


@pytest.mark.clause("F-18", "G-4")
@pytest.mark.parametrize(
    ("partitions", "slices_us", "response", "after_ms", "may_evict", "may_decline"),
    [
        (4, 400_000, "later", 400, True, True),
        (4, 400_000, "never", 400, True, True),
        (4, 400_000, "later", 401, False, True),
        (4, 400_000, "never", 401, False, True),
        (4, 400_000, "now", 1, False, True),
        (4, 0, "later", 1, False, True),
        (3, 400_000, "later", 400, False, True),
        (7, 400_000, "later", 400, True, False),
    ],
)
def test_with_short_slices_a_session_may_have_its_old_size_until_its_response(
    partitions: int, slices_us: int, response: str, after_ms: int, may_evict: bool, may_decline: bool
) -> None:
    """A full request replaces three partitions by six. No session has a number between the two."""
    for is_evicted, right in ((True, may_evict), (False, may_decline)):
        node = Fetchers(slots=1, slices_us=slices_us, min_eviction_ms=1_000)
        node.opens(1, partitions=3, version=FIRST_REVISION)
        node.ms += 1_000
        node.fetches(1, version=FIRST_REVISION)
        node.replaces(1, 6, response)
        node.ms += after_ms
        node.opens(2 if is_evicted else 0, partitions=partitions, evicting=int(is_evicted))
        assert (node.explanations == []) is right


@pytest.mark.clause("F-18")
@pytest.mark.parametrize(
    ("slices_us", "response", "right"),
    [(400_000, "later", True), (400_000, "now", False), (0, "later", False)],
)
def test_with_short_slices_an_idle_session_is_used_only_when_its_request_is_applied(
    slices_us: int, response: str, right: bool
) -> None:
    node = Fetchers(slots=1, slices_us=slices_us, min_eviction_ms=1_000)
    node.opens(1, version=FIRST_REVISION)
    node.ms += 2_000
    node.replaces(1, 1, response)
    node.opens(2, evicting=1)
    assert (node.explanations == []) is right


def node() -> Node:
    from random import Random

    return Node(0, BrokerConfig.parse({}), SimDisk(Random(1)), 1)


@pytest.mark.clause("F-21")
@pytest.mark.parametrize("which", [0, 1, 2])
def test_session_metrics_that_are_off_by_one_are_a_violation(which: int) -> None:
    subject, check = node(), MetricsExact(check_context())
    check.inspect(0, 0, subject, None, thorough=False)
    assert check.violations == []
    assert [metric.value for metric in session_metrics(subject)] == [0, 0, 0]
    metrics, kind = subject.broker.metrics, "FetchSessionCache"
    off = (
        metrics.gauge("kafka.server", kind, "NumIncrementalFetchSessions"),
        metrics.gauge("kafka.server", kind, "NumIncrementalFetchPartitionsCached"),
        metrics.counter("kafka.server", kind, "IncrementalFetchSessionEvictionsPerSec"),
    )[which]
    off.value += 1
    check.inspect(0, 0, subject, None, thorough=False)
    assert len(check.violations) == 1


@dataclass
class StubSession:
    """A fetch session with one partition."""

    partitions: tuple[None, ...] = (None,)
    has_unfinished_fetch: bool = False


@dataclass
class StubMetric:
    value: int


@dataclass
class StubMetrics:
    """The metrics of the cache of fetch sessions."""

    sessions: int
    cached_partitions: int

    def gauge(self, _type: str, _domain: str, name: str) -> StubMetric:
        return StubMetric(self.cached_partitions if "Partitions" in name else self.sessions)

    def counter(self, *_: str) -> StubMetric:
        """Return that of evictions, of which there was none."""
        return StubMetric(0)


@pytest.mark.clause("F-21")
@pytest.mark.parametrize("count", [FEW_SESSIONS, FEW_SESSIONS + 1])
def test_partitions_of_many_sessions_are_counted_in_the_thorough_comparison(count: int) -> None:
    """The gauge of cached partitions is one too high."""
    sessions: dict[int, Any] = {each: StubSession() for each in range(count)}
    metrics = StubMetrics(sessions=count, cached_partitions=count + 1)
    broker = StubBroker(metrics=metrics, fetch_sessions=StubSessions(sessions))
    node = StubNode(broker).as_node()
    check = MetricsExact(check_context())
    check.inspect(0, 0, node, None, thorough=False)
    assert bool(check.violations) is (count <= FEW_SESSIONS)
    check.inspect(1, 0, node, None, thorough=True)
    assert check.violations
