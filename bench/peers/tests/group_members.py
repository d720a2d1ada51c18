"""Members of a consumer group, one of each client library, with the same habits: each reads, notes what it read, and
commits that before it reads on."""

import asyncio
import gc
import logging
import threading
import time
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import cast

import aiokafka
import aiokafka.abc
import confluent_kafka
from aiokafka.coordinator.assignors.range import RangePartitionAssignor as AioRange

from reference_broker.blocking.consumer import BlockingConsumer, CommitError
from reference_broker.client.group_consumer import ConsumerConfig
from reference_broker.client.group_membership import GroupConfig
from reference_broker.client.metadata_cache import NodeAddress

with warnings.catch_warnings():  # kafka-python reads its schemas in a way that Python 3.11 warns of.
    warnings.filterwarnings("ignore", "(read_text|open_text) is deprecated", DeprecationWarning)
    import kafka
    import kafka.errors
    from kafka.coordinator.assignors.cooperative_sticky import CooperativeStickyAssignor
    from kafka.coordinator.assignors.range import RangePartitionAssignor

SESSION_MS = 6000
HEARTBEAT_MS = 500
POLL_S = 0.2
BATCH = 100
STOP_LIMIT_S = 40.0
EAGER, COOPERATIVE = "eager", "cooperative"


class GroupMemberThread(threading.Thread, ABC):
    """``read``: partition and offset of each record, in the order read. ``committed``: by partition the last offset
    that the broker has taken. ``owned``: how many partitions it has now. ``failure``: what ended it, None while all is
    well."""

    def __init__(self, bootstrap: str, group: str, topic: str, protocol: str, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.bootstrap, self.group, self.topic, self.protocol = bootstrap, group, topic, protocol
        self.read: list[tuple[int, int]] = []
        self.committed: dict[int, int] = {}
        self.owned = 0
        self.failure: BaseException | None = None
        self._ends = threading.Event()

    @property
    def ending(self) -> bool:
        return self._ends.is_set()

    def run(self) -> None:
        try:
            self.work()
        except BaseException as failure:
            self.failure = failure

    def stop(self) -> None:
        """Leave the group."""
        self._ends.set()
        self.join(STOP_LIMIT_S)
        assert not self.is_alive(), f"{self.name} hangs"

    def note(self, records: list[tuple[int, int]]) -> dict[int, int]:
        """Note records that were read, and return the offsets to commit by partition."""
        self.read += records
        return {partition: offset + 1 for partition, offset in records}

    @abstractmethod
    def work(self) -> None:
        """Read and commit until ``ending``."""


class LibrdkafkaMember(GroupMemberThread):
    def work(self) -> None:
        strategy = "cooperative-sticky" if self.protocol == COOPERATIVE else "range"
        consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": self.bootstrap,
                "group.id": self.group,
                "client.id": self.name,
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "partition.assignment.strategy": strategy,
                "session.timeout.ms": SESSION_MS,
                "heartbeat.interval.ms": HEARTBEAT_MS,
                "topic.metadata.refresh.interval.ms": 2000,
                "log_level": 0,
            }
        )
        consumer.subscribe([self.topic])
        try:
            while not self.ending:
                messages = consumer.consume(BATCH, timeout=POLL_S)
                good = [(message.partition(), message.offset()) for message in messages if message.error() is None]
                offsets = self.note(cast("list[tuple[int, int]]", good))  # Only errors lack them.
                self.owned = len(consumer.assignment())
                if offsets:
                    self._commit(consumer, offsets)
        finally:
            consumer.close()
            self.owned = 0

    def _commit(self, consumer: confluent_kafka.Consumer, offsets: dict[int, int]) -> None:
        wanted = [confluent_kafka.TopicPartition(self.topic, each, offset) for each, offset in offsets.items()]
        try:
            done = consumer.commit(offsets=wanted, asynchronous=False)
        except confluent_kafka.KafkaException:
            return  # Read again by the present owners.
        self.committed |= {each.partition: each.offset for each in done if each.error is None}


