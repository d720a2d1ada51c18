"""The transactional producer and the read_committed consumer with Apache Kafka, which judges what they send."""

import itertools
from collections.abc import Iterator
from contextlib import suppress
from random import Random

import pytest

from bench.peers.clients import connect, create_topic
from bench.peers.systems import KAFKA
from reference_broker.blocking.consumer import BlockingConsumer
from reference_broker.blocking.examples import consume_transform_produce
from reference_broker.blocking.transactional_producer import BlockingTransactionalProducer
from reference_broker.blocking.transport import Connection
from reference_broker.client import api_versions
from reference_broker.client.group_consumer import ConsumerConfig
from reference_broker.client.group_membership import GroupConfig
from reference_broker.client.group_requests import MemberIdentity
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.transaction_manager import Outcome, State, TransactionConfig
from reference_broker.client.transaction_requests import TransactionError
from reference_broker.client.transactional_producer import ProducerConfig
from reference_broker.wire.errors import ErrorCode

pytestmark = pytest.mark.peer

OLD, NEW = "old", "new"
PARTITIONS = 3
names = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[NodeAddress, Connection]]:
    with KAFKA.launched(tmp_path_factory.mktemp("kafka"), 1, {}) as cluster, connect(cluster.ports[0]) as raw:
        yield NodeAddress(-1, "127.0.0.1", cluster.ports[0]), raw


