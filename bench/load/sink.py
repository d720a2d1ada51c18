"""A stand-in for a broker that keeps nothing: what the generator reaches against it is what the generator can do.

It gives offsets to the records of each Produce request and forgets them. A Fetch gets the same batch of values again
and again, with the offsets that it requests. It serves what ``LoadProducer`` and ``LoadReader`` send, and nothing
else. As a process of its own: ``python -m bench.load.sink``, which prints its port and ends with its stdin.
"""

import itertools
import os
import socket
import sys
import threading
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from struct import Struct
from typing import Any, Final

import msgspec
from kio.schema.init_producer_id.v5.response import InitProducerIdResponse
from kio.schema.metadata.v13.response import (
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from kio.schema.types import BrokerId, ProducerId, TopicName
from kio.static.primitive import i16, i32

from bench.fleet.behaviours.bodies import milliseconds
from bench.fleet.value_batches import BatchMaker
from bench.fleet.values import ValueMaker
from bench.load.record_batches import MessageSizes, RecordBatchMaker, RecordHeaders
from reference_broker.client.partitions import TopicPartition
from reference_broker.records.batch import Buffer, patched_prefix, read_header
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import FetchRequest, FetchResponse, FetchTopicResponse, PartitionData
from reference_broker.wire.frames import RequestHeader, read_request_header
from reference_broker.wire.messages import decode_request, encode_response
from reference_broker.wire.produce import (
    ProducePartitionResponse,
    ProduceRequest,
    ProduceResponse,
    ProduceTopicResponse,
)
from reference_broker.wire.retired_fields import MetadataRequest, MetadataResponse

_COUNT: Final = Struct(">i")
_COUNT_AT: Final = 57
"""Position of the number of records in a batch's header."""
END_OFFSET: Final = 1 << 60
"""No reader comes to the end of the log."""
READ_WRITER: Final = "sink"
_LENGTH_BYTES: Final = 4


@dataclass(frozen=True, slots=True)
class SinkPlan:
    """The plan of a sink, which has any topic."""

    partitions: int = 16  # number of partitions of each topic
    value_bytes: int = 100
    batch_records: int = 150
    read_batches: int = 32  # batches for each partition in a Fetch response
    sizes: MessageSizes | None = None  # None: all values have ``value_bytes``
    headers: RecordHeaders | None = None

    def batch(self) -> bytes:
        """Return the batch that each Fetch gets."""
        if self.sizes is None and self.headers is None:
            return BatchMaker(ValueMaker(READ_WRITER, self.value_bytes), self.batch_records).make(0, 0)
        sizes = (self.value_bytes,) if self.sizes is None else self.sizes.drawn()
        headers = () if self.headers is None else self.headers.pairs
        return RecordBatchMaker(READ_WRITER, self.batch_records, sizes, headers=headers).make(0, 0)


class Sink:
    """Listens on loopback from the start on. Each connection has a thread."""

    def __init__(self, plan: SinkPlan = SinkPlan()) -> None:
        self.plan = plan
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self.listener.getsockname()[1])
        self.records = 0
        """Number of produced records."""
        self._producer_ids = itertools.count(1)
        self._ends: defaultdict[TopicPartition, int] = defaultdict(int)
        batch = plan.batch()
        self._header, self._rest = read_header(batch), batch[16:]
        self._handlers: dict[int, Callable[[Any], object]] = {
            ApiKey.METADATA: self._metadata,
            ApiKey.INIT_PRODUCER_ID: self._producer_id,
            ApiKey.PRODUCE: self._produce,
            ApiKey.FETCH: self._fetch,
        }

    def serve(self) -> None:
        """Accept connections until ``close``."""
        with suppress(OSError):  # The listener was closed.
            while True:
                connection, _ = self.listener.accept()
                threading.Thread(target=self._serve_one, args=(connection,), daemon=True).start()

    def close(self) -> None:
        with suppress(OSError):
            self.listener.shutdown(socket.SHUT_RDWR)
        self.listener.close()

    def append(self, partition: TopicPartition, batch: Buffer) -> tuple[int, int]:
        """Take a batch. Return the error code and the base offset."""
        (count,) = _COUNT.unpack_from(batch, _COUNT_AT)
        base = self._ends[partition]
        self._ends[partition] = base + count
        self.records += count
        return 0, base

    def read(self, partition: TopicPartition, offset: int) -> tuple[bytes, int]:  # noqa: ARG002 - all partitions are alike
        """Return batches from an offset on, and the log end offset."""
        parts: list[bytes] = []
        for number in range(self.plan.read_batches):
            parts += (patched_prefix(self._header, offset + number * self.plan.batch_records, 0), self._rest)
        return b"".join(parts), END_OFFSET

    def _serve_one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            while (frame := _read_frame(connection)) is not None:
                header, body_at = read_request_header(frame)
                body = decode_request(header.api_key, header.api_version, frame, body_at)
                self._respond(connection, header, body)

    def _respond(self, connection: socket.socket, header: RequestHeader, body: object) -> None:
        response = self._handlers[header.api_key](body)
        if response is None:
            return
        connection.sendall(
            b"".join(encode_response(header.api_key, header.api_version, header.correlation_id, response))
        )

    def _metadata(self, request: MetadataRequest) -> MetadataResponse:
        own = MetadataResponseBroker(node_id=BrokerId(0), host="127.0.0.1", port=i32(self.port), rack=None)
        partitions = tuple(
            MetadataResponsePartition(
                error_code=ErrorCode.none,
                partition_index=i32(index),
                leader_id=BrokerId(0),
                leader_epoch=i32(0),
                replica_nodes=(BrokerId(0),),
                isr_nodes=(BrokerId(0),),
                offline_replicas=(),
            )
            for index in range(self.plan.partitions)
        )
        topics = tuple(
            MetadataResponseTopic(
                error_code=ErrorCode.none,
                name=TopicName(str(topic.name)),
                topic_id=None,
                is_internal=False,
                partitions=partitions,
            )
            for topic in request.topics or ()
        )
        return MetadataResponse(
            throttle_time=milliseconds(0),
            error_code=ErrorCode.none,
            brokers=(own,),
            cluster_id=None,
            controller_id=BrokerId(0),
            topics=topics,
        )

    def _producer_id(self, _: object) -> InitProducerIdResponse:
        return InitProducerIdResponse(
            throttle_time=milliseconds(0),
            error_code=ErrorCode.none,
            producer_id=ProducerId(next(self._producer_ids)),
            producer_epoch=i16(0),
        )

    def _produce(self, request: ProduceRequest) -> ProduceResponse | None:
        topics = []
        for topic in request.topics:
            partitions = []
            for partition in topic.partitions:
                assert partition.records is not None, "a Produce request without records"
                error_code, base = self.append(TopicPartition(topic.topic, partition.partition), partition.records)
                partitions.append(ProducePartitionResponse(partition.partition, error_code, base, -1, 0))
            topics.append(ProduceTopicResponse(topic.topic, topic.topic_id, partitions))
        return ProduceResponse(topics) if request.acks else None

    def _fetch(self, request: FetchRequest) -> FetchResponse:
        topics = [
            FetchTopicResponse(
                topic.topic,
                topic.topic_id,
                [
                    PartitionData(partition.partition, 0, end, end, 0, None, -1, records)
                    for partition in topic.partitions
                    for records, end in (
                        self.read(TopicPartition(topic.topic, partition.partition), partition.fetch_offset),
                    )
                ],
            )
            for topic in request.topics
        ]
        return FetchResponse(responses=topics)


