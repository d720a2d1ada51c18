"""Decodes a frame into the event that the node gets."""

from collections.abc import Mapping

from reference_broker.core.events import Request
from reference_broker.core.peers import snapshot_position
from reference_broker.metadata.node_names import claimed_node, node_name
from reference_broker.wire.apis import DRAFTS, ApiKey, api_name
from reference_broker.wire.errors import ProtocolError
from reference_broker.wire.fetch import FetchRequest
from reference_broker.wire.headers import read_request_header
from reference_broker.wire.messages import decode_request
from reference_broker.wire.tags import Tag

_FETCH = int(ApiKey.FETCH)
_API_VERSIONS = int(ApiKey.API_VERSIONS)
_FETCH_SNAPSHOT = int(ApiKey.FETCH_SNAPSHOT)


def decode(connection: int, frame: memoryview, versions: Mapping[int, tuple[int, int]]) -> Request:
    """Decodes one request. Raises ProtocolError.

    ``versions`` holds the least and greatest version served, by API key. Private drafts of these APIs are served, too.
    An ApiVersions request in an unknown version gets the body None: it must be answered, in version 0 (KIP-511).
    """
    header, offset = read_request_header(frame)
    key, version, client_id = header.api_key, header.api_version, header.client_id or ""
    served = versions.get(key)
    if served is None or not (served[0] <= version <= served[1] or (key, version) in DRAFTS):
        if key != _API_VERSIONS:
            raise ProtocolError(f"{api_name(key)} version {version} is not served")
        body: object = None
    else:
        body = decode_request(key, version, frame, offset)
    node_id = claimed_node(client_id)  # Whether that is true does not matter: tags decide nothing.
    who, role = (client_id, "client") if node_id is None else (node_name(node_id), "peer")
    if key == _FETCH and body.__class__ is FetchRequest:
        assert isinstance(body, FetchRequest)
        tag = Tag(key, version, who, body.session_id, body.session_epoch, role=role)
    elif key == _FETCH_SNAPSHOT:
        tag = Tag(key, version, who, position=snapshot_position(body), role=role)
    else:
        tag = Tag(key, version, who, role=role)
    return Request(connection, header.correlation_id, key, version, client_id, body, tag, len(frame) + 4)
