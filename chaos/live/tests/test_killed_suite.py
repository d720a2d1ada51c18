"""SIGKILL of the suite under load: none of its processes stays, not even a stopped one, and its data is kept."""

import json
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from bench.fleet.behaviours.bodies import create_topics_request, new_topic
from chaos.live.tests.small_scenario import text_of, written
from chaos.live.tests.test_cluster import Admin, Cluster, call, until
from reference_broker.records.record import Record, build, read_all
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

pytestmark = pytest.mark.live

ROOT = Path(__file__).resolve().parents[3]
TOPIC = "mine"
GONE_WITHIN_S = 20.0
LEAST = 20
"""The number of records that must be acknowledged before the suite is killed."""
LOAD = """
[load]
seconds = 60

[[load.topics]]
name = "hot"
partitions = 4

"""
PAUSED = """
[[fault]]
name = "paused"
kind = "node_paused"
node = 0
at_s = 2
duration_s = 50
"""


class Writer:
    """Writes numbered values to one partition, and remembers which were acknowledged by all replicas."""

    def __init__(self, addresses: list[str]) -> None:
        self._addresses = addresses
        self.acknowledged: list[int] = []
        self._next = 0

    def write(self) -> None:
        number, self._next = self._next, self._next + 1
        batch = build([Record(timestamp_ms=1, value=b"%d" % number)])
        body = ProduceRequest(-1, 1000, [ProduceTopic(TOPIC, NO_TOPIC_ID, [ProducePartition(0, batch)])])
        responses = (call(address, ApiKey.PRODUCE, 9, body) for address in self._addresses)
        if any(
            response.responses[0].partitions[0].error_code == ErrorCode.none
            for response in responses
            if response is not None
        ):
            self.acknowledged.append(number)

    def write_some(self) -> None:
        goal = len(self.acknowledged) + LEAST
        until(lambda: self.write() or len(self.acknowledged) >= goal)  # type: ignore[func-returns-value]

    def assert_kept(self, addresses: list[str]) -> None:
        """Fail unless one of the nodes serves each number that was acknowledged."""
        until(lambda: any({*self.acknowledged} <= {*held(address)} for address in addresses))


def held(address: str) -> list[int]:
    wanted = FetchTopic(TOPIC, NO_TOPIC_ID, [FetchPartition(0, 0, 1 << 20)])
    response = call(
        address, ApiKey.FETCH, 12, FetchRequest(max_wait_ms=0, min_bytes=0, max_bytes=1 << 20, topics=[wanted])
    )
    if response is None or response.responses[0].partitions[0].error_code:
        return []
    return [int(record.value or b"-1") for _, record in read_all(response.responses[0].partitions[0].records)]


def assert_gone(processes: list[psutil.Process]) -> None:
    """Fail unless all end soon. Those whose parent is gone may wait as zombies until somebody reaps them."""
    _, alive = psutil.wait_procs(processes, timeout=0.1)
    deadline = time.monotonic() + GONE_WITHIN_S
    while [each for each in alive if each.is_running() and each.status() != psutil.STATUS_ZOMBIE]:
        assert time.monotonic() < deadline, alive
        time.sleep(0.02)


def assert_free(addresses: list[str]) -> None:
    for address in addresses:
        host, _, port = address.rpartition(":")
        with socket.socket() as sock:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # Connections of the dead are in TIME_WAIT.
            sock.bind((host, int(port)))
            sock.listen()


@contextmanager
def broker(data: Path) -> Iterator[str]:
    """Run a node with this data, and yield its address."""
    command = [sys.executable, "-m", "reference_broker.serve.main", "--listen", "127.0.0.1:0", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout is not None
            yield json.loads(process.stdout.readline())["listen"]
        finally:
            process.terminate()


def test_killed_run_leaves_no_process_and_no_port_even_while_its_node_is_paused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    scenario = written(tmp_path, "paused", text_of("A node is paused for long", 1, LOAD, 50, PAUSED))
    words = [sys.executable, str(ROOT / "crucible_kafka"), "run", str(scenario), "--out", str(out)]
    with subprocess.Popen(words, stderr=subprocess.PIPE, text=True) as suite:
        assert suite.stderr is not None
        serving = next(
            filter(None, (re.search(r"serves at (\S+), clients .* through (\S+)", line) for line in suite.stderr))
        )
        addresses = [*serving.groups()]
        created = create_topics_request([new_topic(TOPIC, 1, 1, {})], 1000)
        until(lambda: call(addresses[0], ApiKey.CREATE_TOPICS, 7, created) is not None)
        writer = Writer(addresses[:1])
        writer.write_some()
        family = psutil.Process(suite.pid).children(recursive=True)
        (node,) = (child for child in family if "node_process" in _words(child))
        until(lambda: node.status() == psutil.STATUS_STOPPED)
        family = psutil.Process(suite.pid).children(recursive=True)
        assert len(family) >= 6, "node, Toxiproxy, the fleet, Locust's master and workers"
        suite.kill()
    assert_gone(family)
    assert_free(addresses)
    with broker(out / "data" / "node-0") as address:
        writer.assert_kept([address])


def _words(process: psutil.Process) -> str:
    """The command line of a process; nothing if it has just ended, as the scripts do that start Spark."""
    try:
        return " ".join(process.cmdline())
    except psutil.Error:
        return ""


@pytest.mark.nightly
def test_killed_cluster_leaves_no_process_even_if_a_node_is_stopped_and_starts_again_with_all_records(
    tmp_path: Path,
) -> None:
    cluster = Cluster(tmp_path / "c", 3, "toxiproxy")
    admin = Admin(cluster.bootstrap)
    admin.create(TOPIC, replicas=3)
    writer = Writer(cluster.bootstrap)
    writer.write_some()
    family = cluster.children()
    assert len(family) == 4
    cluster.node(0).send_signal(signal.SIGSTOP)
    writer.write()
    cluster.process.kill()
    cluster.process.communicate(timeout=30)
    assert_gone(family)
    assert_free([*cluster.bootstrap, *cluster.ready["nodes"]])
    again = Cluster(tmp_path / "c", 3)
    writer.assert_kept(again.bootstrap)
    again.end()
