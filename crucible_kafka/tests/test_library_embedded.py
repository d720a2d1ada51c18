"""A cluster of one node inside of this process: start, end, topics, records, and frames, with stock clients."""

import gc
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest
from confluent_kafka import Consumer, Producer

from crucible_kafka import Cluster, CrucibleError, NodeDead, StartFailed
from crucible_kafka.library.folders import PREFIX, TemporaryFolder
from crucible_kafka.library.inside_node import InsideNode

LIMIT_S = 30


@pytest.fixture(scope="module")
def kafka() -> Iterator[Cluster]:
    with Cluster() as cluster:
        yield cluster


def produce(cluster: Cluster, topic: str, *values: str, client_id: str = "app-1", **config: object) -> None:
    producer = Producer({"bootstrap.servers": cluster.bootstrap_servers, "client.id": client_id, **config})
    for value in values:
        producer.produce(topic, value=value, partition=0)
    assert producer.flush(LIMIT_S) == 0


def test_records_of_a_client_are_read_from_the_log(kafka: Cluster) -> None:
    kafka.create_topic("orders", partitions=3)
    produce(kafka, "orders", "one", "two")
    assert [(record.partition, record.offset, record.value) for record in kafka.records("orders")] == [
        (0, 0, b"one"),
        (0, 1, b"two"),
    ]
    assert kafka.records("orders", partition=1) == []
    assert all(record.committed for record in kafka.records("orders"))


def test_records_of_an_aborted_transaction_are_read_as_not_committed(kafka: Cluster) -> None:
    kafka.create_topic("paid")
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "transactional.id": "payer"})
    producer.init_transactions(LIMIT_S)
    for value, commits in (("lost", False), ("kept", True)):
        producer.begin_transaction()
        producer.produce("paid", value=value)
        if commits:
            producer.commit_transaction(LIMIT_S)
        else:
            producer.flush(LIMIT_S)
            producer.abort_transaction(LIMIT_S)
    producer.begin_transaction()
    producer.produce("paid", value="open")
    producer.flush(LIMIT_S)
    assert {record.value: record.committed for record in kafka.records("paid")} == {
        b"lost": False,
        b"kept": True,
        b"open": False,
    }
    (transaction,) = kafka.transactions()
    assert (transaction.transactional_id, transaction.state) == ("payer", "Ongoing")
    assert transaction.partitions == (("paid", 0),)
    producer.abort_transaction(LIMIT_S)


def test_frames_are_the_conversation_of_a_client(kafka: Cluster) -> None:
    kafka.create_topic("talk")
    produce(kafka, "talk", "hello", client_id="talker")
    request, response = kafka.frames(api="produce", client_id="talk*")
    assert request.is_request
    assert request.body["topics"][0]["partitions"][0]["records"]["records"] == 1
    assert response.body["responses"][0]["partitions"][0]["error_code"] == "NONE"
    assert (request.connection, request.correlation_id) == (response.connection, response.correlation_id)
    assert "talker -> node 0" in str(request)
    assert kafka.frames(client_id="nobody") == []


def test_groups_show_members_and_committed_offsets(kafka: Cluster) -> None:
    kafka.create_topic("read")
    produce(kafka, "read", "a", "b")
    consumer = Consumer(
        {
            "bootstrap.servers": kafka.bootstrap_servers,
            "group.id": "readers",
            "client.id": "reader-7",
            "auto.offset.reset": "earliest",
            "enable.auto.commit": False,
        }
    )
    try:
        consumer.subscribe(["read"])
        read: list[bytes | None] = []
        deadline = time.monotonic() + LIMIT_S
        while len(read) < 2 and time.monotonic() < deadline:
            message = consumer.poll(0.2)
            if message is not None and not message.error():
                read.append(message.value())
        assert read == [b"a", b"b"]
        consumer.commit(asynchronous=False)
        (group,) = [each for each in kafka.groups() if each.group_id == "readers"]
        assert (group.state, group.client_ids) == ("Stable", ("reader-7",))
        assert kafka.committed("readers") == {("read", 0): 2}
    finally:
        consumer.close()


