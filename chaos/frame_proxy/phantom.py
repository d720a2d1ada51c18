"""A connection of no client, on which a rule sends a request again."""

import asyncio
from typing import TYPE_CHECKING, cast

from chaos.frame_proxy.frame_recorder import Sent
from chaos.frame_proxy.frames import LENGTH_BYTES, MOST_FRAME_BYTES, Bytes, FrameCutter, NoFrameError
from chaos.frame_proxy.labels import Label, error_of
from chaos.raw_frames import RawFrame
from reference_broker.core.events import Close, Reply, Request

if TYPE_CHECKING:
    from chaos.frame_proxy.node_front import NodeFront


class Phantom(asyncio.Protocol):
    """A connection of its own for one request that a rule sends. Nobody but the rule hears the answer."""

    def __init__(self, front: "NodeFront", request: Request, label: Label) -> None:
        self._front = front
        self._request = request
        self._label = label
        self._reader = FrameCutter(MOST_FRAME_BYTES)
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
        if not self._label.is_answered:
            self._over(self._reply(None, 0))

    def data_received(self, data: bytes) -> None:
        self._reader.feed(data)
        try:
            size = self._reader.size()
        except NoFrameError as wrong:
            self._over(Close(self._request.connection, f"the node sent what is no answer: {wrong}"))
            self.end()
            return
        if size is not None and self._reader.arrived_bytes >= size:
            self._answered(self._reader.take(size))

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: ARG002
        self._front.record_end(self._sent, "lost")
        self._sent = None
        self._over(Close(self._request.connection, "the node closed the connection"))

    def end(self) -> None:
        self._task.cancel()
        if self._transport is not None:
            self._transport.close()

    def _answered(self, frame: Bytes) -> None:
        header = self._label.header
        raw = RawFrame(frame, header.api_key, header.api_version, is_request=False)
        error = error_of(header.api_key, header.api_version, memoryview(frame)[LENGTH_BYTES:], raw)
        self._front.record_answer(self._sent, "answered", len(frame), error, raw)
        self._sent = None
        self._over(self._reply(raw, error))

    def _reply(self, body: object | None, error: int) -> Reply:
        header, tag = self._label.header, self._label.tag._replace(error=error)
        return Reply(self._request.connection, header.correlation_id, header.api_key, header.api_version, body, tag)

    def _over(self, effect: Reply | Close) -> None:
        self._front.phantom_answered(effect)
