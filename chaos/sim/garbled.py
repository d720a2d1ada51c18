"""What the receiver of answers makes of a connection's bytes, from the first damaged answer on."""

from collections import deque
from collections.abc import Iterator

from chaos.sim.codec_check import MAX_FRAME_BYTES
from reference_broker.core.effects import Reply
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.frames import FrameReader
from reference_broker.wire.messages import decode_response


class ReplyStream:
    """Answers come in the order of their requests, so a frame is decoded as the answer to the oldest request that has
    none. ``serve.peers`` and the clients do the same."""

    def __init__(self) -> None:
        self._reader = FrameReader(MAX_FRAME_BYTES)
        self._awaited: deque[Reply] = deque()

    def arrived(self, reply: Reply, frame: bytes) -> Iterator[tuple[int, object]]:
        """Takes the bytes that were sent for ``reply``. Yields correlation ID and body of each answer that is whole
        now. Raises ProtocolError if the receiver cannot read one."""
        self._reader.feed(frame)
        self._awaited.append(reply)
        while True:
            found = self._reader.next_frame()
            if found is None:
                return
            if not self._awaited:
                raise ProtocolError("an answer to nothing")
            asked = self._awaited.popleft()
            correlation, body = decode_response(asked.api_key, asked.api_version, found)
            if correlation != asked.correlation_id:
                raise ProtocolError(f"an answer to request {correlation}, not {asked.correlation_id}")
            yield correlation, body
