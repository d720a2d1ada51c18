"""A connection changes its state only as the tables of ``serve/connection.py`` say."""

import sys
from typing import Any, cast

import pytest

from reference_broker.serve.connection import (
    CLOSED,
    CLOSING,
    DISCARDING,
    IN_FLIGHT,
    NEXT_LIVES,
    NEXT_REQUEST_STATES,
    OPEN,
    QUEUED,
    READ_AHEAD_BYTES,
    RECEIVING,
    Connection,
)
from reference_broker.serve.tests.scheduling_world import FRAME, Responder, Transport
from reference_broker.wire.errors import ProtocolError

TABLES: dict[str, Any] = {"life": NEXT_LIVES, "request_state": NEXT_REQUEST_STATES}


class CheckedConnection(Connection):
    """A connection that fails a test if it leaves the tables."""

    __slots__ = ("passed",)
    passed: set[tuple[str, str, str]]
    """The changes so far: the field, the state before, and the one after."""

    def __setattr__(self, name: str, value: Any) -> None:
        if name in TABLES and hasattr(self, name):
            before = getattr(self, name)
            if before is not value:
                self.passed.add((name, before.name, value.name))
                methods = TABLES[name][before].get(value)
                assert methods is not None, f"{name} went from {before.name} to {value.name}"
                assert {*methods} & callers(), f"{name} went from {before.name} to {value.name} in another method"
        elif name == "life":
            object.__setattr__(self, "passed", set[tuple[str, str, str]]())
        super().__setattr__(name, value)


def callers() -> set[str]:
    frame, names = sys._getframe(), set[str]()
    while frame is not None:
        names.add(frame.f_code.co_name)
        frame = cast(Any, frame.f_back)
    return names


class Driver(Responder):
    """A driver that admits connections or not, and closes those that break the protocol."""

    admits = True

    def opened(self, connection: Connection) -> bool:
        return self.admits and super().opened(connection)

    def close(self, connection: Connection, _reason: str) -> None:
        connection.close()

    def evicted(self, connection: Connection, reason: str) -> None: ...


@pytest.fixture
def driver() -> Driver:
    return Driver()


def opened(driver: Driver) -> tuple[CheckedConnection, Transport]:
    connection, transport = CheckedConnection(cast(Any, driver), 1000), Transport()
    connection.connection_made(cast(Any, transport))
    return connection, transport


def in_flight(driver: Driver) -> tuple[CheckedConnection, Transport]:
    driver.keeps = True
    connection, transport = opened(driver)
    connection.data_received(FRAME)
    assert connection.request_state is QUEUED, "a first request"
    driver.loop.once()
    assert connection.request_state is IN_FLIGHT
    return connection, transport


def test_connection_that_is_not_admitted_is_closed_at_once(driver: Driver) -> None:
    driver.admits = False
    connection, transport = opened(driver)
    assert connection.life is CLOSED
    assert transport.is_aborted
    connection.data_received(FRAME)
    connection.connection_lost(None)
    assert driver.served == []


def test_requests_are_served_one_at_a_time(driver: Driver) -> None:
    connection, _ = in_flight(driver)
    connection.data_received(FRAME * 2)
    assert connection.request_state is IN_FLIGHT
    for served in (2, 3):
        connection.done()
        assert connection.request_state is QUEUED
        driver.loop.once()
        assert len(driver.served) == served
    connection.done()
    assert connection.request_state is RECEIVING


def test_request_that_is_responded_to_at_once_is_never_in_flight(driver: Driver) -> None:
    connection, _ = opened(driver)
    for _ in range(2):
        connection.data_received(FRAME)
        driver.loop.once()
        assert connection.request_state is RECEIVING
    assert len(driver.served) == 2
    assert ("request_state", "DISPATCHING", "IN_FLIGHT") not in connection.passed


@pytest.mark.parametrize("ends", ["close", "discard", "evict"])
def test_queued_request_is_not_served_once_the_connection_ends(driver: Driver, ends: str) -> None:
    connection, _ = opened(driver)
    connection.data_received(FRAME)
    connection.evict("full") if ends == "evict" else getattr(connection, ends)()
    driver.loop.once()
    assert driver.served == []
    assert connection.request_state is RECEIVING
    connection.data_received(FRAME)
    connection.connection_lost(None)
    assert connection.life is CLOSED
    assert connection.held_bytes() == 0


def test_broken_protocol_closes_after_earlier_responses(driver: Driver) -> None:
    connection, transport = opened(driver)
    connection.data_received(b"\xff" * 4)
    driver.loop.once()
    assert connection.life is CLOSING
    assert not transport.is_aborted


def test_request_that_breaks_the_protocol_stays_in_flight_while_its_connection_closes(
    driver: Driver, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_: Connection) -> None:
        raise ProtocolError("refused")

    connection, _ = opened(driver)
    monkeypatch.setattr(driver, "handle_request", refuse)
    connection.data_received(FRAME)
    driver.loop.once()
    assert (connection.life, connection.request_state) == (CLOSING, IN_FLIGHT)


def test_discarded_connection_stays_discarded_when_it_is_closed(driver: Driver) -> None:
    connection, _ = in_flight(driver)
    connection.discard()
    connection.close()
    assert connection.life is DISCARDING
    connection.done()
    assert connection.request_state is RECEIVING


def test_second_done_leaves_queued_request_in_its_queue(driver: Driver) -> None:
    connection, _ = in_flight(driver)
    connection.data_received(FRAME)
    connection.done()
    connection.done()
    assert connection.request_state is QUEUED
    driver.keeps = False
    driver.loop.once()
    assert len(driver.served) == 2
    assert not driver.loop.soon, "it is in one queue once"


def test_request_waits_while_writes_are_paused(driver: Driver) -> None:
    connection, _ = opened(driver)
    connection.data_received(FRAME)
    connection.pause_writing()
    driver.loop.once()
    assert connection.request_state is RECEIVING
    connection.data_received(FRAME)
    assert driver.served == []
    connection.resume_writing()
    driver.loop.once()
    driver.loop.once()
    assert len(driver.served) == 2


@pytest.mark.thorough
def test_connection_is_read_again_when_backlog_is_served(driver: Driver) -> None:
    connection, transport = in_flight(driver)
    connection.data_received(FRAME * (READ_AHEAD_BYTES // len(FRAME)))
    assert transport.reads
    connection.data_received(FRAME)
    assert not transport.reads
    driver.keeps = False
    connection.done()
    while driver.loop.soon:
        assert not transport.reads
        driver.loop.once()
    assert transport.reads
    assert connection.life is OPEN
