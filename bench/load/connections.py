"""Idle connections, and storms of new ones.

A new connection requests ApiVersions and Metadata, as a client does that starts. A storm is open-loop: connection n is
due at ``start + n * interval``, and its latency counts from then until it has both responses. It closes at once.
"""

import select
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

from bench.fleet.behaviours.bodies import metadata_request
from bench.load.producer import BACK_OFF_US, LONGEST_WAIT_US, METADATA_VERSION, monotonic_us
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.client.api_versions import API_VERSIONS, API_VERSIONS_REQUEST, API_VERSIONS_VERSION
from reference_broker.wire.apis import ApiKey

IDLE_OF_A_CLIENT: Final = 500
PER_S_OF_A_CLIENT: Final = 10.0
"""Number of connections that one client holds, or makes in a second. A larger number is shared by several clients. A
client makes one at a time, so it stays on its schedule while a connection needs less than 100 ms."""
_LOOK_S: Final = 1.0
_CALL_US: Final = 30_000_000


@dataclass(frozen=True, slots=True)
class ConnectionPlan:
    """Either idle connections, or a rate of new ones."""

    process: str
    topics: tuple[str, ...]
    idle: int = 0
    per_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Connected:
    """The result of opening one connection."""

    due_us: int
    end_us: int
    error: str | None = None  # the reason why it failed


def connection_plans(topics: Sequence[str], connections: int, per_s: float) -> list[ConnectionPlan]:
    """Share connections and their rate out to clients."""
    holders, makers = -(-connections // IDLE_OF_A_CLIENT), int(-(-per_s // PER_S_OF_A_CLIENT))
    idle = [connections // holders + (number < connections % holders) for number in range(holders)]
    return [
        *(ConnectionPlan(f"idle{number}", tuple(topics), idle=count) for number, count in enumerate(idle)),
        *(ConnectionPlan(f"storm{number}", tuple(topics), per_s=per_s / makers) for number in range(makers)),
    ]


class ConnectionMaker:
    """Call ``run`` in a thread or greenlet of its own. ``stop`` may be called from any.

    ``connected`` takes each start of a connection, and of idle ones only those that failed.
    """

    def __init__(
        self, plan: ConnectionPlan, bootstrap: Sequence[tuple[str, int]], connected: Callable[[Connected], None]
    ) -> None:
        self.plan = plan
        self._bootstrap = bootstrap
        self._connected = connected
        self._held: dict[int, Connection] = {}  # idle ones by file descriptor
        self._made = 0
        self._stopping = False

    @property
    def held(self) -> int:
        """Number of open idle connections."""
        return len(self._held)

    def stop(self) -> None:
        self._stopping = True

    def run(self) -> None:
        try:
            if self.plan.per_s:
                self._storm()
            while self.plan.idle and not self._stopping:
                self._fill()
                self._wait_until(monotonic_us() + int(_LOOK_S * 1e6))
                self._drop_closed()
        finally:
            for connection in self._held.values():
                connection.close()

    def _storm(self) -> None:
        start_us, interval_us, number = monotonic_us(), 1e6 / self.plan.per_s, 0
        while True:
            due_us = start_us + int(number * interval_us)
            self._wait_until(due_us)
            if self._stopping:
                return
            number += 1
            error: str | None = None
            try:
                self._open().close()
            except TransportError as failure:
                error = failure.reason
            self._connected(Connected(due_us, monotonic_us(), error))

    def _fill(self) -> None:
        """Open what is missing of the idle connections. After a failure it waits for the next time."""
        while len(self._held) < self.plan.idle and not self._stopping:
            due_us = monotonic_us()
            try:
                connection = self._open()
            except TransportError as failure:
                self._connected(Connected(due_us, monotonic_us(), failure.reason))
                self._wait_until(monotonic_us() + BACK_OFF_US)
                return
            self._held[connection.sock.fileno()] = connection

    def _drop_closed(self) -> None:
        """An idle connection brings nothing, so one that can be read was closed."""
        poll = select.poll()
        for number in self._held:
            poll.register(number, select.POLLIN)
        for number, _ in poll.poll(0):
            self._held.pop(number).close()

    def _open(self) -> Connection:
        """Start a connection to one of the nodes, in turn. Raise TransportError."""
        host, port = self._bootstrap[self._made % len(self._bootstrap)]
        self._made += 1
        connection = Connection.open(host, port, _CALL_US, self.plan.process)
        try:
            connection.call(API_VERSIONS, API_VERSIONS_VERSION, API_VERSIONS_REQUEST, _CALL_US)
            connection.call(ApiKey.METADATA, METADATA_VERSION, metadata_request(self.plan.topics), _CALL_US)
        except TransportError:
            with suppress(OSError):
                connection.close()
            raise
        return connection

    def _wait_until(self, until_us: int) -> None:
        while not self._stopping and (left_us := until_us - monotonic_us()) > 0:
            time.sleep(min(LONGEST_WAIT_US, left_us) / 1e6)
