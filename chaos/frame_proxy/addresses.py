"""Replaces the nodes' addresses in replies: with the proxy's own, clients stay behind the proxy.

Addresses are in Metadata, FindCoordinator and DescribeCluster, and since KIP-951 in Produce and Fetch. Replies to
ApiVersions offer these APIs only in versions that our codecs can read. What else carries an address is for nodes
(registrations, votes) or says where a controller listens (DescribeQuorum), and no client dials it.

Changed values are spliced into a reply without encoding all of it again: a newer broker may add tagged fields that our
codecs skip, and encoded again the reply would lack them.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from datetime import timedelta
from struct import Struct
from typing import Any, Final, TypeAlias

from chaos.interceptor.raw_frames import LENGTH_BYTES, RawFrame
from reference_broker.wire.apis import VERSIONS, ApiKey, is_flexible, is_known
from reference_broker.wire.errors import ErrorCode
from reference_broker.wire.fetch_responses import write_endpoints
from reference_broker.wire.messages import encode_response
from reference_broker.wire.primitives import Buffers, compact_string, legacy_string, uvarint

AdvertisedAddress: TypeAlias = Callable[[int, str, int], tuple[str, int]]
"""Returns the host and port to advertise to clients for the node with this ID, host and port."""
Change: TypeAlias = Callable[[Any, AdvertisedAddress], Any]

API_VERSIONS: Final = int(ApiKey.API_VERSIONS)
CARRIERS: Final = {
    int(ApiKey.METADATA): 0,
    int(ApiKey.FIND_COORDINATOR): 0,
    int(ApiKey.DESCRIBE_CLUSTER): 0,
    int(ApiKey.FETCH): 16,
    int(ApiKey.PRODUCE): 10,
}
"""The APIs whose responses carry addresses that clients dial, with the first such version."""
_TAGGED: Final = (int(ApiKey.FETCH), int(ApiKey.PRODUCE))
"""Their addresses are in a tagged field at the end."""
UNREADABLE: Final = (int(ApiKey.SHARE_FETCH), int(ApiKey.SHARE_ACKNOWLEDGE))
"""Their responses carry addresses, too, and we have no codec. No client behind the proxy is offered them."""


def must_read(api_key: int, version: int) -> bool:
    """Return whether a response must arrive whole before it is passed on."""
    since = CARRIERS.get(api_key)
    return api_key == API_VERSIONS or (since is not None and version >= since)


def rewritten(
    api_key: int, version: int, correlation_id: int, raw: RawFrame, advertised: AdvertisedAddress
) -> RawFrame | None:
    """Return the response with our addresses, which is ``raw`` itself if it has none. Return None if it may have some
    that we cannot read."""
    body: Any = raw.value()
    if body is None:
        return None
    if api_key == API_VERSIONS and int(body.error_code):
        return raw  # It may be in version 0, whatever was requested, and offers nothing but ApiVersions.
    change, items, node_id = _CHANGES[api_key]
    changed = change(body, advertised)
    if changed is body:
        return raw
    old, new = getattr(body, items), getattr(changed, items)
    if api_key == API_VERSIONS:
        pieces = version_pieces(version, old, new)
    elif api_key in _TAGGED:
        pieces = endpoint_pieces(old, new)
    else:
        pieces = address_pieces(is_flexible(api_key, version), node_id, old, new)
    frame = spliced(raw, changed, pieces, last_first=api_key in _TAGGED)
    return frame or RawFrame(
        _joined(encode_response(api_key, version, correlation_id, changed)), api_key, version, False
    )


def refuses_version(correlation_id: int) -> bytes:
    """Return the response to an ApiVersions request in a version that we do not know: that of a broker which does not
    know it either (KIP-511). The client then sends an older one."""
    from kio.schema.api_versions.v4.response import ApiVersion, ApiVersionsResponse

    make: Any = ApiVersionsResponse
    key: Any = ApiVersion
    least, most, _ = VERSIONS[API_VERSIONS]
    known = (key(api_key=API_VERSIONS, min_version=least, max_version=most),)
    body = make(error_code=ErrorCode.unsupported_version, api_keys=known, throttle_time=timedelta(0))
    return _joined(encode_response(API_VERSIONS, 0, correlation_id, body))


def _with_nodes(body: Any, items: str, node_id: str, advertised: AdvertisedAddress) -> Any:
    """Change the addresses of the items of an array."""
    old = getattr(body, items)
    new = [_moved(item, node_id, advertised) for item in old]
    return replace(body, **{items: type(old)(new)}) if old else body


def _moved(item: Any, node_id: str, advertised: AdvertisedAddress) -> Any:
    if not item.host or item.port <= 0:  # Nobody: a response with an error.
        return item
    host, port = advertised(int(getattr(item, node_id)), item.host, int(item.port))
    return replace(item, host=host, port=port)


def _capped(body: Any, _: AdvertisedAddress) -> Any:
    """Offer no version whose addresses we could not read."""
    readable = tuple(_capped_key(key) for key in body.api_keys if int(key.api_key) not in UNREADABLE)
    return replace(body, api_keys=readable) if readable != tuple(body.api_keys) else body


def _capped_key(api: Any) -> Any:
    key, most = int(api.api_key), int(api.max_version)
    if key in CARRIERS and not is_known(key, most):
        return replace(api, max_version=VERSIONS[key][1])
    return api


def _nodes_in(items: str, node_id: str = "node_id") -> tuple[Change, str, str]:
    return (lambda body, advertised: _with_nodes(body, items, node_id, advertised)), items, node_id


_CHANGES: Final[dict[int, tuple[Change, str, str]]] = {
    int(ApiKey.METADATA): _nodes_in("brokers"),
    int(ApiKey.FIND_COORDINATOR): _nodes_in("coordinators"),
    int(ApiKey.DESCRIBE_CLUSTER): _nodes_in("brokers", "broker_id"),
    int(ApiKey.FETCH): _nodes_in("node_endpoints"),
    int(ApiKey.PRODUCE): _nodes_in("node_endpoints"),
    API_VERSIONS: (_capped, "api_keys", ""),
}
"""The change of each response, the array that it changes, and the field there that has a node's ID."""


