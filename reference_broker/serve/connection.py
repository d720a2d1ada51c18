"""One client connection: bytes in, requests one at a time, responses out. Plain callbacks, no task and no future.

The state of a connection is in four fields, which are independent of each other:

- ``life``: whether it serves requests and sends responses (``NEXT_LIVES``),
- ``request_state``: where its next request is, or the one in service (``NEXT_REQUEST_STATES``),
- ``_mutes``: why its socket is not read (``Mute``),
- ``_writes_paused``: whether its peer has left too many bytes of responses unread.

For example, a connection may be CLOSING while one of its requests is IN_FLIGHT, its socket muted and its last response
unread. A request is served only if ``life`` is OPEN, ``request_state`` RECEIVING, and writes are not paused.
"""

import asyncio
import select
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, auto
from time import monotonic
from typing import TYPE_CHECKING, Final, cast

from reference_broker.serve.request_scheduling import COUNTED_FROM_BYTES, SMALL_QUEUES, Queue, RequestHistory
from reference_broker.wire.apis import ApiKey
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.frames import FrameReader
from reference_broker.wire.primitives import Buffers

if TYPE_CHECKING:
    from reference_broker.serve.driver import Driver


READ_AHEAD_BYTES = 128 << 10
"""How many bytes may be buffered behind the request in flight before the socket is no longer read."""
WRITE_BEHIND_BYTES = 64 << 10
"""How many bytes of responses a slow reader may leave unread before its next request waits."""
OWN_BYTES = 8 << 10
"""The memory of an open connection beside its requests and responses, rounded up: 3 KiB were measured."""

FETCH = ApiKey.FETCH.to_bytes(2, "big")
"""The first bytes of the frame of a Fetch."""


class Life(Enum):
    """Whether a connection serves requests and sends responses."""

    NEW = auto()
    OPEN = auto()
    CLOSING = auto()
    """No further request is served. What was sent before still reaches the peer, unless the connection was evicted."""
    DISCARDING = auto()
    """A fault loses its responses. Nothing is served or sent any more."""
    CLOSED = auto()
    """The transport is closed, or the driver did not admit the connection."""


class RequestState(Enum):
    """Where the next request of a connection is, or the one in service. There is never more than one."""

    RECEIVING = auto()
    """There is no whole request yet, or it may not be served now."""
    QUEUED = auto()
    """It waits for its turn in a queue of ``RequestScheduler``."""
    DISPATCHING = auto()
    """The node is being given the request right now."""
    IN_FLIGHT = auto()
    """The node has the request, and responds in a later event. So does a large request that is still being decoded."""


# Plain names, since Python 3.11 calls a function for ``Life.OPEN``.
NEW, OPEN, CLOSING, DISCARDING, CLOSED = Life
RECEIVING, QUEUED, DISPATCHING, IN_FLIGHT = RequestState

NEXT_LIVES: Final[Mapping[Life, Mapping[Life, tuple[str, ...]]]] = {
    NEW: {OPEN: ("connection_made",)},
    OPEN: {
        CLOSING: ("close", "evict"),
        DISCARDING: ("discard",),
        CLOSED: ("connection_lost", "connection_made"),  # The driver did not admit it.
    },
    CLOSING: {DISCARDING: ("discard",), CLOSED: ("connection_lost",)},
    DISCARDING: {CLOSED: ("connection_lost",)},
    CLOSED: {},
}
"""The methods that lead from one state to the next. ``test_connection_states`` compares them with what happens."""
NEXT_REQUEST_STATES: Final[Mapping[RequestState, Mapping[RequestState, tuple[str, ...]]]] = {
    RECEIVING: {QUEUED: ("_queue_or_receive",), DISPATCHING: ("_serve_next",)},
    QUEUED: {RECEIVING: ("take_turn",)},
    DISPATCHING: {RECEIVING: ("done",), IN_FLIGHT: ("_serve_next",)},
    IN_FLIGHT: {RECEIVING: ("done",)},
}


class Mute(Enum):
    """Why the socket is not read, as Kafka's ChannelMuteState. It is read while there is no reason."""

    READ_AHEAD = auto()
    """More than READ_AHEAD_BYTES arrived while a request was not RECEIVING, or writes were paused. Until all whole
    requests have been served."""
    RECEIVE_BUDGET = auto()
    """Many peers send large frames at the same time, and take turns (``ReceiveBudget``)."""


