"""Transactions of all client libraries: the outcome of each, and what all of them read, also while nodes are killed."""

import threading
from collections.abc import Iterator
from pathlib import Path

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.kafka import run_java
from bench.peers.node import BrokerNode, PeerError
from bench.peers.tests import transactional_readers as readers
from bench.peers.tests.group_members import quiet, until
from bench.peers.tests.java_tools import dump_segments, run_tool
from bench.peers.tests.nodes import LIMIT_S, ThreeNodes, reference_node, three_nodes
from bench.peers.tests.transactional_readers import COMMITTED, END, UNCOMMITTED, write_end
from bench.peers.tests.transactional_writers import (
    LIBRARIES,
    KafkaPythonProducer,
    Producer,
    TransactionOutcome,
    WriterThread,
)

pytestmark = [
    pytest.mark.peer,
    pytest.mark.timeout(400),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

PERFORMANCE = "org.apache.kafka.tools.ProducerPerformance"
TRANSACTIONS = "org.apache.kafka.tools.TransactionsCommand"
STATES = "__transaction_state"
ONE_COORDINATOR = {"transaction.state.log.num.partitions": "1"}
TOPIC = "shared"
PARTITIONS = 2
ROUNDS = 2
BETWEEN = 5
"""Transactions that each writer commits between two kills."""
PERF_RECORDS = 8000
PERF_THROUGHPUT = 200


@pytest.fixture(scope="module")
def node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BrokerNode]:
    with quiet(), reference_node(tmp_path_factory.mktemp("node"), ONE_COORDINATOR) as running:
        yield running


@pytest.mark.clause("X-1", "X-4", "X-5", "X-8")
@pytest.mark.parametrize("kind", LIBRARIES, ids=lambda kind: kind.__name__)
def test_library_commits_aborts_and_is_fenced(node: BrokerNode, kind: type[Producer]) -> None:
    name = kind.__name__
    _create(node.bootstrap, name, 1)
    first = kind(node.bootstrap, name)
    for value, offset, commits in ((b"a", 3, True), (b"b", 4, False), (b"c", 5, True), (b"d", 6, False)):
        first.begin()
        first.send(name, 0, value)
        first.flush()
        first.send_offset(name, 0, offset, f"group-{name}")
        (first.commit if commits else first.abort)()
        assert _committed_offset(node.bootstrap, f"group-{name}", name) == (offset if commits else offset - 1)
    second = kind(node.bootstrap, name)
    with pytest.raises(kind.errors):  # noqa: PT012 - Each library reports it at another step.
        first.begin()
        first.send(name, 0, b"fenced")
        first.commit()
    second.begin()
    second.send(name, 0, b"e")
    second.commit()
    first.close()
    second.close()
    write_end(node.bootstrap, name, 1)
    for reads in readers.LIBRARIES.values():
        (found,) = reads(node.bootstrap, name, 1, COMMITTED).values()
        assert [value for _, value in found] == [b"a", b"c", b"e", END]
        (found,) = reads(node.bootstrap, name, 1, UNCOMMITTED).values()
        assert [value for _, value in found] == [b"a", b"b", b"c", b"d", b"e", END]


@pytest.mark.clause("X-2", "X-3", "X-5", "X-14")
def test_all_write_one_topic_while_coordinators_and_leaders_are_killed(tmp_path: Path) -> None:
    with quiet(), three_nodes(tmp_path, ONE_COORDINATOR) as nodes:
        nodes.create(TOPIC, PARTITIONS)
        in_peace = _written_in_peace(nodes, KafkaPythonProducer)
        kinds = [kind for kind in LIBRARIES if kind is not KafkaPythonProducer]
        writers = [WriterThread(kind, nodes.bootstrap, TOPIC, PARTITIONS) for kind in kinds]
        perf = Performance(nodes.bootstrap)
        for writer in (*writers, perf):
            writer.start()
        try:
            for _ in range(ROUNDS):
                _kill(nodes, STATES, 0, writers)
                _kill(nodes, TOPIC, 0, writers)
        finally:
            for writer in writers:
                writer.end()
            perf.join(LIMIT_S * 2)
        assert [(thread.name, thread.failure) for thread in writers] == [(thread.name, None) for thread in writers]
        assert f"{PERF_RECORDS} records sent" in perf.printed
        writers.append(in_peace)
        write_end(nodes.bootstrap, TOPIC, PARTITIONS)
        found = readers.librdkafka(nodes.bootstrap, TOPIC, PARTITIONS, COMMITTED)
        _judge(found, writers)
        counts = {partition: len(rows) for partition, rows in found.items()}
        assert readers.java(nodes.bootstrap, TOPIC, counts, COMMITTED) == found
        for name, reads in readers.LIBRARIES.items():
            assert reads(nodes.bootstrap, TOPIC, PARTITIONS, COMMITTED) == found, name
        _all_complete(nodes, {*(thread.name for thread in writers), "perf"})
        segments = sorted(tmp_path.glob(f"**/{STATES}-0/*.log"))
        assert segments
        assert '"transactionalId":"perf"' in dump_segments(segments, "--transaction-log-decoder")


