"""Faults that an application with confluent-kafka has to survive. Each test has a topic and a group of its own."""

from contextlib import closing

import pytest
from confluent_kafka import Consumer, Message, Producer

from crucible_kafka import SharedCluster

pytestmark = pytest.mark.kafka(nodes=3)  # Three processes, started once for all tests of this file.


def make_producer(kafka: SharedCluster, **settings: str) -> Producer:
    return Producer({"bootstrap.servers": kafka.bootstrap_servers, "enable.idempotence": True, **settings})


def make_consumer(kafka: SharedCluster, topic: str, group: str) -> Consumer:
    settings = {"group.id": group, "auto.offset.reset": "earliest", "enable.auto.commit": False}
    consumer = Consumer({"bootstrap.servers": kafka.bootstrap_servers, **settings})
    consumer.subscribe([topic])
    return consumer


def send(producer: Producer, topic: str, *values: bytes) -> None:
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(20) == 0


def read(consumer: Consumer, count: int) -> list[Message]:
    messages = consumer.consume(count, timeout=20)
    assert len(messages) == count
    return messages


def test_a_commit_whose_response_is_lost_holds(kafka: SharedCluster) -> None:
    orders, group = kafka.topic("orders"), kafka.name("billing")
    send(make_producer(kafka), orders, b"a", b"b")
    lost = kafka.on("OffsetCommit", group=group).drop_response(times=1)
    with closing(make_consumer(kafka, orders, group)) as consumer:
        read(consumer, 2)
        consumer.commit(asynchronous=False)
    lost.assert_fired()
    assert kafka.committed(group) == {(orders, 0): 2}


def test_a_group_goes_on_when_its_coordinator_moves(kafka: SharedCluster) -> None:
    orders, group = kafka.topic("orders"), kafka.name("billing")
    producer = make_producer(kafka)
    with closing(make_consumer(kafka, orders, group)) as consumer:
        send(producer, orders, b"before")
        read(consumer, 1)
        kafka.move_coordinator(group)
        send(producer, orders, b"after")
        assert [message.value() for message in read(consumer, 1)] == [b"after"]
        consumer.commit(asynchronous=False)
    assert kafka.committed(group) == {(orders, 0): 2}


def test_nothing_is_lost_or_repeated_when_the_leader_is_killed(kafka: SharedCluster) -> None:
    orders = kafka.topic("orders", replicas=3)
    sent, producer = kafka.sent(), make_producer(kafka)
    for number in range(100):
        producer.produce(orders, sent.next(), on_delivery=sent.delivered)
        if number == 50:
            kafka.node(kafka.leader(orders)).kill()
    assert producer.flush(20) == 0
    kafka.assert_delivered(sent, kafka.records(orders), "exactly-once")


def test_a_producer_with_stale_metadata_finds_the_new_leader(kafka: SharedCluster) -> None:
    orders = kafka.topic("orders", replicas=3)
    producer = make_producer(kafka)
    send(producer, orders, b"to the old leader")
    old, new = kafka.leader(orders), kafka.move_leader(orders)
    send(producer, orders, b"to the new leader")
    assert {frame.node for frame in kafka.frames(api="Produce")} == {old, new}
    assert [record.value for record in kafka.records(orders)] == [b"to the old leader", b"to the new leader"]


def test_an_aborted_transaction_is_not_read(kafka: SharedCluster) -> None:
    orders = kafka.topic("orders")
    producer = make_producer(kafka, **{"transactional.id": kafka.name("writer")})
    producer.init_transactions(20)
    for value, end in ((b"aborted", producer.abort_transaction), (b"committed", producer.commit_transaction)):
        producer.begin_transaction()
        send(producer, orders, value)
        end(20)
    with closing(make_consumer(kafka, orders, kafka.name("billing"))) as consumer:
        assert [message.value() for message in read(consumer, 1)] == [b"committed"]
    assert [record.committed for record in kafka.records(orders)] == [False, True]
