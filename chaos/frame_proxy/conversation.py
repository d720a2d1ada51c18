"""One client's connection and the one to its node: frames are read, judged and passed on, in both directions.

Responses come in the order of their requests, so a response belongs to the oldest pending request. A small frame is
read whole. A large one is passed on while it arrives, unless a rule may hit it or it may carry an address. After bytes
that are no frame, or a response without a request, the rest of the connection is passed on as it is.

Each direction stops reading while the other side takes nothing, so a connection holds at most one whole frame and some
read-ahead in each direction.
"""

from collections import deque
from typing import TYPE_CHECKING, Final, Protocol

from chaos.frame_proxy.addresses import API_VERSIONS, must_read, refuses_version, rewritten
from chaos.frame_proxy.frames import LENGTH_BYTES, Bytes, FrameCutter, Label, NoFrameError, error_of
from chaos.frame_proxy.recorder import Sent
from chaos.interceptor.raw_frames import RawFrame, reply_frame
from reference_broker.core.events import Reply, Request
from reference_broker.wire.apis import ApiKey, is_known
from reference_broker.wire.errors import ProtocolError

if TYPE_CHECKING:
    from chaos.frame_proxy.node_front import NodeFront

METADATA: Final = int(ApiKey.METADATA)
LARGE_BYTES: Final = 128 << 10
"""A larger frame is passed on while it arrives, unless it must be looked at."""
START_BYTES: Final = 4 << 10
"""Bytes of a large frame that must have arrived before its header is read."""
MAX_PENDING: Final = 1_000
"""A client with this number of pending requests is read again when a response arrives."""


class Pipe(Protocol):
    """The part of a transport that a conversation needs. ``asyncio.Transport`` has all of it."""

    def write(self, data: Bytes) -> None: ...
    def pause_reading(self) -> None: ...
    def resume_reading(self) -> None: ...
    def close(self) -> None: ...
    def abort(self) -> None: ...
    def is_closing(self) -> bool: ...


class PendingRequest:
    """A request that was sent to the node and has no response yet."""

    __slots__ = ("at_us", "label", "request_bytes", "sent")

    def __init__(self, label: Label, at_us: int, request_bytes: int, sent: Sent | None) -> None:
        self.label = label
        self.at_us = at_us
        self.request_bytes = request_bytes
        self.sent = sent


