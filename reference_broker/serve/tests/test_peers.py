"""Channels to other nodes: order, timeouts, errors, garbage, limits, and cleanup at the end."""

import asyncio
import io
import json
import socket
import time
from collections.abc import Awaitable, Callable, Coroutine
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, TypeAlias

import pytest
import uvloop

from reference_broker.core.events import Event, PeerDown, PeerReply, PeerUp, Send
from reference_broker.ports.node_ports import Channel
from reference_broker.serve import peers as peers_module
from reference_broker.serve.log_lines import LogLines
from reference_broker.serve.peers import SHORTEST_LIFE_S, Peers, refusal
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import Error, ErrorCode, error_name
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import body_class, decode_request, encode_response
from reference_broker.wire.tags import Tag

PEER = 2
KEY, VERSION = int(ApiKey.HEARTBEAT), 4
UP, DOWN = PeerUp(PEER, Channel.RAFT), PeerDown(PEER, Channel.RAFT)
Serve: TypeAlias = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class RecordedPeers:
    """A ``Peers`` and its events. A request's number is returned as the reply's throttle time."""

    def __init__(self, address: tuple[str, int] | None) -> None:
        self.events: list[Event] = []
        self.log = io.StringIO()
        self.on_event: Callable[[Event], None] = lambda _: None
        addresses = {} if address is None else {PEER: address}
        loop = asyncio.get_running_loop()
        self.peers = Peers(lambda peer, _: addresses.get(peer), loop, LogLines(7, self.log), self._given, 1 << 20)
        self._sending = False

    def _given(self, event: Event) -> None:
        assert not self._sending, "an event inside a send would enter the node twice"
        self.events.append(event)
        self.on_event(event)

    def send(self, number: int, timeout_ms: int = 5000, channel: Channel = Channel.RAFT) -> None:
        body = body_class(KEY, "request")(group_id="g", generation_id=number, member_id="m")
        self._sending = True
        self.peers.send(Send(PEER, channel, number, KEY, VERSION, body, Tag(KEY, VERSION, ""), timeout_ms, "node-7"))
        self._sending = False

    async def until(self, count: int, limit_s: float = 60.0) -> list[Event]:
        deadline = time.monotonic() + limit_s
        while len(self.events) < count and time.monotonic() < deadline:
            await asyncio.sleep(0.002)
        return self.events

    @property
    def replies(self) -> list[tuple[int, int]]:
        """Return (token, number of the request) of each reply."""
        found = [each for each in self.events if isinstance(each, PeerReply)]
        return [(each.token, _number(each.body)) for each in found]

    def logged(self, event: str) -> list[dict[str, Any]]:
        lines = [json.loads(line) for line in self.log.getvalue().splitlines()]
        return [line for line in lines if line["event"] == event]


def _number(body: Any) -> int:
    return int(body.throttle_time.total_seconds() * 1000)


async def read_frame(reader: asyncio.StreamReader) -> bytes:
    return await reader.readexactly(int.from_bytes(await reader.readexactly(4), "big"))


def reply_to(frame: bytes, error: Error = ErrorCode.none) -> bytes:
    header, offset = read_request_header(frame)
    assert header.client_id == "node-7"
    request: Any = decode_request(KEY, VERSION, frame, offset)
    response = body_class(KEY, "response")(
        throttle_time=timedelta(milliseconds=request.generation_id), error_code=ErrorCode(int(error))
    )
    return b"".join(encode_response(KEY, VERSION, header.correlation_id, response))


