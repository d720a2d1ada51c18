"""The turns of the real event loop end when all sockets were called back, and not before."""

import asyncio
import socket
from time import thread_time

import uvloop

from reference_broker.serve.turns import LIGHT_S, Turns

REQUESTS = 60
REQUEST_S = LIGHT_S / 10


def test_what_arrives_at_once_is_served_for_a_limited_time() -> None:
    assert uvloop.run(_served_of(REQUESTS)) < REQUESTS // 2


def test_what_arrives_alone_is_always_served() -> None:
    assert uvloop.run(_served_of(1)) == 1


async def _served_of(requests: int) -> int:
    """Sends so many requests over a connection each, all at once. Returns how many are served when they arrive."""
    turns, served = Turns(asyncio.get_running_loop()), list[bool]()

    class Peer(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:  # noqa: ARG002
            served.append(turns.may_serve_now())
            ends_s = thread_time() + REQUEST_S * served[-1]
            while thread_time() < ends_s:
                pass

    server = await asyncio.get_running_loop().create_server(Peer, "127.0.0.1", 0, backlog=requests)
    peers = [socket.create_connection(server.sockets[0].getsockname()) for _ in range(requests)]
    try:
        await asyncio.sleep(0.1)  # All are accepted by then.
        for peer in peers:
            peer.send(b"x")
        while len(served) < requests:
            await asyncio.sleep(0)
        return sum(served)
    finally:
        for peer in peers:
            peer.close()
        server.close()
