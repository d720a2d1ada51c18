"""Serves ``GET /metrics`` for Prometheus. It speaks just enough HTTP, so that a node needs no web server."""

import asyncio
from collections.abc import Callable
from typing import cast

REQUEST_BYTES = 8192
"""A request whose head is longer closes the connection."""
IDLE_S = 10.0
MAX_CONNECTIONS = 16
"""Further ones are closed at once."""


class MetricsProtocol(asyncio.Protocol):
    """A connection of the endpoint. It serves one request."""

    def __init__(self, text: Callable[[], str], others: "set[MetricsProtocol]") -> None:
        """``text()`` returns the metrics in Prometheus' text format 0.0.4. ``others`` holds the open connections of the
        same endpoint."""
        self._text = text
        self._others = others
        self._head = b""
        self._transport: asyncio.Transport
        self._idle: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if len(self._others) >= MAX_CONNECTIONS:
            self._transport.abort()
            return
        self._others.add(self)
        self._idle = asyncio.get_running_loop().call_later(IDLE_S, self._transport.abort)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._others.discard(self)
        if self._idle is not None:
            self._idle.cancel()

    def data_received(self, data: bytes) -> None:
        self._head += data
        if b"\r\n\r\n" in self._head:
            self._respond(self._head.split(b"\r\n", 1)[0].split(b" "))
        elif len(self._head) > REQUEST_BYTES:
            self._transport.abort()

    def _respond(self, words: list[bytes]) -> None:
        if len(words) < 2 or words[0] != b"GET" or words[1].split(b"?")[0] not in (b"/metrics", b"/"):
            status, body = "404 Not Found", "GET /metrics\n"
        else:
            status, body = "200 OK", self._text()
        payload = body.encode()
        head = (
            f"HTTP/1.1 {status}\r\nContent-Type: text/plain; version=0.0.4; charset=utf-8\r\n"
            f"Content-Length: {len(payload)}\r\nConnection: close\r\n\r\n"
        )
        self._transport.write(head.encode() + payload)
        self._transport.close()
