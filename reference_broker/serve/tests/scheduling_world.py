"""Connections in a loop that is run by hand, for tests of scheduling."""

import struct
from collections import deque
from collections.abc import Callable, Sequence
from math import ceil
from typing import Any, cast

from reference_broker.metrics.metrics import Metrics
from reference_broker.serve.connection import Connection
from reference_broker.serve.memory_budget import MemoryBudget
from reference_broker.serve.request_scheduling import LIGHT_S, PASS_S, ReceiveBudget, RequestScheduler

FRAME = struct.pack(">i", 4) + b"ping"
FETCH = struct.pack(">ih", 4, 1) + b"ng"
API_VERSIONS = struct.pack(">ih", 4, 18) + b"ng"
MOST = 10
"""Number of requests that are served in PASS_S."""
REQUEST_S = PASS_S / (MOST - 0.3)
MAX_LIGHT_REQUESTS = ceil(LIGHT_S / REQUEST_S)


class Loop:
    """An event loop that is run by hand, and a processor whose time passes only where requests are handled."""

    def __init__(self) -> None:
        self.soon: deque[Callable[[], None]] = deque()
        self.used_s = 0.0

    def call_soon(self, callback: Callable[[], None]) -> None:
        self.soon.append(callback)

    def clock_s(self) -> float:
        return self.used_s

    def once(self) -> None:
        """Run what the loop does between two polls of its sockets."""
        for _ in range(len(self.soon)):
            self.soon.popleft()()


class Transport:
    def __init__(self) -> None:
        self.reads = True
        self.unread_bytes = 0
        self.is_aborted = False

    def set_write_buffer_limits(self, high: int) -> None: ...

    def get_extra_info(self, _: str) -> None: ...

    def pause_reading(self) -> None:
        self.reads = False

    def resume_reading(self) -> None:
        self.reads = True

    def is_closing(self) -> bool:
        return False

    def close(self) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True

    def get_write_buffer_size(self) -> int:
        return self.unread_bytes

    def writelines(self, buffers: Sequence[bytes]) -> None: ...


class Responder:
    """A driver as a connection sees it: it responds at once, or keeps requests (``keeps``)."""

    def __init__(self) -> None:
        self.loop = Loop()
        self.scheduler = RequestScheduler(self.loop, self.loop.clock_s)
        self.receive_budget = ReceiveBudget(self.loop.call_soon)
        self.memory = MemoryBudget(-1, Metrics())
        self.served: list[int] = []
        self.keeps = False
        self.response_bytes = 10
        self._number = 0

    def opened(self, connection: Connection) -> bool:
        connection.admitted(self._number)
        self._number += 1
        return True

    def decoded(self, connection: Connection, frame: memoryview) -> Connection:
        assert bytes(frame)[2:] == b"ng"
        return connection

    def handle_request(self, request: Connection) -> None:
        self.served.append(request.number)
        self.loop.used_s += REQUEST_S
        request.send([bytes(self.response_bytes)])
        if not self.keeps:
            request.done()

    def respond(self, connection: Connection) -> None:
        connection.done()

    def watch_for_close(self, connection: Connection, watch: bool) -> None: ...

    def closed(self, connection: Connection) -> None: ...

    def connected(self, served_before: bool = True) -> tuple[Connection, Transport]:
        connection, transport = Connection(cast(Any, self), 1000), Transport()
        connection.connection_made(cast(Any, transport))
        if served_before:
            connection.data_received(FRAME)
            while self.loop.soon:
                self.loop.once()
            assert self.served.pop() == connection.number
        return connection, transport


def with_backlogs(driver: Responder, connections: int, frames: int) -> list[Connection]:
    """Return connections whose first requests are served, and whose further ones wait."""
    greedy = [driver.connected()[0] for _ in range(connections)]
    used_s = driver.loop.used_s
    for each in greedy:
        each.data_received(FRAME * frames)
        driver.loop.used_s = used_s  # None of them takes the time of the others.
    assert driver.served == [each.number for each in greedy]
    driver.served.clear()
    return greedy
