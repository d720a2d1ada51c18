"""Decodes a frame into the event that the node gets."""

from collections.abc import Generator, Mapping

from reference_broker.core.events import Request
from reference_broker.core.peers import snapshot_position
from reference_broker.metadata.node_names import claimed_node, node_name
from reference_broker.wire.apis import DRAFTS, ApiKey, api_name
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.headers import RequestHeader, read_request_header
from reference_broker.wire.messages import decode_request, decode_request_in_slices
from reference_broker.wire.tags import Tag

LARGE_REQUEST_ITEMS = 1000
"""The handler of a request that holds more items is given a slice of its own."""
_FETCH = int(ApiKey.FETCH)
_PRODUCE = int(ApiKey.PRODUCE)
_API_VERSIONS = int(ApiKey.API_VERSIONS)
_FETCH_SNAPSHOT = int(ApiKey.FETCH_SNAPSHOT)


def decode(connection: int, frame: memoryview, versions: Mapping[int, tuple[int, int]]) -> Request:
    """Decodes one request. Raises ProtocolError.

    ``versions`` holds the least and greatest version served, by API key. Private drafts of these APIs are served, too.
    An ApiVersions request in an unknown version gets the body None: it must be answered, in version 0 (KIP-511).
    """
    header, offset = read_request_header(frame)
    body: object = None
    if _is_served(header, versions):
        body = decode_request(header.api_key, header.api_version, frame, offset)
    return _request(connection, header, body, frame)


def decode_in_slices(
    connection: int, frame: memoryview, versions: Mapping[int, tuple[int, int]]
) -> Generator[None, None, Request]:
    """As ``decode``, for a frame of more than LARGE_FRAME_BYTES. Yields after each slice, and at the end if there is
    much for the handler to do."""
    header, offset = read_request_header(frame)
    body: object = None
    if _is_served(header, versions):
        slices = decode_request_in_slices(header.api_key, header.api_version, frame, offset)
        body, items = yield from slices
        if items > LARGE_REQUEST_ITEMS:
            yield
    return _request(connection, header, body, frame)


def begins_at_once(frame: memoryview) -> bool:
    """Whether the first slice of a large request need not wait for other large ones. It is the whole of nearly all
    fetches and produces, whose codecs are fast."""
    return int.from_bytes(frame[:2], "big") in (_FETCH, _PRODUCE)


def sender_of(client_id: str) -> tuple[str, str]:
    """Returns name and role for a tag. Whether a node's name is true does not matter: tags decide nothing."""
    node_id = claimed_node(client_id)
    return (client_id, "client") if node_id is None else (node_name(node_id), "peer")


def _is_served(header: RequestHeader, versions: Mapping[int, tuple[int, int]]) -> bool:
    """Raises ProtocolError for what is not served and cannot be answered."""
    key, version = header.api_key, header.api_version
    served = versions.get(key)
    if served is not None and (served[0] <= version <= served[1] or (key, version) in DRAFTS):
        return True
    if key != _API_VERSIONS:
        raise ProtocolError(f"{api_name(key)} version {version} is not served")
    return False


def _request(connection: int, header: RequestHeader, body: object, frame: memoryview) -> Request:
    key, version, client_id = header.api_key, header.api_version, header.client_id or ""
    who, role = sender_of(client_id)
    if key == _FETCH and body.__class__ is FetchRequest:
        assert isinstance(body, FetchRequest)
        tag = Tag(key, version, who, body.session_id, body.session_epoch, role=role)
    elif key == _FETCH_SNAPSHOT:
        tag = Tag(key, version, who, position=snapshot_position(body), role=role)
    else:
        tag = Tag(key, version, who, role=role)
    return Request(connection, header.correlation_id, key, version, client_id, body, tag, len(frame) + 4)
