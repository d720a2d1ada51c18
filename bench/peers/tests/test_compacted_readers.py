"""Readers of a compacted topic get all that the cleaner leaves, after each of its passes, with fetches of any size.

Some idempotent producers write the same key, and so do transactions. Only the last record of the key stays, and an
empty batch for each producer.
"""

import shutil
import subprocess
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench import golang
from bench.peers.captured import capture as captured
from bench.peers.node import BrokerNode
from bench.peers.tests.java_tools import CONSUMER, run_tool
from bench.peers.tests.nodes import reference_node

with warnings.catch_warnings():  # kafka-python reads its schemas in a way that Python 3.11 warns of.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    import kafka

TOPIC = "table"
PRODUCERS = 40
TRANSACTIONS = 4
SMALL, LARGE = 70, 1 << 20
"""Bytes of a fetch. The small one has room for one empty batch."""
LIMIT_S = 30.0
CONFIG = {
    "log.cleaner.backoff.ms": "50",
    "log.retention.check.interval.ms": "50",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "transaction.state.log.num.partitions": "1",
}


class Table:
    """A node with a compacted topic, whose segments close by their age, each with few records."""

    def __init__(self, node: BrokerNode, folder: Path) -> None:
        self.bootstrap = node.bootstrap
        self.expected: dict[bytes, bytes] = {}
        self._passes = 0
        self._cleaned = folder / f"data/{TOPIC}-0/cleaner-offset-checkpoint"
        config = {"cleanup.policy": "compact", "segment.ms": "1", "min.cleanable.dirty.ratio": "0.0"}
        admin = AdminClient({"bootstrap.servers": self.bootstrap})
        admin.create_topics([NewTopic(TOPIC, 1, 1, config=config)])[TOPIC].result(30)

    def write(self) -> None:
        """Write what is superseded, and at last the records that stay. Return when the cleaner has passed."""
        settings = {"bootstrap.servers": self.bootstrap, "enable.idempotence": True}
        producers = [confluent_kafka.Producer(settings) for _ in range(PRODUCERS)]
        for producer in producers:
            producer.produce(TOPIC, b"superseded", b"key", partition=0)
            assert producer.flush(20) == 0
        for transaction in range(TRANSACTIONS):
            self._in_transaction(b"superseded", b"key", commits=transaction % 2 == 0)
        value = b"value of pass %d" % self._passes
        keys = (b"key", b"other", b"pass %d" % self._passes)
        self._passes += 1
        for key in keys:
            self.expected[key] = value
            end = self._in_transaction(value, key, commits=True)
        deadline = time.monotonic() + LIMIT_S
        while self.cleaned() <= end:
            assert time.monotonic() < deadline, f"clean only up to {self.cleaned()} of {end}"
            time.sleep(0.02)

    def _in_transaction(self, value: bytes, key: bytes, *, commits: bool) -> int:
        """Return the offset of the record."""
        offsets: list[int] = []
        producer = confluent_kafka.Producer({"bootstrap.servers": self.bootstrap, "transactional.id": "writer"})
        producer.init_transactions(20)
        producer.begin_transaction()
        producer.produce(TOPIC, value, key, partition=0, on_delivery=lambda _, sent: offsets.append(sent.offset() or 0))
        assert producer.flush(20) == 0
        (producer.commit_transaction if commits else producer.abort_transaction)(20)
        return offsets[0]

    def cleaned(self) -> int:
        """Up to which offset the log is clean."""
        rows = self._cleaned.read_text().split() if self._cleaned.exists() else []
        return int(rows[-1]) if len(rows) > 2 else 0


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Table]:
    folder = tmp_path_factory.mktemp("node")
    with reference_node(folder, CONFIG) as node:
        made = Table(node, folder)
        made.write()
        yield made


def _librdkafka(table: Table, fetch_bytes: int) -> dict[bytes, bytes]:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": table.bootstrap,
            "group.id": "unused",
            "enable.partition.eof": True,
            "fetch.message.max.bytes": fetch_bytes,
            "isolation.level": "read_committed",
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(TOPIC, 0, 0)])
    read: dict[bytes, bytes] = {}
    while (message := consumer.poll(LIMIT_S)) is not None:
        error = message.error()
        if error is not None:
            assert error.code() == confluent_kafka.KafkaError._PARTITION_EOF, error
            break
        read[message.key() or b""] = message.value() or b""
    consumer.close()
    return read


