"""Request headers v1 and v2, response headers v0 and v1.

Source: RequestHeader.json and ResponseHeader.json. ``client_id`` is a legacy (int16) string in both request headers.
The first eight bytes of a request header are the same in all versions, so any request can be identified.
"""

from struct import Struct
from typing import NamedTuple

from reference_broker.wire.apis import ApiKey, api_name, is_flexible, is_known
from reference_broker.wire.errors import ProtocolError, TruncatedError
from reference_broker.wire.reading import skip_tagged_fields

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
    """A request has an unknown API or version. ``header`` says which, so that ApiVersions can be answered."""

    def __init__(self, header: RequestHeader) -> None:
        super().__init__(f"{api_name(header.api_key)} version {header.api_version} is not known")
        self.header = header


def read_request_header(frame: bytes | memoryview) -> tuple[RequestHeader, int]:
    """Returns the header and the offset of the body. Raises ProtocolError if it is cut off.

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
    """Whether the response header is v1. ApiVersions always has v0, because a client whose version the broker does not
    know must be able to read the answer (KIP-511)."""
    return api_key != _API_VERSIONS and is_flexible(api_key, api_version)


def read_response_header(frame: bytes | memoryview, api_key: int, api_version: int) -> tuple[int, int]:
    """Returns the correlation ID and the offset of the body. Raises ProtocolError."""
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
