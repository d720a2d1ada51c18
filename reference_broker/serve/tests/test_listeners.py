"""Addresses on which a node listens, and those that it announces."""

import asyncio
import errno
import json
import os
import socket
import struct
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, cast

import pytest
import uvloop

from reference_broker.configuration.broker_config import BrokerConfig
from reference_broker.configuration.listeners import Endpoint
from reference_broker.quorum.messages import build_begin_quorum_epoch_request
from reference_broker.serve.listeners import (
    ACCEPTS_PER_TURN,
    Acceptor,
    BoundListener,
    advertised_endpoints,
    bind_listeners,
    listening_socket,
)
from reference_broker.serve.process import StartError
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.messages import encode_request

if TYPE_CHECKING:
    from reference_broker.serve.tests.conftest import Broker

LISTENERS = {
    "listeners": "PLAINTEXT://127.0.0.1:0,REPLICATION://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "REPLICATION",
}


def opened(
    listen: str | None, advertise: str | None = None, **config: str
) -> tuple[Sequence[BoundListener], Sequence[Endpoint]]:
    parsed = BrokerConfig.parse({key.replace("_", "."): value for key, value in config.items()})
    doors = bind_listeners(listen, parsed)
    try:
        return doors, advertised_endpoints(doors, parsed, advertise)
    finally:
        for door in doors:
            door.socket.close()


def test_simple_listen_address_is_advertised_unchanged() -> None:
    (door,), (endpoint,) = opened("127.0.0.1:0")
    assert (door.name, endpoint.name, endpoint.host) == ("PLAINTEXT", "PLAINTEXT", "127.0.0.1")
    assert endpoint.port > 0
    assert opened("127.0.0.1:0", "outside:7")[1] == (Endpoint("outside", 7),)
    assert opened("127.0.0.1:0", advertised_listeners="PLAINTEXT://outside:7")[1] == (Endpoint("outside", 7),)


@pytest.mark.parametrize("host", ["0.0.0.0", "[::]"])
def test_node_on_all_interfaces_advertises_host_name(monkeypatch: pytest.MonkeyPatch, host: str) -> None:
    """No client can connect to the address of all interfaces, so Kafka rejects it."""
    monkeypatch.setattr(socket, "getfqdn", lambda: "localhost")
    _, (endpoint,) = opened(f"{host}:0")
    assert endpoint.host == "localhost"
    with pytest.raises(StartError, match="give an address that others can connect to"):
        opened("127.0.0.1:0", f"{host}:9092")


def test_all_interfaces_without_host_name_require_advertise_option(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "getfqdn", lambda: "no.such.host.invalid")
    with pytest.raises(StartError, match="say with --advertise"):
        opened("0.0.0.0:0")
    assert opened("0.0.0.0:0", "127.0.0.1:7")[1] == (Endpoint("127.0.0.1", 7),)


def test_listen_and_listeners_are_mutually_exclusive() -> None:
    for listen, advertise in (("127.0.0.1:0", None), (None, "127.0.0.1:7")):
        with pytest.raises(StartError, match="are both given"):
            opened(listen, advertise, listeners="PLAINTEXT://127.0.0.1:0")


def test_loopback_is_determined_by_bound_address() -> None:
    assert [opened(listen)[0][0].name for listen in ("127.0.0.1:0",)] == ["PLAINTEXT"]
    parsed = BrokerConfig.parse({"listeners": "A://127.0.0.1:0,B://localhost:0,C://:0"})
    doors = bind_listeners(None, parsed)
    try:
        assert [door.is_loopback for door in doors] == [True, True, False]
    finally:
        for door in doors:
            door.socket.close()


def test_new_connections_are_accepted_several_at_a_time() -> None:
    accepted = 0

    class Counting(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            nonlocal accepted
            accepted += 1
            transport.close()

    async def scene() -> None:
        listening = listening_socket("127.0.0.1", 0, "--listen")
        address = listening.getsockname()
        newcomers = [socket.create_connection(address) for _ in range(3 * ACCEPTS_PER_TURN)]
        accepting = Acceptor(asyncio.get_running_loop(), Counting, listening)
        turns = 0
        while accepted < len(newcomers):
            await asyncio.sleep(0)
            turns += 1
        assert 3 <= turns <= 8
        accepting.close()
        accepting.close()
        for newcomer in newcomers:
            newcomer.close()
        await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())


