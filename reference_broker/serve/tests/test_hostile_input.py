"""Misbehaving peers over real sockets: each loses its own connection, with one log line, and nothing else."""

import signal
import socket
import struct
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from reference_broker.serve.tests.conftest import Broker

pytestmark = pytest.mark.live

API_VERSIONS_0 = struct.pack(">hhih", 18, 0, 7, -1)


def framed(payload: bytes) -> bytes:
    return struct.pack(">i", len(payload)) + payload


def connected(broker: "Broker") -> socket.socket:
    sock = socket.create_connection(broker.address, timeout=30)
    sock.settimeout(30)
    return sock


def read_frame(sock: socket.socket) -> bytes:
    def exactly(length: int) -> bytes:
        data = b""
        while len(data) < length:
            piece = sock.recv(length - len(data))
            assert piece, "the broker closed the connection"
            data += piece
        return data

    return exactly(struct.unpack(">i", exactly(4))[0])


def assert_serves(broker: "Broker") -> None:
    with connected(broker) as sock:
        sock.sendall(framed(API_VERSIONS_0))
        assert read_frame(sock)[:4] == struct.pack(">i", 7)


def was_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.parametrize(
    "payload",
    [
        struct.pack(">i", -1),
        struct.pack(">i", 200_000_000),
        framed(b""),
        framed(b"\x00"),
        framed(struct.pack(">hhih", 18, 0, 7, 500) + b"short"),
        framed(struct.pack(">hhih", 999, 0, 7, -1)),
        framed(struct.pack(">hhih", 0, 0, 7, -1)),
        framed(struct.pack(">hhih", 3, 12, 7, -1) + b"\x00" + b"\xff" * 9),
        framed(struct.pack(">hhih", 1, 4, 7, -1) + b"\x00" * 17 + b"\x7f\xff\xff\xff"),
        b"GET / HTTP/1.1\r\nHost: broker\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(600),
    ],
    ids=[
        "negative length",
        "length over the limit",
        "empty frame",
        "one byte",
        "client ID cut off",
        "unknown API",
        "version not served",
        "bad tagged fields",
        "array longer than the frame",
        "HTTP",
        "TLS",
    ],
)
def test_malformed_bytes_close_connection_with_one_log_line(broker: "Broker", payload: bytes) -> None:
    with connected(broker) as bystander, connected(broker) as sock:
        sock.sendall(payload)
        assert was_closed(sock)
        bystander.sendall(framed(API_VERSIONS_0))
        assert read_frame(bystander)
    closed = broker.await_log("connection_closed")
    assert len(closed) == 1
    assert closed[0]["reason"]
    assert "\\n" not in broker.log.read_text()
    assert broker.log_events("crashed") == []


@pytest.mark.parametrize(
    "payload",
    [
        struct.pack(">hhih", 18, 0, 7, 2) + b"\xff\xfe",
        struct.pack(">hhih", 18, 0, 7, -2),
        API_VERSIONS_0 + b"trailing bytes that belong to nothing",
    ],
    ids=["client ID not UTF-8", "negative length of the client ID", "trailing bytes"],
)
def test_bytes_ignored_by_kafka_are_ignored(broker: "Broker", payload: bytes) -> None:
    with connected(broker) as sock:
        sock.sendall(framed(payload))
        assert read_frame(sock)[:6] == struct.pack(">ih", 7, 0)


def test_api_versions_of_unknown_version_returns_version_zero(broker: "Broker") -> None:
    with connected(broker) as sock:
        sock.sendall(framed(struct.pack(">hhih", 18, 99, 7, -1) + b"\x00whatever the future holds"))
        assert read_frame(sock)[:6] == struct.pack(">ih", 7, 35)
        sock.sendall(framed(API_VERSIONS_0))
        assert read_frame(sock)[:6] == struct.pack(">ih", 7, 0)


def test_length_of_hundred_megabytes_reserves_no_memory(broker: "Broker") -> None:
    assert_serves(broker)
    before = broker.rss_bytes()
    liars = [connected(broker) for _ in range(50)]
    for liar in liars:
        liar.sendall(struct.pack(">i", 100_000_000) + b"abc")
    assert_serves(broker)
    assert broker.rss_bytes() - before < 8 << 20
    for liar in liars:
        liar.close()


def test_request_arriving_byte_by_byte_is_served(broker: "Broker") -> None:
    with connected(broker) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for byte in framed(API_VERSIONS_0):
            sock.sendall(bytes([byte]))
            time.sleep(0.001)
        assert read_frame(sock)


def test_pipelined_requests_get_responses_in_order(broker: "Broker") -> None:
    with connected(broker) as sock:
        sock.sendall(b"".join(framed(struct.pack(">hhih", 18, 0, each, -1)) for each in range(200)))
        assert [struct.unpack(">i", read_frame(sock)[:4])[0] for each in range(200)] == list(range(200))


def waiting_fetch(max_wait_ms: int) -> bytes:
    """Return a sessionless fetch v4 without partitions, which waits for max_wait_ms."""
    body = struct.pack(">iiiibi", -1, max_wait_ms, 1, 1 << 20, 0, 0)
    return framed(struct.pack(">hhih", 1, 4, 9, -1) + body)


def test_bytes_behind_parked_request_are_bounded_and_close_is_detected(broker: "Broker") -> None:
    sock = connected(broker)
    sock.settimeout(1.0)
    before = broker.rss_bytes()
    sock.sendall(waiting_fetch(60_000))
    sent = send_until_stuck(sock, framed(API_VERSIONS_0) * 4096)
    assert sent < 40 << 20, "the kernel's buffers and the read-ahead, no more"
    assert broker.rss_bytes() - before < 24 << 20
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()
    deadline = time.monotonic() + 30
    while connections(broker) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert connections(broker) == 0
    assert_serves(broker)


def send_until_stuck(sock: socket.socket, data: bytes) -> int:
    """Return the bytes that were sent before the peer accepted no more for the socket's timeout."""
    sent = 0
    while sent < 200 << 20:
        try:
            sent += sock.send(data)
        except TimeoutError:
            return sent
    return sent


def connections(broker: "Broker") -> int:
    port = f":{broker.address[1]:04X}"
    with open("/proc/net/tcp") as table:
        rows = [line.split() for line in table][1:]
    return sum(row[1].endswith(port) and row[3] != "0A" and row[3] != "06" for row in rows)


def test_unread_response_bytes_are_bounded(broker: "Broker") -> None:
    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.settimeout(1.0)
        sock.connect(broker.address)
        before = broker.rss_bytes()
        assert send_until_stuck(sock, framed(API_VERSIONS_0) * 1000) < 40 << 20
        assert broker.rss_bytes() - before < 24 << 20
        assert_serves(broker)


def test_connections_beyond_limit_are_closed_at_once(start_broker: "Callable[..., Broker]") -> None:
    broker = start_broker("--config", "max.connections=3")
    kept = [connected(broker) for _ in range(3)]
    for sock in kept:
        sock.sendall(framed(API_VERSIONS_0))
        read_frame(sock)
    with connected(broker) as extra:
        assert was_closed(extra)
    assert len(broker.await_log("connection_refused")) == 1
    kept.pop().close()
    time.sleep(0.1)
    assert_serves(broker)
    for sock in kept:
        sock.close()


def test_broker_continues_after_sigstop_and_sigcont(broker: "Broker") -> None:
    with connected(broker) as sock:
        broker.process.send_signal(signal.SIGSTOP)
        sock.sendall(framed(API_VERSIONS_0))
        time.sleep(0.2)
        broker.process.send_signal(signal.SIGCONT)
        assert read_frame(sock)
