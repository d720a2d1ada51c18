"""Simulated links: late, cut in one direction, down, broken inside a frame; and the codec on some of the messages."""

from collections.abc import Callable
from random import Random
from typing import Any, cast

import pytest

from bench.fleet.behaviours.protocol import Request as ClientRequest
from chaos.checks.fault_times import FaultTimes
from chaos.sim import codec_check, network
from chaos.sim.agenda import Agenda
from chaos.sim.codec_check import CodecMismatchError
from chaos.sim.links import CLIENTS, LATENCY_US, Connection, Links
from chaos.sim.network import Network
from chaos.sim.timed_faults import SimFaultContext, begin
from reference_broker.core.events import Closed, Event, Opened, Reply, Request
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.fetch import FetchRequest, FetchResponse
from reference_broker.wire.tags import Tag
from scenarios.loader import find
from scenarios.model import Fault

FETCH = ClientRequest(ApiKey.FETCH, 12, "c", FetchRequest(session_id=7, session_epoch=3), 1_000_000)


class FakeMachine:
    node_id = incarnation = 0
    accepts = True
    silent = False

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.seen: list[tuple[int, Event]] = []
        self.respond: Callable[[Request], None] = lambda _: None

    def deliver(self, incarnation: int, event: Event) -> None:
        assert incarnation == 0
        self.seen.append((self.agenda.now_us, event))
        if isinstance(event, Request):
            self.respond(event)

    def requests(self) -> list[int]:
        return [event.correlation_id for _, event in self.seen if isinstance(event, Request)]


class FakeClient:
    name = "c"

    def __init__(self) -> None:
        self.received: list[object] = []

    def accepted(self, connection: Connection) -> None:  # noqa: ARG002
        self.received.append("accepted")

    def refused(self, connection: Connection) -> None:  # noqa: ARG002
        self.received.append("refused")

    def responded(self, connection: Connection, correlation: int, body: object) -> None:  # noqa: ARG002
        self.received.append(correlation)

    def lost(self, connection: Connection, reason: str) -> None:  # noqa: ARG002
        self.received.append(reason)


class Wire:
    """One client, one node, one link."""

    def __init__(self, seed: int = 0) -> None:
        self.agenda = Agenda()
        self.machine = FakeMachine(self.agenda)
        self.client = FakeClient()
        links = Links(self.agenda, seed)
        self.link = links.between(CLIENTS, 0)
        self.network = Network([cast(Any, self.machine)], links, Random(seed))
        self.correlation = 0

    def connect(self) -> Connection:
        connection = self.network.connect(cast(Any, self.client), self.network.address(0))
        assert connection is not None
        self.run(10_000)
        return connection

    def request(self, connection: Connection) -> None:
        self.correlation += 1
        self.network.request(connection, FETCH, self.correlation)

    def respond(self, connection: Connection, correlation: int) -> None:
        tag = Tag(ApiKey.FETCH, 12, "c")
        self.network.reply(Reply(connection.number, correlation, ApiKey.FETCH, 12, FetchResponse(), tag))

    def run(self, for_us: int) -> None:
        end_us = self.agenda.now_us + for_us
        while self.agenda.step(end_us):
            pass

    def fault(self, **fields: Any) -> Any:
        context = SimFaultContext(cast(Any, self.machine), (self.link,), self.network, FaultTimes())
        return begin(fault(**fields), context, 1_000_000)


def fault(**fields: Any) -> Fault:
    """A timed fault of a scenario file, with other fields."""
    from dataclasses import replace

    (timed, *_) = [each for each in find("demo").faults if each.timed]
    return replace(timed, node=0, **fields)


@pytest.mark.parametrize("seed", range(20))
def test_messages_of_a_connection_keep_their_order_however_late_each_is(seed: int) -> None:
    wire = Wire(seed)
    connection = wire.connect()
    wire.machine.respond = lambda event: wire.respond(connection, event.correlation_id)
    wire.link.up.extra_us = (0, 5000)
    for _ in range(20):
        wire.request(connection)
        wire.run(50)
    heal = wire.fault(kind="link_cut", direction="upstream")
    wire.run(2500)
    heal()
    wire.run(100_000)
    assert wire.machine.requests() == list(range(1, 21))
    assert wire.client.received == ["accepted", *range(1, 21)]


def test_held_frame_is_delivered_before_frame_of_same_instant() -> None:
    wire = Wire()
    received: list[str] = []
    wire.link.up.cuts = 1
    wire.link.deliver(wire.link.up, received.append, ("first",))

    def mend() -> None:
        wire.link.up.cuts -= 1
        wire.link.mend(wire.link.up)

    wire.agenda.at(100, mend)
    wire.agenda.at(100, wire.link.deliver, wire.link.up, received.append, ("second",))
    wire.run(200)
    assert received == ["first", "second"]


