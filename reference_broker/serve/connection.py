"""One client connection: bytes in, requests one at a time, responses out. Plain callbacks, no task and no future."""

import asyncio
import select
from collections import deque
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING, cast

from reference_broker.serve.request_scheduling import COUNTED_FROM_BYTES, HEAVY_BYTES, Queue
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


class Connection(asyncio.Protocol):
    """A connection that a client, or another node, has opened.

    The node has at most one of its requests at a time; the next one is decoded after the reply. READ_AHEAD_BYTES bounds
    the bytes buffered meanwhile. A frame that is still arriving comes on top; the frame limit bounds it, and
    ``memory_budget`` bounds what all connections hold.
    """

    __slots__ = (
        "_driver",
        "_fetches_little",
        "_frame_since_s",
        "_held_back",
        "_queued",
        "_reader",
        "_reading",
        "_request_bytes",
        "_response_bytes",
        "_response_sizes",
        "_unread_since_s",
        "_waiting_bytes",
        "_was_served",
        "_weight_bytes",
        "_write_full",
        "busy",
        "closed",
        "closing",
        "discarding",
        "last_active_us",
        "listener",
        "making_bytes",
        "number",
        "of_node",
        "peer",
        "serving",
        "transport",
    )

    def __init__(self, driver: "Driver", max_frame_bytes: int, listener: str = "") -> None:
        self.listener = listener
        self._driver = driver
        self._reader = FrameReader(max_frame_bytes)
        self._reading = True
        """Whether the socket is read, unless it is held back."""
        self._held_back = False
        """Whether ``ReceiveBudget`` keeps the socket from being read."""
        self._queued: Queue | None = None
        """The queue in which the next request waits for its turn, None if none waits."""
        self._write_full = False
        """Whether the peer has left WRITE_BEHIND_BYTES unread."""
        self._waiting_bytes = 0
        """Bytes that arrived while a request was with the node or waited."""
        self._response_sizes: deque[int] = deque()
        """Sizes of the responses that the peer has not read whole. The first one stays in memory until its last byte is
        sent, since its buffers are sent as they are."""
        self._response_bytes = 0
        """Their sum."""
        self._request_bytes = 0
        """Size of the frame whose request is with the node."""
        self._was_served = False
        """Whether the node has had a request of it."""
        self._weight_bytes = 0
        """Size of the last request and its response, or half of the previous value, if that is more. So one small
        request between two large ones does not make the connection light."""
        self._fetches_little = False
        """Whether the client has sent a Fetch, and the response was small."""
        self._frame_since_s = 0.0
        """When the first bytes arrived of a frame that is not complete, or not decoded yet (monotonic clock)."""
        self._unread_since_s = 0.0
        """When the oldest response was sent that the peer has not read (monotonic clock)."""
        self.making_bytes = 0
        """An estimate of the memory of a large request or response that is being decoded, served or encoded."""
        self.number = -1
        """The connection's number in events, -1 before it is open."""
        self.of_node = False
        """Whether a node is at the other end: it came to a listener of nodes, or is registered with its name."""
        self.peer = ""
        self.busy = False
        """Whether a request is with the node."""
        self.serving = False
        """Whether the request is being handed to the node right now."""
        self.closed = True
        """True before it is open, and once it is gone."""
        self.closing = False
        """Whether the connection ends once the peer has read what was sent."""
        self.discarding = False
        """Whether nothing is sent any more (a fault that loses responses)."""
        self.last_active_us = 0
        """When its last request came, or it was last seen to have one in service (monotonic)."""
        self.transport: asyncio.Transport

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)
        self.transport.set_write_buffer_limits(high=WRITE_BEHIND_BYTES)
        name = transport.get_extra_info("peername")
        self.peer = f"{name[0]}:{name[1]}" if isinstance(name, tuple) else "unknown"
        self.closed = False
        if not self._driver.opened(self):
            self.closed = True
            self.transport.abort()
            return
        self._driver.memory.changed(self)

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        if not self._reader.buffered_bytes:
            self._frame_since_s = monotonic()
        self._reader.feed(data)
        if len(data) >= COUNTED_FROM_BYTES and not self._held_back:
            self._driver.receive_budget.took(self, len(data))
        if self.busy or self._write_full or self._queued:
            self._waiting_bytes += len(data)
            if self._waiting_bytes > READ_AHEAD_BYTES:
                self._stop_reading()
        elif self._may_serve_now():
            self._serve_one()
        else:
            self.want_turn(has_waited=False)
        self._driver.memory.changed(self)

    def take_turn(self) -> None:
        """Serve the next request. Called by ``RequestScheduler``, after ``want_turn``."""
        self._queued = None
        self._serve_one()
        self._driver.memory.changed(self)

    @property
    def must_wait(self) -> bool:
        """Whether its memory budget is full. A small request is served from the reserve."""
        is_small = self._is_short() if self._queued is None else self._queued in (Queue.LIGHT, Queue.NEW)
        return self._driver.memory.is_full(self, is_small)

    def want_turn(self, has_waited: bool = True) -> None:
        """Queue for a turn if a frame is complete, or else continue to read. ``has_waited`` says whether the frame, or
        a part of it, waited for an earlier request of this connection."""
        if self._queued or self._blocked:
            return
        if self._reader.has_frame():
            self._queued = self._queue_of_next(has_waited)
            self._driver.scheduler.add(self, self._queued)
            return
        self._waiting_bytes = 0
        if not self._reading:
            self._read_again()

    def _may_serve_now(self) -> bool:
        """Return whether a request that has just arrived, and is the only one of this connection, is served at once."""
        if self.of_node:
            return not self.must_wait
        driver = self._driver
        return self._is_short() and not driver.memory.is_full(self, is_small=True) and driver.scheduler.may_serve_now()

    def _is_short(self) -> bool:
        """Return whether the next request is likely to be served in little time: its connection was served before,
        nothing about it was large, and it does not begin to fetch now. A first fetch may request all records of a
        topic."""
        is_light = self._was_served and self._weight_bytes <= HEAVY_BYTES >= self._reader.buffered_bytes
        if not is_light or self._fetches_little:
            return is_light
        return not self._reader.has_frame() or self._reader.api_key() != ApiKey.FETCH

    def _queue_of_next(self, has_waited: bool) -> Queue:
        """A connection that begins with a fetch may begin with the largest response of all. Clients begin with
        ApiVersions."""
        if self.of_node:
            return Queue.NODE
        if max(self._weight_bytes, self._reader.buffered_bytes) > HEAVY_BYTES:
            return Queue.HEAVY
        if self._was_served:
            if has_waited:
                return Queue.BACKLOG
            return Queue.LIGHT if self._is_short() else Queue.FETCH
        api_key = self._reader.api_key()
        if api_key == ApiKey.FETCH:
            return Queue.HEAVY
        return Queue.NEW if api_key == ApiKey.API_VERSIONS else Queue.BACKLOG

    @property
    def _blocked(self) -> bool:
        """Whether the next request must wait, or must not be served at all."""
        return self.busy or self._write_full or self.closing or self.closed

    def _serve_one(self) -> None:
        """Hand at most one complete frame to the node. Further ones wait for their turns, so that a peer that sends
        many requests at once does not keep the others waiting."""
        if self._blocked:
            return
        self.serving = True
        try:
            frame = self._reader.next_frame()
            if frame is None:
                return
            self._frame_since_s = monotonic()
            request = self._driver.decoded(self, frame)
            self._request_bytes = len(frame)
            self._weight_bytes = max(self._request_bytes, self._weight_bytes >> 1)
            self._was_served = self.busy = True
            if frame[:2] == FETCH:
                self._fetches_little = True
            if request is not None:
                self._driver.handle(request)
        except ProtocolError as broken:
            self._driver.close(self, str(broken))
        finally:
            self.serving = False
        self.want_turn()

    def send(self, buffers: Buffers) -> None:
        """Send a response. ``done`` must follow."""
        if not self.transport.get_write_buffer_size():
            self._unread_since_s = monotonic()
            self._response_sizes.clear()
            self._response_bytes = 0
        self.transport.writelines(buffers)
        size_bytes = sum(map(len, buffers))
        self._response_sizes.append(size_bytes)
        self._response_bytes += size_bytes
        if self._weight_bytes < self._request_bytes + size_bytes:
            self._weight_bytes = self._request_bytes + size_bytes
            if self._weight_bytes > HEAVY_BYTES:
                self._fetches_little = False

    def done(self) -> None:
        """The node has responded to the request. The next one may be served."""
        self.busy = False
        self._request_bytes = self.making_bytes = 0
        if not self.serving:  # Otherwise data_received does both.
            self._driver.memory.changed(self)
            self.want_turn()

    # What the memory budget calls.

    def held_bytes(self) -> int:
        if self.closed:
            return 0
        return OWN_BYTES + self._reader.held_bytes + self._request_bytes + self.making_bytes + self._unread_bytes()

    def _unread_bytes(self) -> int:
        """The size of the responses that the peer has not read whole."""
        unsent_bytes = self.transport.get_write_buffer_size()
        sizes = self._response_sizes
        while sizes and self._response_bytes - sizes[0] >= unsent_bytes:
            self._response_bytes -= sizes.popleft()
        return self._response_bytes

    def waits_since_s(self) -> float | None:
        unread = self.transport.get_write_buffer_size() > 0
        waits_for_node = self.busy or self._queued is not None
        if self._reader.buffered_bytes and not waits_for_node:
            return min(self._frame_since_s, self._unread_since_s) if unread else self._frame_since_s
        return self._unread_since_s if unread else None

    def evict(self, reason: str) -> int:
        self.closing = True
        self._reader.drop()
        self._driver.evicted(self, reason)
        unread_bytes = self._unread_bytes()
        self.transport.abort()
        return OWN_BYTES + unread_bytes

    def close(self) -> None:
        """Close after what was sent before. ``connection_lost`` follows."""
        self.closing = True
        self.transport.close()

    def abort(self) -> None:
        self.transport.abort()

    def pause_writing(self) -> None:
        self._write_full = True
        self._driver.watch_for_close(self, True)

    def resume_writing(self) -> None:
        self._write_full = False
        if self._reading:
            self._driver.watch_for_close(self, False)
        self.want_turn()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (a reset is an ordinary end)
        if self.closed:
            return
        self.closed = True
        self._reader.drop()  # The connection may still be queued for a turn.
        self._driver.closed(self)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            if not self._held_back:
                self.transport.pause_reading()
            self._driver.watch_for_close(self, True)

    def _read_again(self) -> None:
        self._reading = True
        self._driver.watch_for_close(self, False)
        if not self._held_back and not self.transport.is_closing():
            self.transport.resume_reading()

    def hold_back(self) -> None:
        """Stop receiving, since others send large frames, too. Called by ``ReceiveBudget``."""
        self._held_back = True
        if self._reading:
            self.transport.pause_reading()

    def receive_on(self) -> None:
        self._held_back = False
        if self._reading and not self.transport.is_closing():
            self.transport.resume_reading()


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
