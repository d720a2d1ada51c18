"""The blocking driver over real sockets: several channels at once, deadlines, and ends from outside."""

import socket
import threading
import time
from collections.abc import Callable, Iterator
from typing import TypeAlias

import pytest

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.protocol import (
    Address,
    Connect,
    Connected,
    ConnectFailed,
    Disconnected,
    Finished,
    FleetAction,
    FleetEvent,
    Leaving,
    Request,
    ResponseReceived,
    Started,
    Stopping,
    TimedOut,
    Wake,
    Woken,
)
from bench.fleet.driver import BlockingDriver
from reference_broker.ports.node_ports import Now
from reference_broker.wire.apis import ApiKey
from reports.rows import HistoryRow

Serve: TypeAlias = Callable[[float | None], Address]


class Server:
    """Respond to ApiVersions after ``delay_s``; None: never; -1: closes instead."""

    def __init__(self, delay_s: float | None) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.address = Address(*self.listener.getsockname())
        self.delay_s = delay_s
        self.thread = threading.Thread(target=self.serve, daemon=True)
        self.thread.start()

    def serve(self) -> None:
        try:
            connection, _ = self.listener.accept()
        except OSError:
            return
        with connection:
            while True:
                head = connection.recv(4)
                if len(head) < 4 or self.delay_s == -1:
                    return
                frame = connection.recv(int.from_bytes(head, "big"))
                if self.delay_s is not None:
                    time.sleep(self.delay_s)
                    # Version 0: error code, no API keys.
                    response = frame[4:8] + b"\0\0" + b"\0\0\0\0"
                    connection.sendall(len(response).to_bytes(4, "big") + response)


class Scripted:
    """Plays ``react(event) -> actions`` and keeps all events with their times."""

    process = "scripted"

    def __init__(self, react: Callable[[FleetEvent], list[FleetAction]]) -> None:
        self.react = react
        self.events: list[tuple[int, FleetEvent]] = []

    def step(self, now: Now, event: FleetEvent) -> list[FleetAction]:
        self.events.append((now.mono_us, event))
        return self.react(event)

    def close(self, now: Now) -> list[HistoryRow]:  # noqa: ARG002
        return []


def request(channel: int, timeout_us: int = 2_000_000) -> Request:
    return Request(ApiKey.API_VERSIONS, 0, "scripted", bodies.API_VERSIONS_REQUEST, timeout_us, channel)


@pytest.fixture
def serve() -> Iterator[Serve]:
    servers = []

    def start(delay_s: float | None) -> Address:
        servers.append(Server(delay_s))
        return servers[-1].address

    yield start
    for server in servers:
        server.listener.close()


def played(react: Callable[[FleetEvent], list[FleetAction]]) -> tuple[list[FleetEvent], list[int]]:
    subject = Scripted(react)
    BlockingDriver(subject, lambda _: None).run()
    return [event for _, event in subject.events], [at_us for at_us, _ in subject.events]


def connecting(
    addresses: list[Address], then: Callable[[FleetEvent, int], list[FleetAction]]
) -> Callable[[FleetEvent], list[FleetAction]]:
    """Connect channel by channel, then hands over to ``then(event, count of ends seen)``."""
    ends = []

    def react(event: FleetEvent) -> list[FleetAction]:
        if isinstance(event, Started):
            return [Connect(addresses[0], 1_000_000, 0)]
        if isinstance(event, Connected) and event.channel + 1 < len(addresses):
            return [Connect(addresses[event.channel + 1], 1_000_000, event.channel + 1)]
        ends.append(event)
        return then(event, len(ends))

    return react


def test_responses_are_delivered_in_order_of_arrival(serve: Serve) -> None:
    slow, quick = serve(0.3), serve(0)

    def then(event: FleetEvent, seen: int) -> list[FleetAction]:
        if isinstance(event, Connected):
            return [request(0), request(1)]
        return [Finished()] if seen == 3 else []

    events, times = played(connecting([slow, quick], then))
    responses = [each for each in events if isinstance(each, ResponseReceived)]
    assert [response.channel for response in responses] == [1, 0]
    assert times[-1] - times[-2] > 200_000, "the quick response waited for the slow one"
    assert all(response.response_bytes == 14 for response in responses)


def test_channel_times_out_while_another_sleeps_and_a_third_is_closed_by_the_peer(serve: Serve) -> None:
    silent, closing, quick = serve(None), serve(-1), serve(0)

    def then(event: FleetEvent, seen: int) -> list[FleetAction]:
        if isinstance(event, Connected):
            return [request(0, 200_000), request(1), Wake(0, 2)]
        return [Finished()] if seen == 4 else []

    events, _ = played(connecting([silent, closing, quick], then))
    ends = {type(each): each.channel for each in events[4:] if isinstance(each, Woken | Disconnected | TimedOut)}
    assert len(events) == 4 + len(ends)
    assert ends == {Woken: 2, Disconnected: 1, TimedOut: 0}


def test_refused_connection_names_its_channel() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = Address(*listener.getsockname())

    def react(event: FleetEvent) -> list[FleetAction]:
        return [Connect(address, 500_000, 3)] if isinstance(event, Started) else [Finished()]

    events, _ = played(react)
    assert events[-1] == ConnectFailed("refused", 3)


@pytest.mark.thorough
@pytest.mark.parametrize(("end", "event"), [("stop", Stopping), ("leave", Leaving)])
def test_end_from_outside_reaches_a_sleeper_within_a_nap(end: str, event: type[Leaving | Stopping]) -> None:
    def react(seen: FleetEvent) -> list[FleetAction]:
        return [Wake(2**62)] if isinstance(seen, Started) else [Finished()]

    subject = Scripted(react)
    driver = BlockingDriver(subject, lambda _: None)
    threading.Timer(0.05, getattr(driver, end)).start()
    before = time.monotonic()
    driver.run()
    assert time.monotonic() - before < 2
    assert isinstance(subject.events[-1][1], event)
    assert driver.stop_requested


def test_client_ended_before_start_does_not_start() -> None:
    subject = Scripted(lambda _: [])
    driver = BlockingDriver(subject, lambda _: None)
    driver.stop()
    driver.run()
    assert driver.finished
    assert subject.events == []
