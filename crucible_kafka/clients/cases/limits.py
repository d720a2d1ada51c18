"""Limits: responses whose numbers are absurd, negative or untrue. The client's memory stays bounded, and it goes on.

All of it happens on loopback. What is judged is that a client neither ends, nor hangs, nor takes memory for what never
comes, nor gives the application records that nobody wrote.
"""

import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from crucible_kafka.clients.application import Client, Consumer
from crucible_kafka.clients.case import MUST, SHOULD, case
from crucible_kafka.clients.fetch_changes import next_fetch, on_data, rewritten
from crucible_kafka.clients.play import Play, at_most
from crucible_kafka.clients.raw_servers import RawServer
from crucible_kafka.library import Rule
from reference_broker.records.batch import HEADER_BYTES, BatchHeader, sealed

MAX_MEMORY_MB: Final = 256
"""Limit of the growth of a client's peak memory by one small response."""
MAX_INT32: Final = 2**31 - 1
NEGATIVE: Final = -5
LEGACY_COUNT_AT: Final = 18
"""Position of the number of topics in a Fetch response before version 12, from the frame's length on."""
FLEXIBLE_COUNT_AT: Final = 19
MAX_VARINT: Final = b"\xff\xff\xff\xff\x07"
TORN_BYTES: Final = (0, 3, 6, 30)
"""After how many bytes of a response its connection ends."""
ENDLESS_BYTES: Final = 1 << 30
PLAUSIBLE_BYTES: Final = 64 << 20
"""A length that a client may believe: taking so much memory costs little time on any machine."""
PIECE_BYTES: Final = 1024
PIECE_S: Final = 0.05
ATTEMPTS: Final = 4
KAFKA_4090: Final = "KAFKA-4090: NetworkReceive.java, readFrom, takes what the length says in Kafka's Java client"


class EndlessServer(RawServer):
    """A server whose response to each request has no end: it comes in small pieces, one after the other. Its length
    says ``size_bytes``."""

    def __init__(self, size_bytes: int) -> None:
        self._size_bytes = size_bytes
        super().__init__()

    def _serve(self, connection: socket.socket) -> None:
        with suppress(OSError), connection:
            connection.recv(PIECE_BYTES)
            connection.sendall(struct.pack(">i", self._size_bytes))
            pause = threading.Event()
            while not pause.wait(PIECE_S):
                connection.sendall(bytes(PIECE_BYTES))


def _peak_mb(client: Client) -> float:
    """Return the sum of the peaks of resident memory of the client's processes, in MB; 0 where /proc has none."""
    peak_kb = 0
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError, ValueError, IndexError):
            group = int((path / "stat").read_text().rpartition(")")[2].split()[2])
            if group == client.process.pid:
                lines = (path / "status").read_text().splitlines()
                peak_kb += next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
    return peak_kb / 1000


def _survives(at: Play, spoil: Callable[[], list[Rule]], of_data: bool = False) -> None:
    """Let a consumer read, spoil a response, and judge that it reads on or that the application gets an error, with
    bounded memory. ``spoil`` plants rules, of which one must fire: with ``of_data`` on a response with records."""
    topic = at.topic()
    consumer = at.consumer(request_timeout_ms=2000)
    consumer.assign(topic)
    first = at.write(topic, 5)
    at.reads(consumer, first)
    before_mb = _peak_mb(consumer)
    rules = spoil()
    bound_s = consumer.bound_s(3)
    if of_data:
        next_fetch(consumer)
    else:
        consumer.poll_until(lambda: any(rule.fired for rule in rules), bound_s)
    written = at.write(topic, 5)
    ended = consumer.poll_until(lambda: consumer.errors or set(written) <= set(consumer.values), bound_s)
    at.require(any(rule.fired for rule in rules), "No such response was sent")
    _judge_memory(at, consumer, before_mb)
    at.progress("the records, or an error", ended, bound_s, "3 x request_timeout_ms")
    at.data("values read", [value for value in consumer.values if value not in (*first, *written)], [])
    if not consumer.errors:
        at.reads(consumer, written, from_record=len(first))


def _judge_memory(at: Play, consumer: Consumer, before_mb: float) -> None:
    grown = _peak_mb(consumer) - before_mb
    at.wire("megabytes that the response cost", round(grown), at_most(MAX_MEMORY_MB))


def _spoil_batch(at: Play, count: int) -> Callable[[], list[Rule]]:
    def spoilt(header: BatchHeader, batch: bytes) -> bytes:
        return sealed(header._replace(record_count=count), batch[HEADER_BYTES:])

    return lambda: [on_data(at, lambda one: _replaced(one, spoilt))]


def _replaced(one: Any, spoilt: Callable[[BatchHeader, bytes], bytes]) -> Any:
    return replace(one, records=rewritten(one.records, {5: spoilt}))


@case("limits/record-count", MUST, "DefaultRecordBatch.java, iterator: the count must fit the bytes")
def record_count(at: Play) -> None:
    """A batch of a few bytes with a right CRC says that it has 2^31-1 records: the client takes no memory for them,
    and the application gets an error or, from the next Fetch, the records."""
    _survives(at, _spoil_batch(at, MAX_INT32), of_data=True)


@case("limits/negative-count", MUST, "DefaultRecordBatch.java, iterator; franz-go 1.21.4's changelog")
def negative_count(at: Play) -> None:
    """A batch with a right CRC says that it has -5 records: the application gets an error or, from the next Fetch, the
    records."""
    _survives(at, _spoil_batch(at, NEGATIVE), of_data=True)


