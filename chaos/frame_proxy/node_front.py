"""The proxy in front of one node: the connections through it, and the rules that hit there.

``RequesterFaults`` are the rules that hit the node which sent a request, when the reply passes on the link between
them. ``Phantom`` is a connection of no client, on which a rule sends a request again.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol, cast

from chaos.frame_proxy.conversation import Conversation, Pipe, bytes_of
from chaos.frame_proxy.frames import (
    LENGTH_BYTES,
    MAX_FRAME_BYTES,
    Bytes,
    FrameCutter,
    Label,
    NoFrameError,
    error_of,
    label_of,
)
from chaos.frame_proxy.recorder import Entry, FrameRecorder, RequestLog, Sent, reads_lines
from chaos.interceptor.actions import FaultActions
from chaos.interceptor.frame_faults import FrameFaults
from chaos.interceptor.held_responses import HeldResponses, LostKeys
from chaos.interceptor.raw_frames import RawFrame
from chaos.interceptor.rules import AT_THE_REQUESTER, HitCounter, Rule, RuleBook, matches_frame, matches_peer_reply
from reference_broker.core.events import Close, Closed, Event, Reply, Request
from reference_broker.metadata.identifiers import node_name
from reference_broker.wire.apis import api_name
from reference_broker.wire.errors import error_name
from reference_broker.wire.tags import Tag

DIAL_LIMIT_S = 10.0
LINGER_S = 10.0
"""Limit of the time until an ended connection is read to its end."""
WRITE_BEHIND_BYTES = 256 << 10
"""Number of bytes that one side may leave unread before the other side is no longer read."""


class ProxyServices(Protocol):
    """Parts that all fronts share."""

    log: RequestLog
    recorder: FrameRecorder | None
    most_frame_bytes: int

    def now_us(self) -> int: ...
    def advertised(self, node_id: int, host: str, port: int) -> tuple[str, int]: ...
    def next_connection(self) -> int: ...
    def learn(self, topics: Iterable[Any]) -> None: ...
    def role_of(self, node: int) -> str: ...
    def complain(self, sentence: str) -> None: ...
    def later(self, delay_s: float, action: Callable[[], None]) -> None: ...
    def lost_by_proxy(self, node: int, lost: LostKeys) -> None: ...


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


class NodeFront:
    """``node`` is the node's ID. Clients or, with a ``source``, the node with that ID connect to
    this front and reach the node at ``upstream``."""

    def __init__(
        self, services: ProxyServices, node: int, upstream: Address, hit_counter: HitCounter, source: int | None = None
    ) -> None:
        self.node = node
        self.upstream = upstream
        self.source = source
        self.most_frame_bytes = services.most_frame_bytes
        self.advertised = services.advertised
        self.learn = services.learn
        self.now_us = services.now_us
        self.conversations: dict[int, Conversation] = {}
        self._services = services
        self._phantoms: dict[int, Phantom] = {}
        self._is_reached = True
        self._hit_counter = hit_counter
        self._requester: RequesterFaults | None = None
        self.held = HeldResponses(self._send_held, partial(services.lost_by_proxy, node), self._pump_all)

    def _send_held(self, reply: Reply) -> None:
        conversation = self.conversations.get(reply.connection)
        if conversation is not None:
            conversation.release_response(bytes_of(reply))

    def _pump_all(self) -> None:
        for conversation in list(self.conversations.values()):
            conversation.pump_responses()

    def take_actions(
        self, actions: FaultActions, random: Random, requester_actions: FaultActions | None = None
    ) -> None:
        """Build the rule books. ``requester_actions`` are those of the rules that hit ``source``. Called once, before
        any connection."""
        self._book = self._book_of(self.node, actions, random)
        self._faults = FrameFaults(self._book, actions, random)
        if self.source is not None and requester_actions is not None:
            self._requester = RequesterFaults(
                self._book_of(self.source, requester_actions, random), requester_actions, self.node
            )

    def _book_of(self, node: int, actions: FaultActions, random: Random) -> RuleBook:
        return RuleBook(node, (), actions, random, self._hit_counter, partial(self._services.role_of, node))

    @property
    def books(self) -> Sequence[RuleBook]:
        return (self._book,) if self._requester is None else (self._book, self._requester.book)

    # Connections

    def accept(self) -> asyncio.Protocol:
        """Accept a connection, as the callback of ``create_server``."""
        return ClientSide(self)

    def begin(self, client: asyncio.Transport) -> Conversation:
        number = self._services.next_connection()
        conversation = self.conversations[number] = Conversation(self, number, client)
        return conversation

    async def dial(self, make: Callable[[], asyncio.Protocol]) -> None:
        """Connect to the node. Raise OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(DIAL_LIMIT_S):
            await loop.create_connection(make, self.upstream.host, self.upstream.port)
        self._is_reached = True

    def not_reached(self, failure: Exception) -> str:
        """Complain once until the node is reached again."""
        reason = str(failure) or "no response in time"
        if self._is_reached:
            self._is_reached = False
            shown = f"{self.upstream.host}:{self.upstream.port}"
            self._services.complain(f"node {self.node} cannot be reached at {shown}: {reason}")
        return f"the node cannot be reached: {reason}"

    def ended(self, conversation: Conversation) -> None:
        self.conversations.pop(conversation.connection, None)
        self._moment()
        self._faults.closed(conversation.connection)
        self.held.closed(conversation.connection)

    def lingers(self, pipe: Pipe) -> None:
        """End a connection in the end, even if the peer never reads what was written."""
        self._services.later(LINGER_S, pipe.abort)

    def close(self) -> None:
        for conversation in list(self.conversations.values()):
            conversation.discard()
        for phantom in list(self._phantoms.values()):
            phantom.end()

    # Rules

    def add(self, rule: Rule) -> None:
        """Add a rule if it may hit here: one with a link or at another node's reply between nodes, any other before
        clients."""
        if rule.on == AT_THE_REQUESTER:
            if self._requester is not None:
                self._requester.book.add(rule)
            return
        source = None if rule.link is None else rule.link.source
        if source == self.source or (source == "all" and self.source is not None):
            self._book.add(rule)

    def label(self, frame: memoryview, raw: RawFrame | None = None) -> Label:
        """Read a request (``label_of``). On a link the sender is known, whatever it calls itself."""
        label = label_of(frame, raw)
        if self.source is None:
            return label
        return label._replace(tag=label.tag._replace(client_id=node_name(self.source), role="peer"))

    def may_hit(self, place: str, tag: Tag) -> bool:
        self._moment()
        at_requester = place == "response" and self._requester is not None and self._requester.may_hit(tag)
        return at_requester or self._book.may_hit(place, partial(matches_frame, tag=tag))

    def arrived(self, event: Request, label: Label) -> None:
        self._moment()
        for passed in self._faults.arrived(event):
            conversation = self.conversations.get(event.connection) if passed is event else None
            if conversation is not None:
                conversation.forward(event, label)
            elif passed is not event:
                self._do(passed)

    def late(self, event: Event) -> None:
        """Take an event that a rule has delayed."""
        self._moment()
        if not isinstance(event, Request):
            self._do(event)
            return
        for passed in self._faults.arrived(event):
            self._do(passed)
        conversation = self.conversations.get(event.connection)
        if conversation is not None:
            conversation.release_request()

    def replied(self, reply: Reply) -> Reply | None:
        self._moment()
        left = self._faults.replied(reply)
        return left if left is None or self._requester is None else self._requester.replied(left)

    def phantom_replied(self, effect: Reply | Close) -> None:
        if effect.connection in self._faults.phantoms:
            self._moment()
            self._faults.phantom_replied(effect)

    def _do(self, event: Event) -> None:
        if isinstance(event, Closed):
            phantom = self._phantoms.pop(event.connection, None)
            if phantom is not None:
                phantom.end()
        elif isinstance(event, Request):
            assert isinstance(event.body, RawFrame)
            label = self.label(memoryview(event.body.data)[LENGTH_BYTES:], event.body)
            if event.connection < 0:
                self._phantoms[event.connection] = Phantom(self, event, label)
            elif event.connection in self.conversations:
                self.conversations[event.connection].forward(event, label)

    def _moment(self) -> None:
        for book in self.books:
            book.now_us = self.now_us()

    # What is recorded

    def records(self, label: Label) -> bool:
        """Return whether a request and its response must arrive whole, to be recorded."""
        return self._services.recorder is not None and reads_lines(label)

    def record(self, connection: int, label: Label, size: int, raw: RawFrame | None = None) -> Sent | None:
        recorder = self._services.recorder
        return None if recorder is None else recorder.sent(self.node, self.source, connection, label, size, raw)

    def record_response(self, sent: Sent | None, what: str, size: int, error: int, raw: RawFrame | None = None) -> None:
        if sent is not None and self._services.recorder is not None:
            self._services.recorder.response(sent, what, size, error, raw)

    def record_end(self, sent: Sent | None, what: str) -> None:
        if sent is not None and self._services.recorder is not None:
            self._services.recorder.no_response(sent, what)

    def log_entry(
        self,
        conversation: Conversation,
        what: str,
        label: Label | None,
        at_us: int,
        request_bytes: int = 0,
        response_bytes: int = 0,
        error: int = 0,
        detail: str = "",
    ) -> None:
        log = self._services.log
        if label is None:
            log.add(Entry(log.next_number(), at_us, what, self.node, conversation.connection, detail=detail))
            return
        header, tag = label.header, label.tag
        log.add(
            Entry(
                log.next_number(),
                at_us,
                what,
                self.node,
                conversation.connection,
                api_name(header.api_key),
                header.api_version,
                header.client_id or "",
                header.correlation_id,
                tag.session_id,
                tag.session_epoch,
                request_bytes,
                response_bytes,
                error_name(error) if error else "",
                self.now_us() - at_us,
                detail,
            )
        )


