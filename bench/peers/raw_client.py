"""A minimal blocking connection for measurements, with nothing between the clock and the socket."""

import socket
import struct
from types import TracebackType
from typing import Self

from bench.fleet.behaviours.bodies import create_topics_request, new_topic
from bench.peers.node import PeerError
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import NO_TOPIC_ID
from reference_broker.wire.messages import decode_response, encode_request
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceResponse, ProduceTopic

_LENGTH = struct.Struct(">i")
CLIENT_ID = "crucible-bench"
FETCH_VERSION = 12
"""The newest that names topics. So every broker gets the same frames, and nobody must look up a topic's ID."""
PRODUCE_VERSION = 9
CREATE_VERSION = 5
TIMEOUT_MS = 10_000
ALL_REPLICAS = -1


class RawConnection:
    """One connection. Raises OSError when the broker does not answer within ``timeout_s``."""

    def __init__(self, port: int, timeout_s: float = 30.0) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._correlation_id = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        self._socket.close()

    def encode(self, api_key: int, version: int, body: object) -> bytes:
        self._correlation_id += 1
        return b"".join(encode_request(api_key, version, self._correlation_id, CLIENT_ID, body))

    def exchange(self, frame: bytes) -> bytes:
        """Sends one encoded request and returns the response frame, without its length."""
        self.send(frame)
        return self.receive()

    def send(self, frames: bytes) -> None:
        """Sends one encoded request or several. Each needs a ``receive`` afterwards."""
        self._socket.sendall(frames)

    def receive(self) -> bytes:
        """Returns the next response frame, without its length."""
        (length,) = _LENGTH.unpack(self._read(4))
        return self._read(length)

    def call(self, api_key: int, version: int, body: object) -> object:
        """Sends a request and returns the decoded body of the response (wire.messages)."""
        _, answer = decode_response(api_key, version, memoryview(self.exchange(self.encode(api_key, version, body))))
        return answer

    def _read(self, length: int) -> bytes:
        parts = self._socket.recv(length)
        if len(parts) == length:
            return parts
        buffer = bytearray(parts)
        while len(buffer) < length:
            part = self._socket.recv(min(1 << 20, length - len(buffer)))
            if not part:
                raise ConnectionError("the broker closed the connection")
            buffer += part
        return bytes(buffer)


def create_topic(connection: RawConnection, name: str, partitions: int) -> None:
    """Asks for a topic with one replica and default settings. A refusal shows at the next use of the topic."""
    body = create_topics_request([new_topic(name, partitions, 1, {})], TIMEOUT_MS)
    connection.call(ApiKey.CREATE_TOPICS, CREATE_VERSION, body)


def produce_request(topic: str, partition: int, batch: bytes, timeout_ms: int = TIMEOUT_MS) -> ProduceRequest:
    """Makes a request with one batch for one partition. All replicas in sync must acknowledge it."""
    named = ProduceTopic(topic, NO_TOPIC_ID, [ProducePartition(partition, batch)])
    return ProduceRequest(ALL_REPLICAS, timeout_ms, [named])


def base_offset(answer: object, name: str) -> int:
    """Returns the offset of the batch's first record. Raises PeerError if the broker ``name`` refused the batch."""
    assert isinstance(answer, ProduceResponse), f"{answer} answers no produce"
    told = answer.responses[0].partitions[0]
    if told.error_code:
        raise PeerError(f"{name} refused a record with error {told.error_code}")
    return told.base_offset
