"""Nodes in processes of their own: start, kill, restart, isolation, and the end of the process that started them."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from confluent_kafka import Producer

from crucible_kafka import Cluster, CrucibleError, CrucibleTimeout, NodeDead, NotPossible, StartFailed
from crucible_kafka.library.carrier import NodeSpec
from crucible_kafka.library.processes import ProcessNode

LIMIT_S = 30
pytestmark = pytest.mark.live


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    with Cluster(nodes=3) as cluster:
        cluster.create_topic("orders", partitions=3)
        yield cluster


def produce(cluster: Cluster, topic: str, *values: str) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": "app-1"})
    for value in values:
        producer.produce(topic, value=value, partition=0)
    assert producer.flush(LIMIT_S) == 0


def leader_of(cluster: Cluster, topic: str) -> int:
    leader: int = cluster.active_controller().command("topic", name=topic)["leaders"][0]
    return leader


def is_gone(pid: int) -> bool:
    with suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    return True


def test_three_nodes_are_three_processes(kafka: Cluster) -> None:
    pids = {kafka.node(number).pid for number in range(3)}
    assert len(pids) == 3
    assert os.getpid() not in pids
    produce(kafka, "orders", "a")
    assert b"a" in [record.value for record in kafka.records("orders")]
    assert kafka.frames(api="Produce", client_id="app-*")


def test_killed_leader_is_replaced_at_once_and_comes_back_in_sync(kafka: Cluster) -> None:
    kafka.create_topic("failover", replicas=3)
    produce(kafka, "failover", "before")
    dead = kafka.node(leader_of(kafka, "failover"))
    pid = dead.pid
    dead.kill()
    assert is_gone(pid)
    assert not dead.is_running
    assert leader_of(kafka, "failover") != dead.id
    produce(kafka, "failover", "after")
    with pytest.raises(NodeDead, match=r"call restart\(\) first"):
        dead.pause()
    dead.restart()
    assert dead.id in kafka.active_controller().command("topic", name="failover")["isr"][0]
    assert [record.value for record in kafka.records("failover")] == [b"before", b"after"]


def test_rule_counts_over_all_nodes(kafka: Cluster) -> None:
    kafka.create_topic("spread", partitions=3, replicas=1)
    rule = kafka.on("Produce", topic="spread").respond_error("NOT_LEADER_OR_FOLLOWER", times=2)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "retry.backoff.ms": 20})
    for partition in range(3):
        producer.produce("spread", value="x", partition=partition)
    assert producer.flush(LIMIT_S) == 0
    rule.assert_fired(times=2)
    rule.remove()
    assert len(kafka.records("spread")) == 3


def test_paused_process_responds_to_nothing(kafka: Cluster) -> None:
    node = next(kafka.node(number) for number in range(3) if kafka.active_controller().id != number)
    node.pause()
    try:
        with pytest.raises(CrucibleTimeout, match=r"call resume\(\)"):
            node.command("sessions", limit_s=0.2)
        produce(kafka, "orders", "b")
    finally:
        node.resume()
    kafka.await_in_sync(node.id, LIMIT_S)


def test_isolated_node_falls_out_of_the_isr_until_it_is_healed(kafka: Cluster) -> None:
    kafka.create_topic("cut", replicas=3)
    node = next(kafka.node(number) for number in range(3) if leader_of(kafka, "cut") != number)
    node.isolate()
    try:
        deadline = time.monotonic() + LIMIT_S
        while node.id in kafka.active_controller().command("topic", name="cut")["isr"][0]:
            assert time.monotonic() < deadline, "the isolated node stays in sync"
            time.sleep(0.1)
    finally:
        node.heal()
    kafka.await_in_sync(node.id, LIMIT_S)


def test_full_disk_refuses_records() -> None:
    with Cluster(processes=True) as full:
        full.create_topic("t")
        full.node(0).full_disk()
        producer = Producer({"bootstrap.servers": full.bootstrap_servers, "message.timeout.ms": 700})
        errors: list[str] = []
        producer.produce("t", value="x", on_delivery=lambda error, _: errors.append(str(error)))
        producer.flush(LIMIT_S)
        assert "_MSG_TIMED_OUT" in errors[0]
        if full.node(0).is_running:
            full.node(0).full_disk(False)
        else:
            full.node(0).restart()
        produce(full, "t", "fits")
        assert [record.value for record in full.records("t")] == [b"fits"]


def test_slow_disk_and_a_clock_that_is_wrong() -> None:
    with Cluster() as kafka:
        kafka.create_topic("t")
        kafka.node(0).clock_offset(3_600_000)
        kafka.create_topic("later", config={"message.timestamp.type": "LogAppendTime"})
        produce(kafka, "later", "x")
        (record,) = kafka.records("later")
        assert record.timestamp_ms > time.time() * 1000 + 3_000_000
        kafka.node(0).slow_disk(50)
        produce(kafka, "t", "x")


def test_process_that_ended_by_itself_says_how() -> None:
    with Cluster(processes=True) as kafka:
        os.kill(kafka.node(0).pid, signal.SIGKILL)
        with pytest.raises(NodeDead, match=r"ended with status -9|ended during the call"):
            kafka.node(0).metrics()
        with pytest.raises(NodeDead, match="ended with status -9"):
            kafka.node(0).metrics()
        kafka.node(0).restart()
        assert kafka.node(0).metrics()


def test_single_node_has_no_links() -> None:
    with Cluster() as kafka, pytest.raises(NotPossible, match="give nodes=3"):
        kafka.node(0).isolate()


def test_process_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("crucible_kafka.library.processes.PROGRAM", "import sys; sys.exit('no luck today')")
    with pytest.raises(StartFailed, match="Node 0 did not start: no luck today"):
        Cluster(processes=True).start()


SCRIPT = """
import json, sys, time
from crucible_kafka import Cluster
cluster = Cluster(nodes=3).start()
if sys.argv[1] == "paused":
    cluster.node(0).pause()
