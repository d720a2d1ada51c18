"""Applications of Apache Kafka on three nodes of which some are killed: nothing is lost, and nothing twice.

``CRUCIBLE_PLANTED=NAME pytest bench/peers/tests/test_applications.py`` plants a mutant in all nodes, to see tests fail.
"""

import json
import logging
import operator
import os
import signal
import threading
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import confluent_kafka
import pytest

from bench.peers.applications import (
    LIMIT_S,
    Application,
    Kill,
    Killer,
    Progress,
    Rows,
    committed_end,
    copy_problems,
    delivery_problems,
    order_problems,
    read_committed,
    write_properties,
)
from bench.peers.clients import RetryingClient
from bench.peers.cluster import System, until
from bench.peers.kafka import applications_classpath
from bench.peers.node import PeerError
from bench.peers.reference import reference_with_mutant
from bench.peers.systems import REFERENCE
from bench.peers.tests.nodes import ThreeNodes, reference_node, three_nodes
from bench.peers.tests.writing import BackgroundWriter
from bench.ports import free_port

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

PLANTED = os.environ.get("CRUCIBLE_PLANTED", "")
ONE_COORDINATOR = {"transaction.state.log.num.partitions": "1", "offsets.topic.num.partitions": "1"}
GROUPS, TRANSACTIONS = "__consumer_offsets", "__transaction_state"
END_LIMIT_S = 90.0


def _system(mutant: str = "") -> System:
    name = mutant or PLANTED
    return reference_with_mutant(name) if name else REFERENCE


@pytest.fixture
def nodes(tmp_path: Path) -> Iterator[ThreeNodes]:
    with three_nodes(tmp_path / "nodes", ONE_COORDINATOR, _system()) as running:
        yield running


def _killer(nodes: ThreeNodes, progress: Progress, step: int) -> Killer:
    return Killer(nodes.cluster, nodes.client, progress, step)


def _fell_at_work(kills: Sequence[Kill]) -> bool:
    logging.getLogger(__name__).info("%s", kills)
    return len(kills) >= 2 and all(kill.fell_at_work for kill in kills) and kills[0].unreplicated_bytes > 0


def test_lost_duplicate_and_reordered_records_are_detected() -> None:
    """Records are taken out of what was read, or added to it, before it is judged."""
    sent = [str(number) for number in range(5)]
    assert delivery_problems(sent, sent, sent) == []
    assert delivery_problems(sent[:3], sent[1:], sent) == ["1 lost: ['0']"]
    assert delivery_problems(sent, [*sent, "3"], sent) == ["1 duplicated: ['3']"]
    assert delivery_problems(sent, [*sent, "9"], sent) == ["1 never sent: ['9']"]
    rows: Rows = [(None, each.encode()) for each in sent]
    assert order_problems({0: rows}) == copy_problems({0: rows}, {0: rows}) == []
    assert order_problems({0: rows[:2], 1: [rows[1], rows[0]]}) == ["1 out of order"]
    assert "1 lost and 0 duplicated" in copy_problems({0: rows}, {0: rows[1:]})[0]
    assert "0 lost and 1 duplicated" in copy_problems({0: rows}, {0: [*rows, rows[0]]})[0]
    assert "0 lost and 0 duplicated" in copy_problems({0: rows}, {0: rows[::-1]})[0]
    assert copy_problems({0: rows}, {})


# The verifiable producer and consumer.

TOPIC = "verified"
PARTITIONS = 2
RATE = 400


def _verifiable(nodes: ThreeNodes, folder: Path) -> tuple[list[Kill], list[str]]:
    """Return the kills and what is wrong with the records: of all acknowledged, and of all that the consumer read."""
    nodes.create(TOPIC, PARTITIONS)
    servers = ("--bootstrap-server", nodes.bootstrap, "--topic", TOPIC)
    retries = write_properties(folder / "producer.properties", {"retries": "2147483647", "enable.idempotence": "true"})
    producing = (*servers, "--throughput", str(RATE), "--acks", "-1", "--producer.config", str(retries))
    consuming = (*servers, "--group-id", "verified", "--verbose", "--session-timeout", "10000")
    with (
        Application("producer", folder, "org.apache.kafka.tools.VerifiableProducer", producing) as producer,
        Application("consumer", folder, "org.apache.kafka.tools.VerifiableConsumer", consuming) as consumer,
    ):

        def progress() -> int:
            return min(producer.count('"producer_send_success"'), consumer.count('"record_data"'))

        killer = _killer(nodes, progress, RATE)
        kills = [killer.kill_leader(TOPIC, 0, ahead=True)]
        nodes.whole(TOPIC, PARTITIONS)
        nodes.whole(GROUPS, 1)
        kills.append(killer.kill_leader(GROUPS, 0))
        nodes.whole(TOPIC, PARTITIONS)
        producer.stop()
        committed = read_committed(nodes.bootstrap, TOPIC, PARTITIONS)
        total = sum(map(len, committed.values()))
        problems: list[str] = []
        try:
            until(lambda: consumer.count('"record_data"') >= total, END_LIMIT_S, f"the consumer's {total} records")
        except PeerError as late:
            problems.append(str(late))
        consumer.stop()
        acknowledged = [event["value"] for event in producer.events("producer_send_success")]
        failed = [event["value"] for event in producer.events("producer_send_error")]
        read = [(value or b"").decode() for rows in committed.values() for _, value in rows]
        consumed = {(event["partition"], event["offset"]): event["value"] for event in consumer.events("record_data")}
    problems += [f"{len(failed)} failed: {failed[:3]}"] if failed else []
    problems += delivery_problems(acknowledged, read, [*acknowledged, *failed]) + order_problems(committed)
    problems += [
        f"consumer: {delivery_problem}"
        for delivery_problem in delivery_problems(acknowledged, list(consumed.values()), read)
    ]
    return kills, problems


