"""Connections that are silent too long are closed, except those with a request in flight or a recent response."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest

from reference_broker.core.events import Close, Effect, Event, Reply, Request
from reference_broker.core.node import Node
from reference_broker.ports.node_ports import Now
from reference_broker.serve.disk import FileDisk
from reference_broker.serve.driver import Clock, Driver
from reference_broker.serve.log_lines import LogLines
from reference_broker.serve.node_log import RequestLog
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.tags import Tag

LIMIT_MS = 5000
LONG_US = 10_000_000


class RespondingNode:
    """A node that responds at once."""

    listening = ready = stopped = False

    def start(self, now: Now) -> Sequence[Effect]:  # noqa: ARG002
        return ()

    shutdown = start

    def handle(self, now: Now, event: Event) -> Sequence[Effect]:  # noqa: ARG002
        if not isinstance(event, Request):
            return ()
        if event.api_key == ApiKey.PRODUCE:
            return (Close(event.connection, "refused"),)
        return (Reply(event.connection, event.correlation_id, event.api_key, event.api_version, None, event.tag),)


class FakeConnection:
    """A connection as the driver sees it."""

    def __init__(self) -> None:
        self.peer = "peer"
        self.listener = ""
        self.number = self.last_active_us = -1
        self.busy = self.closing = self.discarding = self.aborted = False

    def done(self) -> None:
        self.busy = False

    def close(self) -> None:
        self.closing = True

    def abort(self) -> None:
        self.aborted = True


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    loop = asyncio.new_event_loop()
    ignore: Any = lambda *_: None  # noqa: E731
    driver = Driver(
        cast("Node", RespondingNode()),
        FileDisk(tmp_path, 16),
        Clock(0),
        LogLines(1),
        loop,
        {},
        1000,
        10,
        ignore,
        ignore,
        ignore,
    )
    driver.watched = False
    yield driver
    driver.end()
    loop.close()


def opened(driver: Driver) -> FakeConnection:
    connection = FakeConnection()
    assert driver.opened(cast(Any, connection))
    return connection


def request(connection: FakeConnection, api_key: int) -> Request:
    connection.busy = True
    return Request(connection.number, 5, api_key, 12, "c", None, Tag(api_key, 12, "c"), 60)


@pytest.mark.parametrize("hooked", [False, True])
def test_request_in_flight_keeps_connection_open(driver: Driver, hooked: bool) -> None:
    driver.hooks = (RequestLog(LogLines(1)),) if hooked else ()
    connection = opened(driver)
    connection.last_active_us -= LONG_US
    driver.handle(request(connection, ApiKey.FETCH))
    driver.close_idle(LIMIT_MS)
    assert not connection.aborted


def test_idle_time_after_long_request_starts_at_its_end(driver: Driver) -> None:
    connection = opened(driver)
    connection.busy = True
    connection.last_active_us -= LONG_US
    driver.close_idle(LIMIT_MS)
    connection.busy = False
    driver.close_idle(LIMIT_MS)
    assert not connection.aborted
    connection.last_active_us -= LONG_US
    driver.close_idle(LIMIT_MS)
    assert connection.aborted


def test_closed_connection_with_unread_bytes_is_aborted(driver: Driver) -> None:
    connection = opened(driver)
    driver.handle(request(connection, ApiKey.PRODUCE))
    assert connection.closing
    connection.last_active_us -= LONG_US
    driver.close_idle(LIMIT_MS)
    assert connection.aborted
