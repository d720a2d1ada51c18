"""A response that cannot be encoded costs one response or one connection; the driver keeps running."""

import asyncio
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any, cast

import pytest

from reference_broker.core.events import Effect, Event, Reply, Request
from reference_broker.core.node import Node
from reference_broker.ports.node_ports import Now
from reference_broker.serve.connection import CLOSING
from reference_broker.serve.disk import FileDisk
from reference_broker.serve.driver import Clock, Driver
from reference_broker.serve.log_lines import LogLines
from reference_broker.serve.tests.fake_connection import FakeConnection
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import decode_response, empty_response
from reference_broker.wire.tags import Tag

LONG_NAME = "x" * 40_000
"""Longer than a string of a version that is not flexible can be."""


class Echo:
    """A node that responds to each request with the body that the test gave."""

    listening = ready = stopped = False
    body: object = None

    def handle(self, now: Now, event: Event) -> Sequence[Effect]:  # noqa: ARG002
        if not isinstance(event, Request):
            return ()
        return (Reply(event.connection, event.correlation_id, event.api_key, event.api_version, self.body, event.tag),)


@pytest.fixture
def log() -> StringIO:
    return StringIO()


@pytest.fixture
def node() -> Echo:
    return Echo()


@pytest.fixture
def failures() -> list[str]:
    return []


@pytest.fixture
def driver(tmp_path: Path, log: StringIO, node: Echo, failures: list[str]) -> Iterator[Driver]:
    loop = asyncio.new_event_loop()
    ignore: Any = lambda *_: None  # noqa: E731
    driver = Driver(
        cast("Node", node),
        FileDisk(tmp_path, 16),
        Clock(0),
        LogLines(1, log),
        loop,
        {},
        1000,
        10,
        ignore,
        failures.append,
        ignore,
    )
    driver.watched = False
    yield driver
    driver.end()
    loop.close()


def send(driver: Driver, key: int, version: int) -> FakeConnection:
    connection = FakeConnection(driver)
    connection.has_request = True
    driver.handle_request(Request(connection.number, 5, key, version, "c", None, Tag(key, version, "c"), 60))
    return connection


def events(log: StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in log.getvalue().splitlines()]


@pytest.mark.parametrize("hooked", [False, True])
def test_unencodable_response_becomes_error(
    driver: Driver, node: Echo, log: StringIO, failures: list[str], hooked: bool
) -> None:
    driver.watched = hooked
    good: Any = empty_response(ApiKey.JOIN_GROUP, 5, ErrorCode.none)
    node.body = replace(good, protocol_name=LONG_NAME)
    connection = send(driver, ApiKey.JOIN_GROUP, 5)
    _, body = decode_response(ApiKey.JOIN_GROUP, 5, memoryview(connection.sent)[4:])
    assert getattr(body, "error_code") == ErrorCode.unknown_server_error  # noqa: B009
    assert not connection.has_request
    assert failures == []
    assert events(log) == ["response_not_encoded"]


def test_unencodable_response_without_error_field_closes_connection(
    driver: Driver, node: Echo, log: StringIO, failures: list[str]
) -> None:
    node.body = "not a body at all"
    connection = send(driver, ApiKey.CREATE_TOPICS, 2)
    assert connection.life is CLOSING
    assert connection.sent == b""
    assert failures == []
    assert events(log) == ["response_not_encoded", "connection_closed"]


@pytest.mark.parametrize("hooked", [False, True])
def test_response_with_uncountable_items_becomes_error(
    driver: Driver, node: Echo, log: StringIO, failures: list[str], hooked: bool
) -> None:
    driver.watched = hooked
    good: Any = empty_response(ApiKey.LIST_GROUPS, 5, ErrorCode.none)
    node.body = replace(good, groups=17)
    connection = send(driver, ApiKey.LIST_GROUPS, 5)
    _, body = decode_response(ApiKey.LIST_GROUPS, 5, memoryview(connection.sent)[4:])
    assert getattr(body, "error_code") == ErrorCode.unknown_server_error  # noqa: B009
    assert failures == []
    assert events(log) == ["response_not_encoded"]
