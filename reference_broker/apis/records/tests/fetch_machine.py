"""Random worlds around the fetch handlers, compared with a model that recomputes everything from scratch."""

from collections.abc import Callable
from functools import partial
from typing import Any, ClassVar

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from reference_broker.apis.records.tests.fetch_naive import Naive
from reference_broker.apis.records.tests.fetch_naive_values import FIRST_MIN_MS, FirstSession
from reference_broker.apis.tests.fetch_world import FakeCall, FetchWorld, named
from reference_broker.replication.partitions import Partition
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchTopic, ForgottenTopic

TOPICS = {"a": 2, "b": 1, "c": 1}
PLACES = st.tuples(st.sampled_from(sorted(TOPICS)), st.integers(0, 1))
WANTED = st.lists(
    st.tuples(
        PLACES,
        st.sampled_from([0, 0, 1, 2, 3, 9]),
        st.sampled_from([0, 50, 150, 1 << 20]),
        st.sampled_from([-1, -1, -1, 0, 1]),
        st.sampled_from([-1, -1, -1, 0, 1]),
    ),
    max_size=5,
)
LIMITS = st.fixed_dictionaries(
    {
        "max_wait_ms": st.sampled_from([0, 0, 100, 500]),
        "min_bytes": st.sampled_from([1, 1, 0, 150]),
        "max_bytes": st.sampled_from([1 << 20, 1 << 20, 200, 60, 0]),
        "isolation_level": st.sampled_from([0, 0, 0, 1]),
        "replica_id": st.sampled_from([-1, -1, -1, 8]),
    }
)

ALL = [(("a", 0), 0, 250, -1, -1), (("a", 1), 0, 1 << 20, -1, -1), (("b", 0), 0, 150, -1, -1)]
HELD = st.sampled_from([each[0] for each in ALL])
Turn = tuple[str, str, bool, int, list[tuple[str, tuple[str, int]]]]
"""Which number, what it names, whether it waits, its limit in bytes, and what changes then."""


def turns(*numbers: str) -> st.SearchStrategy[list[Turn]]:
    changes = ["append", "append", "append uncommitted", "commit", "hold", "trim"]
    return st.lists(
        st.tuples(
            st.sampled_from(numbers),
            st.sampled_from(["nothing", "nothing", "processed"]),
            st.booleans(),
            st.sampled_from([1 << 20, 60]),
            st.lists(st.tuples(st.sampled_from(changes), HELD), max_size=3),
        ),
        min_size=3,
        max_size=6,
    )


