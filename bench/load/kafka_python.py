"""Clients over kafka-python. They have its defaults, except for what the workload sets."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

import kafka
from kafka import errors

from bench.load.lots import FetchedRecord, Lot, LotProducer, LotReader
from bench.load.producer import LoadPlan, Settled
from bench.load.reader import ReadPlan, Taken
from bench.locust.clock import WALL
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.compression import Compression

FETCHED_RECORDS: Final = 500
FETCH_MS: Final = 10
CLOSE_S: Final = 5.0
BLOCK_MS: Final = 1000
_REJECTED: Final = (
    errors.MessageSizeTooLargeError,
    errors.RecordListTooLargeError,
    errors.InvalidRequiredAcksError,
    errors.TopicAuthorizationFailedError,
)
"""Errors after which nothing was written. After any other one, nobody knows."""


def producer(plan: LoadPlan, bootstrap: Sequence[tuple[str, int]], settled: Callable[[Settled], None]) -> LotProducer:
    return LotProducer(plan, bootstrap, settled, _Sender)


def reader(plan: ReadPlan, bootstrap: Sequence[tuple[str, int]], taken: Callable[[Taken], None]) -> LotReader:
    return LotReader(plan, bootstrap, taken, _Fetcher)


def _servers(bootstrap: Sequence[tuple[str, int]]) -> list[str]:
    return [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in bootstrap]


class _Sender:
    def __init__(self, plan: LoadPlan, bootstrap: Sequence[tuple[str, int]]) -> None:
        compression = None if plan.compression is Compression.NONE else plan.compression.name.lower()
        self._producer = kafka.KafkaProducer(
            bootstrap_servers=_servers(bootstrap),
            client_id=plan.process,
            acks=plan.acks,
            enable_idempotence=plan.idempotent,
            compression_type=compression,
            request_timeout_ms=plan.request_timeout_ms,
            delivery_timeout_ms=plan.delivery_timeout_us // 1000,
            max_block_ms=BLOCK_MS,
        )

    def send(self, lot: Lot, sequence: int, value: bytes, key: bytes | None) -> bool:
        where = lot.where
        try:
            future = self._producer.send(
                where.topic, value, key, partition=where.partition, timestamp_ms=WALL.now_ns() // 1_000_000
            )
        except errors.KafkaTimeoutError:
            return False
        future.add_callback(partial(_delivered, lot, sequence))
        future.add_errback(partial(_failed, lot, sequence))
        return True

    def serve(self) -> None:
        """Run the callbacks, in a thread of its own, which is a greenlet in Locust."""

    def close(self) -> None:
        self._producer.close(CLOSE_S)


def _delivered(lot: Lot, sequence: int, metadata: Any) -> None:
    lot.ended(sequence, "ok", None, metadata.offset)


def _failed(lot: Lot, sequence: int, error: BaseException) -> None:
    lot.ended(sequence, "fail" if isinstance(error, _REJECTED) else "info", _name(error), -1)


def _name(error: BaseException) -> str:
    """Return Kafka's name of an error; the class's, if it is the library's own."""
    return str(getattr(error, "message", None) or type(error).__name__)


class _Fetcher:
    def __init__(self, plan: ReadPlan, bootstrap: Sequence[tuple[str, int]]) -> None:
        self._consumer = kafka.KafkaConsumer(
            bootstrap_servers=_servers(bootstrap),
            client_id=plan.process,
            enable_auto_commit=False,
            isolation_level="read_committed" if plan.isolation_level else "read_uncommitted",
            fetch_max_wait_ms=plan.max_wait_ms,
            fetch_min_bytes=plan.min_bytes,
            auto_offset_reset="none",
        )
        self._places = {
            kafka.TopicPartition(partition.topic, partition.partition): partition for partition in plan.partitions
        }
        self._consumer.assign(list(self._places))
        for place in self._places:
            self._consumer.seek(place, plan.from_offset)

    def fetch(self) -> tuple[list[FetchedRecord], list[tuple[TopicPartition, str]]]:
        try:
            found = self._consumer.poll(FETCH_MS, FETCHED_RECORDS)
        except errors.KafkaError as error:
            return [], [(next(iter(self._places.values())), _name(error))]
        return [
            FetchedRecord(self._places[place], record.offset, record.timestamp, record.value)
            for place, records in found.items()
            for record in records
        ], []

    def lag(self, partition: TopicPartition, position: int) -> int:
        end = self._consumer.highwater(kafka.TopicPartition(partition.topic, partition.partition))
        return 1 if end is None else max(0, end - position)

    def close(self) -> None:
        self._consumer.close()
