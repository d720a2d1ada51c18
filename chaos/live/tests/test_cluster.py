"""``crucible cluster`` as a process."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.fleet.behaviours.bodies import ALL_TOPICS, create_topics_request, metadata_request, new_topic
from bench.ports import free_port
from bench.probe.conversation import body
from chaos.live.probe import probe
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.quorum.messages import build_begin_quorum_epoch_request
from reference_broker.records.record import Record, build
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic

pytestmark = pytest.mark.live

CODE = """
import sys
from pathlib import Path
from chaos.live.cluster_command import ClusterPlan, run_cluster
options = {"toxiproxy": "toxiproxy" in sys.argv, "restart": "restart" in sys.argv}
options |= {"port": int(word.removeprefix("port=")) for word in sys.argv if word.startswith("port=")}
sys.exit(run_cluster(ClusterPlan(Path(sys.argv[1]), int(sys.argv[2]), **options)))
"""


LAUNCHER = Path(__file__).parents[3] / "crucible_kafka"
STARTED: list["subprocess.Popen[bytes]"] = []


@pytest.fixture(autouse=True)
def _ended() -> Iterator[None]:
    """A test that fails half-way leaves no process behind."""
    yield
    for each in STARTED:
        if each.poll() is None:
            each.terminate()
            each.communicate(timeout=40)
    STARTED.clear()


class Cluster:
    """``crucible cluster``, started; its ready line has been read."""

    def __init__(self, data: Path, nodes: int, *options: str) -> None:
        words = [sys.executable, "-c", CODE, str(data), str(nodes), *options]
        self.process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        assert self.process.stdout is not None
        STARTED.append(self.process)
        self.ready: dict[str, Any] = json.loads(self.process.stdout.readline())

    def children(self) -> list[psutil.Process]:
        return psutil.Process(self.process.pid).children()

    def node(self, node_id: int) -> psutil.Process:
        (child,) = (process for process in self.children() if f"--node-id {node_id}" in " ".join(process.cmdline()))
        return child

    @property
    def bootstrap(self) -> list[str]:
        return str(self.ready["bootstrap_servers"]).split(",")

    def said_until(self, line: str) -> str:
        """Return what it wrote to stderr up to this line."""
        assert self.process.stderr is not None
        lines: list[str] = []
        while line not in lines:
            lines.append(self.process.stderr.readline().decode())
            assert lines[-1], f"it ended without saying {line!r}"
        return "".join(lines)

    def end(self) -> str:
        """End it as it must, and show what it said on stderr."""
        children = self.children()
        self.process.send_signal(signal.SIGTERM)
        _, stderr = self.process.communicate(timeout=40)
        assert self.process.returncode == 0, stderr
        assert not any(child.is_running() for child in children)
        return stderr.decode()


class Admin:
    """A client that knows all nodes and retries until it gets what it wants."""

    def __init__(self, bootstrap: list[str]) -> None:
        self._bootstrap = bootstrap

    def create(self, topic: str, within_s: float = 60.0, replicas: int = 1) -> int:
        """The controller that took it."""
        deadline = time.monotonic() + within_s
        while time.monotonic() < deadline:
            for address in self._bootstrap:
                found = self._controller(address)
                if found is None:
                    continue
                body = create_topics_request([new_topic(topic, 1, replicas, {})], 1000)
                response = call(found[1], ApiKey.CREATE_TOPICS, 7, body)
                if response is not None and response.topics[0].error_code in (
                    ErrorCode.none,
                    ErrorCode.topic_already_exists,
                ):
                    return found[0]
            time.sleep(0.05)
        raise AssertionError(f"nobody made {topic}")

    def topics(self, address: str) -> list[str]:
        response = call(address, ApiKey.METADATA, 12, ALL_TOPICS)
        return [] if response is None else sorted(topic.name for topic in response.topics)

    def produce(self, topic: str) -> None:
        """One record that all replicas must take."""
        batch = build([Record(timestamp_ms=1, value=b"value")])
        body = ProduceRequest(-1, 5000, [ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(0, batch)])])

        def taken() -> bool:
            responses = [call(address, ApiKey.PRODUCE, 9, body, 6_000_000) for address in self._bootstrap]
            return any(
                response.responses[0].partitions[0].error_code == ErrorCode.none
                for response in responses
                if response is not None
            )

        until(taken)

    def _controller(self, address: str) -> tuple[int, str] | None:
        response = call(address, ApiKey.METADATA, 12, metadata_request(()))
        if response is None:
            return None
        brokers = {broker.node_id: f"{broker.host}:{broker.port}" for broker in response.brokers}
        controller = response.controller_id
        return (controller, brokers[controller]) if controller in brokers else None


def call(address: str, api_key: int, version: int, body: object, within_us: int = 1_000_000) -> Any:
    host, _, port = address.rpartition(":")
    try:
        with Connection.open(host, int(port), 1_000_000, "test") as connection:
            return connection.call(api_key, version, body, within_us)
    except TransportError:
        return None


def until(condition: Callable[[], bool], within_s: float = 60.0) -> None:
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "it did not happen"
        time.sleep(0.05)


def responds(address: str, within_s: float = 60.0) -> bool:
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        if probe(address, limit_s=0.5).outcome == "responded":
            return True
        time.sleep(0.1)
    return False


def test_killed_node_is_restarted_behind_the_same_proxy_and_sigterm_ends_all(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c", 1, "toxiproxy", "restart")
    assert len(cluster.children()) == 2
    assert cluster.bootstrap != cluster.ready["nodes"]
    assert responds(cluster.bootstrap[0])

    def pids() -> dict[str, int]:
        return dict(json.loads((tmp_path / "c" / "cluster.json").read_text())["pids"])

    assert pids() == cluster.ready["pids"] == {"0": cluster.node(0).pid}
    os.kill(pids()["0"], signal.SIGKILL)
    until(lambda: pids() != cluster.ready["pids"])
    assert responds(cluster.bootstrap[0])
    assert pids() == {"0": cluster.node(0).pid}
    stderr = cluster.said_until("crucible cluster: node-0 serves again\n") + cluster.end()
    assert "node-0 ended by SIGKILL; the last line of its log: {" in stderr
    assert "node-0 is started again\n" in stderr
    assert "node-0 serves again\n" in stderr
    assert pids() == {}


def killed(data: Path, *words: str) -> dict[str, Any]:
    """Return the output of ``crucible cluster kill``."""
    command = [sys.executable, str(LAUNCHER), "cluster", "--data", str(data), "kill", *words]
    done = subprocess.run(command, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


@pytest.mark.rotated(3, "runs")
def test_node_that_has_a_role_is_killed(tmp_path: Path) -> None:
    data = tmp_path / "c"
    cluster = Cluster(data, 3, "restart")
    admin = Admin(cluster.bootstrap)
    admin.create("hot", replicas=3)
    roles = {
        "leader hot/0": "leader of hot/0",
        "controller": "active controller",
        "coordinator g": "coordinator of group g",
    }
    for words, role in roles.items():
        processes = {node: cluster.node(node) for node in range(3)}
        admin.produce("hot")  # All are there again, and the topic has its leader.
        if words.startswith("coordinator"):
            until(lambda: coordinator(cluster.bootstrap, "g") >= 0)
        wanted = {
            "leader hot/0": lambda: leader(cluster.bootstrap, "hot"),
            "controller": lambda: controller(cluster.bootstrap),
            "coordinator g": lambda: coordinator(cluster.bootstrap, "g"),
        }[words]()
        outcome = killed(data, *words.split())
        assert outcome == {"killed": wanted, "pid": processes[wanted].pid, "role": role}
        assert not processes[wanted].is_running()
        cluster.said_until(f"crucible cluster: node-{wanted} serves again\n")
    cluster.end()


def leader(bootstrap: list[str], topic: str) -> int:
    response = call(bootstrap[0], ApiKey.METADATA, 12, ALL_TOPICS)
    assert response is not None
    (found,) = (each for each in response.topics if each.name == topic)
    return int(found.partitions[0].leader_id)


def controller(bootstrap: list[str]) -> int:
    wanted = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]}
    response = call(bootstrap[0], ApiKey.DESCRIBE_QUORUM, 1, body(ApiKey.DESCRIBE_QUORUM, wanted))
    assert response is not None
    return int(response.topics[0].partitions[0].leader_id)


def coordinator(bootstrap: list[str], group: str) -> int:
    response = call(
        bootstrap[0], ApiKey.FIND_COORDINATOR, 4, body(ApiKey.FIND_COORDINATOR, {"coordinator_keys": [group]})
    )
    return -1 if response is None else int(response.coordinators[0].node_id)


@pytest.mark.rotated(3, "runs")
def test_three_nodes_lead_on_without_one_and_take_it_back(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c", 3, "toxiproxy", "restart")
    try:
        assert len(cluster.bootstrap) == len(cluster.ready["nodes"]) == 3
        assert len(cluster.children()) == 4
        admin = Admin(cluster.bootstrap)
        leader = admin.create("first")
        cluster.node(leader).kill()
        assert admin.create("second") != leader
        assert responds(cluster.bootstrap[leader])
        until(lambda: admin.topics(cluster.bootstrap[leader]) == ["first", "second"])
    finally:
        stderr = cluster.end()
    assert f"node-{leader} ended by SIGKILL" in stderr


@pytest.mark.nightly
def test_without_restart_a_death_is_reported_and_a_second_start_finds_everything(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c", 3)
    admin = Admin(cluster.bootstrap)
    leader = admin.create("first")
    cluster.node(leader).kill()
    admin.create("second")
    assert f"node-{leader} ended by SIGKILL" in cluster.end()
    again = Cluster(tmp_path / "c", 3)
    assert again.bootstrap != cluster.bootstrap
    for address in again.bootstrap:
        until(lambda address=address: Admin(again.bootstrap).topics(address) == ["first", "second"])  # type: ignore[misc]
    assert again.end() == ""


@pytest.mark.rotated(3, "runs")
def test_nodes_replicate_and_elect_over_listeners_of_their_own(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c", 3)
    admin = Admin(cluster.bootstrap)
    leader = admin.create("replicated", replicas=3)
    admin.produce("replicated")
    forged = build_begin_quorum_epoch_request("anything", -1, leader, 2**31 - 1)
    assert [call(address, ApiKey.BEGIN_QUORUM_EPOCH, 1, forged) for address in cluster.bootstrap] == [None] * 3
    cluster.node(leader).kill()
    assert admin.create("after", replicas=2) != leader
    assert "ended by SIGKILL" in cluster.end()


def test_cluster_ends_when_its_last_node_has_died(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c", 1)
    cluster.node(0).kill()
    _, stderr = cluster.process.communicate(timeout=30)
    assert cluster.process.returncode == 4
    assert "node-0 ended by SIGKILL" in stderr.decode()


def test_signals_that_come_while_it_ends_change_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path / "c", 1)
    (node,) = cluster.children()
    while cluster.process.poll() is None:
        cluster.process.send_signal(signal.SIGTERM)
        time.sleep(0.0002)
    _, stderr = cluster.process.communicate(timeout=30)
    assert (cluster.process.returncode, stderr) == (0, b"")
    assert not node.is_running()


def test_cluster_without_startable_majority_fails_at_once_with_reason(tmp_path: Path) -> None:
    """The first node runs and waits for them."""
    with ExitStack() as held:
        port = free_port()
        for above in (1, 2):
            held.enter_context(socket.create_server(("127.0.0.1", port + above)))
        words = [sys.executable, "-c", CODE, str(tmp_path / "c"), "3", f"port={port}"]
        ended = subprocess.run(words, capture_output=True, text=True, timeout=30, check=False)
    assert ended.returncode == 2
    (stderr,) = ended.stderr.splitlines()
    assert stderr.startswith("crucible cluster: listeners: 127.0.0.1:")
    assert "is in use" in stderr
