"""Frames of a stream, and the headers of requests and responses.

A frame is a 4-byte length (int32, big endian) and that many bytes. There are request headers v1 and v2 and response
headers v0 and v1. Source: RequestHeader.json and ResponseHeader.json. ``client_id`` is a legacy (int16) string in both
request headers. The first eight bytes of a request header are the same in all versions, so any request can be
identified.
"""

from struct import Struct
from typing import NamedTuple

from reference_broker.wire.apis import ApiKey, api_name, is_flexible, is_known
from reference_broker.wire.errors import ProtocolError, TruncatedError
from reference_broker.wire.primitives import skip_tagged_fields

_SMALL_BYTES = 1024
"""Smaller pieces are put together as they come: a peer that sends single bytes must not cost an object for each."""
_LARGE_BYTES = 64 << 10
"""Larger frames are put together while they arrive, so that a complete one is not in memory twice."""


class FrameReader:
    """Takes bytes as they arrive and returns whole frames, without their length.

    It holds only bytes that have arrived and were not taken yet. A length alone reserves no memory. ``max_frame_bytes``
    is the largest frame, without its length (Kafka's ``socket.request.max.bytes``).
    """

    __slots__ = ("_chunk", "_frame_bytes", "_growing", "_max_frame_bytes", "_parts", "_parts_bytes", "_position")

    def __init__(self, max_frame_bytes: int) -> None:
        self._max_frame_bytes = max_frame_bytes
        self._frame_bytes = -1
        """Length of the frame that is arriving; -1: its length is not known yet."""
        self.drop()

    def drop(self) -> None:
        """Drop everything that arrived."""
        self._chunk = b""
        self._position = 0
        """``_chunk`` has been read up to here. ``_parts`` arrived after ``_chunk`` and have not been read yet."""
        self._parts: list[bytes | bytearray] = []
        self._parts_bytes = 0
        self._growing: bytearray | None = None
        """A large frame from its first byte on, and perhaps what came behind it. The other fields are empty then."""

    @property
    def buffered_bytes(self) -> int:
        """Number of received bytes that belong to no frame that was taken."""
        if self._growing is not None:
            return len(self._growing)
        return len(self._chunk) - self._position + self._parts_bytes

    @property
    def held_bytes(self) -> int:
        """Size of the memory that is used: a chunk stays whole until its last byte is taken, and what grows has room
        to."""
        if self._growing is not None:
            return self._growing.__alloc__()
        return len(self._chunk) + self._parts_bytes

    def feed(self, data: bytes) -> None:
        """Take bytes in the order in which they arrived."""
        if self._growing is None and self._frame_bytes >= _LARGE_BYTES and self.buffered_bytes < self._frame_bytes:
            self._grow()
        if self._growing is not None:
            self._growing += data
        elif self._parts_bytes or self._position < len(self._chunk):
            self._parts_bytes += len(data)
            if len(data) >= _SMALL_BYTES:
                self._parts.append(data)
            elif self._parts and self._parts[-1].__class__ is bytearray:
                self._parts[-1] += data
            else:
                self._parts.append(bytearray(data))
        else:
            self._chunk = data
            self._position = 0

    def has_frame(self) -> bool:
        """Return whether ``next_frame`` would return a frame, or raise."""
        if self._frame_bytes < 0:
            if self.buffered_bytes < 4:
                return False
            if len(self._chunk) - self._position < 4:
                self._gather()
            length = int.from_bytes(self._chunk[self._position : self._position + 4], "big", signed=True)
            if not 0 <= length <= self._max_frame_bytes:
                return True
            self._frame_bytes = length
            self._position += 4
        return self.buffered_bytes >= self._frame_bytes

    def api_key(self) -> int:
        """The first two bytes of the frame that comes next, whose length was read (``has_frame``). -1 if it is shorter
        than that, or has a length that is refused."""
        if self._frame_bytes < 2:
            return -1
        data, position = (self._chunk, self._position) if self._growing is None else (self._growing, 0)
        if len(data) - position < 2:
            self._gather()
            data, position = self._chunk, 0
        return int.from_bytes(data[position : position + 2], "big", signed=True)

    def next_frame(self) -> memoryview | None:
        """Return the next frame as a read-only view that stays valid, or None while the frame is incomplete.

        Raise ProtocolError as soon as it has read a length that is negative or above the limit.
        """
        if not self.has_frame():
            return None
        if self._frame_bytes < 0:
            length = int.from_bytes(self._chunk[self._position : self._position + 4], "big", signed=True)
            raise ProtocolError(f"a frame of {length} bytes; the limit is {self._max_frame_bytes}")
        length, self._frame_bytes = self._frame_bytes, -1
        if self._growing is not None:
            return self._grown(length)
        if len(self._chunk) - self._position < length:
            self._gather()
        start = self._position
        self._position = end = start + length
        frame = memoryview(self._chunk)[start:end]
        if end == len(self._chunk):
            self._chunk, self._position = b"", 0
        elif length >= _LARGE_BYTES:  # What is left is small, and must not keep the frame's memory.
            self._chunk, self._position = self._chunk[end:], 0
        return frame

    def _gather(self) -> None:
        """Join the pieces into one chunk, once a length or a whole frame has arrived. Each byte is copied once per
        frame."""
        self._chunk = b"".join((memoryview(self._chunk)[self._position :], *self._parts))
        self._position = 0
        self._parts = []
        self._parts_bytes = 0

    def _grow(self) -> None:
        growing = bytearray(memoryview(self._chunk)[self._position :])
        for part in self._parts:
            growing += part
        self.drop()
        self._growing = growing

    def _grown(self, length: int) -> memoryview:
        assert self._growing is not None
        whole = memoryview(self._growing).toreadonly()
        self.drop()
        self._chunk = bytes(whole[length:])
        return whole[:length]


