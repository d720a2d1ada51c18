"""Notices when a peer closes a connection that is not being read. The event loop would not notice."""

import asyncio
import select
from dataclasses import dataclass, field

from reference_broker.serve.connection import Connection

LOOK_EVERY_S = 1.0
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


@dataclass(slots=True)
class HangUps:
    """Looks at the watched sockets once a second, and aborts the connections that their peers closed or reset."""

    _loop: asyncio.AbstractEventLoop
    _watched: dict[Connection, int] = field(default_factory=dict)
    """The descriptor of each watched connection's socket."""
    _handle: asyncio.TimerHandle | None = None

    def watch(self, connection: Connection, watch: bool) -> None:
        if not watch:
            self._watched.pop(connection, None)
            return
        sock = connection.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return
        self._watched[connection] = sock.fileno()
        if self._handle is None:
            self._handle = self._loop.call_later(LOOK_EVERY_S, self._look)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._watched = {}

    def _look(self) -> None:
        self._handle = None
        poll = select.poll()
        by_descriptor = {descriptor: connection for connection, descriptor in self._watched.items()}
        for descriptor in by_descriptor:
            poll.register(descriptor, _GONE)
        for descriptor, _ in poll.poll(0):
            del self._watched[by_descriptor[descriptor]]
            by_descriptor[descriptor].abort()
        if self._watched:
            self._handle = self._loop.call_later(LOOK_EVERY_S, self._look)
