"""Transactional producers of each client library, with the same habits."""

import asyncio
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine
from contextlib import suppress
from enum import Enum
from typing import Any, ClassVar

import aiokafka
import confluent_kafka

from bench.peers.tests.nodes import LIMIT_S
from reference_broker.blocking.transactional_producer import BlockingTransactionalProducer, TransactionTimeoutError
from reference_broker.client.group_requests import MemberIdentity
from reference_broker.client.metadata_cache import NodeAddress
from reference_broker.client.offset_commits import OffsetToCommit
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.transaction_manager import TransactionConfig
from reference_broker.client.transaction_requests import TransactionError
from reference_broker.client.transactional_producer import ProducerConfig

with warnings.catch_warnings():  # kafka-python reads its schemas in a way that Python 3.11 warns of.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    import kafka
    import kafka.errors

TRANSACTION_TIMEOUT_MS = 30_000
PAUSE_S = 0.02


class Producer(ABC):
    """A producer that owns its transactional ID as soon as it is made. Every method raises one of ``errors``."""

    errors: ClassVar[tuple[type[Exception], ...]]

    @abstractmethod
    def __init__(self, bootstrap: str, transactional_id: str) -> None: ...

    @abstractmethod
    def begin(self) -> None: ...

    @abstractmethod
    def send(self, topic: str, partition: int, value: bytes) -> None: ...

    @abstractmethod
    def flush(self) -> None:
        """Wait until all is written. An abort would drop what was not sent yet."""

    @abstractmethod
    def send_offset(self, topic: str, partition: int, offset: int, group: str) -> None:
        """Send an offset as a consumer that assigns its partitions itself."""

    @abstractmethod
    def commit(self) -> None: ...

    @abstractmethod
    def abort(self) -> None: ...

    def close(self) -> None:  # noqa: B027
        """Close the writer without waiting."""


class LibrdkafkaProducer(Producer):
    errors = (confluent_kafka.KafkaException,)

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._bootstrap = bootstrap
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": bootstrap,
                "transactional.id": transactional_id,
                "transaction.timeout.ms": TRANSACTION_TIMEOUT_MS,
                "log_level": 0,
            }
        )
        self._until_done(self._producer.init_transactions)

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.produce(topic, value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(LIMIT_S)

    def send_offset(self, topic: str, partition: int, offset: int, group: str) -> None:
        consumer = confluent_kafka.Consumer({"bootstrap.servers": self._bootstrap, "group.id": group})
        where = confluent_kafka.TopicPartition(topic, partition, offset)
        self._producer.send_offsets_to_transaction([where], consumer.consumer_group_metadata(), LIMIT_S)
        consumer.close()

    def commit(self) -> None:
        self._until_done(self._producer.commit_transaction)

    def abort(self) -> None:
        self._until_done(self._producer.abort_transaction)

    def _until_done(self, call: Callable[[float], None]) -> None:
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                return call(LIMIT_S)
            except confluent_kafka.KafkaException as failure:
                if not failure.args[0].retriable() or time.monotonic() > deadline:
                    raise


class KafkaPythonProducer(Producer):
    errors = (kafka.errors.KafkaError,)

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=bootstrap.split(","),
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            metadata_max_age_ms=2000,
        )
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin_transaction()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(topic, value, partition=partition)

    def flush(self) -> None:
        self._producer.flush(LIMIT_S)

    def send_offset(self, topic: str, partition: int, offset: int, group: str) -> None:
        where = kafka.TopicPartition(topic, partition)
        self._producer.send_offsets_to_transaction({where: kafka.OffsetAndMetadata(offset, "", -1)}, group)

    def commit(self) -> None:
        self._producer.commit_transaction()

    def abort(self) -> None:
        self._producer.abort_transaction()

    def close(self) -> None:
        self._producer.close(timeout=1)