_REQUEST = Struct(">hhih")
_CORRELATION_ID = Struct(">i")
_API_VERSIONS = int(ApiKey.API_VERSIONS)


class RequestHeader(NamedTuple):
    """``client_id`` is None if the client sent null."""

    api_key: int
    api_version: int
    correlation_id: int
    client_id: str | None


class UnsupportedVersion(ProtocolError):  # noqa: N818  (what the peer sent, named as Kafka names the error)
    """A request has an unknown API or version. ``header`` says which, so that the broker can respond to ApiVersions."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"{api_name(header.api_key)} version {header.api_version} is not known")
        self.header = header


def read_request_header(frame: bytes | memoryview) -> tuple[RequestHeader, int]:
    """Return the header and the offset of the body. Raise ProtocolError if it is cut off.

    As in Kafka, bytes of the client ID that are not UTF-8 are replaced, and each negative length means that there is
    none.

    For an unknown API or version only the common part is read; see ``messages.decode_request``.
    """
    if len(frame) < 10:
        raise TruncatedError("a request header", 10, len(frame))
    api_key, api_version, correlation_id, client_id_bytes = _REQUEST.unpack_from(frame)
    client_id: str | None = None
    offset = 10
    if client_id_bytes >= 0:
        offset += client_id_bytes
        if offset > len(frame):
            raise TruncatedError("a client ID", client_id_bytes, len(frame) - 10)
        client_id = str(frame[10:offset], "utf-8", "replace")
    if is_flexible(api_key, api_version) and is_known(api_key, api_version):
        offset = skip_tagged_fields(frame, offset)
    return RequestHeader(api_key, api_version, correlation_id, client_id), offset


def write_request_header(header: RequestHeader) -> bytes:
    """The bytes before a request's body, without the frame's length."""
    api_key, api_version, correlation_id, client_id = header
    if client_id is None:
        start = _REQUEST.pack(api_key, api_version, correlation_id, -1)
    else:
        text = client_id.encode()
        start = _REQUEST.pack(api_key, api_version, correlation_id, len(text)) + text
    return start + b"\0" if is_flexible(api_key, api_version) else start


def has_tagged_response_header(api_key: int, api_version: int) -> bool:
    """Return whether the response header is v1. ApiVersions always has v0, because a client whose version the broker
    does not know must be able to read the response (KIP-511)."""
    return api_key != _API_VERSIONS and is_flexible(api_key, api_version)


def read_response_header(frame: bytes | memoryview, api_key: int, api_version: int) -> tuple[int, int]:
    """Return the correlation ID and the offset of the body. Raise ProtocolError."""
    if len(frame) < 4:
        raise TruncatedError("a response header", 4, len(frame))
    (correlation_id,) = _CORRELATION_ID.unpack_from(frame)
    if has_tagged_response_header(api_key, api_version):
        return correlation_id, skip_tagged_fields(frame, 4)
    return correlation_id, 4


def write_response_header(api_key: int, api_version: int, correlation_id: int) -> bytes:
    """The bytes before a response's body, without the frame's length."""
    start = _CORRELATION_ID.pack(correlation_id)
    return start + b"\0" if has_tagged_response_header(api_key, api_version) else start
