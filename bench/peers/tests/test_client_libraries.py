"""Records of one client library, read by the others: each compression, both kinds of producers, fetch sessions."""

import asyncio
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import aiokafka
import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.node import BrokerNode

with warnings.catch_warnings():  # kafka-python reads its schemas in a way that Python 3.11 warns of.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    import kafka

if TYPE_CHECKING:
    from bench.peers.tests.conftest import Metrics

pytestmark = pytest.mark.live

CODECS = ("none", "gzip", "snappy", "lz4", "zstd")
WITHOUT_SNAPPY = tuple(codec for codec in CODECS if codec != "snappy")
"""kafka-python needs a C library's binding for snappy, which nothing else here needs."""
EACH = 100


def _values(codec: str) -> list[bytes]:
    return [f"{codec}-{number}".encode() for number in range(EACH)]


def _librdkafka_writes(bootstrap: str, topic: str, codec: str, idempotent: bool = True) -> None:
    failures: list[Any] = []
    producer = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "enable.idempotence": idempotent, "compression.type": codec}
    )
    for value in _values(codec):
        producer.produce(topic, value, partition=0, on_delivery=lambda error, _: failures.append(error))
    assert producer.flush(20) == 0
    assert failures == [None] * EACH


def _kafka_python_writes(bootstrap: str, topic: str, codec: str, idempotent: bool = True) -> None:
    compression = None if codec == "none" else codec
    producer = kafka.KafkaProducer(
        bootstrap_servers=bootstrap, enable_idempotence=idempotent, compression_type=compression
    )
    sent = [producer.send(topic, value, partition=0) for value in _values(codec)]
    producer.flush(20)
    assert [each.get(1).offset for each in sent] == list(range(sent[0].get(1).offset, sent[0].get(1).offset + EACH))
    producer.close()


def _aiokafka_writes(bootstrap: str, topic: str, codec: str, idempotent: bool = True) -> None:
    async def write() -> None:
        compression = None if codec == "none" else codec
        producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap, enable_idempotence=idempotent, compression_type=compression
        )
        await producer.start()
        sent = [await producer.send(topic, value, partition=0) for value in _values(codec)]
        await asyncio.gather(*sent)
        await producer.stop()

    asyncio.run(write())


def _librdkafka_reads(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = confluent_kafka.Consumer(  # librdkafka requires a group ID, and assign() never joins that group.
        {"bootstrap.servers": bootstrap, "group.id": "unused", "enable.auto.commit": False}
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, 0, 0)])
    read: list[bytes] = []
    while len(read) < count and (messages := consumer.consume(count, timeout=2)):
        assert all(message.error() is None for message in messages)
        read += [message.value() or b"" for message in messages]
    consumer.close()
    return read


def _kafka_python_reads(bootstrap: str, topic: str, count: int) -> list[bytes]:
    consumer = kafka.KafkaConsumer(bootstrap_servers=bootstrap, isolation_level="read_committed")
    partition = kafka.TopicPartition(topic, 0)
    consumer.assign([partition])
    consumer.seek_to_beginning()
    read: list[bytes] = []
    while len(read) < count and (response := consumer.poll(timeout_ms=5000)):
        read += [record.value for record in response[partition]]
    consumer.close()
    return read


def _aiokafka_reads(bootstrap: str, topic: str, count: int) -> list[bytes]:
    async def read_all() -> list[bytes]:
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=bootstrap, auto_offset_reset="earliest")
        await consumer.start()
        partition = aiokafka.TopicPartition(topic, 0)
        consumer.assign([partition])
        read: list[bytes] = []
        while len(read) < count and (response := await consumer.getmany(timeout_ms=5000)):
            read += [record.value for record in response[partition]]
        await consumer.stop()
        return read

    return asyncio.run(read_all())


def _create(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(30)


Writes = Callable[[str, str, str, bool], None]
Reads = Callable[[str, str, int], list[bytes]]


@pytest.mark.parametrize(
    ("name", "writes", "codecs", "readers"),
    [
        ("librdkafka", _librdkafka_writes, CODECS, (_aiokafka_reads,)),
        ("librdkafka-for-kafka-python", _librdkafka_writes, WITHOUT_SNAPPY, (_kafka_python_reads,)),
        ("aiokafka", _aiokafka_writes, CODECS, (_librdkafka_reads,)),
        ("aiokafka-for-kafka-python", _aiokafka_writes, WITHOUT_SNAPPY, (_kafka_python_reads,)),
        ("kafka-python", _kafka_python_writes, WITHOUT_SNAPPY, (_librdkafka_reads, _aiokafka_reads)),
    ],
)
def test_each_library_reads_records_of_others(
    node: BrokerNode, name: str, writes: Writes, codecs: Sequence[str], readers: Iterable[Reads]
) -> None:
    _create(node.bootstrap, name)
    ways = [*((codec, True) for codec in codecs), ("none", False), ("gzip", False)]
    for codec, is_idempotent in ways:
        writes(node.bootstrap, name, codec, is_idempotent)
    written = [value for codec, _ in ways for value in _values(codec)]
    for reads in readers:
        assert reads(node.bootstrap, name, len(written)) == written


def test_kafka_python_keeps_one_fetch_session(node: BrokerNode, metrics: "Metrics") -> None:
    _create(node.bootstrap, "session")
    before = metrics.fetch_sessions()
    consumer = kafka.KafkaConsumer(bootstrap_servers=node.bootstrap, auto_offset_reset="earliest")
    partition = kafka.TopicPartition("session", 0)
    consumer.assign([partition])
    for codec in ("none", "gzip"):
        fetches = metrics.requests("Fetch")
        while metrics.requests("Fetch") < fetches + 3:
            assert consumer.poll(timeout_ms=300) == {}
        _librdkafka_writes(node.bootstrap, "session", codec)
        read: list[bytes] = []
        while len(read) < EACH and (response := consumer.poll(timeout_ms=5000)):
            read += [record.value for record in response[partition]]
        assert read == _values(codec)
        assert metrics.fetch_sessions() == before + 1
    consumer.close()


def test_validate_only_creates_nothing(node: BrokerNode) -> None:
    """Kafka's topic tool has no such option; the libraries' admin clients do."""
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("dry", 3, 1)], validate_only=True)["dry"].result(30)
    assert "dry" not in admin.list_topics(timeout=30).topics
    refused = admin.create_topics([NewTopic("dry", 3, 2)], validate_only=True)["dry"]
    with pytest.raises(confluent_kafka.KafkaException, match="INVALID_REPLICATION_FACTOR"):
        refused.result(30)
