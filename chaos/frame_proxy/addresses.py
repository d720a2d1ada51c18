"""Puts our addresses in the place of the nodes' own in answers, so that clients stay behind the proxy.

Addresses stand in Metadata, FindCoordinator and DescribeCluster, and since KIP-951 in Produce and Fetch. Answers to
ApiVersions offer these APIs only in versions that our codecs can read. What else carries an address is for nodes
(registrations, votes) or tells where a controller listens (DescribeQuorum), and no client dials it.
"""

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final, TypeAlias

from chaos.frame_proxy.splicing import address_pieces, endpoint_pieces, spliced, version_pieces
from chaos.raw_frames import RawFrame
from reference_broker.wire.apis import VERSIONS, ApiKey, is_flexible, is_known
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.messages import encode_response
from reference_broker.wire.primitives import Buffers

Told: TypeAlias = Callable[[int, str, int], tuple[str, int]]
"""Returns host and port that clients are told for the node with this ID, host and port."""
Change: TypeAlias = Callable[[Any, Told], Any]

API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
CARRIERS: Final = {
    int(ApiKey.METADATA): 0,
    int(ApiKey.FIND_COORDINATOR): 0,
    int(ApiKey.DESCRIBE_CLUSTER): 0,
    int(ApiKey.FETCH): 16,
    int(ApiKey.PRODUCE): 10,
}
"""The APIs whose answers carry addresses that clients dial, and since which version."""
_TAGGED: Final = (int(ApiKey.FETCH), int(ApiKey.PRODUCE))
"""Their addresses stand in a tagged field at the end."""
UNREADABLE: Final = (int(ApiKey.SHARE_FETCH), int(ApiKey.SHARE_ACKNOWLEDGE))
"""Their answers carry addresses, too, and we have no codec. No client behind the proxy is offered them."""


def must_read(api_key: int, version: int) -> bool:
    """Returns whether an answer has to be there as a whole before it goes on."""
    since = CARRIERS.get(api_key)
    return api_key == API_VERSIONS or (since is not None and version >= since)


def rewritten(api_key: int, version: int, correlation_id: int, raw: RawFrame, told: Told) -> RawFrame | None:
    """Returns the answer with our addresses, which is ``raw`` itself if it has none. Returns None if it may have some
    that we cannot read."""
    body: Any = raw.value()
    if body is None:
        return None
    if api_key == API_VERSIONS and int(body.error_code):
        return raw  # It may be in version 0, whatever was asked, and offers nothing but ApiVersions.
    change, items, node_id = _CHANGES[api_key]
    changed = change(body, told)
    if changed is body:
        return raw
    old, new = getattr(body, items), getattr(changed, items)
    if api_key == API_VERSIONS:
        pieces = version_pieces(version, old, new)
    elif api_key in _TAGGED:
        pieces = endpoint_pieces(old, new)
    else:
        pieces = address_pieces(is_flexible(api_key, version), node_id, old, new)
    kept = spliced(raw, changed, pieces, last_first=api_key in _TAGGED)
    return kept or RawFrame(
        _joined(encode_response(api_key, version, correlation_id, changed)), api_key, version, False
    )


def refuses_version(correlation_id: int) -> bytes:
    """Returns the answer to an ApiVersions request in a version that we do not know: that of a broker which does not
    know it either (KIP-511). The client then asks in an older one."""
    from kio.schema.api_versions.v4.response import ApiVersion, ApiVersionsResponse

    make: Any = ApiVersionsResponse
    key: Any = ApiVersion
    least, most, _ = VERSIONS[API_VERSIONS]
    known = (key(api_key=API_VERSIONS, min_version=least, max_version=most),)
    body = make(error_code=ErrorCode.unsupported_version, api_keys=known, throttle_time=timedelta(0))
    return _joined(encode_response(API_VERSIONS, 0, correlation_id, body))


def _with_nodes(body: Any, items: str, node_id: str, told: Told) -> Any:
    """Changes the addresses of the items of an array."""
    old = getattr(body, items)
    new = [_moved(each, node_id, told) for each in old]
    return replace(body, **{items: type(old)(new)}) if old else body


def _moved(each: Any, node_id: str, told: Told) -> Any:
    if not each.host or each.port <= 0:  # Nobody: an answer that tells an error.
        return each
    host, port = told(int(getattr(each, node_id)), each.host, int(each.port))
    return replace(each, host=host, port=port)


def _capped(body: Any, _: Told) -> Any:
    """Offers no version whose addresses we could not read."""
    kept = tuple(_capped_key(each) for each in body.api_keys if int(each.api_key) not in UNREADABLE)
    return replace(body, api_keys=kept) if kept != tuple(body.api_keys) else body


def _capped_key(each: Any) -> Any:
    key, most = int(each.api_key), int(each.max_version)
    if key in CARRIERS and not is_known(key, most):
        return replace(each, max_version=VERSIONS[key][1])
    return each


def _nodes_in(items: str, node_id: str = "node_id") -> tuple[Change, str, str]:
    return (lambda body, told: _with_nodes(body, items, node_id, told)), items, node_id


_CHANGES: Final[dict[int, tuple[Change, str, str]]] = {
    int(ApiKey.METADATA): _nodes_in("brokers"),
    int(ApiKey.FIND_COORDINATOR): _nodes_in("coordinators"),
    int(ApiKey.DESCRIBE_CLUSTER): _nodes_in("brokers", "broker_id"),
    int(ApiKey.FETCH): _nodes_in("node_endpoints"),
    int(ApiKey.PRODUCE): _nodes_in("node_endpoints"),
    API_VERSIONS: (_capped, "api_keys", ""),
}
"""How each answer changes, the array in which it does, and what that calls a node's ID."""


def _joined(buffers: Buffers) -> bytes:
    return b"".join(bytes(each) for each in buffers)
