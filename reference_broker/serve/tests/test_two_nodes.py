"""Two drivers on one loop with nodes that only send requests and respond: a Send as a request at the other node."""

import asyncio
import socket
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any, cast

import pytest
import uvloop

from reference_broker.configuration.listeners import listener_plan
from reference_broker.core import node as core_node
from reference_broker.core.events import (
    Effect,
    Event,
    Note,
    PeerDown,
    PeerReply,
    PeerUp,
    Reply,
    Request,
    Send,
    Sync,
    Synced,
)
from reference_broker.metadata.identifiers import client_id_of
from reference_broker.ports.node_ports import Channel, Now
from reference_broker.serve.disk import FileDisk
from reference_broker.serve.driver import Clock, Driver
from reference_broker.serve.log_lines import LogLines
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import body_class
from reference_broker.wire.tags import Tag

NAME = client_id_of(0, bytes(16))
KEY, VERSION = int(ApiKey.HEARTBEAT), 4


def request_to(peer: int, number: int) -> Send:
    body = body_class(KEY, "request")(group_id="g", generation_id=number, member_id="m")
    return Send(peer, Channel.RAFT, number, KEY, VERSION, body, Tag(KEY, VERSION, "", role="peer"), 2000, NAME)


class Node:
    """The part of a node that a driver needs. ``first`` are its effects at the start. It responds to each request at
    once."""

    listening = ready = True
    stopped = False
    registered = NAME

    def __init__(self, first: Sequence[Effect] = ()) -> None:
        self.first = first
        self.events: list[Event] = []
        self.inside = False

    def start(self, now: Now) -> Sequence[Effect]:  # noqa: ARG002
        return self.first

    def shutdown(self, now: Now) -> Sequence[Effect]:  # noqa: ARG002
        return (Note("farewell"),)

    def is_registered(self, client_id: str) -> bool:
        return client_id == self.registered

    def handle(self, now: Now, event: Event) -> Sequence[Effect]:  # noqa: ARG002
        assert not self.inside
        self.inside = True
        try:
            self.events.append(event)
            if not isinstance(event, Request):
                return ()
            heartbeat: Any = event.body
            response = body_class(KEY, "response")(
                throttle_time=timedelta(milliseconds=heartbeat.generation_id), error_code=ErrorCode.none
            )
            return (Reply(event.connection, event.correlation_id, KEY, VERSION, response, event.tag),)
        finally:
            self.inside = False

    def of(self, kind: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


class Watching:
    def __init__(self) -> None:
        self.seen: list[str] = []

    def effects(self, now: Now, effects: Sequence[Effect]) -> None:  # noqa: ARG002
        self.seen += [effect.what for effect in effects if isinstance(effect, Note)]


Scene = Callable[[list[Driver]], Any]


def play(tmp_path: Path, nodes: Sequence[Node], scene: Scene) -> None:
    async def run() -> None:
        loop = asyncio.get_running_loop()
        sockets = [socket.create_server(("127.0.0.1", 0)) for _ in nodes]
        addresses = dict(enumerate(sock.getsockname() for sock in sockets))
        failures: list[str] = []
        drivers = []
        for number, node in enumerate(nodes):
            disk = FileDisk(tmp_path / str(number), 16)
            (tmp_path / str(number)).mkdir()
            driver = Driver(
                cast("core_node.Node", node),
                disk,
                Clock(),
                LogLines(number),
                loop,
                {KEY: (0, VERSION)},
                1 << 20,
                100,
                lambda: None,
                failures.append,
                failures.append,
                lambda peer, _: addresses.get(peer),
            )
            drivers.append(driver)
        servers = [
            await loop.create_server(driver.protocol, sock=sock) for driver, sock in zip(drivers, sockets, strict=True)
        ]
        try:
            for driver in drivers:
                driver.start()
            await scene(drivers)
        finally:
            for driver in drivers:
                driver.end()
            for server in servers:
                server.close()
            await asyncio.sleep(0.01)
        assert failures == []

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run())


