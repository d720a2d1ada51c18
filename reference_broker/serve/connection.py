"""One client connection: bytes in, requests one at a time, answers out. Plain callbacks, no task and no future."""

import asyncio
from typing import TYPE_CHECKING, cast

from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.frames import FrameReader

if TYPE_CHECKING:
    from reference_broker.serve.driver import Driver

READ_AHEAD_BYTES = 1 << 20
"""How many bytes may wait behind the request in flight before the socket is no longer read."""
WRITE_BEHIND_BYTES = 1 << 20
"""How many bytes a slow reader may leave unread before its next request waits."""


class Connection(asyncio.Protocol):
    """``busy`` means that a request is with the node; the next one is decoded after its reply.

    READ_AHEAD_BYTES bounds the bytes buffered meanwhile. A frame that is still arriving comes on top; the frame limit
    bounds it. ``closing`` means that the connection ends once the peer has read what was sent. ``discarding`` means
    that nothing is sent any more (a fault that loses answers).
    """

    __slots__ = (
        "_driver",
        "_reader",
        "_reading",
        "_waiting_bytes",
        "_write_full",
        "busy",
        "closed",
        "closing",
        "discarding",
        "last_active_us",
        "listener",
        "number",
        "peer",
        "pumping",
        "transport",
    )

    def __init__(self, driver: "Driver", max_frame_bytes: int, listener: str = "") -> None:
        self.listener = listener
        self._driver = driver
        self._reader = FrameReader(max_frame_bytes)
        self._reading = True
        self.pumping = False
        self._write_full = False
        self._waiting_bytes = 0
        self.number = -1
        self.peer = ""
        self.busy = False
        self.closed = True
        self.closing = False
        self.discarding = False
        self.last_active_us = 0
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

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        self._reader.feed(data)
        if self.busy or self._write_full:
            self._waiting_bytes += len(data)
            if self._waiting_bytes > READ_AHEAD_BYTES:
                self._stop_reading()
            return
        self.pump()
        self._driver.resume()

    def pump(self) -> None:
        """Hands complete frames to the node for as long as each is answered at once."""
        if self.pumping:
            return
        self.pumping = True
        try:
            while not (self.busy or self._write_full or self.closing or self.closed):
                frame = self._reader.next_frame()
                if frame is None:
                    self._waiting_bytes = 0
                    if not self._reading:
                        self._read_again()
                    break
                request = self._driver.decoded(self, frame)
                self.busy = True
                self._driver.handle(request)
        except ProtocolError as broken:
            self._driver.close(self, str(broken))
        finally:
            self.pumping = False

    def close(self) -> None:
        """After what was sent before. ``connection_lost`` follows."""
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
        self.pump()
        self._driver.resume()

    def eof_received(self) -> bool:
        return False

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002  (a reset is an ordinary end)
        if self.closed:
            return
        self.closed = True
        self._driver.closed(self)

    def _stop_reading(self) -> None:
        if self._reading:
            self._reading = False
            self.transport.pause_reading()
            self._driver.watch_for_close(self, True)

    def _read_again(self) -> None:
        self._reading = True
        self._driver.watch_for_close(self, False)
        if not self.transport.is_closing():
            self.transport.resume_reading()
