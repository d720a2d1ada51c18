"""Records that each client library reads of a topic, from the start to the value END in each partition."""

import asyncio
import time
import warnings
from collections.abc import Callable, Mapping

import aiokafka
import confluent_kafka

from bench.peers.tests.java_tools import JavaTools
from bench.peers.tests.nodes import LIMIT_S
from reference_broker.blocking.consumer import BlockingConsumer
from reference_broker.client.group_consumer import ConsumerConfig
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.partitions import TopicPartition

with warnings.catch_warnings():  # kafka-python reads its schemas in a way that Python 3.11 warns of.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    import kafka

END = b"end"
COMMITTED, UNCOMMITTED = "read_committed", "read_uncommitted"

Found = dict[int, list[tuple[int, bytes]]]
"""By partition the offset and value of each record."""
Reads = Callable[[str, str, int, str], Found]
"""Takes bootstrap, topic, number of partitions and isolation level. Raises AssertionError when END does not come."""


def write_end(bootstrap: str, topic: str, partitions: int) -> None:
    """A record without a transaction to each partition. Readers of committed records see it once no older transaction
    is open."""
    producer = confluent_kafka.Producer({"bootstrap.servers": bootstrap})
    for partition in range(partitions):
        producer.produce(topic, END, partition=partition)
    assert producer.flush(LIMIT_S) == 0


def _gather(partitions: int, poll: Callable[[], list[tuple[int, int, bytes]]]) -> Found:
    found: Found = {number: [] for number in range(partitions)}
    deadline = time.monotonic() + LIMIT_S
    while not all(rows and rows[-1][1] == END for rows in found.values()):
        assert time.monotonic() < deadline, f"no end: { ({each: rows[-1:] for each, rows in found.items()}) }"
        for partition, offset, value in poll():
            found[partition].append((offset, value))
    return found


def librdkafka(bootstrap: str, topic: str, partitions: int, isolation: str) -> Found:
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, number, 0) for number in range(partitions)])

    def poll() -> list[tuple[int, int, bytes]]:
        messages = [each for each in consumer.consume(1000, 0.2) if each.error() is None]
        return [(message.partition() or 0, message.offset() or 0, message.value() or b"") for message in messages]

    try:
        return _gather(partitions, poll)
    finally:
        consumer.close()


def kafka_python(bootstrap: str, topic: str, partitions: int, isolation: str) -> Found:
    consumer = kafka.KafkaConsumer(
        bootstrap_servers=bootstrap.split(","), enable_auto_commit=False, isolation_level=isolation
    )
    where = [kafka.TopicPartition(topic, number) for number in range(partitions)]
    consumer.assign(where)
    consumer.seek_to_beginning(*where)

    def poll() -> list[tuple[int, int, bytes]]:
        batches = consumer.poll(timeout_ms=200).values()
        return [(row.partition, row.offset, row.value) for rows in batches for row in rows]

    try:
        return _gather(partitions, poll)
    finally:
        consumer.close()


def aiokafka_(bootstrap: str, topic: str, partitions: int, isolation: str) -> Found:
    with asyncio.Runner() as runner:

        async def start() -> aiokafka.AIOKafkaConsumer:
            made = aiokafka.AIOKafkaConsumer(
                bootstrap_servers=bootstrap, enable_auto_commit=False, isolation_level=isolation
            )
            await made.start()
            where = [aiokafka.TopicPartition(topic, number) for number in range(partitions)]
            made.assign(where)
            await made.seek_to_beginning(*where)
            return made

        consumer = runner.run(start())

        def poll() -> list[tuple[int, int, bytes]]:
            batches = runner.run(consumer.getmany(timeout_ms=200)).values()
            return [(row.partition, row.offset, row.value or b"") for rows in batches for row in rows]

        try:
            return _gather(partitions, poll)
        finally:
            runner.run(consumer.stop())


def reference(bootstrap: str, topic: str, partitions: int, isolation: str) -> Found:
    """Read with this project's own client."""
    nodes = tuple(NodeAddress(-1, host, int(port)) for host, port in (each.split(":") for each in bootstrap.split(",")))
    settings = FetchSettings(read_committed=isolation == COMMITTED)
    with BlockingConsumer(ConsumerConfig(nodes, metadata_epoch=False, fetch=settings)) as consumer:
        consumer.assign([TopicPartition(topic, number) for number in range(partitions)])

        def poll() -> list[tuple[int, int, bytes]]:
            return [(each.partition, each.offset, each.value or b"") for each in consumer.poll(200)]

        return _gather(partitions, poll)


LIBRARIES: Mapping[str, Reads] = {
    "librdkafka": librdkafka,
    "kafka-python": kafka_python,
    "aiokafka": aiokafka_,
    "reference": reference,
}


def java(bootstrap: str, topic: str, counts: Mapping[int, int], isolation: str) -> Found:
    """Kafka's console consumer, which needs the number of records in each partition."""
    tools = JavaTools(bootstrap)
    return {
        partition: [
            (each.offset, each.value.encode())
            for each in tools.consume(
                topic,
                partition,
                "earliest",
                "--max-messages",
                str(count),
                "--isolation-level",
                isolation,
                "--timeout-ms",
                "20000",
            )
        ]
        for partition, count in counts.items()
    }
