"""One broker process for all tests of a module."""

import urllib.request
from collections.abc import Callable, Iterator

import pytest

from bench.peers.node import BrokerNode
from bench.peers.tests.nodes import reference_node
from bench.ports import free_ports


class Metrics:
    """The metrics endpoint of the node."""

    def __init__(self, port: int) -> None:
        self.port = port

    def value(self, name: str) -> float:
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as response:
            rows = dict(line.rsplit(" ", 1) for line in response.read().decode().splitlines() if line[0] != "#")
        return float(rows[name])

    def fetch_sessions(self) -> int:
        return int(self.value("kafka_server_fetchsessioncache_numincrementalfetchsessions"))

    def requests(self, api: str) -> int:
        return int(self.value(f'kafka_network_requestmetrics_requests_total{{request="{api}"}}'))


@pytest.fixture(scope="module")
def metrics() -> Metrics:
    return Metrics(free_ports(1)[0])


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory, metrics: Metrics) -> Iterator[BrokerNode]:
    with reference_node(tmp_path_factory.mktemp("node"), metrics_port=metrics.port) as running:
        yield running


@pytest.fixture
def eventually() -> Callable[[Callable[[], bool]], bool]:
    """Return whether a condition becomes true within 15 s."""
    import time

    def waits(is_true: Callable[[], bool]) -> bool:
        deadline = time.monotonic() + 15
        while not is_true():
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        return True

    return waits
