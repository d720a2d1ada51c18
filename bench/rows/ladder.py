"""Incremental fetches, by the number of partitions that the session caches."""

import statistics
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby

from bench.peers.clients import FETCH_VERSION, PRODUCE_VERSION, connect, create_topic
from bench.peers.node import PeerError
from bench.rows.context import BenchRun, row
from bench.rows.results import Curve, Figure, ResultRow, Results, Samples, Series
from reference_broker.blocking.transport import Connection
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchResponse, FetchTopic
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic

PARTITION_MAX_BYTES = 1 << 20
CHANGING_PARTITIONS = 100
"""At every step of the ladder the appends go to this many first partitions in turn. So their files are equally warm,
and the steps differ only in how much the session caches."""
PARTITIONS_PER_TOPIC = 5_000
"""Neither broker creates 10,000 partitions in one request: 10,001 metadata records do not fit a batch."""


@dataclass(slots=True)
class LadderSession:
    """One fetch session, ready to be measured.

    Before each fetch of a block, records are appended to some partitions. Only the exchange over the socket is timed,
    without encoding and decoding, so the time is the broker's own plus one loopback round trip.
    """

    name: str
    """The broker's name."""
    port: int
    partitions: int
    """Number of partitions in the session."""
    positions: list[int] = field(init=False)
    session_id: int = 0
    epoch: int = 0
    next_changed: int = 0
    fetching: Connection = field(init=False)
    producing: Connection = field(init=False)
    batch: bytes = field(init=False)
    moved: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.positions = [0] * self.partitions
        self.fetching = connect(self.port)
        self.producing = connect(self.port)
        self.batch = build([Record(offset=0, timestamp_ms=0, key=None, value=b"x" * 100, headers=())])
        self._create_topics()
        self._open_session()

    def block_us(self, rounds: int, changed: int) -> list[float]:
        """Return the microseconds of each of ``rounds`` fetches. ``changed`` partitions are appended to before
        each."""
        return [self._round_us(changed) for _ in range(rounds)]

    def close(self) -> None:
        for connection in (self.fetching, self.producing):
            connection.close()

    def _round_us(self, changed: int) -> float:
        among = max(CHANGING_PARTITIONS, changed)
        expected = [(self.next_changed + step) % among for step in range(changed)]
        self.next_changed = (self.next_changed + changed) % among
        if expected:
            self._append(expected)
        request = self.fetching.encode(ApiKey.FETCH, FETCH_VERSION, self._request(self.moved))
        started = time.perf_counter()
        frame = self.fetching.exchange(request.frame)
        took_us = (time.perf_counter() - started) * 1e6
        returned = self._partitions_of(request.decode(frame))
        if returned != sorted(expected):
            raise PeerError(f"{self.name} returned partitions {returned[:5]} where {expected[:5]} had changed")
        for partition in expected:
            self.positions[partition] += 1
        self.moved = expected
        return took_us

    def _partitions_of(self, response: FetchResponse) -> list[int]:
        if response.error_code != ErrorCode.none or response.session_id != self.session_id:
            raise PeerError(f"{self.name} refused an incremental fetch with error {response.error_code}")
        self.epoch += 1
        return sorted(self._number(topic.topic, p.partition) for topic in response.responses for p in topic.partitions)

    def _place(self, number: int) -> tuple[str, int]:
        """Return topic and partition of the ``number``-th cached partition."""
        topic, partition = divmod(number, PARTITIONS_PER_TOPIC)
        return f"ladder-{self.partitions}-{topic}", partition

    @staticmethod
    def _number(topic: str, partition: int) -> int:
        return int(topic.rpartition("-")[2]) * PARTITIONS_PER_TOPIC + partition

    def _by_topic(self, numbers: Iterable[int]) -> list[tuple[str, list[int]]]:
        return [(topic, list(each)) for topic, each in groupby(numbers, lambda number: self._place(number)[0])]

    def _request(self, partitions: Sequence[int]) -> FetchRequest:
        topics = [
            FetchTopic(topic, NO_TOPIC_ID, [self._wanted(number) for number in numbers])
            for topic, numbers in self._by_topic(partitions)
        ]
        return FetchRequest(
            max_wait_ms=0,
            min_bytes=0,
            max_bytes=50 << 20,
            session_id=self.session_id,
            session_epoch=self.epoch,
            topics=topics,
        )

    def _wanted(self, number: int) -> FetchPartition:
        return FetchPartition(self._place(number)[1], self.positions[number], PARTITION_MAX_BYTES)

    def _append(self, partitions: list[int]) -> None:
        topics = [
            ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(self._place(n)[1], self.batch) for n in numbers])
            for topic, numbers in self._by_topic(partitions)
        ]
        request = ProduceRequest(acks=1, timeout_ms=10_000, topics=topics)
        response = self.producing.call(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        assert isinstance(response, ProduceResponse)
        for topic in response.responses:
            for partition in topic.partitions:
                if partition.error_code != ErrorCode.none:
                    raise PeerError(f"{self.name} refused a record with error {partition.error_code}")

    def _create_topics(self) -> None:
        for first in range(0, self.partitions, PARTITIONS_PER_TOPIC):
            count = min(PARTITIONS_PER_TOPIC, self.partitions - first)
            create_topic(self.producing, self._place(first)[0], count)

    def _open_session(self) -> None:
        """Create the session by a full fetch, which it repeats until every partition is led."""
        deadline = time.perf_counter() + 60
        while time.perf_counter() < deadline:
            self.session_id, self.epoch = 0, 0
            response = self.fetching.call(ApiKey.FETCH, FETCH_VERSION, self._request(range(self.partitions)))
            errors = [p.error_code for topic in response.responses for p in topic.partitions if p.error_code]
            if not errors and response.session_id:
                self.session_id, self.epoch = response.session_id, 1
                return
            if response.session_id:  # The session is closed, because the next try must find the slot free.
                self.session_id, self.epoch = response.session_id, -1
                self.fetching.call(ApiKey.FETCH, FETCH_VERSION, self._request([]))
            time.sleep(0.2)
        raise PeerError(f"{self.name} did not lead all {self.partitions} partitions within 60 s")


FLATNESS_GOAL = 1.3
WARM_BLOCKS = 2
GOALS: Mapping[tuple[int, str], float] = {
    (100, "none"): 1,
    (1_000, "none"): 4,
    (5_000, "none"): 40,
    (10_000, "none"): 80,
    (100, "1 %"): 1,
    (1_000, "1 %"): 3,
    (5_000, "1 %"): 10,
    (10_000, "1 %"): 12,
}
CHANGES: Mapping[str, Callable[[int], int]] = {
    "none": lambda _: 0,
    "one": lambda _: 1,
    "1 %": lambda partitions: partitions // 100,
}
Measured = dict[tuple[int, str], Samples]


@row("ladder")
def measure_ladder(bench: BenchRun) -> None:
    """Measure the fetches in blocks. The brokers take turns at each step of the ladder."""
    sizes, names = bench.options.sizes, bench.names
    sessions: dict[tuple[int, str], LadderSession] = {}
    with bench.all_up("", 1, {}) as clusters:
        try:
            for partitions in sizes.ladder:
                for cluster in clusters:
                    bench.progress(f"fetch ladder: {partitions:,} partitions on {cluster.name}")
                    session = LadderSession(cluster.name, cluster.ports[0], partitions)
                    sessions[partitions, cluster.name] = session
            measured = {(step, label): Samples(names, "ms") for label in CHANGES for step in sizes.ladder}
            for label in CHANGES:
                _blocks(bench, sessions, label, measured)
        finally:
            for session in sessions.values():
                session.close()
    for label in CHANGES:
        _rows(bench.results, names[0], label, sizes.ladder, measured)
        bench.results.curves.append(_curve(names, label, sizes.ladder, measured))


def _blocks(bench: BenchRun, sessions: Mapping[tuple[int, str], LadderSession], label: str, measured: Measured) -> None:
    names, sizes, blocks = bench.names, bench.options.sizes, bench.options.sizes.ladder_blocks
    for partitions in sizes.ladder:
        for name in names:  # Warms up and is not counted: Java compiles what runs often.
            sessions[partitions, name].block_us(WARM_BLOCKS * sizes.ladder_rounds, CHANGES[label](partitions))
    for block, partitions in ((block, step) for block in range(blocks) for step in sizes.ladder):
        bench.progress(f"fetch ladder: {label} changed, {partitions:,} cached, block {block + 1} of {blocks}")
        for name in names if block % 2 == 0 else reversed(names):
            times_us = sessions[partitions, name].block_us(sizes.ladder_rounds, CHANGES[label](partitions))
            measured[partitions, label].add(name, statistics.median(times_us) / 1000)


def _rows(results: Results, reference: str, label: str, ladder: Sequence[int], measured: Measured) -> None:
    for partitions in ladder:
        work = f"incremental fetch, {partitions:,} cached, {label} changed"
        goal = GOALS.get((partitions, label))
        results.beside(work, measured[partitions, label].figures(), less_is_better=True, at_least=goal)
    if label == "1 %":
        return
    small, big = (measured[step, label].figure(reference).values for step in (ladder[0], ladder[-1]))
    flat = Figure(tuple(more / less for more, less in zip(big, small, strict=True)), "x")
    work = f"incremental fetch, {ladder[-1]:,} against {ladder[0]:,} cached, {label} changed"
    results.rows.append(ResultRow(work, flat, goal=f"at most {FLATNESS_GOAL} x", reached=flat.median <= FLATNESS_GOAL))


def _curve(names: Sequence[str], label: str, ladder: Sequence[int], measured: Measured) -> Curve:
    series = tuple(
        Series(name, tuple((float(step), measured[step, label].figure(name)) for step in ladder)) for name in names
    )
    return Curve(f"Incremental fetch, {label} changed", "partitions in the session", "time of a fetch", series)