class Connection(asyncio.Protocol):
    """A connection that a client, or another node, has opened.

    The node has at most one of its requests at a time; the next one is decoded after the response. READ_AHEAD_BYTES
    bounds the bytes buffered meanwhile. A frame that is still arriving comes on top; the frame limit bounds it, and
    ``memory_budget`` bounds what all connections hold.
    """

    __slots__ = (
        "_driver",
        "_frame_since_s",
        "_history",
        "_making_bytes",
        "_mutes",
        "_read_ahead_bytes",
        "_reader",
        "_request_bytes",
        "_unread",
        "_writes_paused",
        "last_active_s",
        "life",
        "listener",
        "number",
        "of_node",
        "peer",
        "request_state",
        "transport",
    )

    def __init__(self, driver: "Driver", max_frame_bytes: int, listener: str = "", *, of_node: bool = False) -> None:
        self._driver = driver

        # who is there
        self.transport: asyncio.Transport
        self.listener = listener
        self.peer = ""
        self.number = -1
        """The connection's number in events, -1 before it is admitted."""
        self.of_node = of_node
        """Whether a node is at the other end: it came to a listener of nodes, or is registered with its name."""

        # the state
        self.life = NEW
        self.request_state = RECEIVING
        self._mutes: frozenset[Mute] = frozenset()
        self._writes_paused = False
        """Whether the peer has left WRITE_BEHIND_BYTES unread."""

        # what has arrived, and what is still to be read by the peer
        self._reader = FrameReader(max_frame_bytes)
        self._read_ahead_bytes = 0
        """Bytes that arrived while a request waited or was with the node."""
        self._history = RequestHistory()
        self._unread = UnreadResponses()

        # memory
        self._request_bytes = 0
        """Size of the frame whose request is with the node."""
        self._making_bytes = 0
        """An estimate of the memory of a large request or response that is being decoded, served or encoded."""

        # times of the monotonic clock
        self._frame_since_s = 0.0
        """When the first bytes arrived of a frame that is not complete, or not decoded yet."""
        self.last_active_s = 0.0
        """When its last request was given to the node, or it was last seen to have one there."""

    # opening

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BEHIND_BYTES)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unknown"
        self.life = OPEN
        if not self._driver.opened(self):
            self.life = CLOSED
            self.transport.abort()
            return
        self._driver.memory.changed(self)

    def admitted(self, number: int) -> None:
        """The driver has admitted the connection under this number."""
        self.number = number
        self.last_active_s = monotonic()

    def count_as_node(self) -> None:
        """A registered node is at the other end. Nodes have memory of their own."""
        self._driver.memory.forget(self)
        self.of_node = True
        self._driver.memory.changed(self)

    # from bytes to requests

    def data_received(self, data: bytes) -> None:
        if self.life is not OPEN:
            return
        if not self._reader.buffered_bytes:
            self._frame_since_s = monotonic()
        self._reader.feed(data)
        if len(data) >= COUNTED_FROM_BYTES and not self._mutes:
            self._driver.receive_budget.took(self, len(data))
        if self.request_state is not RECEIVING or self._writes_paused:
            self._read_ahead_bytes += len(data)
            if self._read_ahead_bytes > READ_AHEAD_BYTES:
                self._mute(Mute.READ_AHEAD)
                self._watch_for_close()
        elif self._may_serve_now():
            self._serve_next()
        else:
            self._queue_or_receive(has_waited=False)
        self._driver.memory.changed(self)

    def _may_serve_now(self) -> bool:
        """Return whether a request that has just arrived, and is the only one of this connection, is served at once."""
        memory, is_short = self._driver.memory, self._history.is_short(self._reader)
        if self.of_node:
            return not memory.is_full(self, is_short)
        return is_short and not memory.is_full(self, is_small=True) and self._driver.scheduler.may_serve_now()

    def _queue_or_receive(self, has_waited: bool = True) -> None:
        """Queue for a turn if a whole request is there and may be served, or else receive one. ``has_waited`` says
        whether the request, or a part of it, waited for an earlier one of this connection."""
        if self.request_state is not RECEIVING or self._writes_paused or self.life is not OPEN:
            return
        if self._reader.has_frame():
            self.request_state = QUEUED
            queue = Queue.NODE if self.of_node else self._history.queue_of_next(self._reader, has_waited)
            self._driver.scheduler.add(self, queue)
            return
        self._read_ahead_bytes = 0
        if self._mutes:
            self._unmute(Mute.READ_AHEAD)
            self._watch_for_close()

    def must_wait(self, queue: Queue) -> bool:
        """Return whether the request must stay in its queue, since the memory budget is full. A small one is served
        from the reserve. Called by ``RequestScheduler``."""
        return self.life is not CLOSED and self._driver.memory.is_full(self, queue in SMALL_QUEUES)

    def take_turn(self) -> bool:
        """Serve the queued request, if it may still be served. Return False if the connection is gone, and has used no
        turn. Called by ``RequestScheduler``."""
        if self.life is CLOSED:
            return False
        self.request_state = RECEIVING
        if self.life is OPEN and not self._writes_paused:
            self._serve_next()
        self._driver.memory.changed(self)
        return True

    def _serve_next(self) -> None:
        """Give the node at most one request. Further ones wait for their turns, so that a peer that sends many requests
        at once does not keep the others waiting."""
        try:
            frame = self._reader.next_frame()
            if frame is None:
                return
            now_s = monotonic()
            self._frame_since_s = now_s  # The next frame, if its bytes are there, was not waited for before.
            request = self._driver.decoded(self, frame)
            self.last_active_s = now_s
            self._request_bytes = len(frame)
            self._history.requested(len(frame), is_fetch=frame[:2] == FETCH)
            self.request_state = DISPATCHING
            if request is not None:  # A large one is decoded, and given to the node, in later turns.
                self._driver.handle_request(request)
        except ProtocolError as broken:
            self._driver.close(self, str(broken))
        if self.request_state is DISPATCHING:
            self.request_state = IN_FLIGHT
        else:
            self._queue_or_receive()

    # responses

    def send(self, buffers: Buffers) -> None:
        """Send a response. ``done`` must follow."""
        is_all_read = not self.transport.get_write_buffer_size()
        self.transport.writelines(buffers)
        size_bytes = sum(map(len, buffers))
        self._unread.add(size_bytes, is_all_read)
        self._history.responded(self._request_bytes + size_bytes)

    def done(self) -> None:
        """The node has responded to the request. The next one may be served."""
        self._request_bytes = self._making_bytes = 0
        if self.request_state is DISPATCHING:
            self.request_state = RECEIVING  # _serve_next, which is at work, does the rest.
        elif self.request_state is IN_FLIGHT:
            self.request_state = RECEIVING
            self._driver.memory.changed(self)
            self._queue_or_receive()

    def pause_writing(self) -> None:
        self._writes_paused = True
        self._watch_for_close()

    def resume_writing(self) -> None:
        self._writes_paused = False
        self._watch_for_close()
        self._queue_or_receive()

    # muting: the socket is not read

    def pause_receiving(self) -> None:
        """Called by ``ReceiveBudget``. ``resume_receiving`` follows, also on a connection that is gone by then."""
        self._mute(Mute.RECEIVE_BUDGET)

    def resume_receiving(self) -> None:
        self._unmute(Mute.RECEIVE_BUDGET)

    def _mute(self, reason: Mute) -> None:
        if not self._mutes:
            self.transport.pause_reading()
        self._mutes |= {reason}

    def _unmute(self, reason: Mute) -> None:
        self._mutes -= {reason}
        if not self._mutes and not self.transport.is_closing():
            self.transport.resume_reading()

    def _watch_for_close(self) -> None:
        """Watch for the peer's close while the socket may stay unread for long. A wait for the receive budget is
        short."""
        self._driver.watch_for_close(self, self._writes_paused or Mute.READ_AHEAD in self._mutes)

    # memory

    def held_bytes(self) -> int:
        """The memory that this connection holds now (``MemoryBudget``)."""
        if self.life is CLOSED:
            return 0
        unsent_bytes = self.transport.get_write_buffer_size()
        unread_bytes = self._unread.held_bytes(unsent_bytes) if unsent_bytes else 0
        return OWN_BYTES + self._reader.held_bytes + self._request_bytes + self._making_bytes + unread_bytes

    def waits_since_s(self) -> float | None:
        """Since when the peer has kept this node waiting, for the rest of a frame or by not reading (``MemoryBudget``).
        None if it does not."""
        is_unread = self.transport.get_write_buffer_size() > 0
        if self._reader.buffered_bytes and self.request_state is RECEIVING:
            return min(self._frame_since_s, self._unread.since_s) if is_unread else self._frame_since_s
        return self._unread.since_s if is_unread else None

    def count_decoded(self, size_bytes: int) -> None:
        """The decoded part of a large request has grown by this."""
        self._making_bytes += size_bytes
        self._driver.memory.changed(self)

    def count_response(self, size_bytes: int) -> None:
        """A large response of this size is being encoded. The request's own memory is free."""
        self._making_bytes = size_bytes
        self._driver.memory.changed(self)

    # closing

    def close(self) -> None:
        """Close after what was sent before. ``connection_lost`` follows."""
        self._serve_no_more()
        self.transport.close()

    def evict(self, reason: str) -> int:
        """Close at once. Unsent responses are lost. Return the bytes that stay in use until ``connection_lost``."""
        self._serve_no_more()
        self._reader.drop()
        self._driver.evicted(self, reason)
        unread_bytes = self._unread.held_bytes(self.transport.get_write_buffer_size())
        self.transport.abort()
        return OWN_BYTES + unread_bytes

    def _serve_no_more(self) -> None:
        if self.life is OPEN:
            self.life = CLOSING

    def discard(self) -> None:
        """Lose all further responses, as a fault. The driver aborts the connection after this event."""
        self.life = DISCARDING

    def close_if_idle(self, since_s: float) -> None:
        """Abort a connection that has been idle since then. One with a request at the node is not idle. A peer that has
        not read its responses by then never will."""
        if self.request_state is IN_FLIGHT and self.life is OPEN:
            self.last_active_s = monotonic()
        elif self.last_active_s < since_s:
            self.transport.abort()

    def abort(self) -> None:
        self.transport.abort()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (a reset is an ordinary end)
        if self.life is CLOSED:
            return
        self.life = CLOSED
        self._reader.drop()  # The connection may still be queued for a turn.
        self._driver.closed(self)


