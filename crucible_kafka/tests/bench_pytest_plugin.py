"""Cost of the fixture ``kafka`` for a test: the work before and after it, of one node in this process."""

from collections.abc import Iterator

import pytest
from pytest_benchmark.fixture import BenchmarkFixture

from crucible_kafka import SharedCluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[SharedCluster]:
    with SharedCluster() as shared:
        yield shared


def bench_a_test_that_does_nothing(benchmark: BenchmarkFixture, cluster: SharedCluster) -> None:
    def run() -> None:
        cluster.begin_test()
        cluster.end_test()

    benchmark(run)


def bench_a_test_with_a_topic_and_a_rule(benchmark: BenchmarkFixture, cluster: SharedCluster) -> None:
    """Creating the topic is part of it."""

    def run() -> None:
        cluster.begin_test()
        cluster.topic()
        cluster.on("Fetch").drop_response(optional=True)
        cluster.end_test()

    benchmark(run)
