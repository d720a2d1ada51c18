"""What stands in front of one node: the connections through it, and the rules that strike there."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, Protocol, cast

from chaos.claims import Claims
from chaos.frame_faults import FrameFaults
from chaos.frame_proxy.asker import Asker
from chaos.frame_proxy.conversation import Conversation, Pipe
from chaos.frame_proxy.frame_recorder import FrameRecorder, Sent, reads_lines
from chaos.frame_proxy.frames import LENGTH_BYTES
from chaos.frame_proxy.labels import Label, label_of
from chaos.frame_proxy.phantom import Phantom
from chaos.frame_proxy.request_log import Entry, RequestLog
from chaos.powers import Powers
from chaos.raw_frames import RawFrame
from chaos.rule_book import RuleBook
from chaos.rules import AT_THE_ASKER, Rule, matches_frame
from reference_broker.core.events import Close, Closed, Event, Reply, Request
from reference_broker.metadata.identifiers import node_name
from reference_broker.wire.apis import api_name
from reference_broker.wire.errors import error_name
from reference_broker.wire.tags import Tag

DIAL_LIMIT_S = 10.0
LINGER_S = 10.0
"""How long an ended connection may take to be read to its end."""
WRITE_BEHIND_BYTES = 256 << 10
"""How many bytes one side may leave unread before the other side is no longer read."""


class House(Protocol):
    """What all fronts share."""

    log: RequestLog
    recorder: FrameRecorder | None
    most_frame_bytes: int

    def now_us(self) -> int: ...
    def told(self, node_id: int, host: str, port: int) -> tuple[str, int]: ...
    def next_connection(self) -> int: ...
    def learn(self, topics: Iterable[Any]) -> None: ...
    def role_of(self, node: int) -> str: ...
    def complain(self, sentence: str) -> None: ...
    def later(self, delay_s: float, action: Callable[[], None]) -> None: ...


@dataclass(frozen=True, slots=True)
class Address:
    host: str
    port: int


class NodeFront:
    """``node`` is the node's ID. Whoever connects to this front reaches the node at ``upstream``: clients or, with a
    ``source``, the node with that ID."""

    def __init__(self, house: House, node: int, upstream: Address, claims: Claims, source: int | None = None) -> None:
        self.node = node
        self.upstream = upstream
        self.source = source
        self.most_frame_bytes = house.most_frame_bytes
        self.told = house.told
        self.learn = house.learn
        self.now_us = house.now_us
        self.conversations: dict[int, Conversation] = {}
        self._house = house
        self._phantoms: dict[int, Phantom] = {}
        self._is_reached = True
        self._claims = claims
        self._asker: Asker | None = None

    def take_powers(self, powers: Powers, random: Random, over_asker: Powers | None = None) -> None:
        """Gives the rules what they ask of the world. ``over_asker`` is what those ask that strike ``source``. It is
        called once, before any connection."""
        self._book = self._book_of(self.node, powers, random)
        self._faults = FrameFaults(self._book, powers, random)
        if self.source is not None and over_asker is not None:
            self._asker = Asker(self._book_of(self.source, over_asker, random), over_asker, self.node)

    def _book_of(self, node: int, powers: Powers, random: Random) -> RuleBook:
        return RuleBook(node, (), powers, random, self._claims, partial(self._house.role_of, node))

    @property
    def books(self) -> Sequence[RuleBook]:
        return (self._book,) if self._asker is None else (self._book, self._asker.book)

    # Connections

    def accept(self) -> asyncio.Protocol:
        """For ``create_server``."""
        return ClientSide(self)

    def begin(self, client: asyncio.Transport) -> Conversation:
        number = self._house.next_connection()
        conversation = self.conversations[number] = Conversation(self, number, client)
        return conversation

    async def dial(self, make: Callable[[], asyncio.Protocol]) -> None:
        """Connects to the node. Raises OSError or TimeoutError."""
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(DIAL_LIMIT_S):
            await loop.create_connection(make, self.upstream.host, self.upstream.port)
        self._is_reached = True

    def not_reached(self, failure: Exception) -> str:
        """Complains once until the node is reached again."""
        told = str(failure) or "no answer in time"
        if self._is_reached:
            self._is_reached = False
            shown = f"{self.upstream.host}:{self.upstream.port}"
            self._house.complain(f"node {self.node} cannot be reached at {shown}: {told}")
        return f"the node cannot be reached: {told}"

    def ended(self, conversation: Conversation) -> None:
        self.conversations.pop(conversation.connection, None)
        self._moment()
        self._faults.closed(conversation.connection)

    def lingers(self, pipe: Pipe) -> None:
        """Sees to it that a connection ends, even if nobody reads what was written."""
        self._house.later(LINGER_S, pipe.abort)

    def close(self) -> None:
        for conversation in list(self.conversations.values()):
            conversation.discard()
        for phantom in list(self._phantoms.values()):
            phantom.end()

    # Rules

    def add(self, rule: Rule) -> None:
        """Adds a rule if it may strike here: one with a link or at another node's answer between nodes, any other
        before clients."""
        if rule.on == AT_THE_ASKER:
            if self._asker is not None:
                self._asker.book.add(rule)
            return
        source = None if rule.link is None else rule.link.source
        if source == self.source or (source == "all" and self.source is not None):
            self._book.add(rule)

    def label(self, frame: memoryview, raw: RawFrame | None = None) -> Label:
        """Reads a request (``label_of``). On a link the sender is known, whatever it calls itself."""
        label = label_of(frame, raw)
        if self.source is None:
            return label
        return label._replace(tag=label.tag._replace(client_id=node_name(self.source), role="peer"))

    def may_strike(self, place: str, tag: Tag) -> bool:
        self._moment()
        hears = place == "reply" and self._asker is not None and self._asker.may_strike(tag)
        return hears or self._book.may_hit(place, partial(matches_frame, tag=tag))

    def arrived(self, event: Request, label: Label) -> None:
        self._moment()
        for each in self._faults.arrived(event):
            conversation = self.conversations.get(event.connection) if each is event else None
            if conversation is not None:
                conversation.forward(event, label)
            elif each is not event:
                self._do(each)

    def late(self, event: Event) -> None:
        """Takes an event that a rule has put off."""
        self._moment()
        if not isinstance(event, Request):
            self._do(event)
            return
        for each in self._faults.arrived(event):
            self._do(each)
        conversation = self.conversations.get(event.connection)
        if conversation is not None:
            conversation.release_request()

    def answered(self, reply: Reply) -> Reply | None:
        self._moment()
        left = self._faults.answered(reply)
        return left if left is None or self._asker is None else self._asker.hears(left)

    def phantom_answered(self, effect: Reply | Close) -> None:
        if effect.connection in self._faults.phantoms:
            self._moment()
            self._faults.phantom_answered(effect)

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
        """Returns whether a request and its answer must be there as a whole, to be recorded."""
        return self._house.recorder is not None and reads_lines(label)

    def record(self, connection: int, label: Label, size: int, raw: RawFrame | None = None) -> Sent | None:
        recorder = self._house.recorder
        return None if recorder is None else recorder.sent(self.node, self.source, connection, label, size, raw)

    def record_answer(self, sent: Sent | None, what: str, size: int, error: int, raw: RawFrame | None = None) -> None:
        if sent is not None and self._house.recorder is not None:
            self._house.recorder.answered(sent, what, size, error, raw)

    def record_end(self, sent: Sent | None, what: str) -> None:
        if sent is not None and self._house.recorder is not None:
            self._house.recorder.not_answered(sent, what)

    def tell(
        self,
        conversation: Conversation,
        what: str,
        label: Label | None,
        at_us: int,
        request_bytes: int = 0,
        answer_bytes: int = 0,
        error: int = 0,
        detail: str = "",
    ) -> None:
        log = self._house.log
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
                answer_bytes,
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
            self._front.tell(conversation, "not_reached", None, self._front.now_us(), detail=why)
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
