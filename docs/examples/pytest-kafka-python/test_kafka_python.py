"""Faults that an application with kafka-python has to survive. Each test has a topic and a group of its own."""

from contextlib import closing

import pytest
from kafka import KafkaConsumer, KafkaProducer
from kafka.consumer.fetcher import ConsumerRecord

from crucible_kafka import SharedCluster

pytestmark = pytest.mark.kafka(nodes=3)  # Three processes, started once for all tests of this file.


def make_producer(kafka: SharedCluster, **settings: str) -> KafkaProducer:
    return KafkaProducer(bootstrap_servers=kafka.bootstrap_servers, enable_idempotence=True, **settings)


def make_consumer(kafka: SharedCluster, topic: str, group: str) -> KafkaConsumer:
    settings = {"auto_offset_reset": "earliest", "enable_auto_commit": False, "isolation_level": "read_committed"}
    return KafkaConsumer(topic, bootstrap_servers=kafka.bootstrap_servers, group_id=group, **settings)


def read(consumer: KafkaConsumer, count: int) -> list[ConsumerRecord]:
    return [next(consumer) for _ in range(count)]


def test_a_commit_whose_response_is_lost_holds(kafka: SharedCluster) -> None:
    orders, group = kafka.topic("orders"), kafka.name("billing")
    with closing(make_producer(kafka)) as producer:
        producer.send(orders, b"a").get(20)
    lost = kafka.on("OffsetCommit", group=group).drop_response(times=1)
    with closing(make_consumer(kafka, orders, group)) as consumer:
        read(consumer, 1)
        consumer.commit()
    lost.assert_fired()
    assert kafka.committed(group) == {(orders, 0): 1}


def test_a_group_goes_on_when_its_coordinator_moves(kafka: SharedCluster) -> None:
    orders, group = kafka.topic("orders"), kafka.name("billing")
    with closing(make_producer(kafka)) as producer, closing(make_consumer(kafka, orders, group)) as consumer:
        producer.send(orders, b"before").get(20)
        read(consumer, 1)
        kafka.move_coordinator(group)
        producer.send(orders, b"after").get(20)
        assert [record.value for record in read(consumer, 1)] == [b"after"]
        consumer.commit()
    assert kafka.committed(group) == {(orders, 0): 2}


def test_nothing_is_lost_or_repeated_when_the_leader_is_killed(kafka: SharedCluster) -> None:
    orders = kafka.topic("orders", replicas=3)
    values = kafka.values(100)
    with closing(make_producer(kafka)) as producer:
        for value in values[:50]:
            producer.send(orders, value)
        kafka.node(kafka.leader(orders)).kill()
        futures = [producer.send(orders, value) for value in values[50:]]
        producer.flush(20)
    assert all(future.succeeded() for future in futures)
    kafka.assert_delivered(values, kafka.records(orders), "exactly-once")


def test_a_producer_with_stale_metadata_finds_the_new_leader(kafka: SharedCluster) -> None:
    orders = kafka.topic("orders", replicas=3)
    with closing(make_producer(kafka)) as producer:
        producer.send(orders, b"to the old leader").get(20)
        old, new = kafka.leader(orders), kafka.move_leader(orders)
        producer.send(orders, b"to the new leader").get(20)
    assert {frame.node for frame in kafka.frames(api="Produce")} == {old, new}
    assert [record.value for record in kafka.records(orders)] == [b"to the old leader", b"to the new leader"]


def test_an_aborted_transaction_is_not_read(kafka: SharedCluster) -> None:
    orders = kafka.topic("orders")
    with closing(make_producer(kafka, transactional_id=kafka.name("writer"))) as producer:
        producer.init_transactions()
        for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
            producer.begin_transaction()
            producer.send(orders, value).get(20)
            end()
    with closing(make_consumer(kafka, orders, kafka.name("billing"))) as consumer:
        assert [record.value for record in read(consumer, 1)] == [b"committed"]
    assert [record.committed for record in kafka.records(orders)] == [False, True]
