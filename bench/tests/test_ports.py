"""Ports for nodes that use them again."""

import socket
import time
from collections.abc import Mapping

import pytest

from bench import ports
from bench.ports import FIRST, LAST, free_port, free_ports, stranger_at
from bench.probe.tests.scripted_server import serving


def test_ports_are_free_all_different_and_none_that_an_outgoing_connection_may_get() -> None:
    ports = [*free_ports(20), free_port()]
    assert len(set(ports)) == 21
    assert all(FIRST <= port <= LAST < 32_768 for port in ports)
    for port in ports:
        with socket.create_server(("127.0.0.1", port)):
            pass


@pytest.mark.parametrize(
    ("responses", "message"),
    [
        ({b"GET": b"HTTP/1.0 200 OK\r\n"}, "speaks HTTP, not the Kafka protocol"),
        ({b"\0\0\0": b"HTTP/1.1 400 Bad Request\r\n"}, "speaks HTTP, not the Kafka protocol"),
        ({b"\x16\x03\x01": b"\x16\x03\x03\0\x7a"}, "speaks TLS"),
        ({b"\0\0\0": b"\x15\x03\x01\0\x02\x02\x46"}, "speaks TLS"),
        ({b"\0\0\0": b"\0\0\1\0\0\0\0\1"}, ""),
        ({}, ""),
    ],
)
def test_http_and_tls_servers_are_recognised_at_once(responses: Mapping[bytes, bytes], message: str) -> None:
    """A server without a response to its own protocol waits until its client goes."""

    def serve(connection: socket.socket) -> None:
        while request := connection.recv(4096):
            if response := responses.get(request[:3]):
                connection.sendall(response)

    began = time.monotonic()
    with serving(serve) as (host, port):
        stranger = stranger_at(host, port)
    assert message in stranger
    assert bool(message) == bool(stranger)
    assert time.monotonic() - began < 6


def test_unused_port_has_no_stranger() -> None:
    assert stranger_at("127.0.0.1", free_port()) == ""
    assert stranger_at("a..b", 9092) == ""


def test_port_in_use_is_not_allocated() -> None:
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        assert not ports._is_free("127.0.0.1", taken)