class UnreadResponses:
    """Sizes of the responses that a peer has not read whole.

    The first one stays in memory until its last byte is sent, since its buffers are sent as they are.
    """

    __slots__ = ("_sizes", "_total_bytes", "since_s")

    def __init__(self) -> None:
        self._sizes: deque[int] = deque()
        self._total_bytes = 0
        self.since_s = 0.0
        """When the oldest of them was sent (monotonic clock), or the last response if all are read."""

    def add(self, size_bytes: int, is_all_read: bool) -> None:
        """A response was sent. ``is_all_read`` says that the peer has read all earlier ones."""
        if is_all_read:
            self._sizes.clear()
            self._total_bytes = 0
            self.since_s = monotonic()
        self._sizes.append(size_bytes)
        self._total_bytes += size_bytes

    def held_bytes(self, unsent_bytes: int) -> int:
        """Return the memory in use while ``unsent_bytes`` are still in the transport's buffer."""
        while self._sizes and self._total_bytes - self._sizes[0] >= unsent_bytes:
            self._total_bytes -= self._sizes.popleft()
        return self._total_bytes


POLL_EVERY_S = 1.0
_GONE = getattr(select, "POLLRDHUP", 0) | select.POLLHUP | select.POLLERR


@dataclass(slots=True)
class HangUps:
    """Notices when a peer closes a connection that is not being read. The event loop would not notice.

    Once a second it polls the watched sockets, and aborts the connections that their peers closed or reset.
    """

    _loop: asyncio.AbstractEventLoop
    _watched: dict[Connection, int] = field(default_factory=dict)
    """The descriptor of each watched connection's socket."""
    _handle: asyncio.TimerHandle | None = None

    def watch(self, connection: Connection, watch: bool) -> None:
        if not watch:
            self._watched.pop(connection, None)
            return
        sock = connection.transport.get_extra_info("socket")
        if sock is None or sock.fileno() < 0:
            return
        self._watched[connection] = sock.fileno()
        if self._handle is None:
            self._handle = self._loop.call_later(POLL_EVERY_S, self._poll)

    def close(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
            self._handle = None
        self._watched = {}

    def _poll(self) -> None:
        self._handle = None
        poll = select.poll()
        by_descriptor = {descriptor: connection for connection, descriptor in self._watched.items()}
        for descriptor in by_descriptor:
            poll.register(descriptor, _GONE)
        for descriptor, _ in poll.poll(0):
            del self._watched[by_descriptor[descriptor]]
            by_descriptor[descriptor].abort()
        if self._watched:
            self._handle = self._loop.call_later(POLL_EVERY_S, self._poll)