class KafkaPythonMember(GroupMemberThread):
    def work(self) -> None:
        assignor = CooperativeStickyAssignor if self.protocol == COOPERATIVE else RangePartitionAssignor
        consumer = kafka.KafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap.split(","),
            group_id=self.group,
            client_id=self.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=[assignor],
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            metadata_max_age_ms=2000,
            max_poll_records=BATCH,
            request_timeout_ms=10_000,
            max_poll_interval_ms=9000,
        )
        try:
            while not self.ending:
                response = consumer.poll(timeout_ms=int(POLL_S * 1000))
                offsets = self.note([(row.partition, row.offset) for rows in response.values() for row in rows])
                self.owned = len(consumer.assignment())
                if offsets:
                    self._commit(consumer, offsets)
        finally:
            consumer.close()
            self.owned = 0

    def _commit(self, consumer: "kafka.KafkaConsumer", offsets: dict[int, int]) -> None:
        wanted = {
            kafka.TopicPartition(self.topic, each): kafka.OffsetAndMetadata(offset, "", -1)
            for each, offset in offsets.items()
        }
        try:
            consumer.commit(wanted)
        except kafka.errors.KafkaError:
            return  # Read again by the present owners.
        self.committed |= offsets


class AiokafkaMember(GroupMemberThread):
    def work(self) -> None:
        asyncio.run(self._work())

    async def _work(self) -> None:
        consumer = aiokafka.AIOKafkaConsumer(
            self.topic,
            bootstrap_servers=self.bootstrap,
            group_id=self.group,
            client_id=self.name,
            enable_auto_commit=False,
            auto_offset_reset="earliest",
            partition_assignment_strategy=(AioRange,),
            session_timeout_ms=SESSION_MS,
            heartbeat_interval_ms=HEARTBEAT_MS,
            metadata_max_age_ms=2000,
        )
        await consumer.start()
        try:
            while not self.ending:
                response = await consumer.getmany(timeout_ms=int(POLL_S * 1000), max_records=BATCH)
                offsets = self.note([(row.partition, row.offset) for rows in response.values() for row in rows])
                self.owned = len(consumer.assignment())
                if offsets:
                    await self._commit(consumer, offsets)
        finally:
            await consumer.stop()
            self.owned = 0

    async def _commit(self, consumer: aiokafka.AIOKafkaConsumer, offsets: dict[int, int]) -> None:
        try:
            await consumer.commit({aiokafka.TopicPartition(self.topic, each): at for each, at in offsets.items()})
        except aiokafka.errors.KafkaError:
            return  # Read again by the present owners.
        self.committed |= offsets


class ReferenceMember(GroupMemberThread):
    """This project's own client, with the metadata epoch where the broker announces it."""

    def work(self) -> None:
        protocols = ("cooperative-sticky",) if self.protocol == COOPERATIVE else ("range",)
        nodes = tuple(
            NodeAddress(-1, host, int(port)) for host, port in (each.split(":") for each in self.bootstrap.split(","))
        )
        group = GroupConfig(
            self.group,
            (),
            protocols,
            session_timeout_us=SESSION_MS * 1000,
            heartbeat_interval_us=HEARTBEAT_MS * 1000,
            rebalance_timeout_us=9_000_000,
        )
        with BlockingConsumer(ConsumerConfig(nodes, group, metadata_max_age_us=2_000_000), self.name) as consumer:
            consumer.subscribe([self.topic])
            while not self.ending:
                records = consumer.poll(int(POLL_S * 1000), BATCH)
                offsets = self.note([(record.partition, record.offset) for record in records])
                self.owned = len(consumer.assignment())
                if offsets:
                    self._commit(consumer, offsets)
        self.owned = 0

    def _commit(self, consumer: BlockingConsumer, offsets: dict[int, int]) -> None:
        try:
            consumer.commit()
        except CommitError as refused:
            self.committed |= {
                partition.partition: refused.result.offsets[partition].offset
                for partition, error in refused.result.errors.items()
                if not error
            }
            return  # The others are read again by their present owners.
        self.committed |= offsets


@contextmanager
def quiet() -> Iterator[None]:
    """The libraries say much in their logs while a coordinator is away, and leave sockets to the garbage collector."""
    loggers = [logging.getLogger(name) for name in ("kafka", "aiokafka")]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger in loggers:
            logger.setLevel(logging.NOTSET)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ResourceWarning)
            gc.collect()


def until(what: str, is_true: Callable[[], bool], limit_s: float) -> None:
    """:raises AssertionError: it does not come true in time."""
    deadline = time.monotonic() + limit_s
    while not is_true():
        assert time.monotonic() < deadline, f"not within {limit_s} s: {what}"
        time.sleep(0.05)
