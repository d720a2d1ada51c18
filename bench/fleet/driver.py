"""Runs one behaviour over blocking connections. A Locust user does just this, but nothing here needs Locust.

If only one channel waits, the driver waits in a plain blocking call. If several wait, ``poll`` reports which has a
response. The driver works in a thread or a greenlet. Its clock is CLOCK_MONOTONIC, which all processes of a machine
share.
"""

import select
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from bench.fleet.behaviours.protocol import (
    Behaviour,
    Connect,
    Connected,
    ConnectFailed,
    Disconnect,
    Disconnected,
    Finished,
    FleetEvent,
    HistoryRow,
    Leaving,
    Now,
    Record,
    Request,
    ResponseReceived,
    Started,
    Stopping,
    TimedOut,
    Wake,
    Woken,
)
from reference_broker.blocking.transport import ConnectError, Connection, DeadlineError, EncodedRequest, LostError

MAX_NAP_S = 0.5
"""A sleeping behaviour notices ``stop`` after this time at the latest."""


def clock() -> Now:
    return Now(time.monotonic_ns() // 1000, time.time_ns() // 1_000_000)


@dataclass(slots=True)
class InFlight:
    """A request without a response."""

    connection: Connection
    sent: EncodedRequest
    deadline_s: float  # on the monotonic clock


class BlockingDriver:
    """``record`` takes the behaviour's rows. ``stop`` and ``leave`` may be called from another greenlet or thread."""

    def __init__(self, behaviour: Behaviour, record: Callable[[tuple[HistoryRow, ...]], None]) -> None:
        self.behaviour = behaviour
        self.finished = False
        self._record = record
        self._connections: dict[int, Connection] = {}
        self._in_flight: dict[int, InFlight] = {}
        self._wakes: dict[int, int] = {}
        self._events: deque[FleetEvent] = deque()
        self._end: Stopping | Leaving | None = None
        self._end_given = False
        self._started = False

    def stop(self) -> None:
        """End the load. The behaviour gets Stopping at its next step. If it was never started, it is finished."""
        self._tell(Stopping())

    def leave(self) -> None:
        """Do what ``stop`` does, with Leaving."""
        self._tell(Leaving())

    def _tell(self, end: Stopping | Leaving) -> None:
        self._end = self._end or end
        self.finished = self.finished or not self._started

    @property
    def stop_requested(self) -> bool:
        return self._end is not None

    def abandon(self) -> None:
        """Record what the behaviour has open, because it will not run any more."""
        if self._started and not self.finished:
            self.finished = True
            self._record(tuple(self.behaviour.close(clock())))

    def run(self) -> None:
        """Run the behaviour until it has finished."""
        if self.finished:
            return
        self._started = True
        self._step(Started())
        while not self.finished:
            if self._end is not None and not self._end_given:
                self._end_given = True
                self._step(self._end)
            elif self._events:
                self._step(self._events.popleft())
            else:
                self._wait()
        for channel in list(self._connections):
            self._close(channel)

    def _step(self, event: FleetEvent) -> None:
        for action in self.behaviour.step(clock(), event):
            if isinstance(action, Record):
                self._record(action.rows)
            elif isinstance(action, Request):
                self._send(action)
            elif isinstance(action, Wake):
                self._wakes[action.channel] = action.at_us
            elif isinstance(action, Connect):
                self._events.append(self._connect(action))
            elif isinstance(action, Disconnect):
                self._close(action.channel)
            elif isinstance(action, Finished):
                self.finished = True

    # -- waiting ------------------------------------------------------------------------------------------------

    def _wait(self) -> None:
        """Wait until something happens. This ends after MAX_NAP_S, unless only a single request is waited for."""
        assert self._in_flight or self._wakes, f"{self.behaviour.process} waits for nothing and is not finished"
        if len(self._in_flight) == 1 and not self._wakes:
            self._receive(next(iter(self._in_flight)))
        elif not self._in_flight:
            time.sleep(self._nap_s())
        else:
            self._wait_for_any()
        self._ring(time.monotonic_ns() // 1000)

    def _nap_s(self) -> float:
        """Return the time until the first deadline or wake-up, at most MAX_NAP_S."""
        now_s = time.monotonic()
        ends = [flight.deadline_s for flight in self._in_flight.values()]
        ends += [wake / 1e6 for wake in self._wakes.values()]
        return max(0.0, min([MAX_NAP_S, *(end - now_s for end in ends)]))

    def _wait_for_any(self) -> None:
        poll, channels = select.poll(), {}
        for channel, each in self._in_flight.items():
            channels[each.connection.sock.fileno()] = channel
            poll.register(each.connection.sock, select.POLLIN)
        for fd, _ in poll.poll(int(self._nap_s() * 1000) + 1):
            self._receive(channels[fd])
        now_s = time.monotonic()
        for channel in [channel for channel, each in self._in_flight.items() if now_s >= each.deadline_s]:
            del self._in_flight[channel]
            self._events.append(TimedOut(channel))

    def _ring(self, now_us: int) -> None:
        for channel in [channel for channel, at_us in self._wakes.items() if at_us <= now_us]:
            del self._wakes[channel]
            self._events.append(Woken(channel))

    # -- channels -------------------------------------------------------------------------------------------------

    def _send(self, request: Request) -> None:
        channel, connection = request.channel, self._connections.get(request.channel)
        self._wakes.pop(channel, None)
        if connection is None:
            self._events.append(Disconnected("closed", channel))
            return
        deadline_s = time.monotonic() + request.timeout_us / 1e6
        try:
            connection.client_id = request.client_id
            sent = connection.send(request.api_key, request.api_version, request.body, request.timeout_us)
        except DeadlineError:
            self._events.append(TimedOut(channel))
        except LostError as error:
            self._lost(channel, error)
        else:
            self._in_flight[channel] = InFlight(connection, sent, deadline_s)

    def _receive(self, channel: int) -> None:
        waiting = self._in_flight.pop(channel)
        try:
            reply = waiting.connection.receive(waiting.sent, waiting.deadline_s)
        except DeadlineError:
            self._events.append(TimedOut(channel))
        except LostError as error:
            self._lost(channel, error)
        else:
            self._events.append(ResponseReceived(reply.body, reply.request_bytes, reply.response_bytes, channel))

    def _lost(self, channel: int, error: LostError) -> None:
        self._close(channel)
        self._events.append(Disconnected(error.reason, channel))

    def _connect(self, action: Connect) -> FleetEvent:
        channel, address = action.channel, action.address
        self._close(channel)
        self._wakes.pop(channel, None)
        try:
            self._connections[channel] = Connection.open(address.host, address.port, action.timeout_us)
        except ConnectError as error:
            return ConnectFailed(error.reason, channel)
        return Connected(channel)

    def _close(self, channel: int) -> None:
        self._in_flight.pop(channel, None)
        connection = self._connections.pop(channel, None)
        if connection is not None:
            connection.close()