@contextmanager
def serving(sink: Sink) -> Iterator[list[tuple[str, int]]]:
    """Serve in a thread of this process for as long as the block lasts. Yield the bootstrap addresses."""
    thread = threading.Thread(target=sink.serve)
    thread.start()
    try:
        yield [("127.0.0.1", sink.port)]
    finally:
        sink.close()
        thread.join()


def _read_frame(connection: socket.socket) -> memoryview | None:
    """Return the next frame without its length; None at the end of the connection."""
    length = _read(connection, _LENGTH_BYTES)
    return None if length is None else _read(connection, int.from_bytes(length, "big"))


def _read(connection: socket.socket, size: int) -> memoryview | None:
    buffer = memoryview(bytearray(size))
    filled = 0
    while filled < size:
        count = connection.recv_into(buffer[filled:])
        if not count:
            return None
        filled += count
    return buffer


def main(arguments: Sequence[str]) -> None:
    """The only argument is a ``SinkPlan`` as JSON."""
    sink = Sink(msgspec.json.decode(arguments[0], type=SinkPlan))
    threading.Thread(target=sink.serve, daemon=True).start()
    sys.stdout.write(f"{sink.port}\n")
    sys.stdout.flush()
    while os.read(0, 4096):
        pass


if __name__ == "__main__":
    main(sys.argv[1:])