class Conversation:
    """``connection`` is its number. Bytes come in by ``from_client`` and ``from_node``."""

    def __init__(self, front: "NodeFront", connection: int, client: Pipe) -> None:
        self.connection = connection
        self.closed = False
        self._front = front
        self._client = client
        self._node: Pipe | None = None
        self._requests = FrameCutter(front.most_frame_bytes)
        self._responses = FrameCutter(front.most_frame_bytes)
        self._pending: deque[PendingRequest] = deque()
        self._passing_up = self._passing_down = 0
        """Number of bytes of a large frame that are still to be passed on."""
        self._gathers_up = self._gathers_down = False
        """Whether the large frame that arrives must be whole before it goes on."""
        self._held_up = self._held_down = False
        """Whether a rule holds a request or a response back. All that follows waits behind it."""
        self._client_full = self._node_full = False
        self._resumes_up = False
        """Whether requests had to wait for a response that has come."""
        self._opaque = False
        self._reads_client = self._reads_node = True
        self._update_reading()

    # From the transports

    def reached_node(self, node: Pipe) -> None:
        self._node = node
        self._pump_up()

    def from_client(self, data: bytes) -> None:
        if not self.closed:
            self._requests.feed(data)
            self._pump_up()

    def from_node(self, data: bytes) -> None:
        if not self.closed:
            self._responses.feed(data)
            self._pump_down()

    def client_full(self, is_full: bool) -> None:
        self._client_full = is_full
        self._pump_down()

    def node_full(self, is_full: bool) -> None:
        self._node_full = is_full
        self._pump_up()

    def end(self, why: str) -> None:
        """End both connections, after what was written. Each pending request is logged as lost."""
        if self.closed:
            return
        self.closed = True
        for pending in self._pending:
            self._front.log_entry(self, "lost", pending.label, pending.at_us, pending.request_bytes, detail=why)
            self._front.record_end(pending.sent, "lost")
        self._pending.clear()
        for pipe in (self._client, self._node):
            if pipe is not None:
                pipe.close()
                self._front.lingers(pipe)
        self._front.ended(self)

    # For the rules

    def discard(self) -> None:
        """End both connections at once. What is under way is lost."""
        if not self.closed:
            self._client.abort()
            if self._node is not None:
                self._node.abort()
            self.end("a rule ended the connection")

    def hold_request(self) -> None:
        self._held_up = True

    def release_request(self) -> None:
        """Release a request that its holder returns, and those that waited behind it."""
        self._held_up = False
        self._pump_up()

    def hold_response(self) -> None:
        self._held_down = True

    def release_response(self, frame: Bytes) -> None:
        self._held_down = False
        if not self.closed:
            self._client.write(frame)
            self._pump_down()

    def pump_responses(self) -> None:
        """Pass on what had to wait."""
        self._pump_down()

    def forward(self, request: Request, label: Label) -> None:
        """Pass a request on."""
        if self.closed or self._node is None:
            return
        assert isinstance(request.body, RawFrame)
        self._went_up(label, len(request.body.data), request.body)
        self._node.write(request.body.data)

    def write(self, frame: Bytes) -> None:
        """Send bytes to the client in place of a response."""
        if not self.closed:
            self._client.write(frame)

    # Requests

    def _pump_up(self) -> None:
        while not (self.closed or self._waits_up):
            try:
                if not self._step_up():
                    break
            except (NoFrameError, ProtocolError) as wrong:
                self._let_all_pass(f"the client sent what is no request: {wrong}")
        self._update_reading()

    @property
    def _waits_up(self) -> bool:
        """Whether what the client sends cannot go on now."""
        is_far_ahead = len(self._pending) >= MAX_PENDING and not self._passing_up
        return self._node is None or self._held_up or self._node_full or is_far_ahead

    def _step_up(self) -> bool:
        """Handle the next frame, or what has arrived of it. Return whether there may be more to do."""
        assert self._node is not None
        cutter = self._requests
        if self._opaque or self._passing_up:
            count = cutter.arrived_bytes if self._opaque else min(self._passing_up, cutter.arrived_bytes)
            if count:
                self._node.write(cutter.take(count))
                self._passing_up = max(0, self._passing_up - count)
            return count > 0
        size = cutter.size()
        if size is None:
            return False
        if cutter.arrived_bytes >= size:
            self._gathers_up = False
            self._arrived(cutter.take(size))
            return True
        if size <= LARGE_BYTES or self._gathers_up or cutter.arrived_bytes < START_BYTES:
            return False
        label = self._front.label(memoryview(cutter.start(START_BYTES))[LENGTH_BYTES:])
        if self._front.may_hit("request", label.tag) or self._front.records(label):
            self._gathers_up = True
            return False
        self._went_up(label, size)
        self._passing_up = size
        return True

    def _arrived(self, data: Bytes) -> None:
        assert self._node is not None
        frame = memoryview(data)[LENGTH_BYTES:]
        api_key, version = int.from_bytes(frame[:2], "big", signed=True), int.from_bytes(frame[2:4], "big", signed=True)
        raw = RawFrame(data, api_key, version, is_request=True)
        try:
            label = self._front.label(frame, raw)
        except ProtocolError:
            self._node.write(data)  # It was taken from the cutter, so what passes from here on does not contain it.
            raise
        header, tag = label.header, label.tag
        is_unknown = api_key == API_VERSIONS and not is_known(api_key, version)
        if is_unknown and self._is_quiet and self._front.source is None:
            self._client.write(refuses_version(header.correlation_id))
            at_us = self._front.now_us()
            self._front.log_entry(self, "refused_version", label, at_us, len(data), detail="our codecs are older")
            return
        number = self.connection
        event = Request(number, header.correlation_id, api_key, version, header.client_id or "", raw, tag, len(data))
        self._front.arrived(event, label)

    @property
    def _is_quiet(self) -> bool:
        """Whether all requests have their whole response, so that a response of ours comes in its turn."""
        return not (self._pending or self._passing_down or self._held_down)

    def _went_up(self, label: Label, size: int, raw: RawFrame | None = None) -> None:
        sent = self._front.record(self.connection, label, size, raw)
        pending = PendingRequest(label, self._front.now_us(), size, sent)
        if label.gets_response:
            self._pending.append(pending)
        else:
            self._front.log_entry(self, "no_response", label, pending.at_us, size)
            self._front.record_end(sent, "no_response")

    # Responses

    def _pump_down(self) -> None:
        while not (self.closed or self._held_down or self._client_full or self._front.held.waits):
            try:
                if not self._step_down():
                    break
            except (NoFrameError, ProtocolError) as wrong:
                self._let_all_pass(f"the node sent what is no response: {wrong}")
        if self._resumes_up:
            self._resumes_up = False
            self._pump_up()
        self._update_reading()

    def _step_down(self) -> bool:
        cutter = self._responses
        if self._opaque or self._passing_down:
            count = cutter.arrived_bytes if self._opaque else min(self._passing_down, cutter.arrived_bytes)
            if count:
                self._client.write(cutter.take(count))
                self._passing_down = max(0, self._passing_down - count)
            return count > 0
        size = cutter.size()
        if size is None:
            return False
        is_whole = cutter.arrived_bytes >= size
        if not is_whole and (size <= LARGE_BYTES or self._gathers_down or cutter.arrived_bytes < START_BYTES):
            return False
        pending = self._pending_request(cutter.start(LENGTH_BYTES * 2)[LENGTH_BYTES:])
        if is_whole:
            self._gathers_down = False
            self._end_pending()
            self._forward_response(pending, cutter.take(size))
            return True
        header = pending.label.header
        error = error_of(header.api_key, header.api_version, memoryview(cutter.start(START_BYTES))[LENGTH_BYTES:])
        is_needed = self._must_read(header.api_key, header.api_version)
        is_needed = is_needed or self._front.records(pending.label)
        if is_needed or self._front.may_hit("response", pending.label.tag._replace(error=error)):
            self._gathers_down = True
            return False
        self._end_pending()
        self._front.log_entry(self, "response", pending.label, pending.at_us, pending.request_bytes, size, error)
        self._front.record_response(pending.sent, "response", size, error)
        self._passing_down = size
        return True

    def _end_pending(self) -> None:
        self._pending.popleft()
        self._resumes_up = self._resumes_up or len(self._pending) == MAX_PENDING - 1

    def _pending_request(self, correlation: bytes) -> PendingRequest:
        """Return the request that the next response is for. Raise NoFrameError if there is none."""
        correlation_id = int.from_bytes(correlation, "big", signed=True)
        if not self._pending:
            raise NoFrameError("a response to nothing")
        pending = self._pending[0]
        if len(correlation) < 4 or correlation_id != pending.label.header.correlation_id:
            raise NoFrameError(f"a response to request {correlation_id}, not {pending.label.header.correlation_id}")
        return pending

    def _must_read(self, api_key: int, version: int) -> bool:
        """Return whether our addresses must go into a response. Nodes get each other's from their configuration."""
        return self._front.source is None and must_read(api_key, version)

    def _forward_response(self, pending: PendingRequest, data: Bytes) -> None:
        header = pending.label.header
        key, version, correlation = header.api_key, header.api_version, header.correlation_id
        raw = RawFrame(data, key, version, is_request=False)
        if self._must_read(key, version):
            moved = rewritten(key, version, correlation, raw, self._front.advertised)
            if moved is None:
                self._front.log_entry(
                    self, "addresses_unread", pending.label, pending.at_us, detail="passed on as they are"
                )
            if key == METADATA and moved is not None:
                self._front.learn(getattr(raw.value(), "topics", None) or ())
            raw = moved or raw
        error = error_of(key, version, memoryview(raw.data)[LENGTH_BYTES:], raw)
        reply = Reply(self.connection, correlation, key, version, raw, pending.label.tag._replace(error=error))
        sent = self._front.replied(reply)
        what = "response_taken" if sent is None else "response"
        self._front.log_entry(self, what, pending.label, pending.at_us, pending.request_bytes, len(data), error)
        self._front.record_response(pending.sent, what, len(data), error, raw)
        if sent is not None:
            self.write(bytes_of(sent))

    # Common

    def _let_all_pass(self, why: str) -> None:
        self._opaque = True
        for pending in self._pending:
            self._front.record_end(pending.sent, "lost")
        self._pending.clear()
        self._passing_up = self._passing_down = 0
        self._front.log_entry(self, "opaque", None, self._front.now_us(), detail=f"{why}; the rest passes as it is")
        self._pump_up()
        self._pump_down()

    def _update_reading(self) -> None:
        """Read from a side only while what it sends can go on."""
        if self.closed:
            return
        reads = not self._waits_up
        if reads != self._reads_client:
            self._reads_client = reads
            _read(self._client, reads)
        reads = not (self._client_full or self._held_down)
        if reads != self._reads_node and self._node is not None:
            self._reads_node = reads
            _read(self._node, reads)


def bytes_of(reply: Reply) -> Bytes:
    return reply.body.data if isinstance(reply.body, RawFrame) else reply_frame(reply)


def _read(pipe: Pipe, reads: bool) -> None:
    if not pipe.is_closing():
        (pipe.resume_reading if reads else pipe.pause_reading)()