@case("limits/array-length", MUST, "Kafka's protocol guide, ARRAY and COMPACT_ARRAY; FetchResponse.json")
def array_length(at: Play) -> None:
    """A Fetch response says that it has 2^31-1 topics, and ends after one: the client takes no memory for them, and
    the application gets an error or, from the next Fetch, the records."""

    def legacy(response: bytes) -> bytes:
        return response[:LEGACY_COUNT_AT] + struct.pack(">i", MAX_INT32) + response[LEGACY_COUNT_AT + 4 :]

    def flexible(response: bytes) -> bytes:
        changed = response[4:FLEXIBLE_COUNT_AT] + MAX_VARINT + response[FLEXIBLE_COUNT_AT + 1 :]
        return struct.pack(">i", len(changed)) + changed

    def spoil() -> list[Rule]:
        matchers = (
            (at.kafka.on("Fetch", client_id="consumer-*", versions=(7, 11)), legacy),
            (at.kafka.on("Fetch", client_id="consumer-*", versions=(12, 18)), flexible),
        )
        return [matcher.change_bytes(change, times=1, optional=True) for matcher, change in matchers]

    _survives(at, spoil)


@case("limits/frame-length", MUST, "Kafka's protocol guide, Size; NetworkReceive.java")
def frame_length(at: Play) -> None:
    """A response says that it has 64 MB, of which a few bytes come: the client gives up after its timeout, and reads on
    over another connection."""
    _survives(at, _long_frame(at, PLAUSIBLE_BYTES))


@case("limits/frame-length-memory", SHOULD, KAFKA_4090)
def frame_length_memory(at: Play) -> None:
    """A response says that it has 2 GB, of which a few bytes come: the client takes no memory for them."""
    _survives(at, _long_frame(at, MAX_INT32 - 8))


def _long_frame(at: Play, size_bytes: int) -> Callable[[], list[Rule]]:
    def spoil() -> list[Rule]:
        matcher = at.kafka.on("Fetch", client_id="consumer-*")
        return [matcher.change_bytes(lambda response: struct.pack(">i", size_bytes) + response[4:], times=1)]

    return spoil


@case("limits/negative-frame-length", MUST, "NetworkReceive.java, readFrom: InvalidReceiveException")
def negative_frame_length(at: Play) -> None:
    """A response has the length -5: the client closes the connection and reads on over another one."""

    def spoil() -> list[Rule]:
        matcher = at.kafka.on("Fetch", client_id="consumer-*")
        return [matcher.change_bytes(lambda response: struct.pack(">i", NEGATIVE) + response[4:], times=1)]

    _survives(at, spoil)


def _await(consumer: Consumer, rule: Rule) -> bool:
    return consumer.poll_until(lambda: rule.fired)


@case("limits/torn", MUST, "NetworkReceive.java; NetworkClient.java, processDisconnection")
def torn(at: Play) -> None:
    """The connection ends inside of four responses, once inside of the length: the client reads on, and no record is
    lost or read twice."""
    topic = at.topic()
    consumer = at.consumer()
    consumer.assign(topic)
    at.reads(consumer, at.write(topic, 5))
    for size_bytes in TORN_BYTES:
        before = len(consumer.records)
        rule: Rule = at.kafka.on("Fetch", client_id="consumer-*").truncate_response(size_bytes, times=1)
        at.reads(consumer, at.write(topic, 5), from_record=before)
        fired = _await(consumer, rule)
        at.require(fired, f"No response ended after {size_bytes} bytes")
    at.reads(consumer, at.write(topic, 5), from_record=len(consumer.records))
    at.error("fatal errors of the application", consumer.fatal, None)


@case("limits/endless", MUST, "request.timeout.ms; NetworkClient.java, handleTimedOutRequests")
def endless(at: Play) -> None:
    """The first two of three addresses send a response of 64 MB in small pieces without an end: the client gives up
    after its timeout and goes on to the third."""
    _reads_beside_endless(at, PLAUSIBLE_BYTES)


@case("limits/endless-memory", SHOULD, KAFKA_4090)
def endless_memory(at: Play) -> None:
    """The first two of three addresses send a response of 1 GB in small pieces without an end: the client takes no
    memory for what has not come."""
    _reads_beside_endless(at, ENDLESS_BYTES)


def _reads_beside_endless(at: Play, size_bytes: int) -> None:
    topic = at.topic()
    written = at.write(topic)
    with closing(EndlessServer(size_bytes)) as first, closing(EndlessServer(size_bytes)) as second:
        addresses = ",".join((first.address, second.address, at.kafka.bootstrap_servers))
        for _ in range(ATTEMPTS):
            began_s = time.monotonic()
            consumer = at.consumer(bootstrap=addresses, request_timeout_ms=1500)
            before_mb = _peak_mb(consumer)
            consumer.assign(topic)
            at.reads(consumer, written, timeouts=5)
            at.note(f"({time.monotonic() - began_s:.1f} s until all was read)")
            _judge_memory(at, consumer, before_mb)
            at.error("fatal errors of the application", consumer.fatal, None)
            if first.accepted or second.accepted:
                return
            consumer.close()
    at.require(False, f"Of {ATTEMPTS} clients none tried such an address")
