"""Measures one incremental fetch through the node, by cached and changed partitions, in both revisions of sessions.

The cost follows what changed. It must not follow what is cached (F-14 and G-5, change marks).
"""

from collections.abc import Iterable
from dataclasses import replace
from itertools import groupby

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from bench.micro.node import FETCH_VERSION, PRODUCE_VERSION, MemoryNode
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import FETCH_FIRST_REVISION, ApiKey
from reference_broker.wire.fetch import (
    FULL_FETCH,
    INCREMENTAL_FETCH,
    NO_TOPIC_ID,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
)
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

SMALL_SESSION = 1_000
PARTITIONS_PER_TOPIC = 5_000
"""A topic with more than 9,999 partitions does not fit one metadata batch."""
BATCH = build([Record(0, 1_800_000_000_000, None, b"x" * 100, ())])


class Fetcher:
    """A session with ``cached`` partitions. Each round appends to ``changed`` of them, and then fetches."""

    def __init__(self, cached: int, changed: int, revision: str = "final") -> None:
        self.node = MemoryNode()
        self.version = FETCH_VERSION if revision == "final" else FETCH_FIRST_REVISION
        for first in range(0, cached, PARTITIONS_PER_TOPIC):
            self.node.create_topic(_place(first)[0], min(PARTITIONS_PER_TOPIC, cached - first))
        self.cached, self.changed, self.next = cached, changed, 0
        self.positions = [0] * cached
        self.moved: list[int] = []
        opened = self._send(self._request(0, 0, range(cached)))
        self.session_id, self.epoch = opened.session_id, 1
        self.request = self._request(0, 0, ())

    def append(self) -> None:
        """Append to the next partitions and prepare the request, which names those fetched last time. It is not
        timed."""
        wanted = [(self.next + step) % self.cached for step in range(self.changed)]
        self.next = (self.next + self.changed) % self.cached
        if wanted:
            topics = [
                ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(_place(number)[1], BATCH) for number in numbers])
                for topic, numbers in _by_topic(wanted)
            ]
            self.node.call(ApiKey.PRODUCE, PRODUCE_VERSION, ProduceRequest(1, 1000, topics))
        self.request = self._request(self.session_id, self.epoch, self.moved)
        self.moved = wanted
        for each in wanted:
            self.positions[each] += 1
        self.epoch += 1

    def fetch(self) -> FetchResponse:
        return self._send(self.request)

    def _send(self, request: FetchRequest) -> FetchResponse:
        response = self.node.call(ApiKey.FETCH, self.version, request)
        assert isinstance(response, FetchResponse)
        return response

    def _request(self, session_id: int, epoch: int, numbers: Iterable[int]) -> FetchRequest:
        topics = [
            FetchTopic(topic, NO_TOPIC_ID, [FetchPartition(_place(e)[1], self.positions[e], 1 << 20) for e in each])
            for topic, each in _by_topic(numbers)
        ]
        first = self.version == FETCH_FIRST_REVISION
        kind = INCREMENTAL_FETCH if first and epoch > 0 else FULL_FETCH
        return FetchRequest(-1, 0, 0, 0x7FFFFFFF, 0, session_id, epoch, topics, fetch_type=kind)


def _place(number: int) -> tuple[str, int]:
    """Return topic and partition of the ``number``-th cached partition."""
    return f"sessions-{number // PARTITIONS_PER_TOPIC}", number % PARTITIONS_PER_TOPIC


def _by_topic(numbers: Iterable[int]) -> list[tuple[str, list[int]]]:
    return [(topic, list(each)) for topic, each in groupby(numbers, lambda number: _place(number)[0])]


@pytest.mark.thorough
@pytest.mark.benchmark(group="incremental fetch")
@pytest.mark.parametrize("changed_percent", [0, 1, 10])
@pytest.mark.parametrize("cached", [100, 1_000, 10_000])
@pytest.mark.parametrize("revision", ["final", "first"])
def bench_incremental_fetch(benchmark: BenchmarkFixture, revision: str, cached: int, changed_percent: int) -> None:
    if not benchmark.enabled:  # Beside other tests, a small session shows as well that the bench works.
        cached = min(cached, SMALL_SESSION)
    fetcher = Fetcher(cached, cached * changed_percent // 100, revision)
    response = benchmark.pedantic(  # type: ignore[no-untyped-call]
        fetcher.fetch, setup=fetcher.append, rounds=50, warmup_rounds=5
    )
    assert response.error_code == 0
    assert sum(len(topic.partitions) for topic in response.responses) == fetcher.changed
    benchmark.extra_info["changed"] = fetcher.changed


@pytest.mark.thorough
@pytest.mark.benchmark(group="incremental fetch under a small limit")
@pytest.mark.parametrize("revision", ["final", "first"])
def bench_fetch_of_a_backlog(benchmark: BenchmarkFixture, revision: str) -> None:
    """5,000 partitions have data, and ten batches fit into a response. Omitted ones must cost nothing."""
    fetcher = Fetcher(5_000, 5_000, revision)
    fetcher.append()
    fetcher.changed, fetcher.moved = 0, []  # From here on nothing changes and nothing is named.

    def fetch() -> FetchResponse:
        fetcher.request = replace(fetcher.request, max_bytes=10 * len(BATCH))
        return fetcher.fetch()

    fetch()  # The final revision sends all moved high watermarks in this one, with or without records.
    response = benchmark.pedantic(  # type: ignore[no-untyped-call]
        fetch, setup=fetcher.append, rounds=50, warmup_rounds=5
    )
    assert sum(len(topic.partitions) for topic in response.responses) == 10
