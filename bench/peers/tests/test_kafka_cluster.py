"""The harness around Apache Kafka: three nodes, one killed and brought back, nothing left behind."""

import signal
from pathlib import Path

import psutil
import pytest

from bench.peers.clients import RetryingClient, batch_of
from bench.peers.node import PeerError
from bench.peers.systems import KAFKA

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

NODES = 3
LIMIT_S = 90.0


def test_three_nodes_lose_one_take_it_back_and_end_with_the_block(tmp_path: Path) -> None:
    with KAFKA.launched(tmp_path, NODES, {"broker.session.timeout.ms": "3000"}) as cluster:
        pids = [member.process.pid for member in cluster.members if member.process]
        with RetryingClient(cluster.ports) as client:
            client.create_topic("kept", NODES, NODES, LIMIT_S, {"min.insync.replicas": "2"})
            led = client.await_replicas("kept", NODES, NODES, LIMIT_S)
            assert {replica.leader for replica in led.values()} == set(range(NODES))
            assert client.active_controller(LIMIT_S) in range(NODES)
            assert client.acknowledged("kept", 0, batch_of(100, 2), LIMIT_S) == 0
            killed = cluster.members[led[0].leader]
            killed.send_signal(signal.SIGKILL)
            assert client.acknowledged("kept", 0, batch_of(100), LIMIT_S) == 2
            assert client.led("kept", 0, LIMIT_S).leader != killed.node_id
            killed.back()
            client.await_replicas("kept", NODES, NODES, LIMIT_S)
        assert cluster.cpu_s() > 0
        pids += [member.process.pid for member in cluster.members if member.process]
        heap = " ".join(psutil.Process(pids[-1]).cmdline())
        assert "-Xmx1g" in heap
    assert not any(psutil.pid_exists(pid) for pid in pids)


def test_failed_start_of_node_is_reported(tmp_path: Path) -> None:
    with KAFKA.prepare(tmp_path, 1, {}) as cluster:
        (tmp_path / "node-0" / "server.properties").write_text("process.roles=nonsense\n")
        cluster.launch()
        with pytest.raises(PeerError, match="ended with status"):
            cluster.await_ready()
        process = cluster.members[0].process
    assert process is not None
    assert process.poll() is not None