async def serve_all(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while True:
        writer.write(reply_to(await read_frame(reader)))


async def serve_none(reader: asyncio.StreamReader, _: asyncio.StreamWriter) -> None:
    await reader.read(-1)


def play(scene: Callable[[RecordedPeers], Coroutine[Any, Any, None]], serve: Serve | None) -> RecordedPeers:
    """Run the scene. With ``serve`` None no socket listens."""

    async def run() -> RecordedPeers:
        async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            assert serve is not None
            try:
                await serve(reader, writer)
            except (asyncio.IncompleteReadError, ConnectionError):
                pass
            finally:
                writer.close()

        sock = socket.create_server(("127.0.0.1", 0))
        world = RecordedPeers(sock.getsockname())
        server = None
        if serve is None:
            sock.close()
        else:
            server = await asyncio.start_server(served, sock=sock)
        try:
            await scene(world)
        finally:
            world.peers.close()
            await asyncio.sleep(0.01)
            if server is not None:
                server.close()
        return world

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


def test_requests_are_pipelined_and_replies_are_in_order() -> None:
    async def scene(world: RecordedPeers) -> None:
        for number in range(1, 51):
            world.send(number)
        await world.until(51)

    world = play(scene, serve_all)
    assert world.events[0] == UP
    assert world.replies == [(number, number) for number in range(1, 51)]
    assert len(world.events) == 51
    assert world.log.getvalue() == ""


def test_pipelined_requests_are_sent_before_first_reply() -> None:
    async def two_then_both(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        frames = [await read_frame(reader), await read_frame(reader)]
        writer.write(b"".join(reply_to(frame) for frame in frames))

    async def scene(world: RecordedPeers) -> None:
        world.send(1)
        world.send(2)
        await world.until(3)

    assert play(scene, two_then_both).replies == [(1, 1), (2, 2)]


def test_each_channel_has_own_connection() -> None:
    async def scene(world: RecordedPeers) -> None:
        world.send(1)
        await world.until(1)
        world.send(2, channel=Channel.CONTROLLER)
        await world.until(2)
        assert world.events == [UP, PeerUp(PEER, Channel.CONTROLLER)]

    play(scene, serve_none)


def test_refused_connection_fails_requests_after_minimum_time() -> None:
    took_s: list[float] = []

    async def scene(world: RecordedPeers) -> None:
        started = time.monotonic()
        world.send(1)
        await asyncio.sleep(0)
        world.send(2)
        await world.until(1)
        took_s.append(time.monotonic() - started)
        await asyncio.sleep(2 * SHORTEST_LIFE_S)

    world = play(scene, None)
    assert world.events == [DOWN]
    assert took_s[0] >= SHORTEST_LIFE_S * 0.9
    assert [line["peer"] for line in world.logged("peer_down")] == [PEER]


def test_immediate_retries_neither_spin_nor_fill_log() -> None:
    async def scene(world: RecordedPeers) -> None:
        world.on_event = lambda _: world.send(1)
        world.send(1)
        await asyncio.sleep(0.3)

    world = play(scene, None)
    assert 2 <= len(world.events) <= 0.3 / SHORTEST_LIFE_S + 1
    assert len(world.logged("peer_down")) == 1


def test_permanent_refusal_is_logged_once_until_it_changes() -> None:
    other, fine = ErrorCode.inconsistent_cluster_id, ErrorCode.none
    errors = [fine, ErrorCode.not_controller, other, other, fine, other, ErrorCode.duplicate_broker_registration]

    async def refuses(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for error in errors:
            writer.write(reply_to(await read_frame(reader), error))

    async def scene(world: RecordedPeers) -> None:
        for number in range(1, len(errors) + 1):
            world.send(number)
        await world.until(1 + len(errors))

    refused_lines = play(scene, refuses).logged("peer_refuses")
    assert [line["error"] for line in refused_lines] == [
        error_name(other),
        error_name(other),
        "DUPLICATE_BROKER_REGISTRATION",
    ]
    assert "crucible.cluster.id" in refused_lines[0]["reason"]
    assert (refused_lines[0]["peer"], refused_lines[0]["api"]) == (PEER, "Heartbeat")


def test_partition_error_is_detected() -> None:
    partition = SimpleNamespace(error_code=ErrorCode.inconsistent_voter_set)
    body = SimpleNamespace(error_code=ErrorCode.none, topics=(SimpleNamespace(partitions=(partition,)),))
    assert refusal(body) is ErrorCode.inconsistent_voter_set
    assert refusal(SimpleNamespace(error_code=ErrorCode.none, topics=())) is None


def test_peer_without_address_is_down() -> None:
    async def run() -> list[Event]:
        world = RecordedPeers(None)
        world.send(1)
        return await world.until(1)

    assert asyncio.run(run()) == [DOWN]


def test_shortest_timeout_breaks_channel_once() -> None:
    async def scene(world: RecordedPeers) -> None:
        world.send(1, timeout_ms=5000)
        world.send(2, timeout_ms=50)
        world.send(3, timeout_ms=5000)
        await world.until(2)
        await asyncio.sleep(0.05)

    world = play(scene, serve_none)
    assert world.events == [UP, DOWN]
    assert world.logged("peer_down")[0]["reason"] == "no reply in time"
    assert world.logged("peer_down")[0]["pending"] == 3


def test_send_beside_a_deadline_of_less_than_a_millisecond_waits_for_that() -> None:
    async def scene(world: RecordedPeers) -> None:
        world.send(1, timeout_ms=0)  # uvloop makes no TimerHandle for it.
        world.send(2)
        assert await world.until(1) in ([DOWN], [UP, DOWN])

    world = play(scene, serve_none)
    assert world.logged("peer_down")[0]["reason"] == "no reply in time"


def test_timeout_starts_at_send() -> None:
    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            frame = await read_frame(reader)
            await asyncio.sleep(0.06)
            writer.write(reply_to(frame))

    async def scene(world: RecordedPeers) -> None:
        world.send(1, timeout_ms=100)
        world.send(2, timeout_ms=100)
        await world.until(3)

    world = play(scene, slow)
    assert world.replies == [(1, 1)]
    assert world.events[-1] == DOWN


def test_closed_connection_is_detected_and_next_send_reconnects() -> None:
    connections: list[int] = []

    async def first_closes(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        connections.append(1)
        if len(connections) > 1:
            await serve_all(reader, writer)
        await read_frame(reader)

    async def scene(world: RecordedPeers) -> None:
        world.send(1)
        await world.until(2)
        assert world.events == [UP, DOWN]
        world.send(2)
        await world.until(4)

    world = play(scene, first_closes)
    assert world.events[2] == UP
    assert world.replies == [(2, 2)]
    assert len(world.logged("peer_responds")) == 1


def test_close_of_idle_connection_is_reported() -> None:
    """A killed leader is noticed at once, with or without a pending request."""

    async def one(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(reply_to(await read_frame(reader)))

    async def scene(world: RecordedPeers) -> None:
        world.send(1)
        await world.until(3)

    world = play(scene, one)
    assert world.events[0] == UP
    assert world.events[-1] == DOWN
    assert world.replies == [(1, 1)]


@pytest.mark.parametrize(
    ("frame", "reason"),
    [
        (b"\0\0\0\x09\0\0\0\x63\0\0\0\0\0", "malformed"),  # Another correlation ID, then too few bytes.
        (b"\xff\xff\xff\xff", "malformed: a frame of -1 bytes"),
        (b"\x7f\xff\xff\xff", "malformed: a frame of"),
        (b"\0\0\0\x02ab", "malformed"),
        (b"GET / HTTP/1.1\r\n\r\n", "malformed"),
    ],
)
def test_malformed_reply_breaks_channel_with_log_line(frame: bytes, reason: str) -> None:
    async def garbage(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader)
        writer.write(frame)
        await reader.read(-1)

    async def scene(world: RecordedPeers) -> None:
        world.send(1)
        await world.until(2)

    world = play(scene, garbage)
    assert world.events == [UP, DOWN]
    assert world.logged("peer_down")[0]["reason"].startswith(reason)


def test_duplicate_reply_or_wrong_correlation_id_is_malformed() -> None:
    async def twice(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(2 * reply_to(await read_frame(reader)))
        await reader.read(-1)

    async def scene(world: RecordedPeers) -> None:
        world.send(1)
        await world.until(3)
        world.send(2)
        world.send(3)
        await world.until(6)

    world = play(scene, twice)
    assert world.replies == [(1, 1), (2, 2)]
    assert sum(isinstance(each, PeerDown) for each in world.events) == 2
    assert [line["reason"] for line in world.logged("peer_down")] == [
        "malformed: a reply to nothing",
        "malformed: a reply to request 2, not 3",
    ]


def test_replies_in_single_bytes_are_assembled() -> None:
    async def dribbling(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for each in reply_to(await read_frame(reader)):
            writer.write(bytes([each]))
            await writer.drain()
            await asyncio.sleep(0.001)
        await reader.read(-1)

    async def scene(world: RecordedPeers) -> None:
        world.send(9)
        await world.until(2)

    assert play(scene, dribbling).replies == [(9, 9)]


def test_too_many_pending_requests_break_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MAX_OUTSTANDING", 10)

    async def scene(world: RecordedPeers) -> None:
        for number in range(11):
            world.send(number)
        await world.until(1)

    assert play(scene, serve_none).events == [DOWN]


def test_unsent_bytes_beyond_limit_break_channel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers_module, "MAX_UNSENT_BYTES", 5000)

    async def scene(world: RecordedPeers) -> None:
        for number in range(400):
            world.send(number)
        await world.until(1)

    assert play(scene, serve_none).events == [DOWN]


def test_no_events_after_close() -> None:
    async def scene(world: RecordedPeers) -> None:
        world.send(1, timeout_ms=30)
        await world.until(1)
        world.send(2, timeout_ms=30)
        world.peers.close()
        await asyncio.sleep(0.1)
        assert world.events == [UP]

    play(scene, serve_none)


def test_hanging_connect_ends_with_timeout() -> None:
    async def run() -> tuple[list[Event], float]:
        full = socket.socket()
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        filling = [socket.socket() for _ in range(4)]
        for each in filling:
            each.setblocking(False)
            each.connect_ex(full.getsockname())
        world = RecordedPeers(full.getsockname())
        started = time.monotonic()
        world.send(1, timeout_ms=80)
        events = await world.until(1)
        for each in (*filling, full):
            each.close()
        return events, time.monotonic() - started

    events, took_s = asyncio.run(run())
    assert events == [DOWN]
    assert 0.07 < took_s < 2