@pytest.fixture(params=[OLD, NEW])
def node(
    kafka: tuple[NodeAddress, Connection], request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> NodeAddress:
    """A node whose clients are all of one generation. A new cluster has ``transaction.version`` 2."""
    if request.param == OLD:
        monkeypatch.setattr(api_versions, "ADDS_BY_ITSELF", 99)
    return kafka[0]


@pytest.fixture
def topic(kafka: tuple[NodeAddress, Connection]) -> str:
    name = next(names)
    create_topic(kafka[1], name, PARTITIONS)
    return name


def producer(node: NodeAddress, own_id: str) -> BlockingTransactionalProducer:
    made = BlockingTransactionalProducer(ProducerConfig((node,), TransactionConfig(own_id)))
    made.init_transactions()
    return made


def values(node: NodeAddress, topic: str, committed: bool = True, quiet_polls: int = 3) -> list[bytes]:
    """All values of the topic, in the order of each partition. What comes after a marker is waited for."""
    config = ConsumerConfig(
        (node,), metadata_epoch=False, fetch=FetchSettings(max_wait_ms=50, read_committed=committed)
    )
    values_read: list[bytes] = []
    with BlockingConsumer(config) as reader:
        reader.assign([TopicPartition(topic, index) for index in range(PARTITIONS)])
        quiet = 0
        while quiet < quiet_polls:
            batch = reader.poll(400)
            quiet = 0 if batch else quiet + 1
            values_read += [each.value or b"" for each in batch]
    return values_read


def test_consumers_read_by_isolation_level(node: NodeAddress, topic: str) -> None:
    with producer(node, topic) as writer:
        for value, is_committed in ((b"a", True), (b"b", False), (b"c", True)):
            writer.begin()
            for partition in range(PARTITIONS):
                writer.send(TopicPartition(topic, partition), value)
            writer.flush()
            (writer.commit if is_committed else writer.abort)()
        writer.begin()
        writer.send(TopicPartition(topic, 0), b"open")
        writer.flush()
        assert sorted(values(node, topic)) == [b"a"] * 3 + [b"c"] * 3
        assert sorted(values(node, topic, False)) == [b"a"] * 3 + [b"b"] * 3 + [b"c"] * 3 + [b"open"]
        writer.commit()
    assert sorted(values(node, topic)) == [b"a"] * 3 + [b"c"] * 3 + [b"open"]


def test_new_producer_fences_and_aborts_open_transaction(node: NodeAddress, topic: str) -> None:
    where = TopicPartition(topic, 0)
    with producer(node, topic) as zombie:
        zombie.begin()
        zombie.send(where, b"zombie")
        zombie.flush()
        with producer(node, topic) as successor:
            with successor.transaction():
                successor.send(where, b"successor")
            zombie.send(where, b"late")
            with pytest.raises(TransactionError) as caught:
                zombie.commit()
            if caught.value.is_abortable:
                with pytest.raises(TransactionError) as caught:
                    zombie.abort()
        assert caught.value.error is ErrorCode.producer_fenced
        assert zombie.state is State.FATAL_ERROR
    assert values(node, topic) == [b"successor"]


def test_offsets_count_with_their_transaction_and_for_the_right_member(node: NodeAddress, topic: str) -> None:
    where, group = TopicPartition(topic, 0), GroupConfig(f"group-{topic}", ())

    def committed() -> int:
        config = ConsumerConfig((node,), group, metadata_epoch=False)
        with BlockingConsumer(config) as reader:
            reader.assign([where])
            reader.poll(300)
            return reader.consumer.committed(where)

    anonymous = MemberIdentity(group.group_id)
    with producer(node, topic) as writer:
        writer.begin()
        writer.send_offsets({where: OffsetToCommit(5)}, anonymous)
        writer.abort()
        assert committed() == -1
        with writer.transaction():
            writer.send_offsets({where: OffsetToCommit(6)}, anonymous)
        assert committed() == 6
        with pytest.raises(TransactionError) as caught, writer.transaction():
            writer.send_offsets({where: OffsetToCommit(7)}, MemberIdentity(group.group_id, 3, "a stranger"))
        assert caught.value.is_abortable
        assert committed() == 6
        with writer.transaction():
            writer.send_offsets({where: OffsetToCommit(8)}, anonymous)
        assert committed() == 8


def test_lost_connections_leave_whole_transactions(node: NodeAddress, topic: str) -> None:
    """Connections break at random moments, so that responses are lost. Kafka reports the end of each transaction."""
    chance, seen = Random(topic), dict[bytes, Outcome | None]()
    with producer(node, topic) as writer:
        for number in range(60):
            value = str(number).encode()
            writer.begin()
            for partition in range(PARTITIONS):
                writer.send(TopicPartition(topic, partition), value)
                if chance.random() < 0.15:
                    break_one(writer, chance)
            is_to_commit = chance.random() < 0.7
            (writer.producer.commit if is_to_commit else writer.producer.abort)()
            for _ in range(chance.randrange(3)):
                writer._turn(0)
                if chance.random() < 0.5:
                    break_one(writer, chance)
            writer._end(30_000, "the transaction")
            seen[value] = writer.producer.outcome if is_to_commit else Outcome.FAILED
    read_offsets = values(node, topic)
    assert {value: read_offsets.count(value) for value in seen} == {
        value: PARTITIONS if outcome is Outcome.OK else 0 for value, outcome in seen.items()
    }
    assert list(seen.values()).count(Outcome.OK) > 20


def break_one(writer: BlockingTransactionalProducer, chance: Random) -> None:
    """One of its connections, which may have a request in flight, reaches its end."""
    channels = list(writer._connections._channels.values())
    with suppress(OSError, IndexError):  # It may be broken already.
        chance.choice(channels).connection.sock.shutdown(2)


def test_example_writes_each_record_once_over_restarts(node: NodeAddress, topic: str, kafka: object) -> None:
    target = f"{topic}-capitals"
    create_topic(kafka[1], target, PARTITIONS)  # type: ignore[index]
    with producer(node, f"{topic}-words") as writer:
        for number in range(30):
            with writer.transaction():
                writer.send(TopicPartition(topic, number % PARTITIONS), f"w{number}".encode())
    for _ in range(3):
        own = f"{topic}-id"
        assert consume_transform_produce.run(node, topic, target, f"{topic}-group", own, 1) >= 1
        if len(values(node, target)) == 30:
            break
    assert sorted(values(node, target)) == sorted(f"W{number}".encode() for number in range(30))