def test_delayed_link_is_late_in_its_direction_alone() -> None:
    wire = Wire()
    connection = wire.connect()
    heal = wire.fault(kind="link_slowed", direction="upstream", bytes_per_s=10_000)
    wire.link.up.extra_us = (50_000, 100_000)
    wire.request(connection)
    wire.run(50_000)
    assert wire.machine.requests() == []
    wire.run(60_000)
    assert wire.machine.requests() == [1]
    wire.respond(connection, 1)
    wire.run(LATENCY_US[1])
    assert wire.client.received == ["accepted", 1]
    heal()
    assert wire.link.up.extra_us == (0, 0)


@pytest.mark.parametrize("direction", ["upstream", "downstream", "both"])
def test_cut_link_holds_back_its_direction_alone_until_it_is_mended(direction: str) -> None:
    wire = Wire()
    connection = wire.connect()
    heal = wire.fault(kind="link_cut", direction=direction)
    wire.request(connection)
    wire.respond(connection, 99)
    wire.run(10_000)
    assert wire.machine.requests() == ([1] if direction == "downstream" else [])
    assert wire.client.received[1:] == ([99] if direction == "upstream" else [])
    heal()
    wire.run(10_000)
    assert wire.machine.requests() == [1]
    assert wire.client.received[1:] == [99]


def test_of_two_cuts_over_each_other_both_must_end() -> None:
    wire = Wire()
    connection = wire.connect()
    first, second = wire.fault(kind="link_cut", direction="both"), wire.fault(kind="link_cut", direction="upstream")
    wire.request(connection)
    first()
    wire.run(10_000)
    assert wire.machine.requests() == []
    second()
    wire.run(10_000)
    assert wire.machine.requests() == [1]


@pytest.mark.parametrize("direction", ["upstream", "downstream"])
def test_frame_that_does_not_get_through_whole_ends_its_connection(direction: str) -> None:
    wire = Wire()
    connection = wire.connect()
    wire.fault(kind="link_truncated", direction=direction)
    if direction == "upstream":
        wire.request(connection)
    else:
        wire.respond(connection, 1)
    wire.run(10_000)
    assert wire.machine.requests() == []
    assert wire.client.received == ["accepted", "reset"]
    assert [type(event) for _, event in wire.machine.seen] == [Opened, Closed]


def test_link_that_is_down_resets_and_refuses_until_it_is_up() -> None:
    wire = Wire()
    wire.connect()
    heal = wire.fault(kind="link_down", direction="both")
    wire.run(10_000)
    wire.connect()
    assert wire.client.received == ["accepted", "reset", "refused"]
    heal()
    wire.connect()
    assert wire.client.received[3:] == ["accepted"]


def test_response_under_way_is_lost_with_a_discarded_connection() -> None:
    wire = Wire()
    connection = wire.connect()
    wire.network.discard(connection.number)
    wire.respond(connection, 1)
    wire.run(10_000)
    assert wire.client.received == ["accepted", "reset"]


@pytest.mark.thorough
def test_two_percent_of_the_messages_go_through_the_codec(monkeypatch: pytest.MonkeyPatch) -> None:
    coded = {"requests": 0, "replies": 0}

    def request(action: ClientRequest, correlation: int) -> object:
        coded["requests"] += 1
        return codec_check.same_after_codec_request(action, correlation)

    def reply(reply: Reply) -> object:
        coded["replies"] += 1
        return codec_check.same_after_codec_reply(reply)

    monkeypatch.setattr(network, "same_after_codec_request", request)
    monkeypatch.setattr(network, "same_after_codec_reply", reply)
    wire = Wire()
    connection = wire.connect()
    for number in range(2000):
        wire.request(connection)
        wire.respond(connection, number)
    assert 25 <= coded["requests"] <= 60
    assert 25 <= coded["replies"] <= 60


def test_codec_that_changes_a_message_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def forgetful(version: int, frame: memoryview, offset: int) -> tuple[FetchRequest, int]:  # noqa: ARG001
        return FetchRequest(session_id=7, session_epoch=4), len(frame)

    monkeypatch.setattr("reference_broker.wire.messages.decode_fetch_request", forgetful)
    with pytest.raises(CodecMismatchError, match=r"request\.session_epoch of API 1 v12: 3 became 4"):
        codec_check.same_after_codec_request(FETCH, 1)
