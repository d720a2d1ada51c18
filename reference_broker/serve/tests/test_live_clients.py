"""Unmodified clients against a broker process: topics, produce, assigned consumers, offsets."""

import asyncio
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from reference_broker.serve.tests.conftest import Broker

pytestmark = pytest.mark.live

RECORDS = 300


def test_librdkafka_creates_produces_and_reads_back(broker: "Broker") -> None:
    import confluent_kafka
    from confluent_kafka.admin import AdminClient, ConfigResource, NewPartitions, NewTopic

    admin = AdminClient({"bootstrap.servers": broker.listen})
    admin.create_topics([NewTopic("birds", 2, 1, config={"retention.ms": "3600000"})])["birds"].result(30)
    admin.create_partitions([NewPartitions("birds", 3)])["birds"].result(30)
    described = admin.describe_configs([ConfigResource(ConfigResource.Type.TOPIC, "birds")])
    assert next(iter(described.values())).result(30)["retention.ms"].value == "3600000"
    assert len(admin.list_topics("birds", timeout=30).topics["birds"].partitions) == 3

    failures: list[Any] = []
    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        producer = confluent_kafka.Producer(
            {"bootstrap.servers": broker.listen, "enable.idempotence": True, "compression.type": codec}
        )
        for number in range(RECORDS):
            producer.produce(
                "birds",
                value=f"{codec}-{number}",
                key=str(number),
                partition=1,
                on_delivery=lambda error, _: failures.append(error) if error else None,
            )
        assert producer.flush(10) == 0
    assert failures == []

    # Without groups there is no coordinator to commit to; closing would wait for one.
    settings = {"bootstrap.servers": broker.listen, "group.id": "unused", "enable.auto.commit": False}
    consumer = confluent_kafka.Consumer(settings)
    consumer.assign([confluent_kafka.TopicPartition("birds", 1, 0)])
    read: list[str] = []
    while len(read) < 5 * RECORDS:
        messages = consumer.consume(100, timeout=5)
        assert messages, f"only {len(read)} records came"
        assert all(message.error() is None for message in messages)
        read += [(message.value() or b"").decode() for message in messages]
    assert read == [f"{codec}-{n}" for codec in ("none", "gzip", "snappy", "lz4", "zstd") for n in range(RECORDS)]
    low, high = consumer.get_watermark_offsets(confluent_kafka.TopicPartition("birds", 1), timeout=5)
    assert (low, high) == (0, 5 * RECORDS)
    consumer.close()

    admin.delete_records([confluent_kafka.TopicPartition("birds", 1, 100)])
    admin.delete_topics(["birds"])["birds"].result(30)
    assert "birds" not in admin.list_topics(timeout=30).topics


def test_kafka_python_reads_back_through_fetch_sessions(broker: "Broker") -> None:
    import kafka
    from kafka.admin import KafkaAdminClient, NewTopic

    admin = KafkaAdminClient(bootstrap_servers=broker.listen)
    admin.create_topics([NewTopic("fish", 3, 1)])
    producer = kafka.KafkaProducer(bootstrap_servers=broker.listen, acks="all")
    for number in range(RECORDS):
        producer.send("fish", value=str(number).encode(), partition=number % 3)
    producer.flush(10)
    consumer = kafka.KafkaConsumer(bootstrap_servers=broker.listen, auto_offset_reset="earliest")
    partitions = [kafka.TopicPartition("fish", each) for each in range(3)]
    consumer.assign(partitions)
    consumer.seek_to_beginning()
    read: list[int] = []
    for _ in range(50):
        for records in consumer.poll(timeout_ms=1000).values():
            read += [int(record.value) for record in records]
        if len(read) >= RECORDS:
            break
    assert sorted(read) == list(range(RECORDS))
    assert consumer.end_offsets(partitions) == dict.fromkeys(partitions, RECORDS // 3)
    consumer.close()
    producer.close()
    admin.close()


def test_aiokafka_reads_back(broker: "Broker") -> None:
    import aiokafka
    from aiokafka.admin import AIOKafkaAdminClient, NewTopic

    async def round_trip() -> list[int]:
        admin = AIOKafkaAdminClient(bootstrap_servers=broker.listen)
        await admin.start()
        await admin.create_topics([NewTopic("snakes", 2, 1)])
        await admin.close()
        producer = aiokafka.AIOKafkaProducer(bootstrap_servers=broker.listen, acks="all", enable_idempotence=True)
        await producer.start()
        for number in range(RECORDS):
            await producer.send("snakes", str(number).encode(), partition=number % 2)
        await producer.stop()
        consumer = aiokafka.AIOKafkaConsumer(bootstrap_servers=broker.listen, auto_offset_reset="earliest")
        await consumer.start()
        consumer.assign([aiokafka.TopicPartition("snakes", each) for each in range(2)])
        read: list[int] = []
        while len(read) < RECORDS:
            batches = await consumer.getmany(timeout_ms=3000)
            assert batches, f"only {len(read)} records came"
            for records in batches.values():
                read += [int(record.value) for record in records]
        await consumer.stop()
        return read

    assert sorted(asyncio.run(round_trip())) == list(range(RECORDS))
