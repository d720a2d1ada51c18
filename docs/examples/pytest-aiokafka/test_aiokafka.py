"""Faults that an application with aiokafka has to survive. Each test has a topic and a group of its own."""

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from crucible_kafka import SharedCluster

pytest_plugins = ["async_tests"]
pytestmark = pytest.mark.kafka(nodes=3)  # Three processes, started once for all tests of this file.


def make_producer(kafka: SharedCluster, **settings: str) -> AIOKafkaProducer:
    return AIOKafkaProducer(bootstrap_servers=kafka.bootstrap_servers, enable_idempotence=True, **settings)


def make_consumer(kafka: SharedCluster, topic: str, group: str) -> AIOKafkaConsumer:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "isolation_level": "read_committed"}
    return AIOKafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers, group_id=group, **settings)


async def test_a_commit_whose_response_is_lost_holds(kafka: SharedCluster) -> None:
    orders, group = kafka.topic("orders"), kafka.name("billing")
    async with make_producer(kafka) as producer:
        await producer.send_and_wait(orders, b"a")
    lost = kafka.on("OffsetCommit", group=group).drop_response(times=1)
    async with make_consumer(kafka, orders, group) as consumer:
        await consumer.getone()
        await consumer.commit()
    lost.assert_fired()
    assert kafka.committed(group) == {(orders, 0): 1}


async def test_a_group_goes_on_when_its_coordinator_moves(kafka: SharedCluster) -> None:
    orders, group = kafka.topic("orders"), kafka.name("billing")
    async with make_producer(kafka) as producer, make_consumer(kafka, orders, group) as consumer:
        await producer.send_and_wait(orders, b"before")
        await consumer.getone()
        kafka.move_coordinator(group)
        await producer.send_and_wait(orders, b"after")
        assert (await consumer.getone()).value == b"after"
        await consumer.commit()
    assert kafka.committed(group) == {(orders, 0): 2}


async def test_nothing_is_lost_or_repeated_when_the_leader_is_killed(kafka: SharedCluster) -> None:
    orders = kafka.topic("orders", replicas=3)
    values = kafka.values(100)
    async with make_producer(kafka) as producer:
        futures = [await producer.send(orders, value) for value in values[:50]]
        kafka.node(kafka.leader(orders)).kill()
        futures += [await producer.send(orders, value) for value in values[50:]]
        for future in futures:
            await future
    kafka.assert_delivered(values, kafka.records(orders), "exactly-once")


async def test_a_producer_with_stale_metadata_finds_the_new_leader(kafka: SharedCluster) -> None:
    orders = kafka.topic("orders", replicas=3)
    async with make_producer(kafka) as producer:
        await producer.send_and_wait(orders, b"to the old leader")
        old, new = kafka.leader(orders), kafka.move_leader(orders)
        await producer.send_and_wait(orders, b"to the new leader")
    assert {frame.node for frame in kafka.frames(api="Produce")} == {old, new}
    assert [record.value for record in kafka.records(orders)] == [b"to the old leader", b"to the new leader"]


async def test_an_aborted_transaction_is_not_read(kafka: SharedCluster) -> None:
    orders = kafka.topic("orders")
    async with make_producer(kafka, transactional_id=kafka.name("writer")) as producer:
        await producer.begin_transaction()
        await producer.send_and_wait(orders, b"aborted")
        await producer.abort_transaction()
        async with producer.transaction():
            await producer.send_and_wait(orders, b"committed")
    async with make_consumer(kafka, orders, kafka.name("billing")) as consumer:
        assert (await consumer.getone()).value == b"committed"
    assert [record.committed for record in kafka.records(orders)] == [False, True]