class ClientSide(asyncio.Protocol):
    """A client's end. It dials the node once the client is there."""

    def __init__(self, front: NodeFront) -> None:
        self._front = front
        self._conversation: Conversation | None = None
        self._dialling: asyncio.Task[None] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        client = cast(asyncio.Transport, transport)
        client.set_write_buffer_limits(high=WRITE_BEHIND_BYTES)
        self._conversation = self._front.begin(client)
        self._dialling = asyncio.get_running_loop().create_task(self._dial(self._conversation))

    async def _dial(self, conversation: Conversation) -> None:
        try:
            await self._front.dial(lambda: NodeSide(conversation))
        except (OSError, TimeoutError) as failure:
            why = self._front.not_reached(failure)
            self._front.log_entry(conversation, "not_reached", None, self._front.now_us(), detail=why)
            conversation.discard()

    def data_received(self, data: bytes) -> None:
        if self._conversation is not None:
            self._conversation.from_client(data)

    def pause_writing(self) -> None:
        if self._conversation is not None:
            self._conversation.client_full(True)

    def resume_writing(self) -> None:
        if self._conversation is not None:
            self._conversation.client_full(False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (a reset is an ordinary end)
        if self._conversation is not None:
            self._conversation.end("the client closed the connection")


class NodeSide(asyncio.Protocol):
    """The node's end of a conversation."""

    def __init__(self, conversation: Conversation) -> None:
        self._conversation = conversation

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        node = cast(asyncio.Transport, transport)
        node.set_write_buffer_limits(high=WRITE_BEHIND_BYTES)
        if self._conversation.closed:
            node.abort()
        else:
            self._conversation.reached_node(node)

    def data_received(self, data: bytes) -> None:
        self._conversation.from_node(data)

    def pause_writing(self) -> None:
        self._conversation.node_full(True)

    def resume_writing(self) -> None:
        self._conversation.node_full(False)

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._conversation.end("the node closed the connection")


class RequesterFaults:
    """``book`` has the rules of the node that sent the request, and ``actions`` act on that node. ``peer`` is the node
    that responds."""

    def __init__(self, book: RuleBook, actions: FaultActions, peer: int) -> None:
        self.book = book
        self._actions = actions
        self._peer = peer

    def may_hit(self, tag: Tag) -> bool:
        return self.book.may_hit(AT_THE_REQUESTER, partial(matches_peer_reply, tag=tag, peer=self._peer))

    def replied(self, reply: Reply) -> Reply | None:
        """Return what goes to the requester now, or None if ``FaultActions`` has taken the reply over."""
        peer, matches = node_name(self._peer), partial(matches_peer_reply, tag=reply.tag, peer=self._peer)
        firing = self.book.first_hit(AT_THE_REQUESTER, peer, matches)
        if firing is None:
            return reply
        rule, hit = firing
        self.book.report(rule, hit, reply.tag, f"from {peer}")
        if rule.kind == "response_delayed":
            self._actions.reply_later(reply, self.book.delay_us(rule))
            return None
        self.book.inject_at_node(rule)
        return reply


class Phantom(asyncio.Protocol):
    """A connection of its own for one request that a rule sends. Only the rule gets the response."""

    def __init__(self, front: "NodeFront", request: Request, label: Label) -> None:
        self._front = front
        self._request = request
        self._label = label
        self._reader = FrameCutter(MAX_FRAME_BYTES)
        self._transport: asyncio.Transport | None = None
        self._sent: Sent | None = None
        self._task = asyncio.get_running_loop().create_task(self._dial())

    async def _dial(self) -> None:
        try:
            await self._front.dial(lambda: self)
        except (OSError, TimeoutError) as failure:
            self._over(Close(self._request.connection, self._front.not_reached(failure)))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        raw = self._request.body
        assert isinstance(raw, RawFrame)
        self._sent = self._front.record(self._request.connection, self._label, len(raw.data), raw)
        self._transport.write(raw.data)
        if not self._label.gets_response:
            self._over(self._reply(None, 0))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            size = self._reader.size()
        except NoFrameError as wrong:
            self._over(Close(self._request.connection, f"the node sent what is no response: {wrong}"))
            self.end()
            return
        if size is not None and self._reader.arrived_bytes >= size:
            self._take_response(self._reader.take(size))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._front.record_end(self._sent, "lost")
        self._sent = None
        self._over(Close(self._request.connection, "the node closed the connection"))

    def end(self) -> None:
        self._task.cancel()
        if self._transport is not None:
            self._transport.close()

    def _take_response(self, frame: Bytes) -> None:
        header = self._label.header
        raw = RawFrame(frame, header.api_key, header.api_version, is_request=False)
        error = error_of(header.api_key, header.api_version, memoryview(frame)[LENGTH_BYTES:], raw)
        self._front.record_response(self._sent, "response", len(frame), error, raw)
        self._sent = None
        self._over(self._reply(raw, error))

    def _reply(self, body: object | None, error: int) -> Reply:
        header, tag = self._label.header, self._label.tag._replace(error=error)
        return Reply(self._request.connection, header.correlation_id, header.api_key, header.api_version, body, tag)

    def _over(self, effect: Reply | Close) -> None:
        self._front.phantom_replied(effect)
