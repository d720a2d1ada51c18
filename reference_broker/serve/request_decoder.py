"""Decodes frames into requests: large frames in several steps."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from reference_broker.core.effect_ports import snapshot_position
from reference_broker.core.events import Request
from reference_broker.metadata.identifiers import claimed_node, node_name
from reference_broker.ports.slicing import Sliced
from reference_broker.serve.connection import OPEN, Connection
from reference_broker.serve.log_lines import describe_bug
from reference_broker.wire.apis import DRAFTS, ApiKey, api_name
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.frames import RequestHeader, read_request_header
from reference_broker.wire.messages import decode_request, decode_request_in_slices
from reference_broker.wire.request_limits import LARGE_FRAME_BYTES, SLICE_BYTES
from reference_broker.wire.tags import Tag

if TYPE_CHECKING:
    from reference_broker.serve.driver import Driver


LARGE_REQUEST_ITEMS = 1000
"""The handler of a request with more items gets a step of its own."""
_FETCH = int(ApiKey.FETCH)
_PRODUCE = int(ApiKey.PRODUCE)
_API_VERSIONS = int(ApiKey.API_VERSIONS)
_FETCH_SNAPSHOT = int(ApiKey.FETCH_SNAPSHOT)


def decode(connection: int, frame: memoryview, versions: Mapping[int, tuple[int, int]]) -> Request:
    """Decode one request. Raise ProtocolError.

    ``versions`` holds the least and greatest version served, by API key. Private drafts of these APIs are served, too.
    An ApiVersions request in an unknown version gets the body None: its response has version 0 (KIP-511).
    """
    header, offset = read_request_header(frame)
    body: object = None
    if _is_served(header, versions):
        body = decode_request(header.api_key, header.api_version, frame, offset)
    return _request(connection, header, body, frame)


def decode_in_slices(connection: int, frame: memoryview, versions: Mapping[int, tuple[int, int]]) -> Sliced[Request]:
    """Decode a frame of more than LARGE_FRAME_BYTES. Yields after each step, and at the end if the handler has much
    to do."""
    header, offset = read_request_header(frame)
    body: object = None
    if _is_served(header, versions):
        body, items = yield from decode_request_in_slices(header.api_key, header.api_version, frame, offset)
        if items > LARGE_REQUEST_ITEMS:
            yield
    return _request(connection, header, body, frame)


def begins_at_once(frame: memoryview) -> bool:
    """Return whether the first step of a large request need not wait for other large ones. It is the whole of nearly
    all fetches and produces, whose codecs are fast."""
    return int.from_bytes(frame[:2], "big") in (_FETCH, _PRODUCE)


def sender_of(client_id: str) -> tuple[str, str]:
    """Return name and role for a tag. A false node name does no harm, since tags decide nothing."""
    node_id = claimed_node(client_id)
    return (client_id, "client") if node_id is None else (node_name(node_id), "peer")


def _is_served(header: RequestHeader, versions: Mapping[int, tuple[int, int]]) -> bool:
    """Return whether the version is served. Raise ProtocolError unless an unserved request has a response
    (ApiVersions)."""
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


class Decoder:
    """Decodes the requests of all connections."""

    def __init__(self, driver: "Driver", versions: Mapping[int, tuple[int, int]]) -> None:
        """``versions`` holds the least and greatest version served, by API key."""
        self._driver = driver
        self._versions = versions

    def decoded(self, connection: Connection, frame: memoryview) -> Request | None:
        """Return the request, or None if its frame is large: it is decoded and handed to the driver later."""
        if len(frame) <= LARGE_FRAME_BYTES:
            return decode(connection.number, frame, self._versions)
        decoding = decode_in_slices(connection.number, frame, self._versions)
        begins = not self._driver.large_messages or begins_at_once(frame)
        if begins:
            try:
                next(decoding)
            except StopIteration as end:
                request: Request = end.value
                return request
        self._driver.large_messages.add(
            connection, self._decode_later(connection, decoding), len(frame), has_begun=begins
        )
        return None

    def _decode_later(self, connection: Connection, decoding: Sliced[Request]) -> Sliced[None]:
        """Continue to decode a large request, and hand it to the node at the end."""
        while connection.life is OPEN and not self._driver.has_ended:
            connection.count_decoded(SLICE_BYTES)
            try:
                next(decoding)
            except StopIteration as end:
                self._take_late(connection, end.value)
                return
            except ProtocolError as broken:
                self._driver.close(connection, str(broken))
                return
            except Exception as bug:
                self._driver.close(connection, f"our codec failed: {describe_bug(bug)}")
                return
            yield

    def _take_late(self, connection: Connection, request: Request) -> None:
        """Hand a large request to the node. No caller handles exceptions here."""
        try:
            self._driver.note_sender(connection, request)
            self._driver.handle_request(request)
        except ProtocolError as broken:
            self._driver.close(connection, str(broken))
        except Exception as bug:
            self._driver.close(connection, f"our code failed: {describe_bug(bug)}")
