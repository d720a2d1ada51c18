"""Client libraries with ``client.rack`` read from the follower in their rack, and from the leader while it is away."""

import gc
import json
import logging
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import confluent_kafka
import pytest

from bench.peers.cluster import until
from bench.peers.tests.nodes import LIMIT_S, ThreeNodes, three_nodes
from bench.peers.tests.writing import BackgroundWriter
from reference_broker.blocking.consumer import BlockingConsumer
from reference_broker.client.group_consumer import ConsumerConfig
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.partitions import TopicPartition

with warnings.catch_warnings():  # kafka-python reads its schemas in a way that Python 3.11 warns of.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    import kafka

pytestmark = [pytest.mark.peer, pytest.mark.timeout(300)]

CONFIG = {
    "broker.rack": "rack-{node}",
    "replica.selector.class": "org.apache.kafka.common.replica.RackAwareReplicaSelector",
}
LATELY_S = 1.0
MORE = 200
"""Records that must be read before the next step."""


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreeNodes]:
    with three_nodes(tmp_path_factory.mktemp("three"), CONFIG) as running:
        yield running


class Library(Protocol):
    """One library's consumer of partition 0 from its beginning."""

    def poll(self) -> list[int]:
        """Return the numbers in the records that came."""
        ...

    def source(self) -> int:
        """Return the node that is not the leader and that the library reads from, or -1 if it reads from the
        leader."""
        ...

    def close(self) -> None: ...


class LibrdkafkaReader:
    def __init__(self, bootstrap: str, topic: str, rack: str) -> None:
        self._topic, self._source = topic, -1
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": bootstrap,
                "client.rack": rack,
                "group.id": "unused",
                "enable.auto.commit": False,
                "topic.metadata.refresh.interval.ms": 500,
                "statistics.interval.ms": 100,
                "stats_cb": self._statistics,
            }
        )
        self._consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])

    def _statistics(self, text: str) -> None:
        partition: dict[str, Any] = json.loads(text)["topics"].get(self._topic, {}).get("partitions", {}).get("0", {})
        broker, leader = int(partition.get("broker", -1)), int(partition.get("leader", -1))
        self._source = broker if broker != leader else -1

    def poll(self) -> list[int]:
        messages = self._consumer.consume(1000, timeout=0.2)
        assert not [message.error() for message in messages if message.error() is not None]
        return [int(message.value() or b"") for message in messages]

    def source(self) -> int:
        return self._source

    def close(self) -> None:
        self._consumer.close()


class KafkaPythonReader:
    """kafka-python forgets a follower whose response names none, so it fetches from the leader every other time.
    ``source`` is the follower that the leader has named lately."""

    def __init__(self, bootstrap: str, topic: str, rack: str) -> None:
        self._partition = kafka.TopicPartition(topic, 0)
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=bootstrap.split(","),
            client_rack=rack,
            auto_offset_reset="none",
            enable_auto_commit=False,
            metadata_max_age_ms=1_000,
        )
        self._consumer.assign([self._partition])
        self._consumer.seek(self._partition, 0)
        self._named, self._named_at = -1, 0.0
        state = self._consumer._subscription.assignment[self._partition]
        update = state.update_preferred_read_replica

        def noted(node_id: int | None, expires_at: float) -> bool:
            if node_id is not None and node_id >= 0:
                self._named, self._named_at = node_id, time.monotonic()
            return bool(update(node_id, expires_at))

        state.update_preferred_read_replica = noted

    def poll(self) -> list[int]:
        return [int(record.value) for record in self._consumer.poll(timeout_ms=200).get(self._partition, [])]

    def source(self) -> int:
        return self._named if time.monotonic() - self._named_at < LATELY_S else -1

    def close(self) -> None:
        self._consumer.close()
        del self._consumer
        gc.collect()  # Sockets that it could not connect are left to the garbage collector, which warns of them.


class Ours:
    def __init__(self, bootstrap: str, topic: str, rack: str) -> None:
        addresses = [each.rpartition(":") for each in bootstrap.split(",")]
        config = ConsumerConfig(
            tuple(NodeAddress(-1, host, int(port)) for host, _, port in addresses),
            metadata_epoch=False,
            fetch=FetchSettings(rack=rack, reset="none"),
            metadata_max_age_us=1_000_000,
        )
        self._partition = TopicPartition(topic, 0)
        self._consumer = BlockingConsumer(config)
        self._consumer.assign([self._partition])
        self._consumer.seek(self._partition, 0)

    def poll(self) -> list[int]:
        return [int(record.value or b"") for record in self._consumer.poll(timeout_ms=200)]

    def source(self) -> int:
        preferred = self._consumer.consumer._fetches._replicas._preferred.get(self._partition)
        return -1 if preferred is None else preferred.node_id

    def close(self) -> None:
        self._consumer.close()


class ReaderThread(threading.Thread):
    """Read until it is ended. What it read and where it reads now is kept."""

    def __init__(self, library: Library) -> None:
        super().__init__()
        self.read: list[int] = []
        self.source = -1
        self.failure: BaseException | None = None
        self._library = library
        self._ends = threading.Event()

    def run(self) -> None:
        try:
            while not self._ends.is_set():
                self.read += self._library.poll()
                self.source = self._library.source()
        except BaseException as failure:
            self.failure = failure
        finally:
            self._library.close()

    def end(self) -> None:
        self._ends.set()
        self.join(LIMIT_S)

    def await_more(self, records: int = MORE) -> None:
        wanted = len(self.read) + records
        until(lambda: len(self.read) >= wanted or self.failure is not None, LIMIT_S, f"reading {wanted} records")

    def await_source(self, node_id: int) -> None:
        until(lambda: self.source == node_id or self.failure is not None, LIMIT_S, f"reading from node {node_id}")


@pytest.mark.clause("FetchFromFollowerIntegrationTest.testFetchFromFollowerWithRoll")
@pytest.mark.filterwarnings("ignore:unclosed <socket:ResourceWarning")
@pytest.mark.parametrize("library", [LibrdkafkaReader, KafkaPythonReader, Ours])
def test_consumer_reads_from_follower_and_survives_its_death(
    nodes: ThreeNodes, library: Callable[[str, str, str], Library], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.CRITICAL, "kafka")  # Kept log lines would keep its sockets.
    topic = library.__name__.lower()
    led = nodes.create(topic, 1)[0]
    follower = next(replica for replica in led.replicas if replica != led.leader)
    member = nodes.cluster.members[follower]
    writer, reader = (
        BackgroundWriter(nodes.bootstrap, topic),
        ReaderThread(library(nodes.bootstrap, topic, f"rack-{follower}")),
    )
    writer.start()
    reader.start()
    try:
        reader.await_source(follower)
        reader.await_more()
        member.send_signal(signal.SIGKILL)
        member.reap()
        reader.await_more()
        nodes.bring_back(follower)
        nodes.whole(topic, 1)
        reader.await_source(follower)
        reader.await_more()
        writer.end()
        until(lambda: len(reader.read) >= writer.sent, LIMIT_S, "reading the rest")
    finally:
        writer.end()
        reader.end()
    assert reader.failure is None
    assert writer.failures == []
    assert reader.read == list(range(writer.sent))
