"""The transactional load producer against a broker that knows the rules of transactions, and that fails as scripted."""

import threading
import time
from collections.abc import Callable
from dataclasses import replace
from socket import socket
from typing import Any

import pytest
from kio.static.primitive import i32

from bench.fleet.values import read_value
from bench.load.ledger import Sent
from bench.load.producer import LoadPlan, Settled, TransactionPlan
from bench.load.sink import Sink, SinkPlan, serving
from bench.load.transactional import TransactionalLoadProducer
from reference_broker.client.partitions import TopicPartition
from reference_broker.client.tests.transaction_world import LOST, NOT_ARRIVED, NaiveBroker, Scripted
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.frames import RequestHeader
from reference_broker.wire.messages import encode_response

WHERE = tuple(TopicPartition("t", index) for index in range(4))
LIMIT_S = 60.0
BATCH_RECORDS = 20
TRANSACTION_RECORDS = 200


class TransactionSink(Sink):
    """Serves metadata itself, and all else from a ``NaiveBroker``. ``fault`` gets each request's API and its number."""

    def __init__(self, level: int, fault: Callable[[ApiKey, int], Scripted] = lambda *_: ErrorCode.none) -> None:
        super().__init__(SinkPlan(len(WHERE)))
        self.broker = NaiveBroker(level)
        self._fault = fault
        self._numbers: dict[ApiKey, int] = {}
        self._lock = threading.Lock()

    def _respond(self, connection: socket, header: RequestHeader, body: object) -> None:
        key = ApiKey(header.api_key)
        if key is ApiKey.METADATA:
            super()._respond(connection, header, body)
            return
        with self._lock:
            response = self._response(key, body, header.api_version)
        if response is None:
            raise ConnectionAbortedError
        connection.sendall(
            b"".join(encode_response(header.api_key, header.api_version, header.correlation_id, response))
        )

    def _response(self, key: ApiKey, body: object, version: int) -> Any:
        number = self._numbers[key] = self._numbers.get(key, 0) + 1
        said = self._fault(key, number)
        if said == NOT_ARRIVED:
            return None
        if key is ApiKey.API_VERSIONS:
            return self.broker.versions()
        response: Any = getattr(self.broker, f"_{key.name.lower()}")(body, version, said)
        if key is ApiKey.FIND_COORDINATOR:
            own = replace(response.coordinators[0], host="127.0.0.1", port=i32(self.port))
            response = replace(response, coordinators=(own,))
        return None if said == LOST else response


def produced(sink: TransactionSink, transaction: TransactionPlan, batches: int = 200) -> tuple[Sent, list[bool]]:
    """Run a producer until this number of batches is settled. Return what it sent, and which transactions committed."""
    sent, ends, count = Sent(), list[bool](), 0

    def settled(each: Settled) -> None:
        nonlocal count
        sent.add(each.kind, each.error, each.first_sequence, each.first_sequence + each.count)
        count += 1
        if count >= batches:
            producer.stop()

    plan = LoadPlan("p", WHERE, value_bytes=40, batch_records=BATCH_RECORDS, transaction=transaction)
    with serving(sink) as address:
        producer = TransactionalLoadProducer(plan, address, settled, lambda committed, *_: ends.append(committed))
        limit = threading.Timer(LIMIT_S, producer.stop)
        limit.start()
        producer.run()
        limit.cancel()
    assert count >= batches
    return sent, ends


def sequences(values: list[tuple[TopicPartition, str]]) -> list[int]:
    return [read_value(memoryview(value.encode("latin-1"))).sequence for _, value in values]


def numbers(ranges: list[tuple[int, int]]) -> set[int]:
    return {number for first, end in ranges for number in range(first, end)}


@pytest.mark.parametrize("level", [1, 2])
def test_acknowledged_records_are_committed_ones(level: int) -> None:
    sink = TransactionSink(level)
    sent, ends = produced(sink, TransactionPlan("tx", records=TRANSACTION_RECORDS))
    committed = sequences(sink.broker.committed)
    assert len(committed) == len(set(committed)) == sum(ends) * TRANSACTION_RECORDS
    assert set(committed) == numbers(sent.ok)
    assert all(ends)
    assert not sent.fail
    assert not sent.info


@pytest.mark.parametrize("level", [1, 2])
def test_planned_share_is_aborted_and_not_acknowledged(level: int) -> None:
    sink = TransactionSink(level)
    sent, ends = produced(sink, TransactionPlan("tx", records=TRANSACTION_RECORDS, abort_ratio=0.25))
    assert ends[:8] == [True, True, True, False] * 2
    assert set(sequences(sink.broker.committed)) == numbers(sent.ok)
    assert set(sequences(sink.broker.aborted)) == numbers(sent.fail)
    assert not sent.errors


def test_producer_sleeps_while_the_responses_of_its_last_batches_are_late() -> None:
    """Two transactions of 10 ms, whose requests need 300 ms each."""

    def late(key: ApiKey, _: int) -> Scripted:
        if key is ApiKey.PRODUCE:
            time.sleep(0.3)
        return ErrorCode.none

    begin_s = time.thread_time()
    produced(TransactionSink(2, late), TransactionPlan("tx", duration_us=10_000), 2)
    assert time.thread_time() - begin_s < 0.2


def test_producer_gets_its_id_before_the_load() -> None:
    sink = TransactionSink(
        2, lambda key, number: LOST if key is ApiKey.FIND_COORDINATOR and number == 1 else ErrorCode.none
    )
    plan = LoadPlan("p", WHERE, transaction=TransactionPlan("tx", records=100))
    with serving(sink) as address:
        producer = TransactionalLoadProducer(plan, address, lambda _: None, lambda *_: None)
        assert not producer.is_ready
        producer.prepare()
        assert producer.is_ready
        producer.stop()
        producer.run()
    assert sink.broker.epoch == 0
    assert not sink.broker.committed


def test_transaction_ends_by_time() -> None:
    sink = TransactionSink(2)
    sent, ends = produced(sink, TransactionPlan("tx", duration_us=20_000), 600)
    assert len(ends) >= 3
    assert set(sequences(sink.broker.committed)) == numbers(sent.ok)


@pytest.mark.parametrize("level", [1, 2])
@pytest.mark.parametrize(
    ("key", "said"),
    [
        (ApiKey.PRODUCE, LOST),
        (ApiKey.PRODUCE, NOT_ARRIVED),
        (ApiKey.PRODUCE, ErrorCode.not_leader_or_follower),
        (ApiKey.PRODUCE, ErrorCode.message_too_large),
        (ApiKey.PRODUCE, ErrorCode.invalid_producer_epoch),
        (ApiKey.END_TXN, LOST),
        (ApiKey.END_TXN, NOT_ARRIVED),
        (ApiKey.END_TXN, ErrorCode.not_coordinator),
        (ApiKey.END_TXN, ErrorCode.transaction_abortable),
        (ApiKey.END_TXN, ErrorCode.producer_fenced),
    ],
)
def test_uncommitted_records_are_never_acknowledged(level: int, key: ApiKey, said: Scripted) -> None:
    sink = TransactionSink(level, lambda each, number: said if each is key and number in (3, 7) else ErrorCode.none)
    sent, ends = produced(sink, TransactionPlan("tx", records=TRANSACTION_RECORDS), 120)
    committed = sequences(sink.broker.committed)
    assert len(committed) == len(set(committed))
    assert numbers(sent.ok) <= set(committed) <= numbers(sent.ok) | numbers(sent.info)
    assert ends.count(True) >= 5, "it does not go on after a failure"
