"""Frames as bytes of the wire, and the values in them.

Inside a node and in the simulator the body of a Request or Reply is a value. In front of an external node it is a
``RawFrame``: the received bytes, which are decoded only on demand. The functions below work for both.
"""

from typing import Final

from reference_broker.core.events import Reply, Request
from reference_broker.wire.apis import is_known
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.frames import read_request_header
from reference_broker.wire.messages import decode_request, decode_response, encode_request, encode_response

LENGTH_BYTES: Final = 4


class RawFrame:
    """One frame, ``data``, with its length in front. ``is_request`` gives its direction."""

    __slots__ = ("_api_key", "_api_version", "_is_decoded", "_is_request", "_value", "data")

    def __init__(self, data: bytes | memoryview, api_key: int, api_version: int, is_request: bool) -> None:
        self.data = data
        self._api_key = api_key
        self._api_version = api_version
        self._is_request = is_request
        self._is_decoded = False
        self._value: object | None = None

    def replaced(self, data: bytes) -> "RawFrame":
        """Return the same message with other bytes."""
        return RawFrame(data, self._api_key, self._api_version, self._is_request)

    def value(self) -> object | None:
        """Return the value of the frame, or None if the codecs cannot read it."""
        if not self._is_decoded:
            self._is_decoded = True
            if is_known(self._api_key, self._api_version):
                self._value = self._decoded(memoryview(self.data)[LENGTH_BYTES:])
        return self._value

    def _decoded(self, frame: memoryview) -> object | None:
        try:
            if self._is_request:
                _, offset = read_request_header(frame)
                return decode_request(self._api_key, self._api_version, frame, offset)
            return decode_response(self._api_key, self._api_version, frame)[1]
        except ProtocolError:
            return None


def value_of(body: object) -> object | None:
    """Return the value of a body, which may be one already."""
    return body.value() if isinstance(body, RawFrame) else body


def request_frame(request: Request) -> bytes:
    """Return the bytes of the request."""
    if isinstance(request.body, RawFrame):
        return bytes(request.body.data)
    parts = encode_request(
        request.api_key, request.api_version, request.correlation_id, request.client_id, request.body
    )
    return b"".join(bytes(part) for part in parts)


def reply_frame(reply: Reply) -> bytes:
    """Return the bytes of the response."""
    if isinstance(reply.body, RawFrame):
        return bytes(reply.body.data)
    parts = encode_response(reply.api_key, reply.api_version, reply.correlation_id, reply.body)
    return b"".join(bytes(part) for part in parts)
