"""The blocking connection with a peer that responds, stalls, disconnects or sends garbage."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

import pytest
from kio.schema.api_versions.v4.request import ApiVersionsRequest

from reference_broker.blocking.transport import ConnectError, Connection, DeadlineError, LostError, Reply
from reference_broker.wire.fetch import FetchRequest, FetchResponse
from reference_broker.wire.messages import encode_response

LIMIT_US = 300_000


@contextmanager
def peer(serve: Callable[[socket.socket], None]) -> Iterator[Connection]:
    """``serve(sock)`` runs in a thread with one accepted connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:

        def work() -> None:
            sock, _ = server.accept()
            with sock:
                serve(sock)

        thread = threading.Thread(target=work)
        thread.start()
        connection = Connection.open("127.0.0.1", server.getsockname()[1], LIMIT_US, "c")
        try:
            yield connection
        finally:
            connection.close()
            thread.join(5)


def fetch(connection: Connection) -> Reply:
    deadline = time.monotonic() + LIMIT_US / 1e6
    return connection.receive(connection.send(1, 17, FetchRequest()), deadline)


def receive_request(sock: socket.socket) -> bytes:
    size = int.from_bytes(sock.recv(4, socket.MSG_WAITALL), "big")
    return sock.recv(size, socket.MSG_WAITALL)


def response(correlation_id: int = 1) -> bytes:
    return b"".join(encode_response(1, 17, correlation_id, FetchResponse(0, 77)))


def test_reply_has_decoded_response_and_sizes_of_both_frames() -> None:
    sizes = []

    def serve(sock: socket.socket) -> None:
        sizes.append(len(receive_request(sock)) + 4)
        sock.sendall(response())

    with peer(serve) as connection:
        reply = fetch(connection)
    assert reply.body == FetchResponse(0, 77)
    assert (reply.request_bytes, reply.response_bytes) == (sizes[0], len(response()))


def test_response_in_pieces_is_reassembled() -> None:
    def serve(sock: socket.socket) -> None:
        receive_request(sock)
        for each in response():
            sock.sendall(bytes([each]))

    with peer(serve) as connection:
        assert fetch(connection).body == FetchResponse(0, 77)


def test_incomplete_response_at_deadline_raises_deadline_error() -> None:
    def serve(sock: socket.socket) -> None:
        receive_request(sock)
        with suppress(OSError):  # The client has hung up by then.
            for each in response()[:4]:
                sock.sendall(bytes([each]))
                time.sleep(0.15)

    with peer(serve) as connection:
        started = time.monotonic()
        with pytest.raises(DeadlineError):
            fetch(connection)
        assert 0.25 < time.monotonic() - started < 0.6


@pytest.mark.parametrize(
    ("bytes_sent", "reason"),
    [
        (b"", "closed"),
        (b"\x00\x00", "closed"),
        (b"\x7f\xff\xff\xff", "garbled"),
        (b"\xff\xff\xff\xff", "garbled"),
        (b"\x00\x00\x00\x03abc", "garbled"),
        (response(correlation_id=9), "garbled"),
    ],
)
def test_broken_or_wrong_response_raises_lost_error(bytes_sent: bytes, reason: str) -> None:
    def serve(sock: socket.socket) -> None:
        receive_request(sock)
        sock.sendall(bytes_sent)

    with peer(serve) as connection, pytest.raises(LostError) as caught:
        fetch(connection)
    assert caught.value.reason == reason


def test_port_without_listener_raises_connect_error() -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with pytest.raises(ConnectError) as caught:
        Connection.open("127.0.0.1", port, LIMIT_US)
    assert caught.value.reason == "refused"


def test_kio_request_is_encoded() -> None:
    def serve(sock: socket.socket) -> None:
        assert b"crucible" in receive_request(sock)

    body = ApiVersionsRequest(client_software_name="crucible", client_software_version="1")
    with peer(serve) as connection, pytest.raises(LostError):
        connection.call(18, 3, body)