@pytest.mark.parametrize("lacks", [errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM])
def test_new_connections_wait_for_free_descriptors(lacks: int, monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        """A listening socket of a process without a free descriptor, or of a full system, at first."""

        def __init__(self, inner: socket.socket) -> None:
            self.inner = inner
            self.refusals = 3

        def fileno(self) -> int:
            return self.inner.fileno()

        def close(self) -> None:
            self.inner.close()

        def accept(self) -> tuple[socket.socket, object]:
            if self.refusals:
                self.refusals -= 1
                raise OSError(lacks, os.strerror(lacks))
            return self.inner.accept()

    pauses = 0

    async def scene() -> None:
        nonlocal pauses
        made: asyncio.Future[socket.socket] = asyncio.get_running_loop().create_future()

        class Recording(asyncio.Protocol):
            def connection_made(self, transport: asyncio.BaseTransport) -> None:
                made.set_result(transport.get_extra_info("socket"))

        class Pausing(Acceptor):
            def _pause(self) -> None:
                nonlocal pauses
                pauses += 1
                super()._pause()

        full = Full(listening_socket("127.0.0.1", 0, "--listen"))
        accepting = Pausing(asyncio.get_running_loop(), Recording, cast(Any, full))
        with socket.create_connection(full.inner.getsockname()):
            accepted = await asyncio.wait_for(made, 10)
        assert full.refusals == 0
        assert pauses == 3
        assert accepted.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        accepting.close()

    monkeypatch.setattr("reference_broker.serve.listeners.NO_ROOM_PAUSE_S", 0.001)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(scene())


def bytes_received(address: str, frame: bytes) -> bytes:
    """Return the first bytes of the response; none if the connection is closed instead."""
    host, _, port = address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=30) as sock:
        sock.sendall(frame)
        try:
            return sock.recv(8)
        except ConnectionResetError:
            return b""


@pytest.mark.live
def test_quorum_request_on_client_listener_closes_connection(start_broker: "Callable[..., Broker]") -> None:
    words = [word for key, value in LISTENERS.items() for word in ("--config", f"{key}={value}")]
    broker = start_broker(*words, listen="")
    listeners = broker.ready["listeners"]
    assert list(listeners) == ["PLAINTEXT", "REPLICATION", "CONTROLLER"]
    assert broker.ready["listen"] == listeners["PLAINTEXT"]
    body = build_begin_quorum_epoch_request("anything", -1, 1, 2**31 - 1)
    forged = b"".join(bytes(each) for each in encode_request(ApiKey.BEGIN_QUORUM_EPOCH, 0, 1, "x", body))
    assert [bool(bytes_received(address, forged)) for address in listeners.values()] == [False, False, True]
    assert len(broker.await_log("connection_closed", 2)) == 2
    api_versions = struct.pack(">ihhih", 10, 18, 0, 7, -1)
    assert all(bytes_received(address, api_versions) for address in listeners.values())
    assert not broker.log_events("listens_beyond_loopback")
    assert broker.stop() == 0


@pytest.mark.live
def test_node_connection_replaces_longest_idle_client(start_broker: "Callable[..., Broker]") -> None:
    settings = {**LISTENERS, "max.connections": "2"}
    words = [word for key, value in settings.items() for word in ("--config", f"{key}={value}")]
    broker = start_broker(*words, listen="")
    api_versions = struct.pack(">ihhih", 10, 18, 0, 7, -1)

    def connected(listener: str) -> socket.socket:
        host, _, port = broker.ready["listeners"][listener].rpartition(":")
        sock = socket.create_connection((host, int(port)), timeout=30)
        sock.sendall(api_versions)
        return sock

    with ExitStack() as stack:
        clients = [stack.enter_context(connected("PLAINTEXT")) for _ in range(2)]
        assert [bool(sock.recv(1 << 16)) for sock in clients] == [True, True]
        clients[0].sendall(api_versions)
        assert clients[0].recv(1 << 16)  # So the second one is idle for longer.
        assert bytes_received(broker.ready["listeners"]["PLAINTEXT"], api_versions) == b""
        nodes = []
        for listener, evicted in (("REPLICATION", 1), ("CONTROLLER", 0), ("REPLICATION", None)):
            node = stack.enter_context(connected(listener))
            assert node.recv(1 << 16)
            nodes.append(node)
            if evicted is not None:
                assert is_closed(clients[evicted])
        for node in nodes:
            node.sendall(api_versions)
            assert node.recv(1 << 16)


def is_closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except ConnectionResetError:
        return True


@pytest.mark.live
def test_listening_beyond_loopback_explains_risk(
    start_broker: "Callable[..., Broker]",
) -> None:
    broker = start_broker("--advertised", "127.0.0.1:9", listen="0.0.0.0:0")
    (line,) = broker.log_events("listens_beyond_loopback")
    assert line["level"] == "warn"
    assert "no authentication" in line["reason"]
    assert json.dumps(line["advertised"]) == '"PLAINTEXT://127.0.0.1:9"'