class Performance(threading.Thread):
    """``kafka-producer-perf-test`` with transactions of 100 ms, whose values are the numbers from 0."""

    def __init__(self, bootstrap: str) -> None:
        super().__init__(daemon=True)
        self.printed = ""
        self._servers = bootstrap

    def run(self) -> None:
        words = ["--topic", TOPIC, "--num-records", str(PERF_RECORDS), "--throughput", str(PERF_THROUGHPUT)]
        words += ["--payload-monotonic", "--transactional-id", "perf", "--transaction-duration-ms", "100"]
        words += ["--producer-props", f"bootstrap.servers={self._servers}", "enable.metrics.push=false"]
        try:
            self.printed, _ = run_java(PERFORMANCE, words, LIMIT_S * 4, ["-Xmx256m"])
        except PeerError as failure:
            self.printed = str(failure)


def _written_in_peace(nodes: ThreeNodes, kind: type[Producer]) -> WriterThread:
    """For kafka-python 3.0.12: it drops its request when the coordinator refuses its connection, and its commit then
    waits for ever."""
    writer = WriterThread(kind, nodes.bootstrap, TOPIC, PARTITIONS)
    writer.start()
    _await_commits([writer])
    writer.end()
    assert writer.errors == []
    return writer


def _kill(nodes: ThreeNodes, topic: str, partition: int, writers: list[WriterThread]) -> None:
    """Each writer commits before it and after it."""
    _await_commits(writers)
    killed = nodes.kill_leader(topic, partition)
    _await_commits(writers)
    nodes.bring_back(killed)
    nodes.whole(STATES, 1)
    nodes.whole(TOPIC, PARTITIONS)


def _await_commits(writers: list[WriterThread]) -> None:
    wanted = {writer.name: writer.committed + BETWEEN for writer in writers}

    def all_went_on() -> bool:
        assert [(writer.name, writer.failure) for writer in writers] == [(writer.name, None) for writer in writers]
        return all(writer.committed >= wanted[writer.name] for writer in writers)

    try:
        until("commits", all_went_on, LIMIT_S)
    except AssertionError as failure:
        found = [f"{writer.name}: {writer.committed - wanted[writer.name]}, {writer.errors[-3:]}" for writer in writers]
        raise AssertionError(f"{failure}: {found}") from failure


def _judge(result: readers.Found, writers: list[WriterThread]) -> None:
    """Assert that committed values are in each partition once and in order, aborted ones in none, and others in all or
    none."""
    values = {partition: [value for _, value in rows] for partition, rows in result.items()}
    for writer in writers:
        own = {partition: [row for row in rows if row in writer.outcomes] for partition, rows in values.items()}
        assert own[0] == own[1]
        assert own[0] == [outcome for outcome in writer.outcomes if outcome in set(own[0])]
        by_outcome = {
            outcome: {each for each, seen in writer.outcomes.items() if seen is outcome}
            for outcome in TransactionOutcome
        }
        assert by_outcome[TransactionOutcome.COMMITTED] <= set(own[0])
        assert not by_outcome[TransactionOutcome.ABORTED] & set(own[0])
    numbers = [int(value) for rows in values.values() for value in rows if value.isdigit()]
    assert sorted(numbers) == list(range(PERF_RECORDS))


def _all_complete(nodes: ThreeNodes, ids: set[str]) -> None:
    """Assert that ``kafka-transactions`` lists all of these IDs, without an open transaction."""
    printed = run_tool(TRANSACTIONS, "--bootstrap-server", nodes.bootstrap, "list")
    rows = {line.split()[0]: line.split()[-1] for line in printed.splitlines()[1:]}
    assert set(rows) == ids
    assert all(state.startswith("Complete") or state == "Empty" for state in rows.values()), rows


def _create(bootstrap: str, topic: str, partitions: int) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, partitions, 1)])[topic].result(20)


def _committed_offset(bootstrap: str, group: str, topic: str) -> int:
    consumer = confluent_kafka.Consumer({"bootstrap.servers": bootstrap, "group.id": group})
    try:
        (seen,) = consumer.committed([confluent_kafka.TopicPartition(topic, 0)], LIMIT_S)
        return seen.offset
    finally:
        consumer.close()