def test_verifiable_clients_lose_nothing(nodes: ThreeNodes, tmp_path: Path) -> None:
    kills, problems = _verifiable(nodes, tmp_path)
    assert _fell_at_work(kills)
    assert problems == []


def test_broker_that_acknowledges_too_early_is_caught(tmp_path: Path) -> None:
    with three_nodes(tmp_path / "nodes", ONE_COORDINATOR, _system("acknowledged_before_replicated")) as nodes:
        kills, problems = _verifiable(nodes, tmp_path)
    assert _fell_at_work(kills)
    assert any(" lost: " in problem for problem in problems)


# The transactional message copier.

COPIER = "org.apache.kafka.tools.TransactionalMessageCopier"
COPIED = 100_000
"""More than two copiers manage while nodes are killed."""
PER_TRANSACTION = 10
STEP = 20 * PER_TRANSACTION


def _write_numbers(nodes: ThreeNodes, topic: str, partitions: int, count: int) -> None:
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": nodes.bootstrap, "enable.idempotence": True, "queue.buffering.max.messages": count}
    )
    for number in range(count):
        producer.produce(topic, str(number).encode(), partition=number % partitions)
    assert producer.flush(LIMIT_S) == 0


def test_transactional_copier_copies_exactly_once(nodes: ThreeNodes, tmp_path: Path) -> None:
    """Two copiers abort a third of their transactions. One of them is killed and restarted, and at the end both are."""
    for topic in ("source", "copy"):
        nodes.create(topic, PARTITIONS)
    _write_numbers(nodes, "source", PARTITIONS, COPIED)
    topics = ("--broker-list", nodes.bootstrap, "--input-topic", "source", "--output-topic", "copy")
    habits = ("--transaction-size", str(PER_TRANSACTION), "--consumer-group", "copiers", "--group-mode")
    aborts = ("--enable-random-aborts", "--use-group-metadata", "--input-partition", "-1")
    copiers = [
        Application(
            f"copier-{number}", tmp_path, COPIER, (*topics, *habits, *aborts, "--transactional-id", f"id-{number}")
        )
        for number in range(2)
    ]
    with copiers[0], copiers[1]:

        def progress() -> int:
            return committed_end(nodes.bootstrap, "copy", PARTITIONS)

        killer = _killer(nodes, progress, STEP)
        kills = [killer.kill_leader("copy", 0, ahead=True)]
        copiers[0].kill()
        copiers[0].launch()
        for topic in (TRANSACTIONS, GROUPS):
            nodes.whole("copy", PARTITIONS)
            nodes.whole(topic, 1)
            kills.append(killer.kill_leader(topic, 0))
        assert all(copier.runs for copier in copiers)
    nodes.whole("copy", PARTITIONS)
    assert _fell_at_work(kills)
    source, copy = (read_committed(nodes.bootstrap, each, PARTITIONS) for each in ("source", "copy"))
    counts = {partition: len(rows) for partition, rows in copy.items()}
    assert _committed(nodes, "copiers", "source") == counts
    assert copy_problems({partition: rows[: counts[partition]] for partition, rows in source.items()}, copy) == []


def _committed(nodes: ThreeNodes, group: str, topic: str) -> dict[int, int]:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": nodes.bootstrap, "group.id": group, "log_level": 0})
    try:
        wanted = [confluent_kafka.TopicPartition(topic, number) for number in range(PARTITIONS)]
        return {each.partition: each.offset for each in consumer.committed(wanted, timeout=LIMIT_S)}
    finally:
        consumer.close()


# Kafka Streams, by the programs of its own system tests.

