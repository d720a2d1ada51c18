"""The newest requests and responses of one node. They are in a bounded ring. Bodies become plain values when they
are read."""

import time
from collections import Counter, deque
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from crucible_kafka.library.plain_values import plain
from reference_broker.core.events import Reply, Request
from reference_broker.wire.apis import api_name
from reference_broker.wire.fetch import FetchResponse

MAX_FRAMES: Final = 10_000
MAX_BYTES: Final = 32 << 20
"""The limit of the records and other bytes that a ring keeps alive."""
OVERHEAD_BYTES: Final = 500
"""The memory of a small frame, estimated."""
MAX_CLIENTS: Final = 1000
"""Clients beyond these are counted as one."""


@dataclass(slots=True)
class RecordedFrame:
    """One request or response, with the body as the node has it."""

    at_s: float
    """Unix time."""
    is_request: bool
    connection: int
    peer: str
    client_id: str
    api_key: int
    api_version: int
    correlation_id: int
    body: object
    size_bytes: int
    fault: str
    """The action of a rule on it, or an empty string."""

    def plain(self, node_id: int) -> dict[str, Any]:
        """Return the fields of ``observation.Frame``."""
        return {
            "at_s": self.at_s,
            "direction": "request" if self.is_request else "response",
            "node": node_id,
            "connection": self.connection,
            "peer": self.peer,
            "client_id": self.client_id,
            "api": api_name(self.api_key),
            "version": self.api_version,
            "correlation_id": self.correlation_id,
            "body": plain(self.body),
            "fault": self.fault,
        }


@dataclass(slots=True)
class Ring:
    """The newest frames, bounded in number and bytes."""

    frames: deque[RecordedFrame] = field(default_factory=deque)
    _bytes: int = 0

    def add(self, frame: RecordedFrame) -> None:
        self.frames.append(frame)
        self._bytes += frame.size_bytes + OVERHEAD_BYTES
        while len(self.frames) > MAX_FRAMES or self._bytes > MAX_BYTES:
            self._bytes -= self.frames.popleft().size_bytes + OVERHEAD_BYTES

    def clear(self) -> None:
        self.frames.clear()
        self._bytes = 0


class FrameRecorder:
    """Records frames of clients and of other nodes apart, so that heartbeats and fetches of nodes displace no frame of
    a client."""

    def __init__(self) -> None:
        self._of_clients = Ring()
        self._of_nodes = Ring()
        self._peers: dict[int, str] = {}
        """The address at the other end of each open connection."""
        self.requests: Counter[tuple[str, str]] = Counter()
        """Number of requests by API and client ID, of clients only."""

    def opened(self, connection: int, peer: str) -> None:
        self._peers[connection] = peer

    def closed(self, connection: int) -> None:
        self._peers.pop(connection, None)

    def request(self, request: Request, fault: str = "") -> RecordedFrame:
        """Record a request as it came, and return the frame, to which a rule may add its fault."""
        frame = RecordedFrame(
            time.time(),
            True,
            request.connection,
            self._peers.get(request.connection, ""),
            request.client_id,
            request.api_key,
            request.api_version,
            request.correlation_id,
            request.body,
            request.frame_bytes,
            fault,
        )
        self._ring(request.tag.role).add(frame)
        if request.tag.role == "client":
            key = (api_name(request.api_key), request.client_id)
            if key not in self.requests and len(self.requests) >= MAX_CLIENTS:
                key = (key[0], "(others)")
            self.requests[key] += 1
        return frame

    def response(self, reply: Reply, client_id: str, fault: str = "") -> None:
        """Record a response as it goes out, or as it would have without the fault."""
        frame = RecordedFrame(
            time.time(),
            False,
            reply.connection,
            self._peers.get(reply.connection, ""),
            client_id,
            reply.api_key,
            reply.api_version,
            reply.correlation_id,
            reply.body,
            _size_of_records(reply.body),
            fault,
        )
        self._ring(reply.tag.role).add(frame)

    def frames(self, of_nodes: bool) -> Iterator[RecordedFrame]:
        """Yield the frames of clients, or those of other nodes, by time."""
        yield from (self._of_nodes if of_nodes else self._of_clients).frames

    def forget(self) -> None:
        """Forget all frames and counts. Connections keep their addresses."""
        self._of_clients.clear()
        self._of_nodes.clear()
        self.requests.clear()

    def _ring(self, role: str) -> Ring:
        return self._of_clients if role == "client" else self._of_nodes


def _size_of_records(body: object) -> int:
    if not isinstance(body, FetchResponse):
        return 0
    return sum(len(partition.records or b"") for topic in body.responses for partition in topic.partitions)
