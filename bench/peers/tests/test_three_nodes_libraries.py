"""Client libraries on three nodes with replicas, while leaders are killed: every record once, in order."""

import gc
import logging
import threading
import time
import warnings
from collections.abc import Iterator

import confluent_kafka
import pytest

from bench.peers.tests.nodes import LIMIT_S, ThreeNodes, three_nodes
from bench.peers.tests.writing import BackgroundWriter

with warnings.catch_warnings():  # kafka-python reads its schemas in a way that Python 3.11 warns of.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    import kafka

pytestmark = [pytest.mark.peer, pytest.mark.timeout(500)]

KILLS = 10
WITH_SESSIONS_KILLS = 3
BETWEEN = 200
"""Records that must be acknowledged between two kills."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    with three_nodes(tmp_path_factory.mktemp("three")) as running:
        yield running


def _kill_again_and_again(nodes: ThreeNodes, topic: str, kills: int, writer: BackgroundWriter) -> list[int]:
    """The nodes that were killed; each was back in sync before the next."""
    killed = []
    for _ in range(kills):
        writer.await_progress(BETWEEN)
        killed.append(nodes.kill_leader(topic, 0))
        writer.await_progress(1)
        nodes.bring_back(killed[-1])
        nodes.whole(topic, 1)
    writer.await_progress(BETWEEN)
    return killed


def _read(nodes: ThreeNodes, topic: str, count: int) -> list[int]:
    """All of it by librdkafka, and whatever comes within two seconds after that."""
    consumer = confluent_kafka.Consumer(
        {"bootstrap.servers": nodes.bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    read: list[int] = []
    while messages := consumer.consume(10_000, timeout=2.0 if len(read) >= count else LIMIT_S / 3):
        assert all(message.error() is None for message in messages), [str(m.error()) for m in messages if m.error()]
        read += [int(message.value() or b"") for message in messages]
    consumer.close()
    return read


def test_idempotent_producer_through_ten_leader_kills(nodes: ThreeNodes) -> None:
    nodes.create("kills", 1)
    writer = BackgroundWriter(nodes.bootstrap, "kills")
    writer.start()
    try:
        killed = _kill_again_and_again(nodes, "kills", KILLS, writer)
    finally:
        writer.end()
    assert len(killed) == KILLS
    assert len(set(killed)) > 1
    assert writer.failures == []
    assert writer.acknowledged == list(range(writer.sent))
    assert _read(nodes, "kills", writer.sent) == list(range(writer.sent))


@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
def test_kafka_python_reads_in_its_sessions_through_leader_kills(
    nodes: ThreeNodes, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "kafka")  # Kept log lines would keep its sockets.
    nodes.create("sessions", 1)
    writer = BackgroundWriter(nodes.bootstrap, "sessions")
    reader = GroupReader(nodes.bootstrap, "sessions")
    writer.start()
    reader.start()
    try:
        _kill_again_and_again(nodes, "sessions", WITH_SESSIONS_KILLS, writer)
    finally:
        writer.end()
        reader.end_at(writer.sent)
    assert writer.failures == []
    assert reader.read == list(range(writer.sent))
    assert reader.offsets == list(range(writer.sent))


class GroupReader(threading.Thread):
    """kafka-python, which uses incremental fetch sessions: all of one partition, as it comes."""

    def __init__(self, bootstrap: str, topic: str) -> None:
        super().__init__()
        self.read: list[int] = []
        self.offsets: list[int] = []
        self._end: int | None = None
        self._partition = kafka.TopicPartition(topic, 0)
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            auto_offset_reset="none",
            enable_auto_commit=False,
            enable_incremental_fetch_sessions=True,
            metadata_max_age_ms=1_000,
        )
        self._consumer.assign([self._partition])
        self._consumer.seek(self._partition, 0)

    def run(self) -> None:
        while self._end is None or len(self.read) < self._end:
            for record in self._consumer.poll(timeout_ms=200).get(self._partition, []):
                self.read.append(int(record.value))
                self.offsets.append(record.offset)
            if self._end is not None and time.monotonic() > self._deadline:
                break
        self._consumer.close()

    def end_at(self, count: int) -> None:
        """Wait until this number of records is read, or for a minute."""
        self._deadline = time.monotonic() + LIMIT_S
        self._end = count
        self.join(LIMIT_S * 2)
        del self._consumer
        gc.collect()  # Sockets that it could not connect are left to the garbage collector, which warns of them.
