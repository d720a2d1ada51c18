"""The proxy in front of three reference nodes, with unmodified clients behind it."""

import asyncio
import json
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic

from bench.children import ends_with_me
from chaos.live.cluster import LiveCluster
from chaos.live.cluster_command import ClusterPlan, started

pytestmark = [pytest.mark.live]
LOOK_S = 0.05
LIMIT_S = 20.0


class Running:
    """``crucible proxy`` as a process."""

    def __init__(self, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "crucible_kafka", "proxy", *words],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            preexec_fn=ends_with_me(),
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            return
        ready = json.loads(line)
        self.bootstrap: str = ready["bootstrap_servers"]
        self.control: str = ready["control"]
        self.token: str = ready["token"]

    def send_http(self, verb: str, path: str, body: object = None) -> tuple[int, Any]:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(self.control + path, data, headers, method=verb)
        try:
            with urllib.request.urlopen(request, timeout=30) as reply:
                return reply.status, json.loads(reply.read())
        except urllib.error.HTTPError as refused:
            with refused:
                return refused.code, json.loads(refused.read())

    def hits(self, name: str) -> list[dict[str, Any]]:
        return [row for row in self.send_http("GET", "/hits")[1] if row["name"] == name]

    def log(self) -> list[dict[str, Any]]:
        return cast("list[dict[str, Any]]", self.send_http("GET", "/log?since=0")[1])

    def end(self) -> tuple[int, str]:
        self.process.terminate()
        _, errors = self.process.communicate(timeout=30)
        return self.process.returncode, errors


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveCluster]:
    with started(ClusterPlan(tmp_path_factory.mktemp("cluster"), nodes=3)) as cluster:
        yield cluster


@contextmanager
def proxy(*words: str) -> Iterator[Running]:
    running = Running(*words)
    try:
        yield running
    finally:
        assert running.end() == (0, "")


def rule(name: str, kind: str, on: str, **more: object) -> dict[str, object]:
    return {"name": name, "kind": kind, "on": on, "node": "any", **more}


def connected_to(ports: set[int]) -> bool:
    """Return whether this process has a connection to one of these ports."""
    rows = Path("/proc/self/net/tcp").read_text().splitlines()[1:]
    mine = {Path(f"/proc/self/fd/{descriptor}").readlink().name for descriptor in _descriptors()}
    return any(
        int(row.split()[2].rpartition(":")[2], 16) in ports and f"socket:[{row.split()[9]}]" in mine for row in rows
    )


def _descriptors() -> list[str]:
    return [each.name for each in Path("/proc/self/fd").iterdir() if each.is_symlink()]


def test_rule_of_the_control_api_loses_one_response(target: LiveCluster) -> None:
    with proxy("--target", target.addresses[0]) as running:
        wanted = {"api": "Produce", "client_id": "app-*", "act": "drop_response", "times": 1}
        status, added = running.send_http("POST", "/v1/rules", wanted)
        assert status == 201
        producer = Producer({"bootstrap.servers": running.bootstrap, "client.id": "app-1", "log_level": 0})
        for number in range(3):
            producer.produce("control", b"%d" % number)
            assert producer.flush(LIMIT_S) == 0
        status, rule = running.send_http("POST", f"/v1/rules/{added['id']}/assert-fired", {"times": 1})
        assert (status, [each["api"] for each in rule["hits"]]) == (200, ["Produce"])


def test_librdkafka_lives_behind_the_proxy_while_faults_fire(target: LiveCluster) -> None:
    nodes = {int(address.rpartition(":")[2]) for address in target.addresses}
    with proxy("--target", target.addresses[0]) as running:
        client: dict[str, Any] = {"bootstrap.servers": running.bootstrap, "log_level": 0}
        admin = AdminClient(client)
        for done in admin.create_topics([NewTopic("rd", 6, 3)]).values():
            done.result(30)
        shown = {f"{broker.host}:{broker.port}" for broker in admin.list_topics(timeout=30).brokers.values()}
        assert shown == set(running.bootstrap.split(","))
        for wanted in (
            rule("lost", "response_dropped", "response", match={"api": "produce"}, nth=2, total=1),
            rule("late", "response_delayed", "response", match={"api": "produce"}, nth=4, total=1, delay_ms=50),
            rule("torn", "response_truncated", "response", match={"api": "produce"}, nth=5, total=1, cut_bytes=7),
            rule("moved", "response_error", "response", match={"api": "fetch"}, total=1, code=6, code_in="items"),
            rule("twice", "request_duplicated", "request", match={"api": "find_coordinator"}, total=1),
        ):
            assert running.send_http("POST", "/rules", wanted)[0] == 201
        producer = Producer({**client, "enable.idempotence": True})
        for number in range(400):
            producer.produce("rd", b"%d" % number)
            if number % 20 == 0:
                producer.flush(LIMIT_S)
        assert producer.flush(LIMIT_S) == 0
        consumer = Consumer({**client, "group.id": "rd", "auto.offset.reset": "earliest"})
        with closing(consumer):
            consumer.subscribe(["rd"])
            seen: list[int] = []
            deadline = time.monotonic() + LIMIT_S
            while len(seen) < 400 and time.monotonic() < deadline:
                message = consumer.poll(0.2)
                if message is not None and not message.error():
                    seen.append(int(message.value() or b""))
        assert sorted(seen) == list(range(400))
        for name in ("lost", "late", "torn", "moved", "twice"):
            assert running.hits(name), f"{name} never fired"
        assert {row["kind"] for row in running.hits("twice")} == {"request_duplicated", "request_duplicated_response"}
        assert not connected_to(nodes)
        assert {"Produce", "Fetch", "JoinGroup", "Metadata"} <= {entry.get("api") for entry in running.log()}