STREAMS = "org.apache.kafka.streams.tests.StreamsEosTest"
STREAMS_GROUP = "EosTest"
GENERATED_STEP = 200


def _running(rows: Rows, start: int, fold: Callable[[int, int], int], width: int) -> Rows:
    """Return what an aggregation by key has to write: its new value after each record."""
    values: dict[bytes | None, int] = {}
    found: Rows = []
    for key, value in rows:
        values[key] = fold(values.get(key, start), int.from_bytes(value or b"", "big", signed=True))
        found.append((key, values[key].to_bytes(width, "big", signed=True)))
    return found


def test_streams_processes_exactly_once(nodes: ThreeNodes, tmp_path: Path) -> None:
    """Judged by Kafka's own verifier, and by all outputs computed again from the input."""
    for topic in ("data", "echo", "min", "sum"):
        nodes.create(topic, PARTITIONS)
    settings = {"bootstrap.servers": nodes.bootstrap, "state.dir": str(tmp_path / "state")}
    habits = {"processing.guarantee": "exactly_once_v2", "session.timeout.ms": "10000"}
    properties = str(write_properties(tmp_path / "streams.properties", settings | habits))
    jars = applications_classpath()
    with (
        Application("generator", tmp_path, STREAMS, (properties, "run"), jars) as generator,
        Application("processor", tmp_path, STREAMS, (properties, "process"), jars) as processor,
    ):

        def progress() -> int:
            return committed_end(nodes.bootstrap, "echo", PARTITIONS)

        killer = _killer(nodes, progress, GENERATED_STEP)
        kills = [killer.kill_leader("echo", 0, ahead=True)]
        nodes.whole("echo", PARTITIONS)
        nodes.whole(TRANSACTIONS, 1)
        kills.append(killer.kill_leader(TRANSACTIONS, 0))
        nodes.whole("data", PARTITIONS)
        generator.stop()
        data = read_committed(nodes.bootstrap, "data", PARTITIONS)
        ends = {partition: len(rows) for partition, rows in data.items()}
        until(lambda: _committed(nodes, STREAMS_GROUP, "data") == ends, END_LIMIT_S, "the commit of all input")
        processor.stop()
    assert _fell_at_work(kills)
    assert f"Producer closed: {sum(ends.values())} records produced" in generator.lines()
    assert "EOS-TEST-CLIENT-CLOSED" in processor.lines()
    with Application("verifier", tmp_path, STREAMS, (properties, "verify"), jars) as verifier:
        verifier.await_end(END_LIMIT_S)
    assert "ALL-RECORDS-DELIVERED" in verifier.lines()
    folds: dict[str, Callable[[Rows], Rows]] = {
        "echo": lambda rows: rows,
        "min": lambda rows: _running(rows, 2**31 - 1, min, 4),
        "sum": lambda rows: _running(rows, 0, operator.add, 8),
    }
    for topic, fold in folds.items():
        wanted = {partition: fold(rows) for partition, rows in data.items()}
        assert copy_problems(wanted, read_committed(nodes.bootstrap, topic, PARTITIONS)) == [], topic


# Connect with a source that writes exactly once.

LINE_PAUSE_S = 0.004
LINES_STEP = 200
STRINGS = "org.apache.kafka.connect.storage.StringConverter"


class Lines(threading.Thread):
    """Appends numbers to a file, one a line, until it is ended."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.written = 0
        self._path = path
        self._ends = threading.Event()

    def run(self) -> None:
        with self._path.open("a") as file:
            while not self._ends.wait(LINE_PAUSE_S):
                file.write(f"{self.written}\n")
                file.flush()
                self.written += 1

    def end(self) -> None:
        self._ends.set()
        self.join(LIMIT_S)


def _rest(port: int, path: str, body: object = None) -> object:
    """Return what Connect's REST interface responds with, or None if it does not or refuses."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}{path}", data, {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return json.load(response)
    except OSError:
        return None


