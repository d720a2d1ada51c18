"""Clients over librdkafka (confluent-kafka). They have its defaults, except for what the workload sets."""

import logging
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import Any, Final

import confluent_kafka

from bench.fleet.values import HEAD
from bench.load.lots import FetchedRecord, Lot, LotProducer, LotReader
from bench.load.producer import LoadPlan, Settled
from bench.load.reader import ReadPlan, Taken
from bench.locust.clock import WALL
from reference_broker.client.partitions import TopicPartition

FETCHED_RECORDS: Final = 500
CLOSE_S: Final = 5.0
_SEQUENCE: Final = Struct(">q")
_SEQUENCE_AT: Final = HEAD.size + 1
_REJECTED: Final = frozenset(
    {
        confluent_kafka.KafkaError.MSG_SIZE_TOO_LARGE,
        confluent_kafka.KafkaError.RECORD_LIST_TOO_LARGE,
        confluent_kafka.KafkaError.INVALID_MSG,
        confluent_kafka.KafkaError.INVALID_REQUIRED_ACKS,
        confluent_kafka.KafkaError.TOPIC_AUTHORIZATION_FAILED,
        confluent_kafka.KafkaError.UNSUPPORTED_COMPRESSION_TYPE,
    }
)
"""Errors after which nothing was written. After any other one, nobody knows."""
_QUIET: Final = logging.getLogger("bench.load.librdkafka")


def producer(plan: LoadPlan, bootstrap: Sequence[tuple[str, int]], settled: Callable[[Settled], None]) -> LotProducer:
    return LotProducer(plan, bootstrap, settled, _Sender)


def reader(plan: ReadPlan, bootstrap: Sequence[tuple[str, int]], taken: Callable[[Taken], None]) -> LotReader:
    return LotReader(plan, bootstrap, taken, _Fetcher)


def _servers(bootstrap: Sequence[tuple[str, int]]) -> str:
    return ",".join(f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in bootstrap)


class _Sender:
    def __init__(self, plan: LoadPlan, bootstrap: Sequence[tuple[str, int]]) -> None:
        self._producer = confluent_kafka.Producer(
            {
                "bootstrap.servers": _servers(bootstrap),
                "client.id": plan.process,
                "acks": plan.acks,
                "enable.idempotence": plan.idempotent,
                "compression.type": plan.compression.name.lower(),
                "request.timeout.ms": plan.request_timeout_ms,
                "delivery.timeout.ms": plan.delivery_timeout_us // 1000,
            },
            logger=_QUIET,
        )

    def send(self, lot: Lot, sequence: int, value: bytes, key: bytes | None) -> bool:  # noqa: ARG002 - it is in the value
        where = lot.where
        try:
            self._producer.produce(
                where.topic,
                value,
                key,
                where.partition,
                on_delivery=partial(_delivered, lot),
                timestamp=WALL.now_ns() // 1_000_000,
            )
        except BufferError:
            return False
        return True

    def serve(self) -> None:
        self._producer.poll(0)

    def close(self) -> None:
        self._producer.purge()
        self._producer.flush(CLOSE_S)


def _delivered(lot: Lot, error: Any, message: Any) -> None:
    (sequence,) = _SEQUENCE.unpack_from(message.value(), _SEQUENCE_AT)
    if error is None:
        lot.ended(sequence, "ok", None, message.offset())
    else:
        lot.ended(sequence, "fail" if error.code() in _REJECTED else "info", error.name(), -1)


class _Fetcher:
    def __init__(self, plan: ReadPlan, bootstrap: Sequence[tuple[str, int]]) -> None:
        self._consumer = confluent_kafka.Consumer(
            {
                "bootstrap.servers": _servers(bootstrap),
                "client.id": plan.process,
                "group.id": plan.process,  # It joins no group.
                "enable.auto.commit": False,
                "isolation.level": "read_committed" if plan.isolation_level else "read_uncommitted",
                "fetch.wait.max.ms": plan.max_wait_ms,
                "fetch.min.bytes": plan.min_bytes,
                "auto.offset.reset": "error",
            },
            logger=_QUIET,
        )
        self._first = plan.partitions[0]  # for errors that are of no partition
        self._places: dict[tuple[str | None, int | None], TopicPartition] = {
            (partition.topic, partition.partition): partition for partition in plan.partitions
        }
        self._consumer.assign(
            [
                confluent_kafka.TopicPartition(partition.topic, partition.partition, plan.from_offset)
                for partition in plan.partitions
            ]
        )

    def fetch(self) -> tuple[list[FetchedRecord], list[tuple[TopicPartition, str]]]:
        records, errors = [], []
        for message in self._consumer.consume(FETCHED_RECORDS, 0):
            error = message.error()
            topic, partition, offset = message.topic(), message.partition(), message.offset()
            place = self._places.get((topic, partition), self._first)
            if error is not None or offset is None:
                errors.append((place, error.name() if error is not None else "_NO_OFFSET"))
                continue
            records.append(FetchedRecord(place, offset, message.timestamp()[1], message.value()))
        return records, errors

    def lag(self, partition: TopicPartition, position: int) -> int:
        place = confluent_kafka.TopicPartition(partition.topic, partition.partition)
        known = self._consumer.get_watermark_offsets(place, cached=True)
        return 1 if known is None or known[1] < 0 else max(0, known[1] - position)

    def close(self) -> None:
        self._consumer.close()
