"""Runs one behaviour over a blocking connection: what a Locust user does, without Locust in it.

Works in a thread or a greenlet. The clock is CLOCK_MONOTONIC, which all processes of a machine share.
"""

import time
from collections import deque
from collections.abc import Callable

from bench.fleet.behaviours.protocol import (
    Answered,
    Behaviour,
    Connect,
    Connected,
    ConnectFailed,
    Disconnect,
    Disconnected,
    Finished,
    FleetAction,
    FleetEvent,
    HistoryRow,
    Now,
    Record,
    Request,
    Started,
    Stopping,
    TimedOut,
    Wake,
    Woken,
)
from reference_broker.client.transport import ConnectError, Connection, DeadlineError, LostError

MAX_NAP_S = 0.5
"""A sleeping behaviour notices ``stop`` after so long at the latest."""


def clock() -> Now:
    return Now(time.monotonic_ns() // 1000, time.time_ns() // 1_000_000)


class BlockingDriver:
    """``record`` takes the behaviour's rows. ``stop`` may be called from another greenlet or thread."""

    def __init__(self, behaviour: Behaviour, record: Callable[[tuple[HistoryRow, ...]], None]) -> None:
        self.behaviour = behaviour
        self.finished = False
        self._record = record
        self._connection: Connection | None = None
        self._stop_asked = False
        self._stop_given = False

    def stop(self) -> None:
        """Load ends: give Stopping at the next step."""
        self._stop_asked = True

    @property
    def told_to_stop(self) -> bool:
        return self._stop_asked

    def run(self) -> None:
        """Until the behaviour has finished."""
        events: deque[FleetEvent] = deque([Started()])
        while not self.finished:
            assert events, f"{self.behaviour.process} waits for nothing and is not finished"
            if self._stop_asked and not self._stop_given and not isinstance(events[0], Started):
                self._stop_given = True
                events.appendleft(Stopping())
            self._carry_out(self.behaviour.step(clock(), events.popleft()), events)
        self._close()

    def _carry_out(self, actions: list[FleetAction], events: deque[FleetEvent]) -> None:
        """At most one action of a step leads to an event: the behaviour waits for one thing at a time."""
        for action in actions:
            if isinstance(action, Record):
                self._record(action.rows)
            elif isinstance(action, Request):
                events.append(self._call(action))
            elif isinstance(action, Wake):
                self._sleep(action.at_us)
                events.append(Woken())
            elif isinstance(action, Connect):
                events.append(self._connect(action))
            elif isinstance(action, Disconnect):
                self._close()
            elif isinstance(action, Finished):
                self.finished = True

    def _call(self, request: Request) -> FleetEvent:
        connection = self._connection
        if connection is None:
            return Disconnected("closed")
        try:
            reply = connection.call(
                request.api_key, request.api_version, request.client_id, request.body, request.timeout_us
            )
        except DeadlineError:
            return TimedOut()
        except LostError as error:
            self._close()
            return Disconnected(error.reason)
        return Answered(reply.body, reply.request_bytes, reply.response_bytes)

    def _connect(self, action: Connect) -> FleetEvent:
        self._close()
        try:
            self._connection = Connection.open(action.address.host, action.address.port, action.timeout_us)
        except ConnectError as error:
            return ConnectFailed(error.reason)
        return Connected()

    def _sleep(self, until_us: int) -> None:
        while (left_us := until_us - time.monotonic_ns() // 1000) > 0:
            if self._stop_asked and not self._stop_given:
                return
            time.sleep(min(left_us / 1e6, MAX_NAP_S))

    def _close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None