class AiokafkaProducer(Producer):
    """Its tasks run only while one of these methods does."""

    errors = (aiokafka.errors.KafkaError, asyncio.TimeoutError)

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        self._runner = asyncio.Runner()
        self._run(self._start(bootstrap, transactional_id))

    async def _start(self, bootstrap: str, transactional_id: str) -> None:
        self._producer = aiokafka.AIOKafkaProducer(
            bootstrap_servers=bootstrap,
            transactional_id=transactional_id,
            transaction_timeout_ms=TRANSACTION_TIMEOUT_MS,
            metadata_max_age_ms=2000,
        )
        await self._producer.start()

    def begin(self) -> None:
        self._run(self._producer.begin_transaction())

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._run(self._producer.send(topic, value, partition=partition))

    def flush(self) -> None:
        self._run(self._producer.flush())

    def send_offset(self, topic: str, partition: int, offset: int, group: str) -> None:
        where = aiokafka.TopicPartition(topic, partition)
        self._run(self._producer.send_offsets_to_transaction({where: offset}, group))

    def commit(self) -> None:
        self._run(self._producer.commit_transaction())

    def abort(self) -> None:
        self._run(self._producer.abort_transaction())

    def close(self) -> None:
        with suppress(Exception):
            self._runner.run(asyncio.wait_for(self._producer.stop(), 2))
        self._runner.close()

    def _run(self, coroutine: Coroutine[Any, Any, object]) -> None:
        self._runner.run(asyncio.wait_for(coroutine, LIMIT_S))


class ReferenceProducer(Producer):
    """This project's own client."""

    errors = (TransactionError, TransactionTimeoutError)

    def __init__(self, bootstrap: str, transactional_id: str) -> None:
        nodes = tuple(
            NodeAddress(-1, host, int(port)) for host, port in (each.split(":") for each in bootstrap.split(","))
        )
        config = TransactionConfig(transactional_id, TRANSACTION_TIMEOUT_MS * 1000)
        self._producer = BlockingTransactionalProducer(ProducerConfig(nodes, config))
        self._producer.init_transactions()

    def begin(self) -> None:
        self._producer.begin()

    def send(self, topic: str, partition: int, value: bytes) -> None:
        self._producer.send(TopicPartition(topic, partition), value)

    def flush(self) -> None:
        self._producer.flush()

    def send_offset(self, topic: str, partition: int, offset: int, group: str) -> None:
        self._producer.send_offsets({TopicPartition(topic, partition): OffsetToCommit(offset)}, MemberIdentity(group))

    def commit(self) -> None:
        self._producer.commit()

    def abort(self) -> None:
        self._producer.abort()

    def close(self) -> None:
        self._producer.close()


LIBRARIES: tuple[type[Producer], ...] = (LibrdkafkaProducer, KafkaPythonProducer, AiokafkaProducer, ReferenceProducer)


class TransactionOutcome(Enum):
    COMMITTED = "committed"
    ABORTED = "aborted"
    UNDECIDED = "undecided"
    """The library reported an error of the commit."""


class WriterThread(threading.Thread):
    """Writes a record with the same value to each partition in each transaction, and aborts every fourth on purpose.
    After an error it aborts, or recreates its producer where that fails. ``outcomes``: by value, in order. ``failure``:
    what ended it, None while all is well."""

    def __init__(self, kind: type[Producer], bootstrap: str, topic: str, partitions: int) -> None:
        super().__init__(name=kind.__name__, daemon=True)
        self.outcomes: dict[bytes, TransactionOutcome] = {}
        self.errors: list[str] = []
        self.failure: BaseException | None = None
        self._kind, self._servers, self._topic, self._partitions = kind, bootstrap, topic, partitions
        self._ends = threading.Event()

    @property
    def committed(self) -> int:
        return sum(outcome is TransactionOutcome.COMMITTED for outcome in list(self.outcomes.values()))

    def run(self) -> None:
        try:
            self._producer = self._kind(self._servers, self.name)
            while not self._ends.is_set():
                self._write(len(self.outcomes))
                time.sleep(PAUSE_S)
            self._producer.close()
        except BaseException as failure:
            self.failure = failure

    def end(self) -> None:
        self._ends.set()
        self.join(LIMIT_S * 2)
        assert not self.is_alive(), f"{self.name} hangs"

    def _write(self, number: int) -> None:
        value, is_to_commit = f"{self.name}-{number}".encode(), number % 4 != 3
        outcome = TransactionOutcome.ABORTED
        try:
            self._producer.begin()
            for partition in range(self._partitions):
                self._producer.send(self._topic, partition, value)
            if is_to_commit:
                outcome = TransactionOutcome.UNDECIDED
                self._producer.commit()
                outcome = TransactionOutcome.COMMITTED
            else:
                self._producer.flush()
                self._producer.abort()
        except self._kind.errors as error:
            self.errors.append(f"{value.decode()}: {error!r}")
            self._recover()
        self.outcomes[value] = outcome

    def _recover(self) -> None:
        try:
            self._producer.abort()
        except Exception as error:
            self.errors.append(f"then: {error!r}")
            self._producer.close()
            self._producer = self._kind(self._servers, self.name)