class Fetching(RuleBasedStateMachine):
    """``version`` is that of a full fetch by name, in the revision that is tested."""

    version: ClassVar[int]

    def __init__(self) -> None:
        super().__init__()
        self.world = self.new_world(slots=3, first_min_eviction_ms=FIRST_MIN_MS)
        self.naive = Naive(self.world)
        self.births = 0
        self.wall_steps = 0
        self.seen: list[int] = []
        self.order: list[FakeCall] = []

    def new_world(self, **settings: int) -> FetchWorld:
        return FetchWorld(**settings)  # type: ignore[arg-type]

    @initialize()
    def some_topics(self) -> None:
        self.create("a")
        self.create("b")

    # the world

    def step(self, act: Callable[[], object], touched: Partition | None = None, arrived: bool = False) -> None:
        before = [call for call in self.world.calls if call.responses]
        act()
        responded = [call for call in self.world.calls if call.responses and call not in before]
        self.naive.happened(responded, touched, arrived)

    @rule(topic=st.sampled_from(sorted(TOPICS)))
    def create(self, topic: str) -> None:
        if topic in self.world.controller.image.topics:
            return
        self.births += 1
        made = self.world.publish(topic, TOPICS[topic], b"%16d" % self.births)
        for partition in made:
            self.step(partial(self.world.partitions.add, partition), partition, True)

    @rule(topic=st.sampled_from(sorted(TOPICS)))
    def delete(self, topic: str) -> None:
        self.world.unpublish(topic)
        for partition in [one for key, one in self.world.partitions.by_name.items() if key[0] == topic]:
            self.step(partial(self.world.partitions.remove, partition), partition)

    def change(self, place: tuple[str, int], act: Callable[[Partition], object]) -> None:
        partition = self.world.partitions.by_name.get(place)
        if partition is not None:
            act(partition)
            self.step(partition.changed, partition)

    @rule(place=PLACES, offset=st.sampled_from([1, 2, 3]))
    def move_to_tier(self, place: tuple[str, int], offset: int) -> None:
        def act(partition: Partition) -> None:
            log: Any = partition.log
            log.here_from = max(log.here_from, min(offset, log.high_watermark))

        self.change(place, act)

    @rule(place=PLACES, size=st.sampled_from([20, 100, 300]), commit=st.booleans())
    def append(self, place: tuple[str, int], size: int, commit: bool) -> None:
        self.append_one(place, size, commit)

    def append_one(self, place: tuple[str, int], size: int, commit: bool) -> None:
        def act(partition: Partition) -> None:
            log: Any = partition.log
            log.append(1, size, partition.leader_epoch)
            if commit:
                log.high_watermark = log.log_end_offset

        self.change(place, act)

    @rule(place=PLACES)
    def commit(self, place: tuple[str, int]) -> None:
        def act(partition: Partition) -> None:
            partition.log.high_watermark = partition.log.log_end_offset

        self.change(place, act)

    @rule(place=PLACES, offset=st.one_of(st.none(), st.integers(0, 2)))
    def hold_stable_offset(self, place: tuple[str, int], offset: int | None) -> None:
        def act(partition: Partition) -> None:
            log: Any = partition.log
            log.lso_hold = offset if offset is None or offset >= log.log_start_offset else None

        self.change(place, act)

    @rule(place=PLACES)
    def trim(self, place: tuple[str, int]) -> None:
        self.change(place, lambda partition: partition.log.delete_records_before(partition.log.high_watermark))

    @rule(place=PLACES, back=st.integers(1, 2))
    def truncate(self, place: tuple[str, int], back: int) -> None:
        def act(partition: Partition) -> None:
            log = partition.log
            log.truncate_to(max(log.log_start_offset, log.log_end_offset - back))

        self.change(place, act)

    @rule(place=PLACES)
    def new_leader_epoch(self, place: tuple[str, int]) -> None:
        def act(partition: Partition) -> None:
            partition.leader_epoch += 1

        self.change(place, act)

    @rule(ms=st.sampled_from([50, 100, 450, 60_000, 120_001]))
    def pass_time(self, ms: int) -> None:
        while ms > 0:  # timer by timer, so that the model judges each at its time
            now_us = self.world.broker.now.mono_us
            due = sorted(deadline for deadline, _ in self.world.ports.timers.values())
            some = ms if not due else max(0, min(ms, (due[0] - now_us) // 1000))
            if some == 0 and due and due[0] > now_us:
                some = 1
            self.step(partial(self.world.pass_ms, some))
            ms -= some
            if some == 0 and not due:
                break

    @rule(ms=st.sampled_from([-3_600_000, -1, 3_600_000]))
    def step_wall_clock(self, ms: int) -> None:
        self.world.step_wall_clock(ms)

    # limits

    @rule(
        sizes=st.lists(st.sampled_from([20, 100, 300]), min_size=4, max_size=6),
        own=st.lists(st.sampled_from([50, 150, 1 << 20, 1 << 20]), min_size=3, max_size=3),
        all_bytes=st.sampled_from([130, 250, 350, 450]),
    )
    def more_than_fits(self, sizes: list[int], own: list[int], all_bytes: int) -> None:
        """All partitions have data, of which a response has room for a part. A partition with too much does not block
        the others."""
        for at, size in enumerate(sizes):
            self.append_one(ALL[at % len(ALL)][0], size, True)
        wanted = []
        for (place, *_), limit in zip(ALL, own, strict=True):
            partition = self.world.partitions.by_name.get(place)
            wanted.append((place, partition.log.log_start_offset if partition else 0, limit, -1, -1))
        limits = {"max_wait_ms": 0, "min_bytes": 1, "max_bytes": all_bytes}
        self.send(self.build(0, 0, self.version, wanted, (), 0, limits), self.version)
        opened = self.world.calls[-1].response.session_id
        if opened:
            talk: list[Turn] = [("next", names, False, all_bytes, []) for names in ("nothing", "processed", "nothing")]
            self.converse(opened, talk)

    # conversations

    def converse(self, session_id: int, talk: list[Turn]) -> None:
        """Send one session's requests, with the changes between them or while they are parked, and nothing in
        between."""
        for number, names, waits, max_bytes, changes in talk:
            limits = {"max_wait_ms": 100 if waits else 0, "min_bytes": 1 << 20 if waits else 1, "max_bytes": max_bytes}
            self.send_in_session(session_id, limits, number, names)
            for kind, place in changes:
                self.change_somehow(kind, place)
            if waits:
                self.pass_time(100)
            if session_id not in self.naive.sessions:
                return

    def send_in_session(self, *arguments: Any) -> None:
        """Send a request of a session: its ID, limits, number and the partitions that it names."""
        raise AssertionError(f"each revision sends its own requests: {arguments}")

    def change_somehow(self, kind: str, place: tuple[str, int]) -> None:
        if kind in ("append", "append uncommitted"):
            self.append_one(place, 100, kind == "append")
        elif kind == "hold":
            self.hold_stable_offset(place, 0)
        else:
            {"commit": self.commit, "trim": self.trim}[kind](place)

    # requests

    def of(self, first: bool) -> list[int]:
        """Return the session IDs of one revision."""
        return sorted(
            number for number, session in self.naive.sessions.items() if isinstance(session, FirstSession) == first
        )

    def topic_name(self, topic: str, version: int, old: int) -> tuple[str, bytes]:
        ids = {name: image.topic_id for name, image in self.world.controller.image.topics.items()}
        return named(topic, ids, version) if not old or version < 13 else ("", b"%16d" % old)

    def send(self, request: FetchRequest, version: int) -> None:
        before = [call for call in self.world.calls if call.responses]
        call = self.world.send(request, version)
        responded = [each for each in self.world.calls if each.responses and each not in before and each is not call]
        self.naive.request(call, request)
        self.naive.happened(responded)
        if call.responses and call.response.session_id:
            self.seen.append(call.response.session_id)

    def build(
        self, session_id: int, epoch: int, version: int, wanted: Any, forget: Any, old: int, limits: dict[str, Any]
    ) -> FetchRequest:
        topics = [
            FetchTopic(*self.topic_name(topic, version, old), [FetchPartition(index, offset, max_bytes, current, last)])
            for (topic, index), offset, max_bytes, current, last in wanted
        ]
        forgotten = [ForgottenTopic(*self.topic_name(topic, version, old), [index]) for topic, index in forget]
        return FetchRequest(session_id=session_id, session_epoch=epoch, topics=topics, forgotten=forgotten, **limits)

    @rule(data=st.data())
    @precondition(lambda self: self.naive.waiting)
    def hang_up(self, data: Any) -> None:
        fetch = data.draw(st.sampled_from(self.naive.waiting))
        fetch.call.hang_up()
        self.end_slices()
        self.naive.hung_up(fetch.call)

    def end_slices(self) -> None:
        """Run all slices to their end."""

    # always

    @invariant()
    def metrics_are_exact(self) -> None:
        metrics, sessions = self.world.metrics, self.naive.sessions.values()

        def gauge(name: str) -> float:
            return metrics.gauge("kafka.server", "FetchSessionCache", name).value

        assert gauge("NumIncrementalFetchSessions") == len(sessions) == len(self.world.sessions.sessions)
        assert gauge("NumIncrementalFetchPartitionsCached") == sum(len(session.parts) for session in sessions)
        evictions = metrics.counter("kafka.server", "FetchSessionCache", "IncrementalFetchSessionEvictionsPerSec")
        assert evictions.value == self.naive.evictions

    @invariant()
    def sessions_are_the_models(self) -> None:
        for number, session in self.naive.sessions.items():
            real = self.world.sessions.sessions[number]
            assert real.epoch == session.epoch
            ordered = sorted(real.partitions.items(), key=lambda item: item[1].order)
            assert [key for key, _ in ordered] == [part.key for part in session.parts]
            assert real.available_bytes == sum(cached.available_bytes for _, cached in ordered)

    @invariant()
    def every_cached_partition_is_marked_or_watched(self) -> None:
        arrivals = self.world.sessions.arrivals
        for session in self.world.sessions.sessions.values():
            for cached in session.partitions.values():
                bound = cached.partition
                watched = cached in bound.watchers if bound is not None else cached in arrivals.keys
                assert cached in session.marked or watched
                assert cached.queued or not cached.available_bytes

    @invariant()
    def nothing_else_is_watched_and_timers_belong_to_parked_fetches(self) -> None:
        assert len(self.world.ports.timers) == len(self.naive.waiting)
        live = [*self.world.sessions.sessions.values()]
        for partition in self.world.partitions.by_name.values():
            for watcher in partition.watchers:
                session = watcher.session  # type: ignore[attr-defined]
                assert session in live or session.fetch is not None
                assert watcher.live  # type: ignore[attr-defined]
