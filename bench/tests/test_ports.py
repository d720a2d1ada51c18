"""Ports for nodes that come back to them."""

import socket

from bench import ports
from bench.ports import FIRST, LAST, free_port, free_ports


def test_ports_are_free_all_different_and_none_that_an_outgoing_connection_may_get() -> None:
    found = [*free_ports(20), free_port()]
    assert len(set(found)) == 21
    assert all(FIRST <= port <= LAST < 32_768 for port in found)
    for port in found:
        with socket.create_server(("127.0.0.1", port)):
            pass


def test_a_port_that_is_taken_is_not_given() -> None:
    taken = free_port()
    with socket.create_server(("127.0.0.1", taken)):
        assert not ports._is_free("127.0.0.1", taken)