def test_connect_writes_each_line_exactly_once(nodes: ThreeNodes, tmp_path: Path) -> None:
    """The worker is killed, too, and goes on where its last transaction ended."""
    nodes.create("lines", 1)
    port, path = free_port(), tmp_path / "lines.txt"
    path.touch()
    storage = {
        f"{each}.storage.{key}": value
        for each in ("config", "offset", "status")
        for key, value in (("topic", f"connect-{each}"), ("replication.factor", "3"))
    }
    settings = {
        "bootstrap.servers": nodes.bootstrap,
        "group.id": "connect",
        "key.converter": STRINGS,
        "value.converter": STRINGS,
        "exactly.once.source.support": "enabled",
        "plugin.discovery": "service_load",
        "listeners": f"http://127.0.0.1:{port}",
        "offset.storage.partitions": "1",
        "status.storage.partitions": "1",
        "scheduled.rebalance.max.delay.ms": "1000",
        "session.timeout.ms": "10000",
    }
    connector = {
        "connector.class": "org.apache.kafka.connect.file.FileStreamSourceConnector",
        "tasks.max": "1",
        "file": str(path),
        "topic": "lines",
        "exactly.once.support": "required",
    }
    properties = str(write_properties(tmp_path / "worker.properties", settings | storage))
    main = "org.apache.kafka.connect.cli.ConnectDistributed"
    lines = Lines(path)
    with Application("worker", tmp_path, main, (properties,), applications_classpath()) as worker:
        created = {"name": "lines", "config": connector}
        until(lambda: _rest(port, "/connectors", created) is not None, END_LIMIT_S, "the connector", every_s=0.5)
        lines.start()
        try:
            killer = _killer(nodes, lambda: committed_end(nodes.bootstrap, "lines", 1), LINES_STEP)
            kills = [killer.kill_leader("lines", 0, ahead=True)]
            worker.kill()
            worker.launch()
            nodes.whole("lines", 1)
            nodes.whole(TRANSACTIONS, 1)
            kills.append(killer.kill_leader(TRANSACTIONS, 0))
        finally:
            lines.end()
        _await_records(nodes.bootstrap, "lines", 1, lines.written)
    assert _fell_at_work(kills)
    wanted: Rows = [(None, str(number).encode()) for number in range(lines.written)]
    assert copy_problems({0: wanted}, read_committed(nodes.bootstrap, "lines", 1)) == []


def _await_records(bootstrap: str, topic: str, partitions: int, count: int) -> None:
    """Wait until this number of committed records can be read. More are no reason to wait."""

    def all_there() -> bool:
        return sum(map(len, read_committed(bootstrap, topic, partitions).values())) >= count

    until(all_there, END_LIMIT_S, f"{count} records in {topic}", every_s=1.0)


# MirrorMaker, from one cluster to another.


def test_mirror_maker_copies_exactly_once(nodes: ThreeNodes, tmp_path: Path) -> None:
    """The source, which is a single node, is killed, too."""
    with reference_node(tmp_path / "source") as source, RetryingClient([source.port]) as client:
        client.create_topic("mirrored", PARTITIONS, 1, LIMIT_S)
        settings = {
            "clusters": "src, dst",
            "src.bootstrap.servers": source.bootstrap,
            "dst.bootstrap.servers": nodes.bootstrap,
            "src->dst.enabled": "true",
            "src->dst.topics": "mirrored",
            "src->dst.emit.heartbeats.enabled": "false",
            "dst->src.enabled": "false",
            "dst->src.emit.heartbeats.enabled": "false",
            "replication.factor": "3",
            "checkpoints.topic.replication.factor": "3",
            "offset-syncs.topic.replication.factor": "1",
            "sync.topic.acls.enabled": "false",
            "dst.exactly.once.source.support": "enabled",
            "dst.offset.storage.replication.factor": "3",
            "dst.offset.storage.partitions": "1",
            "dst.status.storage.replication.factor": "3",
            "dst.status.storage.partitions": "1",
            "dst.config.storage.replication.factor": "3",
            "dedicated.mode.enable.internal.rest": "true",
            "listeners": f"http://127.0.0.1:{free_port()}",
            "plugin.discovery": "service_load",
        }
        properties = str(write_properties(tmp_path / "mirror.properties", settings))
        main = "org.apache.kafka.connect.mirror.MirrorMaker"
        writer = BackgroundWriter(source.bootstrap, "mirrored", PARTITIONS)
        writer.start()
        with Application("mirror", tmp_path, main, (properties,), applications_classpath()):
            try:
                killer = _killer(nodes, lambda: committed_end(nodes.bootstrap, "src.mirrored", PARTITIONS), LINES_STEP)
                kills = [killer.kill_leader("src.mirrored", 0, ahead=True)]
                source.send_signal(signal.SIGKILL)
                source.back()
                nodes.whole("src.mirrored", PARTITIONS)
                nodes.whole(TRANSACTIONS, 1)
                kills.append(killer.kill_leader(TRANSACTIONS, 0))
            finally:
                writer.end()
            assert writer.failures == []
            _await_records(nodes.bootstrap, "src.mirrored", PARTITIONS, len(writer.acknowledged))
        origin = read_committed(source.bootstrap, "mirrored", PARTITIONS)
    assert _fell_at_work(kills)
    assert sum(map(len, origin.values())) == len(writer.acknowledged)
    assert copy_problems(origin, read_committed(nodes.bootstrap, "src.mirrored", PARTITIONS)) == []