def test_killed_node_restarts_with_its_data_and_address(kafka: Cluster) -> None:
    kafka.create_topic("kept")
    produce(kafka, "kept", "before")
    node, address = kafka.node(0), kafka.bootstrap_servers
    node.kill()
    assert not node.is_running
    with pytest.raises(NodeDead, match=r"No node runs: call restart\(\)"):
        kafka.records("kept")
    assert kafka.frames(api="Produce"), "frames from before the kill are kept"
    node.restart()
    assert kafka.bootstrap_servers == address
    produce(kafka, "kept", "after")
    assert [record.value for record in kafka.records("kept")] == [b"before", b"after"]


def test_paused_node_serves_nothing_until_it_resumes(kafka: Cluster) -> None:
    kafka.create_topic("slow")
    node = kafka.node(0)
    node.pause()
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers})
    producer.produce("slow", value="late")
    assert producer.flush(0.5) == 1
    node.resume()
    assert producer.flush(LIMIT_S) == 0
    assert [record.value for record in kafka.records("slow")] == [b"late"]


def test_node_that_was_killed_while_paused_handles_nothing_more(kafka: Cluster) -> None:
    kafka.create_topic("never")
    node = kafka.node(0)
    producer = Producer({"bootstrap.servers": kafka.bootstrap_servers, "message.timeout.ms": 300})
    producer.list_topics("never", timeout=LIMIT_S)
    node.pause()
    producer.produce("never", value="x")
    assert producer.flush(0.1) == 1
    node.kill()
    producer.flush(LIMIT_S)
    node.restart()
    assert kafka.records("never") == []


def test_metrics_and_log_lines_are_plain_values(kafka: Cluster) -> None:
    kafka.create_topic("counted")
    produce(kafka, "counted", "x")
    assert kafka.metrics()[0]["kafka.server:type=BrokerTopicMetrics,name=MessagesInPerSec"] > 0
    assert any('"ready"' in line for line in kafka.log_lines())


def test_two_clusters_live_side_by_side(kafka: Cluster) -> None:
    with Cluster() as other:
        other.create_topic("only-here")
        produce(other, "only-here", "x")
        assert [record.value for record in other.records("only-here")] == [b"x"]
        with pytest.raises(CrucibleError, match="does not exist"):
            kafka.records("only-here")


def test_wrong_use_is_one_clear_sentence(kafka: Cluster) -> None:
    with pytest.raises(CrucibleError, match="started already"):
        kafka.start()
    with pytest.raises(ValueError, match=r"give 1, 3 or 5"):
        Cluster(nodes=2)
    with pytest.raises(ValueError, match=r"no\.such\.setting"):
        Cluster(config={"no.such.setting": 1})
    with pytest.raises(CrucibleError, match="not started"):
        Cluster().create_topic("x")
    with pytest.raises(CrucibleError, match="not started"):
        _ = Cluster().bootstrap_servers
    with pytest.raises(AttributeError, match=r"call kafka\.node\(n\)\.kill\(\)$"):
        kafka.kill()  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match=r"call kafka\.node\(n\)\.pid$"):
        _ = kafka.pid  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="did you mean create_topic"):
        kafka.create_topics("x")  # type: ignore[attr-defined]
    with pytest.raises(AttributeError, match="did you mean drop_response"):
        kafka.on("Fetch").drop_responses()  # type: ignore[attr-defined]
    with pytest.raises(ValueError, match="no node 3"):
        kafka.node(3)
    kafka.create_topic("twice")
    with pytest.raises(CrucibleError, match="TOPIC_ALREADY_EXISTS"):
        kafka.create_topic("twice")


def test_closed_cluster_says_so() -> None:
    cluster = Cluster()
    with cluster:
        pass
    with pytest.raises(CrucibleError, match="is closed"):
        cluster.records("x")
    with pytest.raises(CrucibleError, match="make another Cluster"):
        cluster.start()


def test_node_that_cannot_start_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    before = threading.active_count()
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        monkeypatch.setattr("crucible_kafka.library.folders.ReservedPort.address", address)
        with pytest.raises(StartFailed, match=f"Node 0 did not start: .*{address} is in use"):
            Cluster().start()
    assert threading.active_count() == before


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")  # Python 3.12 warns of what this test shows.
def test_forked_process_is_refused(kafka: Cluster) -> None:
    pid = os.fork()
    if pid == 0:
        try:
            kafka.records("x")
        except CrucibleError as refusal:
            os._exit(7 if "process that started it" in str(refusal) else 1)
        os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7