def _joined(buffers: Buffers) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


Pieces: TypeAlias = Sequence[tuple[bytes, bytes]]
"""Old and new bytes of each changed part of a response, in the order in which they occur."""
ENDPOINTS: Final = 0
"""The tagged field of Fetch and Produce with the nodes' addresses."""
_INT32: Final = Struct(">i")
_KEY: Final = Struct(">hhh")


def spliced(raw: RawFrame, body: Any, pieces: Pieces, last_first: bool = False) -> RawFrame | None:
    """Return the response with each piece replaced. With ``last_first`` the pieces are searched from the end. Return
    None unless the result decodes to exactly what is ``wanted``."""
    data = bytes(raw.data)[LENGTH_BYTES:]
    at = 0
    for old, new in pieces:
        position = data.rfind(old) if last_first else data.find(old, at)
        if position < 0:
            return None
        data = data[:position] + new + data[position + len(old) :]
        at = position + len(new)
    made = raw.replaced(_INT32.pack(len(data)) + data)
    return made if made.value() == body else None


def address_pieces(flexible: bool, node_id: str, old: Iterable[Any], new: Iterable[Any]) -> Pieces:
    """A node's ID, host and port are adjacent in every response that has them."""
    string = compact_string if flexible else legacy_string

    def written(item: Any) -> bytes:
        return _INT32.pack(int(getattr(item, node_id))) + string(item.host) + _INT32.pack(int(item.port))

    return [(written(one), written(other)) for one, other in zip(old, new, strict=True)]


def endpoint_pieces(old: Sequence[Any], new: Sequence[Any]) -> Pieces:
    """The addresses are in a tagged field at the end, with its size in front."""
    return [(write_endpoints(ENDPOINTS, old)[1:], write_endpoints(ENDPOINTS, new)[1:])]


def version_pieces(version: int, old: Sequence[Any], new: Sequence[Any]) -> Pieces:
    """All versions that are offered, with their number in front: some may go."""
    flexible = is_flexible(int(ApiKey.API_VERSIONS), version)

    def written(keys: Sequence[Any]) -> Iterator[bytes]:
        yield uvarint(len(keys) + 1) if flexible else _INT32.pack(len(keys))
        for key in keys:
            yield _KEY.pack(int(key.api_key), int(key.min_version), int(key.max_version)) + b"\0" * flexible

    return [(b"".join(written(old)), b"".join(written(new)))]
