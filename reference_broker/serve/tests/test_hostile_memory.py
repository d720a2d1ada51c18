"""Half sent requests and unread responses of all peers stay within one bound."""

import socket
import struct
import time
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest
from kio.schema.metadata.v13.request import MetadataRequestTopic
from kio.schema.types import TopicName

from reference_broker.records.record import Record, build
from reference_broker.serve.connection import OWN_BYTES
from reference_broker.serve.tests.test_hostile_input import API_VERSIONS_0, assert_serves, connected, framed, read_frame
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch import NO_TOPIC_ID, FetchPartition, FetchRequest, FetchTopic
from reference_broker.wire.messages import decode_response, encode_request
from reference_broker.wire.produce import ProducePartition, ProduceRequest, ProduceTopic
from reference_broker.wire.retired_fields import MetadataRequest

if TYPE_CHECKING:
    from reference_broker.serve.tests.conftest import Broker

pytestmark = pytest.mark.live

MIB = 1 << 20
LIMIT = 32 * MIB
SMALL = ("--config", f"queued.max.request.bytes={LIMIT}", "--config", f"socket.request.max.bytes={8 * MIB}")
PEERS = 40
GROWS = LIMIT + 24 * MIB
"""The bound, and other memory of a node: a response that is being made, and what the allocator keeps."""


def test_open_connection_takes_no_more_memory_than_counted(start_broker: "Callable[..., Broker]") -> None:
    broker = start_broker()
    assert_serves(broker)
    peers = [greeted(broker) for _ in range(50)]
    grown_bytes = []
    try:
        for _ in range(2):  # What the node allocates once, such as a module that it imports late, is in one of them.
            before = broker.rss_bytes()
            peers += [greeted(broker) for _ in range(200)]
            grown_bytes.append((broker.rss_bytes() - before) / 200)
    finally:
        for peer in peers:
            peer.close()
    assert min(grown_bytes) < OWN_BYTES


def test_idle_connections_count_towards_memory_bound(start_broker: "Callable[..., Broker]") -> None:
    """Sixty of them need half of the clients' share here, so a frame that would fit without them does not."""
    limits = {
        "queued.max.request.bytes": 1_333_334,
        "socket.request.max.bytes": 1_000_000,
        "message.max.bytes": 900_000,
    }
    broker = start_broker(*(word for key, value in limits.items() for word in ("--config", f"{key}={value}")))
    idle = [greeted(broker) for _ in range(60)]
    assert not broker.log_events("connection_closed")
    greedy = connected(broker)
    send_what_is_taken(greedy, struct.pack(">i", 1_000_000) + bytes(600_000))
    assert closed_for_memory(broker) == 1
    assert_serves(broker)
    for peer in (*idle, greedy):
        peer.close()


def test_unregistered_node_client_id_uses_memory_of_clients(start_broker: "Callable[..., Broker]") -> None:
    broker = start_broker(*SMALL)
    frame = struct.pack(">i", 8 * MIB - 1) + bytes(7 * MIB)
    pretender = connected(broker)
    name = b"node-0:AAAAAAAAAAAAAAAAAAAAAA"
    pretender.sendall(framed(struct.pack(">hhih", 18, 0, 7, len(name)) + name))
    assert read_frame(pretender)
    peers = [pretender, *(connected(broker) for _ in range(3))]
    for peer in peers:
        send_what_is_taken(peer, frame)
    assert closed_for_memory(broker) == 1, "four times 7 MiB are more than three quarters of 32 MiB"
    for peer in peers:
        peer.close()


def greeted(broker: "Broker") -> socket.socket:
    peer = connected(broker)
    peer.sendall(framed(API_VERSIONS_0))
    assert read_frame(peer)
    return peer


def closed_for_memory(broker: "Broker") -> int:
    broker.await_log("connection_closed")
    lines = [line for line in broker.log_events("connection_closed") if "queued.max" in line["reason"]]
    return len(lines)


def test_half_frames_of_many_peers_stay_within_bound(start_broker: "Callable[..., Broker]") -> None:
    broker = start_broker(*SMALL, "--metrics", "127.0.0.1:0")
    assert_serves(broker)
    with connected(broker) as honest:
        before = broker.rss_bytes()
        peers = [connected(broker) for _ in range(PEERS)]
        for peer in peers:
            send_what_is_taken(peer, struct.pack(">i", 4 * MIB) + bytes(3 * MIB))
        assert broker.rss_bytes() - before < GROWS
        assert closed_for_memory(broker) > 0
        honest.sendall(framed(API_VERSIONS_0))
        assert read_frame(honest)
    with urllib.request.urlopen(f"http://{broker.ready['metrics']}/metrics", timeout=30) as response:
        text = response.read().decode()
    used = next(line for line in text.splitlines() if line.startswith("kafka_network_socketserver_memorypoolused "))
    assert 0 < float(used.split()[1]) <= LIMIT
    for peer in peers:
        peer.close()


def test_unread_responses_of_many_peers_stay_within_bound(start_broker: "Callable[..., Broker]") -> None:
    broker = start_broker(*SMALL, "--config", "message.max.bytes=8000000")
    with connected(broker) as honest:
        honest.sendall(topic())
        assert read_frame(honest)
        for _ in range(8):
            while not written(honest):
                time.sleep(0.02)  # The topic has no leader yet.
        before = broker.rss_bytes()
        peers = []
        for _ in range(PEERS):
            peer = socket.socket()
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            peer.settimeout(5)
            peer.connect(broker.address)
            peer.sendall(fetch() * 2)
            peers.append(peer)
        assert closed_for_memory(broker) > 0
        assert broker.rss_bytes() - before < GROWS
        honest.sendall(framed(API_VERSIONS_0))
        assert read_frame(honest)
    for peer in peers:
        peer.close()


def send_what_is_taken(sock: socket.socket, data: bytes) -> None:
    try:
        sock.sendall(data)
    except (ConnectionResetError, BrokenPipeError):
        return  # It was closed to make room for itself.


def topic() -> bytes:
    """Fetch the topic's metadata, which creates it."""
    names = (MetadataRequestTopic(topic_id=None, name=TopicName("t")),)
    body = MetadataRequest(topics=names, allow_auto_topic_creation=True, include_topic_authorized_operations=False)
    return b"".join(encode_request(ApiKey.METADATA, 9, 1, "honest", body))


def written(sock: socket.socket, size: int = MIB) -> bool:
    sock.sendall(produce(bytes(size)))
    response: Any = decode_response(ApiKey.PRODUCE, 9, memoryview(read_frame(sock)))[1]
    return bool(response.responses[0].partitions[0].error_code == ErrorCode.none)


def produce(value: bytes) -> bytes:
    records = build([Record(value=value)])
    body = ProduceRequest(1, 5000, [ProduceTopic("t", NO_TOPIC_ID, [ProducePartition(0, records)])])
    return b"".join(encode_request(ApiKey.PRODUCE, 9, 1, "honest", body))


def fetch() -> bytes:
    wanted = FetchTopic("t", NO_TOPIC_ID, [FetchPartition(0, 0, partition_max_bytes=8 * MIB)])
    body = FetchRequest(max_wait_ms=0, min_bytes=1, max_bytes=8 * MIB, topics=[wanted])
    return b"".join(encode_request(ApiKey.FETCH, 11, 1, "greedy", body))