@pytest.mark.nightly
def test_kafka_python_lives_behind_the_proxy(target: LiveCluster) -> None:
    from kafka import KafkaConsumer, KafkaProducer

    nodes = {int(address.rpartition(":")[2]) for address in target.addresses}
    with proxy("--target", target.addresses[1]) as running:
        servers = running.bootstrap.split(",")
        assert (
            running.send_http(
                "POST", "/rules", rule("lost", "request_dropped", "request", match={"api": "fetch"}, nth=3)
            )[0]
            == 201
        )
        with closing(KafkaProducer(bootstrap_servers=servers, acks="all")) as producer:
            for number in range(100):
                producer.send("kp", b"%d" % number)
            producer.flush(LIMIT_S)
        consumer = KafkaConsumer(
            "kp", bootstrap_servers=servers, group_id="kp", auto_offset_reset="earliest", consumer_timeout_ms=8000
        )
        with closing(consumer):
            seen = []
            for message in consumer:
                seen.append(int(message.value))
                if len(seen) == 100:
                    break
            assert not connected_to(nodes)
        assert sorted(seen) == list(range(100))
        deadline = time.monotonic() + 30
        while not running.hits("lost") and time.monotonic() < deadline:
            time.sleep(LOOK_S)


def test_rules_come_and_go_and_wrong_ones_are_refused_in_one_sentence(target: LiveCluster, tmp_path: Path) -> None:
    file, log = tmp_path / "rules.toml", tmp_path / "log.jsonl"
    file.write_text(
        "[[fault]]\nname = 'first'\nkind = 'request_dropped'\non = 'request'\nmatch = { client_id = 'x' }\n"
    )
    with proxy("--target", target.addresses[0], "--rules", str(file), "--log", str(log)) as running:
        assert [each["name"] for each in running.send_http("GET", "/rules")[1]] == ["first"]
        assert running.send_http("POST", "/rules", rule("first", "request_dropped", "request"))[0] == 400
        status, refusal = running.send_http("POST", "/rules", rule("second", "node_killed", "request"))
        assert status == 400
        assert "--process NODE=PID" in refusal["error"]
        assert running.send_http("POST", "/rules", {"name": "second"})[0] == 400
        assert running.send_http("DELETE", "/rules/first") == (200, {"removed": "first"})
        assert running.send_http("DELETE", "/rules/first")[0] == 404
        assert running.send_http("GET", "/rules")[1] == []
        assert running.send_http("GET", "/log?since=x")[0] == 400
        AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0}).list_topics(timeout=30)
    assert {json.loads(line)["api"] for line in log.read_text().splitlines()} >= {"ApiVersions", "Metadata"}


def test_dead_target_closes_clients_and_is_reported_once(tmp_path: Path) -> None:
    with started(ClusterPlan(tmp_path / "one", nodes=1)) as cluster:
        (only,) = cluster.nodes
        running = Running("--target", only.listen)
        assert only.process is not None
        only.process.kill()
        host, _, port = running.bootstrap.partition(":")
        for _ in range(3):
            with socket.create_connection((host, int(port)), timeout=30) as client, suppress(ConnectionError):
                assert client.recv(1) == b""
        assert [entry["what"] for entry in running.log()] == ["not_reached"] * 3
        status, errors = running.end()
        assert status == 0
        assert errors.count("\n") == 1
        assert "node 0 cannot be reached" in errors


def open_sockets(pid: int) -> int:
    """Return how many sockets a process has. One that it closes in the meantime does not count."""
    found = 0
    for each in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found += "socket" in str(each.readlink())
    return found


def test_half_frames_huge_lengths_and_resets_leave_nothing_behind(target: LiveCluster) -> None:
    async def bother(host: str, port: int) -> None:
        for data in (b"\0\0", b"\x7f\xff\xff\xffGET", b"\0\0\x10\0\0\3", b"\xff\xff\xff\xff", b"\0\0\0\2\0\0"):
            reader, writer = await asyncio.open_connection(host, port)
            writer.write(data)
            await writer.drain()
            await asyncio.sleep(0.05)
            writer.transport.abort()
            del reader

    with proxy("--target", target.addresses[0]) as running:
        host, _, port = running.bootstrap.split(",")[0].partition(":")
        asyncio.run(bother(host, int(port)))
        AdminClient({"bootstrap.servers": running.bootstrap, "log_level": 0}).list_topics(timeout=30)
        deadline = time.monotonic() + 30
        while open_sockets(running.process.pid) >= 30:
            assert time.monotonic() < deadline, "sockets stay open"
            time.sleep(LOOK_S)
        assert [entry["what"] for entry in running.log() if "what" in entry].count("opaque") == 3