def leftovers() -> tuple[int, int]:
    gc.collect()
    return threading.active_count(), len(os.listdir("/proc/self/fd"))


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def start_and_stop(times: int) -> None:
    for _ in range(times):
        with Cluster() as cluster:
            cluster.create_topic("t")


@pytest.mark.thorough
@pytest.mark.parametrize("times", [8, pytest.param(1000, marks=pytest.mark.nightly)])
@pytest.mark.timeout(900)
def test_starts_and_stops_leave_nothing_behind(times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    start_and_stop(3)  # These load modules.
    before, memory = leftovers(), resident_bytes()
    start_and_stop(times)
    assert leftovers() == before
    assert resident_bytes() - memory < 5 << 20
    assert not list(tmp_path.rglob(f"{PREFIX}*"))


@pytest.mark.live
def test_folder_of_a_killed_process_is_removed_by_the_next_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = (
        "import os, signal\n"
        "from crucible_kafka.library.folders import TemporaryFolder\n"
        "folder = TemporaryFolder()\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    subprocess.run([sys.executable, "-c", script], env={**os.environ}, check=False, timeout=30)
    (left,) = tmp_path.glob(f"{PREFIX}*")
    kept = TemporaryFolder()
    assert not left.exists()
    assert kept.path.exists()
    TemporaryFolder().remove()
    assert kept.path.exists(), "a folder that is in use stays"
    kept.remove()


@pytest.mark.live
def test_importing_the_package_loads_no_library() -> None:
    script = "import sys, crucible_kafka; sys.exit('crucible_kafka.library' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", script], check=False, timeout=60).returncode == 0


def test_command_ends_with_its_node(monkeypatch: pytest.MonkeyPatch) -> None:
    has_come = threading.Event()

    def never(_: InsideNode) -> Future[object]:
        has_come.set()
        return Future()

    monkeypatch.setattr(InsideNode, "do_groups", never)
    with Cluster() as kafka, ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(kafka.groups)
        assert has_come.wait(LIMIT_S)
        began = time.monotonic()
        kafka.node(0).kill()
        with pytest.raises(NodeDead, match="Node 0"):
            waiting.result(LIMIT_S)
        assert time.monotonic() - began < LIMIT_S / 2


def test_what_can_never_be_found_is_refused(kafka: Cluster) -> None:
    with pytest.raises(ValueError, match="did you mean Fetch"):
        kafka.frames(api="Fetchh")
    with pytest.raises(ValueError, match="There is no node 9"):
        kafka.frames(node=9)
    with pytest.raises(ValueError, match="give request or response"):
        kafka.frames(direction="requests")
    with pytest.raises(ValueError, match="partitions is -1"):
        kafka.create_topic("none", partitions=-1)
    with pytest.raises(TypeError, match="partitions is '3': give a whole number"):
        kafka.create_topic("none", partitions="3")  # type: ignore[arg-type]


def test_a_rule_that_must_not_fire_is_asserted_with_0_times(kafka: Cluster) -> None:
    rule = kafka.on("Heartbeat", group="nobody").hang(optional=True)
    rule.assert_fired(times=0)
    rule.remove()


def test_a_closed_cluster_does_not_start_and_says_why() -> None:
    with Cluster() as kafka:
        pass
    with pytest.raises(CrucibleError, match="was closed, and its data is gone"):
        kafka.start()


def test_a_forked_process_keeps_no_port_of_its_parent() -> None:
    with Cluster() as kafka:
        host, port = kafka.bootstrap_servers.split(":")
        client = socket.create_connection((host, int(port)), LIMIT_S)
        kafka.create_topic("t")
        child = os.fork()
        if child == 0:
            time.sleep(LIMIT_S)
            os._exit(0)
        try:
            kafka.node(0).kill()
            assert client.recv(1) == b""
            kafka.node(0).restart()
            assert kafka.records("t") == []
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            client.close()