def _kafka_python(table: Table, fetch_bytes: int) -> dict[bytes, bytes]:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=table.bootstrap,
        isolation_level="read_committed",
        max_partition_fetch_bytes=fetch_bytes,
    )
    partition = kafka.TopicPartition(TOPIC, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning()
    end, deadline = consumer.end_offsets([partition])[partition], time.monotonic() + LIMIT_S
    read: dict[bytes, bytes] = {}
    while consumer.position(partition) < end and time.monotonic() < deadline:
        for records in consumer.poll(timeout_ms=100).values():
            read.update({record.key: record.value for record in records})
    consumer.close()
    return read


def _aiokafka(table: Table, fetch_bytes: int) -> dict[bytes, bytes]:
    import asyncio

    async def read_all() -> dict[bytes, bytes]:
        consumer = aiokafka.AIOKafkaConsumer(
            bootstrap_servers=table.bootstrap,
            isolation_level="read_committed",
            max_partition_fetch_bytes=fetch_bytes,
        )
        await consumer.start()
        partition = aiokafka.TopicPartition(TOPIC, 0)
        consumer.assign([partition])
        await consumer.seek_to_beginning(partition)
        end, deadline = (await consumer.end_offsets([partition]))[partition], time.monotonic() + LIMIT_S
        read: dict[bytes, bytes] = {}
        while await consumer.position(partition) < end and time.monotonic() < deadline:
            for records in (await consumer.getmany(timeout_ms=100)).values():
                read.update({record.key: record.value for record in records})
        await consumer.stop()
        return read

    return asyncio.run(read_all())


def _kcat(table: Table, fetch_bytes: int) -> dict[bytes, bytes]:
    if shutil.which("kcat") is None:
        pytest.skip("kcat is not here (Debian: apt-get install kcat)")
    limits = ["-X", f"fetch.message.max.bytes={fetch_bytes}", "-X", "isolation.level=read_committed"]
    command = ["kcat", "-b", table.bootstrap, "-C", "-t", TOPIC, "-p", "0", "-o", "beginning", "-e", "-q", "-K", "="]
    return _pairs(subprocess.run([*command, *limits], capture_output=True, check=True, timeout=LIMIT_S).stdout, b"=")


def _pairs(printed: bytes, between: bytes) -> dict[bytes, bytes]:
    split = (line.partition(between) for line in printed.splitlines())
    return {key: value for key, _, value in split}


def _java(table: Table, fetch_bytes: int) -> dict[bytes, bytes]:
    found = run_tool(
        CONSUMER,
        *("--bootstrap-server", table.bootstrap, "--topic", TOPIC, "--from-beginning"),
        *("--max-messages", str(len(table.expected))),
        *("--isolation-level", "read_committed", "--timeout-ms", "30000", "--property", "print.key=true"),
        *("--consumer-property", f"max.partition.fetch.bytes={fetch_bytes}"),
    )
    return _pairs(found.encode(), b"\t")


def _kafka_go(program: Path) -> "Reads":
    def read(table: Table, fetch_bytes: int) -> dict[bytes, bytes]:
        words = ["kafka-go-reads", table.bootstrap, TOPIC, str(len(table.expected)), str(fetch_bytes)]
        return _pairs(
            subprocess.run([str(program), *words], capture_output=True, check=True, timeout=LIMIT_S).stdout, b"="
        )

    return read


Reads = Callable[[Table, int], dict[bytes, bytes]]


def _all_is_read_after_each_pass(table: Table, readers: Sequence[Reads]) -> None:
    for _ in range(2):
        for reads in readers:
            for fetch_bytes in (SMALL, LARGE):
                assert reads(table, fetch_bytes) == table.expected, (reads, fetch_bytes)
        table.write()


@pytest.mark.live
def test_python_clients_read_all_after_each_pass(table: Table) -> None:
    _all_is_read_after_each_pass(table, [_librdkafka, _kafka_python, _aiokafka])


@pytest.mark.peer
def test_kcat_java_and_kafka_go_read_all_after_each_pass(table: Table, tmp_path: Path) -> None:
    program = tmp_path / "clients"
    golang.build("kafka-go", ["build", "-C", str(captured.FOLDER / "go"), "-o", str(program), "."], program)
    _all_is_read_after_each_pass(table, [_kcat, _java, _kafka_go(program)])