async def until(condition: Callable[[], bool]) -> None:
    for _ in range(1000):
        if condition():
            return
        await asyncio.sleep(0.005)
    raise AssertionError("it did not happen")


@pytest.mark.parametrize(("registered", "of_node"), [(NAME, True), (client_id_of(0, bytes(15) + b"x"), False)])
def test_connection_with_registered_client_id_is_of_node(tmp_path: Path, registered: str, of_node: bool) -> None:
    client, server = Node([request_to(1, 5)]), Node()
    server.registered = registered

    async def scene(drivers: list[Driver]) -> None:
        await until(lambda: bool(client.of(PeerReply)))
        assert [each.of_node for each in drivers[1].connections.values()] == [of_node]

    play(tmp_path, [client, server], scene)


def test_inter_broker_listener_decides_node_connections(tmp_path: Path) -> None:
    client, server = Node([request_to(1, 5)]), Node()
    plan = listener_plan("PLAINTEXT://h:1,LAN://h:2", "", "", "LAN", "")

    async def scene(drivers: list[Driver]) -> None:
        drivers[1].listeners = plan
        assert [drivers[1].protocol(name).of_node for name in ("PLAINTEXT", "LAN")] == [False, True]
        await until(lambda: bool(client.of(PeerReply)))
        assert [each.of_node for each in drivers[1].connections.values()] == [False], "its name is not believed"

    play(tmp_path, [client, server], scene)


def test_send_is_request_at_peer_and_reply_is_event(tmp_path: Path) -> None:
    client, server = Node([request_to(1, 5), request_to(1, 6)]), Node()

    async def scene(_: list[Driver]) -> None:
        await until(lambda: len(client.of(PeerReply)) == 2)

    play(tmp_path, [client, server], scene)
    assert client.of(PeerUp) == [PeerUp(1, Channel.RAFT)]
    assert [(each.token, each.body.throttle_time.total_seconds()) for each in client.of(PeerReply)] == [
        (5, 0.005),
        (6, 0.006),
    ]
    requests = server.of(Request)
    assert {(each.client_id, each.tag.client_id) for each in requests} == {(NAME, "node-0")}
    assert {each.tag.role for each in requests} == {"peer"}


def test_stopped_node_is_reported_down_at_once(tmp_path: Path) -> None:
    client, server = Node([request_to(1, 5)]), Node()

    async def scene(drivers: list[Driver]) -> None:
        await until(lambda: len(client.of(PeerReply)) == 1)
        drivers[1].end()
        await until(lambda: len(client.of(PeerDown)) == 1)

    play(tmp_path, [client, server], scene)
    assert client.events[-1] == PeerDown(1, Channel.RAFT)


def test_watcher_sees_effects_without_event(tmp_path: Path) -> None:
    node, watching = Node([Note("awake")]), Watching()

    async def scene(drivers: list[Driver]) -> None:
        drivers[0].watchers = (watching,)
        drivers[0].start()
        drivers[0].shut_down()

    play(tmp_path, [node], scene)
    assert watching.seen == ["awake", "farewell"]


@pytest.mark.thorough
@pytest.mark.parametrize("delay_s", [0.0, 2.0])
def test_slow_disk_delays_only_syncs(tmp_path: Path, delay_s: float) -> None:
    node, other = Node(), Node()

    async def scene(drivers: list[Driver]) -> None:
        loop = asyncio.get_running_loop()
        (tmp_path / "0" / "file").write_bytes(b"x")
        drivers[0].syncs.delay_s = delay_s
        node.first = [Sync(1, ("file",)), request_to(1, 5)]
        started = loop.time()
        drivers[0].start()
        await until(lambda: len(node.of(PeerReply)) == 1)
        assert not (delay_s and node.of(Synced)), "the reply does not wait for the sync"
        await until(lambda: len(node.of(Synced)) == 1)
        assert loop.time() - started >= delay_s
        assert drivers[0].syncs.delayed == (1 if delay_s else 0)

    play(tmp_path, [node, other], scene)
