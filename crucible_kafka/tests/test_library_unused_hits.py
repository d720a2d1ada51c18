"""Rules that were to act on a response that was never sent: the hit is for another request."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import pytest

from crucible_kafka import Cluster
from reference_broker.blocking.transport import Connection, DeadlineError
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchPartition, FetchRequest, FetchResponse, FetchTopic

LIMIT_S = 10


@pytest.fixture
def kafka() -> Iterator[Cluster]:
    with Cluster() as started:
        started.create_topic("t")
        yield started


def fetch_request(wait_ms: int) -> FetchRequest:
    """Return a Fetch that waits for more than there is."""
    topic = FetchTopic("t", bytes(16), [FetchPartition(0, 0, 1 << 20)])
    return FetchRequest(max_wait_ms=wait_ms, min_bytes=1 << 30, topics=[topic])


def fetch(kafka: Cluster) -> FetchResponse:
    with connection_to(kafka) as connection:
        response: FetchResponse = connection.call(ApiKey.FETCH, 12, fetch_request(0), LIMIT_S * 1_000_000)
        return response


def connection_to(kafka: Cluster) -> Connection:
    host, _, port = kafka.bootstrap_servers.rpartition(":")
    return Connection.open(host, int(port), LIMIT_S * 1_000_000, "raw")


def test_client_that_left_before_its_response_leaves_the_hit_to_another_one(
    kafka: Cluster,
) -> None:
    rule = kafka.on("Fetch").throttle(7, times=1)
    with connection_to(kafka) as leaving, suppress(DeadlineError):
        leaving.call(ApiKey.FETCH, 12, fetch_request(30_000), 200_000)
    assert rule.fired == 0
    deadline = time.monotonic() + LIMIT_S
    while rule.fired == 0 and time.monotonic() < deadline:
        fetch(kafka)
    rule.assert_fired(times=1)


def test_node_that_is_killed_before_its_response_leaves_the_hit_to_another_one(
    kafka: Cluster,
) -> None:
    rule = kafka.on("Fetch").throttle(7, times=1)
    with connection_to(kafka) as waiting:
        with suppress(DeadlineError):
            waiting.call(ApiKey.FETCH, 12, fetch_request(30_000), 200_000)
        kafka.node(0).kill()
        kafka.node(0).restart()
    assert fetch(kafka).throttle_time_ms == 7
    rule.assert_fired(times=1)


def test_rule_that_is_removed_leaves_the_response_to_a_request_that_waits(kafka: Cluster) -> None:
    rule = kafka.on("Fetch").drop_response(optional=True)
    with connection_to(kafka) as waiting, ThreadPoolExecutor(1) as pool:
        response = pool.submit(waiting.call, ApiKey.FETCH, 12, fetch_request(1000), LIMIT_S * 1_000_000)
        while not kafka.frames(api="Fetch") or not kafka.frames(api="Fetch")[-1].is_request:
            time.sleep(0.01)
        rule.remove()
        assert response.result(LIMIT_S).error_code == ErrorCode.none
    assert rule.fired == 0
