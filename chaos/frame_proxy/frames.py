"""Frames on their way: cut from the bytes of a connection, and labelled with what the proxy reads of them.

``wire.frames`` has the broker's own reader. This one is for passing on: it gives the bytes as they came, shows the
start of a frame that has not arrived whole, and gives back what is no frame.

Of a frame only header, Fetch's session, acks and a reply's error are read, whatever the frame's size. The start of a
frame is enough for most of them.
"""

from struct import Struct, error
from typing import Final, NamedTuple, TypeAlias

from chaos.interceptor.raw_frames import RawFrame
from reference_broker.core.effect_ports import snapshot_position
from reference_broker.serve.request_decoder import sender_of
from reference_broker.wire.apis import FIRST_DRAFT_VERSION, ApiKey, is_known
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.frames import RequestHeader, has_tagged_response_header, read_request_header
from reference_broker.wire.messages import error_code_offset, has_error_code
from reference_broker.wire.primitives import BAD_BYTES, read_compact_nullable_string, read_legacy_nullable_string
from reference_broker.wire.tags import Tag

LENGTH_BYTES: Final = 4
MAX_FRAME_BYTES: Final = 100 << 20
"""The default of Kafka's ``socket.request.max.bytes``."""

Bytes: TypeAlias = bytes | memoryview


class NoFrameError(Exception):
    """The next bytes are no frame of Kafka's. The message gives the reason."""


class FrameCutter:
    """Holds what has arrived and was not taken. A length alone reserves no memory."""

    __slots__ = ("_at", "_data", "_most_bytes")

    def __init__(self, most_bytes: int = MAX_FRAME_BYTES) -> None:
        self._most_bytes = most_bytes
        self._data: bytes | bytearray = b""
        self._at = 0
        """Number of bytes of ``_data`` that were taken."""

    def feed(self, data: bytes) -> None:
        if self._at == len(self._data):
            self._data, self._at = data, 0
        elif isinstance(self._data, bytearray):
            self._data += data
        else:
            self._data = bytearray(memoryview(self._data)[self._at :])
            self._data += data
            self._at = 0

    @property
    def arrived_bytes(self) -> int:
        return len(self._data) - self._at

    def size(self) -> int | None:
        """Return the size of the next frame with its length, or None while that is not known. Raise NoFrameError."""
        if self.arrived_bytes < LENGTH_BYTES:
            return None
        length = int.from_bytes(self._data[self._at : self._at + LENGTH_BYTES], "big", signed=True)
        if not 0 <= length <= self._most_bytes:
            raise NoFrameError(f"a frame of {length} bytes; the limit is {self._most_bytes}")
        return LENGTH_BYTES + length

    def start(self, most_bytes: int) -> bytes:
        """Return a copy of the first bytes that have arrived."""
        return bytes(self._data[self._at : self._at + most_bytes])

    def take(self, size: int) -> Bytes:
        """Return the next ``size`` bytes, which must have arrived. They stay as they are."""
        data, start = self._data, self._at
        end = start + size
        assert end <= len(data), "more was taken than has arrived"
        if isinstance(data, bytes):
            self._at = end
            return data if size == len(data) else memoryview(data)[start:end]
        whole = memoryview(data).toreadonly()  # The bytes move to the taker; what follows is small, and moves out.
        self._data, self._at = bytes(whole[end:]), 0
        return whole[start:end]

    def rest(self) -> Bytes:
        """Take everything that has arrived."""
        return self.take(self.arrived_bytes)


FETCH: Final = int(ApiKey.FETCH)
PRODUCE: Final = int(ApiKey.PRODUCE)
FETCH_SNAPSHOT: Final = int(ApiKey.FETCH_SNAPSHOT)
_SESSION_SINCE_7: Final = Struct(">17xii")
_SESSION_SINCE_15: Final = Struct(">13xii")
"""Session ID and epoch behind what a Fetch begins with. Version 15 moved the replica's ID into a tagged field."""
_ACKS: Final = Struct(">h")
_ERROR: Final = Struct(">h")
_TRANSACTIONAL_ID_SINCE: Final = 3
_FIRST_FLEXIBLE_PRODUCE: Final = 9


class Label(NamedTuple):
    """Facts about a request."""

    header: RequestHeader
    tag: Tag
    gets_response: bool
    """False for a Produce request with acks=0."""


def label_of(frame: memoryview, raw: RawFrame | None = None) -> Label:
    """Read a request, which is given without its length. It may be the start of one; ``raw`` is the whole request.

    Raise ProtocolError if there is no request header.
    """
    header, offset = read_request_header(frame)
    key, version, _, client_id = header
    client, role = sender_of(client_id or "")
    tag, gets_response = Tag(key, version, client, role=role), True
    if key == FETCH:
        session_id, epoch = _session(version, frame, offset, raw)
        tag = tag._replace(session_id=session_id, session_epoch=epoch)
    elif key == PRODUCE:
        gets_response = _acks(version, frame, offset) != 0
    elif key == FETCH_SNAPSHOT and raw is not None:
        tag = tag._replace(position=snapshot_position(raw.value()))
    return Label(header, tag, gets_response)


def _session(version: int, frame: memoryview, offset: int, raw: RawFrame | None) -> tuple[int, int]:
    if version >= FIRST_DRAFT_VERSION:
        body = None if raw is None else raw.value()
        return (body.session_id, body.session_epoch) if isinstance(body, FetchRequest) else (0, -1)
    if version < 7 or not is_known(FETCH, version):
        return 0, -1
    try:
        session: tuple[int, int] = (_SESSION_SINCE_15 if version >= 15 else _SESSION_SINCE_7).unpack_from(frame, offset)
    except error:
        return 0, -1
    return session


def _acks(version: int, frame: memoryview, offset: int) -> int:
    """Return -1 if it cannot be read."""
    if not (version < _TRANSACTIONAL_ID_SINCE or is_known(PRODUCE, version)):
        return -1
    try:
        if version >= _FIRST_FLEXIBLE_PRODUCE:
            _, offset = read_compact_nullable_string(frame, offset)
        elif version >= _TRANSACTIONAL_ID_SINCE:
            _, offset = read_legacy_nullable_string(frame, offset)
        return int(_ACKS.unpack_from(frame, offset)[0])
    except (ProtocolError, *BAD_BYTES):
        return -1


def error_of(api_key: int, version: int, frame: memoryview, raw: RawFrame | None = None) -> int:
    """Return the error code of a response itself, or 0 if it has none or cannot be read. The response is given without
    its length, and may be the start of one; ``raw`` is the whole response."""
    if not is_known(api_key, version):
        return 0
    offset = error_code_offset(api_key, version)
    if offset is not None:
        header_bytes = 5 if has_tagged_response_header(api_key, version) else 4
        try:
            return int(_ERROR.unpack_from(frame, header_bytes + offset)[0])
        except error:
            return 0
    if raw is None or not has_error_code(api_key, version):
        return 0
    return int(getattr(raw.value(), "error_code", 0))
