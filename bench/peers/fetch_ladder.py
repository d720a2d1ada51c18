"""Measures what one incremental fetch costs, by the number of partitions that its session caches."""

import time
from bench.peers.clients import FETCH_VERSION
from bench.peers.clients import PRODUCE_VERSION
from bench.peers.clients import RawConnection
from bench.peers.clients import create_topic
from bench.peers.node import PeerError
from collections.abc import Iterable
from collections.abc import Sequence
from dataclasses import dataclass
from dataclasses import field
from itertools import groupby
from reference_broker.records.record import Record
from reference_broker.records.record import build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.fetch import FetchResponse
from reference_broker.wire.fetch import FetchTopic
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.messages import decode_response
from reference_broker.wire.produce import ProducePartition
from reference_broker.wire.produce import ProduceRequest
from reference_broker.wire.produce import ProduceResponse
from reference_broker.wire.produce import ProduceTopic

PARTITION_MAX_BYTES = 1 << 20
CHANGING_PARTITIONS = 100
"""At every step of the ladder the appends go to this many first partitions in turn. So their files are equally warm,
and the steps differ only in how much the session caches."""
PARTITIONS_PER_TOPIC = 5_000
"""Neither broker creates 10,000 partitions in one request: 10,001 metadata records do not fit a batch."""


@dataclass(slots=True)
class LadderSession:
    """One fetch session with ``partitions`` cached partitions, ready to be measured.

    Before each fetch of a block some partitions are appended to. Only the exchange over the socket is timed, without
    encoding and decoding. So the time is the broker's own and that of one loopback round trip.
    """

    name: str
    """The broker's name."""
    port: int
    partitions: int
    positions: list[int] = field(init=False)
    session_id: int = 0
    epoch: int = 0
    next_changed: int = 0
    fetching: RawConnection = field(init=False)
    producing: RawConnection = field(init=False)
    batch: bytes = field(init=False)
    moved: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.positions = [0] * self.partitions
        self.fetching = RawConnection(self.port)
        self.producing = RawConnection(self.port)
        self.batch = build([Record(offset=0, timestamp_ms=0, key=None, value=b"x" * 100, headers=())])
        self._create_topics()
        self._open_session()

    def block_us(self, rounds: int, changed: int) -> list[float]:
        """Returns the microseconds of each of ``rounds`` fetches. ``changed`` partitions are appended to before
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
        frame = self.fetching.encode(ApiKey.FETCH, FETCH_VERSION, self._request(self.moved))
        started = time.perf_counter()
        answer = self.fetching.exchange(frame)
        took_us = (time.perf_counter() - started) * 1e6
        answered = self._answered(answer)
        if answered != sorted(expected):
            raise PeerError(f"{self.name} answered partitions {answered[:5]} where {expected[:5]} had changed")
        for partition in expected:
            self.positions[partition] += 1
        self.moved = expected
        return took_us

    def _answered(self, frame: bytes) -> list[int]:
        response = self._decode(frame)
        if response.error_code != ErrorCode.none or response.session_id != self.session_id:
            raise PeerError(f"{self.name} refused an incremental fetch with error {response.error_code}")
        self.epoch += 1
        return sorted(self._number(topic.topic, p.partition) for topic in response.responses for p in topic.partitions)

    def _place(self, number: int) -> tuple[str, int]:
        """Returns topic and partition of the ``number``-th cached partition."""
        topic, partition = divmod(number, PARTITIONS_PER_TOPIC)
        return f"ladder-{self.partitions}-{topic}", partition

    @staticmethod
    def _number(topic: str, partition: int) -> int:
        return int(topic.rpartition("-")[2]) * PARTITIONS_PER_TOPIC + partition

    def _by_topic(self, numbers: Iterable[int]) -> list[tuple[str, list[int]]]:
        return [(topic, list(each)) for topic, each in groupby(numbers, lambda number: self._place(number)[0])]

    def _decode(self, frame: bytes) -> FetchResponse:
        _, body = decode_response(ApiKey.FETCH, FETCH_VERSION, memoryview(frame))
        assert isinstance(body, FetchResponse)
        return body

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
        answer = self.producing.call(ApiKey.PRODUCE, PRODUCE_VERSION, request)
        assert isinstance(answer, ProduceResponse)
        for topic in answer.responses:
            for partition in topic.partitions:
                if partition.error_code != ErrorCode.none:
                    raise PeerError(f"{self.name} refused a record with error {partition.error_code}")

    def _create_topics(self) -> None:
        for first in range(0, self.partitions, PARTITIONS_PER_TOPIC):
            count = min(PARTITIONS_PER_TOPIC, self.partitions - first)
            create_topic(self.producing, self._place(first)[0], count)

    def _open_session(self) -> None:
        """Creates the session by a full fetch, which it repeats until every partition is led."""
        deadline = time.perf_counter() + 60
        while time.perf_counter() < deadline:
            self.session_id, self.epoch = 0, 0
            frame = self.fetching.encode(ApiKey.FETCH, FETCH_VERSION, self._request(range(self.partitions)))
            response = self._decode(self.fetching.exchange(frame))
            errors = [p.error_code for topic in response.responses for p in topic.partitions if p.error_code]
            if not errors and response.session_id:
                self.session_id, self.epoch = response.session_id, 1
                return
            if response.session_id:  # The session is closed, because the next try must find the slot free.
                self.session_id, self.epoch = response.session_id, -1
                self.fetching.exchange(self.fetching.encode(ApiKey.FETCH, FETCH_VERSION, self._request([])))
            time.sleep(0.2)
        raise PeerError(f"{self.name} did not lead all {self.partitions} partitions within 60 s")
