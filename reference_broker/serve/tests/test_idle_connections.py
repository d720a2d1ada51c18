"""Connections that are silent too long are closed, except those with a request in flight or a recent response."""

import asyncio
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from kio.schema.api_versions.v0.request import ApiVersionsRequest

from reference_broker.apis.registry import SERVED
from reference_broker.core.events import Close, Effect, Event, Reply, Request
from reference_broker.core.node import Node
from reference_broker.ports.node_ports import Now
from reference_broker.serve.connection import CLOSING, Connection
from reference_broker.serve.disk import FileDisk
from reference_broker.serve.driver import Clock, Driver
from reference_broker.serve.log_lines import LogLines
from reference_broker.serve.node_log import RequestLog
from reference_broker.serve.tests.scheduling_world import Transport
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.messages import encode_request
from reference_broker.wire.produce import ProduceRequest

LIMIT_MS = 5000
LONG_S = 10.0


class Responder:
    """A node that responds to ApiVersions at once and to Fetch later, and refuses Produce."""

    listening = ready = stopped = False

    def start(self, now: Now) -> Sequence[Effect]:  # noqa: ARG002
        return ()

    shutdown = start

    def handle(self, now: Now, event: Event) -> Sequence[Effect]:  # noqa: ARG002
        if not isinstance(event, Request) or event.api_key == ApiKey.FETCH:
            return ()
        if event.api_key == ApiKey.PRODUCE:
            return (Close(event.connection, "refused"),)
        return (Reply(event.connection, event.correlation_id, event.api_key, event.api_version, None, event.tag),)


@pytest.fixture
def driver(tmp_path: Path) -> Iterator[Driver]:
    loop = asyncio.new_event_loop()
    ignore: Any = lambda *_: None  # noqa: E731
    driver = Driver(
        cast("Node", Responder()),
        FileDisk(tmp_path, 16),
        Clock(0),
        LogLines(1),
        loop,
        SERVED,
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


def opened(driver: Driver) -> tuple[Connection, Transport]:
    connection, transport = driver.protocol(), Transport()
    connection.connection_made(cast(Any, transport))
    return connection, transport


def request(connection: Connection, api_key: int, api_version: int, body: object) -> None:
    connection.data_received(b"".join(encode_request(api_key, api_version, 5, "c", body)))
    assert connection.take_turn(), "the first request of a connection is queued"


def let_time_pass(connection: Connection) -> None:
    connection.last_active_s -= LONG_S


@pytest.mark.parametrize("hooked", [False, True])
def test_request_is_activity(driver: Driver, hooked: bool) -> None:
    driver.hooks = (RequestLog(LogLines(1)),) if hooked else ()
    connection, transport = opened(driver)
    let_time_pass(connection)
    request(connection, ApiKey.API_VERSIONS, 0, ApiVersionsRequest())
    driver.close_idle(LIMIT_MS)
    assert not transport.is_aborted


def test_idle_time_after_long_request_starts_at_its_end(driver: Driver) -> None:
    connection, transport = opened(driver)
    request(connection, ApiKey.FETCH, 12, FetchRequest())
    let_time_pass(connection)
    driver.close_idle(LIMIT_MS)
    connection.done()
    driver.close_idle(LIMIT_MS)
    assert not transport.is_aborted
    let_time_pass(connection)
    driver.close_idle(LIMIT_MS)
    assert transport.is_aborted


def test_closed_connection_with_unread_bytes_is_aborted(driver: Driver) -> None:
    connection, transport = opened(driver)
    request(connection, ApiKey.PRODUCE, 9, ProduceRequest(1, 1000, []))
    assert connection.life is CLOSING
    driver.close_idle(LIMIT_MS)
    assert not transport.is_aborted
    let_time_pass(connection)
    driver.close_idle(LIMIT_MS)
    assert transport.is_aborted