print(json.dumps({"pids": [cluster.node(n).pid for n in range(3)], "folder": str(cluster._folder.path)}), flush=True)
time.sleep(60)
"""


@pytest.mark.parametrize("state", ["serving", "paused"])
def test_nothing_is_left_when_the_test_process_is_killed(state: str) -> None:
    with subprocess.Popen([sys.executable, "-c", SCRIPT, state], stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdout is not None
        started = json.loads(tests.stdout.readline())
        tests.send_signal(signal.SIGKILL)
        tests.wait()
    deadline = time.monotonic() + LIMIT_S
    while not all(is_gone(pid) for pid in started["pids"]) or Path(started["folder"]).exists():
        assert time.monotonic() < deadline, f"left behind: {started}"
        time.sleep(0.1)


def test_closing_ends_processes_and_descriptors() -> None:
    def once() -> list[int]:
        with Cluster(processes=True) as kafka:
            return [kafka.node(0).pid]

    once()
    before = len(os.listdir("/proc/self/fd"))
    assert all(is_gone(pid) for pid in once())
    assert len(os.listdir("/proc/self/fd")) == before


def test_three_nodes_may_be_threads_of_this_process() -> None:
    config = {"broker.session.timeout.ms": 60_000}  # A killed node is fenced at once, without its session's end.
    with Cluster(nodes=3, processes=False, config=config) as kafka:
        assert {kafka.node(number).pid for number in range(3)} == {os.getpid()}
        kafka.create_topic("t", replicas=3)
        produce(kafka, "t", "before")
        dead = kafka.node(leader_of(kafka, "t"))
        dead.kill()
        produce(kafka, "t", "after")
        dead.restart()
        assert [record.value for record in kafka.records("t")] == [b"before", b"after"]


def test_process_with_many_descriptors_has_clusters_too() -> None:
    beyond = [os.dup(0) for _ in range(1100)]  # select() knows descriptors below 1024 only.
    try:
        with Cluster(processes=True) as kafka:
            assert kafka.groups() == []
    finally:
        for each in beyond:
            os.close(each)


@pytest.mark.parametrize("processes", [False, True])
def test_threads_that_use_a_cluster_while_it_is_killed_get_its_own_exceptions(processes: bool) -> None:
    with Cluster(processes=processes) as kafka, ThreadPoolExecutor(4) as pool:
        kafka.create_topic("t")
        has_ended = threading.Event()

        def use() -> None:
            while not has_ended.is_set():
                with suppress(CrucibleError):
                    kafka.records("t")
                    kafka.groups()
                    kafka.on("Fetch").hang(optional=True).remove()

        users = [pool.submit(use) for _ in range(4)]
        try:
            for _ in range(3):
                time.sleep(0.1)
                kafka.node(0).kill()
                kafka.node(0).restart()
        finally:
            has_ended.set()
        for user in users:
            user.result(30)


def test_commands_of_another_thread_do_not_take_the_ready_line_of_a_node_that_starts(tmp_path: Path) -> None:
    node = ProcessNode(0, tmp_path / "node.log")
    node.start(NodeSpec(0, tmp_path / "data", {}, "127.0.0.1:0"))
    try:
        done = 0
        while done < 50:  # Of these the last ones come after the ready line.
            with suppress(NotPossible):  # It has not started yet.
                node.command("controller", {}, LIMIT_S)
                done += 1
            time.sleep(0.01)
        node.wait_ready(LIMIT_S)
    finally:
        node.kill()
