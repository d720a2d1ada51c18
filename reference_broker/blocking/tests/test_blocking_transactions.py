"""The blocking transactional producer and its example, with a broker process."""

import itertools
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from reference_broker import blocking
from reference_broker.blocking.consumer import BlockingConsumer
from reference_broker.blocking.examples import consume_transform_produce
from reference_broker.blocking.tests.raw_topics import create_topic
from reference_broker.blocking.transactional_producer import BlockingTransactionalProducer
from reference_broker.client.group_consumer import ConsumerConfig
from reference_broker.client.leader_fetches import FetchSettings
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.transaction_manager import TransactionConfig
from reference_broker.client.transaction_requests import TransactionError
from reference_broker.client.transactional_producer import ProducerConfig
from reference_broker.serve.tests.conftest import Broker
from reference_broker.wire.errors import ErrorCode

pytestmark = pytest.mark.live

names = (f"topic-{number}" for number in itertools.count())


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[NodeAddress]:
    folder = tmp_path_factory.mktemp("broker")
    settings = {
        "group.initial.rebalance.delay.ms": 0,
        "offsets.topic.num.partitions": 2,
        "transaction.state.log.num.partitions": 2,
        "transaction.state.log.replication.factor": 1,
        "transaction.state.log.min.isr": 1,
    }
    words = [word for key, value in settings.items() for word in ("--config", f"{key}={value}")]
    started = Broker(folder / "data", folder / "log", *words)
    yield NodeAddress(-1, *started.address)
    started.kill()


@pytest.fixture
def topic(broker: NodeAddress) -> str:
    name = next(names)
    create_topic(broker, name, 2)
    return name


def producer(broker: NodeAddress, own_id: str) -> BlockingTransactionalProducer:
    made = BlockingTransactionalProducer(ProducerConfig((broker,), TransactionConfig(own_id)))
    made.init_transactions()
    return made


def values(broker: NodeAddress, topic: str, committed: bool = True) -> list[bytes]:
    """All values of the topic, sorted."""
    settings = FetchSettings(max_wait_ms=50, read_committed=committed)
    found: list[bytes] = []
    with BlockingConsumer(ConsumerConfig((broker,), metadata_epoch=False, fetch=settings)) as reader:
        reader.assign([TopicPartition(topic, index) for index in range(2)])
        while batch := reader.poll(700):
            found += [each.value or b"" for each in batch]
    return sorted(found)


def fail_inside(writer: BlockingTransactionalProducer, partition: TopicPartition) -> None:
    with writer.transaction():
        writer.send(partition, b"dropped")
        writer.flush()
        raise ZeroDivisionError


def test_transaction_block_commits_at_end_and_aborts_after_exception(broker: NodeAddress, topic: str) -> None:
    with producer(broker, topic) as writer:
        with writer.transaction():
            for partition in range(2):
                writer.send(TopicPartition(topic, partition), b"kept")
        with pytest.raises(ZeroDivisionError):
            fail_inside(writer, TopicPartition(topic, 0))
        with writer.transaction():
            writer.send(TopicPartition(topic, 0), b"kept too")
    assert values(broker, topic) == [b"kept", b"kept", b"kept too"]
    assert values(broker, topic, False) == [b"dropped", b"kept", b"kept", b"kept too"]


def test_new_producer_fences_older_one_with_same_transactional_id(broker: NodeAddress, topic: str) -> None:
    where = TopicPartition(topic, 0)
    with producer(broker, topic) as zombie, producer(broker, topic) as successor:
        zombie.begin()
        zombie.send(where, b"zombie")
        with pytest.raises(TransactionError) as caught:
            zombie.commit()
        if caught.value.is_abortable:
            with pytest.raises(TransactionError) as caught:
                zombie.abort()
        assert caught.value.error is ErrorCode.producer_fenced
        with successor.transaction():
            successor.send(where, b"successor")
    assert values(broker, topic) == [b"successor"]


def test_example_writes_each_record_once_over_restarts(
    broker: NodeAddress, topic: str, capsys: pytest.CaptureFixture[str]
) -> None:
    target = f"{topic}-capitals"
    create_topic(broker, target, 2)
    with producer(broker, f"{topic}-words") as writer:
        for number in range(20):
            with writer.transaction():
                writer.send(TopicPartition(topic, number % 2), f"w{number}".encode())
    words = [f"{broker.host}:{broker.port}", topic, target, f"{topic}-group", "--id", topic, "--records", "1"]
    for _ in range(3):
        assert consume_transform_produce.main(words) == 0
        if len(values(broker, target)) == 20:
            break
    assert capsys.readouterr().out.endswith("records\n")
    assert values(broker, target) == sorted(f"W{number}".encode() for number in range(20))


def test_documented_examples_run(broker: NodeAddress, topic: str, capsys: pytest.CaptureFixture[str]) -> None:
    """As they are printed, but for the address, the topic, and the loop, which has an end here."""
    text = (Path(blocking.__file__).parents[2] / "docs" / "reference-client.md").read_text()
    consuming, producing = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    for each in (producing, consuming):
        example = each.replace("9092", str(broker.port)).replace('"t"', repr(topic))
        exec(example.replace("while True:", "for _ in range(3):"), {})
    assert capsys.readouterr().out == "0 0 None b'value'\n"
