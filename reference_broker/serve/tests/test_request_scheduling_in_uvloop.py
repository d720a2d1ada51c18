"""The turns of the real event loop end when all sockets were called back, and not before."""

import asyncio
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from time import thread_time

import uvloop

from reference_broker.serve.listeners import ACCEPTS_PER_TURN, Acceptor
from reference_broker.serve.request_scheduling import LIGHT_S, RequestScheduler

REQUESTS = 60
REQUEST_S = LIGHT_S / 10
READY = 1100
"""While more than 1,024 sockets are ready, uvloop calls each back several times in one turn."""


def test_simultaneous_arrivals_are_served_for_limited_time() -> None:
    assert uvloop.run(_served_of(REQUESTS)) < REQUESTS // 2


def test_single_arrival_is_always_served() -> None:
    assert uvloop.run(_served_of(1)) == 1


async def _served_of(requests: int) -> int:
    """Send the requests over a connection each, all at once. Return how many are served on arrival."""
    scheduler, served, accepted = (
        RequestScheduler(asyncio.get_running_loop()),
        list[bool](),
        list[asyncio.BaseTransport](),
    )

    class Peer(asyncio.Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            accepted.append(transport)

        def data_received(self, data: bytes) -> None:  # noqa: ARG002
            served.append(scheduler.may_serve_now())
            ends_s = thread_time() + REQUEST_S * served[-1]
            while thread_time() < ends_s:
                pass

    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", 0, backlog=requests)
    peers = [socket.create_connection(server.sockets[0].getsockname()) for _ in range(requests)]
    try:
        while len(accepted) < requests:
            await asyncio.sleep(0)
        for peer in peers:
            peer.send(b"x")
        while len(served) < requests:
            await asyncio.sleep(0)
        return sum(served)
    finally:
        for peer in peers:
            peer.close()
        server.close()


def test_new_connections_per_turn_are_limited_with_many_ready_sockets() -> None:
    accepted: list[int] = []
    """In each turn."""

    class Listening(socket.socket):
        def accept(self) -> tuple[socket.socket, object]:
            newcomer = super().accept()
            accepted[-1] += 1
            return newcomer

    async def scene() -> None:
        loop = asyncio.get_running_loop()
        listening = Listening()
        listening.bind(("127.0.0.1", 0))
        listening.listen(3 * ACCEPTS_PER_TURN)
        listening.setblocking(False)
        newcomers = [socket.create_connection(listening.getsockname()) for _ in range(3 * ACCEPTS_PER_TURN)]
        pairs = [socket.socketpair() for _ in range(READY)]
        for ours, theirs in pairs:
            theirs.send(b"x")
            loop.add_reader(ours, lambda: None)
        accepting = Acceptor(loop, asyncio.Protocol, listening)
        while sum(accepted) < len(newcomers):
            accepted.append(0)
            await asyncio.sleep(0)
        accepting.close()
        for ours, theirs in pairs:
            loop.remove_reader(ours)
            ours.close()
            theirs.close()
        for newcomer in newcomers:
            newcomer.close()

    with _open_files(3 * READY + 6 * ACCEPTS_PER_TURN):
        uvloop.run(scene())
    assert max(accepted) == ACCEPTS_PER_TURN


@contextmanager
def _open_files(least: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, least), hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
