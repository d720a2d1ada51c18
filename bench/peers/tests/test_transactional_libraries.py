"""Transactions of librdkafka's producer: what its consumers see of committed, aborted and fenced ones."""

import confluent_kafka
import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from bench.peers.node import BrokerNode

pytestmark = pytest.mark.live

PARTITIONS = 3
TIMEOUT_S = 30
NOTHING_STORED = -1001
"""librdkafka's value for a missing offset."""


def producer(bootstrap: str, transactional_id: str) -> confluent_kafka.Producer:
    made = confluent_kafka.Producer(
        {"bootstrap.servers": bootstrap, "transactional.id": transactional_id, "transaction.timeout.ms": 10_000}
    )
    made.init_transactions(TIMEOUT_S)
    return made


def writes(made: confluent_kafka.Producer, topic: str, *values: bytes, commits: bool = True) -> None:
    made.begin_transaction()
    for number, value in enumerate(values):
        made.produce(topic, value, partition=number % PARTITIONS)
    assert made.flush(TIMEOUT_S) == 0
    (made.commit_transaction if commits else made.abort_transaction)(TIMEOUT_S)


def reads(bootstrap: str, topic: str, count: int, isolation: str = "read_committed") -> list[bytes]:
    """Return at least ``count`` values, and those that follow within a second."""
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": bootstrap,
            "group.id": "unused",
            "enable.auto.commit": False,
            "isolation.level": isolation,
        }
    )
    consumer.assign([confluent_kafka.TopicPartition(topic, index, 0) for index in range(PARTITIONS)])
    values_read: list[bytes] = []
    while (message := consumer.poll(1 if len(values_read) >= count else TIMEOUT_S)) is not None:
        assert message.error() is None
        values_read.append(message.value() or b"")
    consumer.close()
    return sorted(values_read)


@pytest.fixture(scope="module")
def topic(node: BrokerNode) -> str:
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    admin.create_topics([NewTopic("transactional", PARTITIONS, 1)])["transactional"].result(TIMEOUT_S)
    return "transactional"


@pytest.mark.clause("X-1", "X-4", "X-5")
def test_readers_of_committed_records_see_neither_aborted_ones_nor_those_of_a_fenced_producer(
    node: BrokerNode, topic: str
) -> None:
    first = producer(node.bootstrap, "one")
    for number in range(3):
        writes(first, topic, *(b"committed-%d-%d" % (number, index) for index in range(6)))
    writes(first, topic, *(b"aborted-%d" % index for index in range(6)), commits=False)
    second = producer(node.bootstrap, "one")
    with pytest.raises(confluent_kafka.KafkaException) as fenced:
        writes(first, topic, b"fenced")
    assert fenced.value.args[0].fatal()
    writes(second, topic, b"second")
    wanted = sorted([b"committed-%d-%d" % (number, index) for number in range(3) for index in range(6)] + [b"second"])
    assert reads(node.bootstrap, topic, len(wanted)) == wanted
    everything = reads(node.bootstrap, topic, len(wanted) + 6, "read_uncommitted")
    assert {read for read in everything if read.startswith(b"aborted")} == {b"aborted-%d" % index for index in range(6)}


@pytest.mark.clause("X-8", "X-14")
def test_offsets_of_a_transaction_show_only_after_its_commit(node: BrokerNode) -> None:
    """Consume, transform, produce."""
    names = ("input", "output")
    admin = AdminClient({"bootstrap.servers": node.bootstrap})
    for created in admin.create_topics([NewTopic(name, PARTITIONS, 1) for name in names]).values():
        created.result(TIMEOUT_S)
    writes(producer(node.bootstrap, "before"), "input", b"0", b"1", b"2")
    consumer = confluent_kafka.Consumer(
        {
            "bootstrap.servers": node.bootstrap,
            "group.id": "transformers",
            "enable.auto.commit": False,
            "auto.offset.reset": "earliest",
            "isolation.level": "read_committed",
        }
    )
    consumer.subscribe(["input"])
    transformer = producer(node.bootstrap, "transformer")
    read: list[bytes] = []
    while len(read) < PARTITIONS:
        message = consumer.poll(TIMEOUT_S)
        assert message is not None
        assert message.error() is None
        read.append(message.value() or b"")
    for commits in (False, True):
        transformer.begin_transaction()
        for value in read:
            transformer.produce("output", b"of " + value, partition=0)
        positions = consumer.position(consumer.assignment())
        transformer.send_offsets_to_transaction(positions, consumer.consumer_group_metadata(), TIMEOUT_S)
        (transformer.commit_transaction if commits else transformer.abort_transaction)(TIMEOUT_S)
        stored = consumer.committed(consumer.assignment(), timeout=TIMEOUT_S)
        wanted = [position.offset if commits else NOTHING_STORED for position in positions]
        assert [each.offset for each in stored] == wanted
    consumer.close()
    assert reads(node.bootstrap, "output", PARTITIONS) == sorted(b"of " + value for value in read)
