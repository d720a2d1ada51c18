"""Negotiation of a whole fleet with a broker: API versions, and the nodes of the cluster."""

import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Final, cast

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.protocol import Address, Versions
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from kio.schema.api_versions.v4.response import ApiVersionsResponse

    from reference_broker.wire.retired_fields import MetadataResponse

API_VERSIONS_VERSION: Final = 3
"""Every broker since Kafka 2.4 knows it."""
NEEDLESS: Final = ("describe_configs",)
"""A fleet also works with a broker that does not have these APIs. Any other is tried, and fails with its error."""
CLIENT_ID: Final = "crucible-fleet"
CONNECT_LIMIT_US: Final = 2_000_000
CALL_LIMIT_US: Final = 5_000_000
MIN_CALL_US: Final = 500_000


class UnreachableError(Exception):
    """No bootstrap address responded. The message is one sentence."""


def negotiate(bootstrap: Sequence[Address], patience_s: float) -> dict[str, int]:
    """Return the newest version of each API that both sides know, or -1 for a NEEDLESS one that the broker lacks.

    :raises UnreachableError: no response within ``patience_s``, or one that is not Kafka's protocol.
    """
    response = _api_versions(bootstrap, patience_s)
    offered = {int(key.api_key): int(key.max_version) for key in response.api_keys}
    return {
        name: min(newest, offered.get(ApiKey[name.upper()], -1 if name in NEEDLESS else newest))
        for name, newest in asdict(Versions()).items()
    }


def announces(bootstrap: Sequence[Address], feature: str, patience_s: float) -> bool:
    """Return whether the first node that responds supports this feature. Drafts of this project are announced as
    features.

    :raises UnreachableError: no response within ``patience_s``.
    """
    return any(
        supported_feature.name == feature
        for supported_feature in _api_versions(bootstrap, patience_s).supported_features
    )


def _api_versions(bootstrap: Sequence[Address], patience_s: float) -> "ApiVersionsResponse":
    deadline, last = time.monotonic() + patience_s, "nothing tried"
    tried = ", ".join(f"{each.host}:{each.port}" for each in bootstrap)
    limit_us = min(CALL_LIMIT_US, max(MIN_CALL_US, int(patience_s * 1e6)))
    while True:
        strangers = 0
        for address in bootstrap:
            try:
                return _versions_of(address, limit_us)
            except TransportError as error:
                last = str(error)
                strangers += error.reason == "garbled"
        if strangers == len(bootstrap):
            raise UnreachableError(f"What answers at {tried} does not speak Kafka ({last}): give a broker's address.")
        if time.monotonic() >= deadline:
            raise UnreachableError(f"No broker answers at {tried} ({last}): start it, or give another address.")
        time.sleep(0.2)


def _versions_of(address: Address, limit_us: int) -> "ApiVersionsResponse":
    response = _call(address, ApiKey.API_VERSIONS, API_VERSIONS_VERSION, bodies.API_VERSIONS_REQUEST, limit_us)
    return cast("ApiVersionsResponse", response)


def _call(address: Address, api_key: int, version: int, body: object, limit_us: int = CALL_LIMIT_US) -> object:
    """Send one request on a connection of its own and return the response's body. Raise TransportError."""
    with Connection.open(address.host, address.port, CONNECT_LIMIT_US, CLIENT_ID) as connection:
        return connection.call(api_key, version, body, limit_us)


def nodes_of(bootstrap: Address, metadata_version: int) -> list[Address]:
    """Return the addresses that the cluster's nodes advertise, in the order of their IDs.

    :raises UnreachableError: no response came, or it names no node.
    """
    try:
        response = _call(bootstrap, ApiKey.METADATA, metadata_version, bodies.metadata_request(()))
    except TransportError as error:
        raise UnreachableError(
            f"{bootstrap.host}:{bootstrap.port} does not say which nodes it has ({error})."
        ) from error
    brokers = sorted(cast("MetadataResponse", response).brokers, key=lambda broker: int(broker.node_id))
    if not brokers:
        raise UnreachableError(f"{bootstrap.host}:{bootstrap.port} names no node of its cluster; is it ready?")
    return [Address(str(broker.host), int(broker.port)) for broker in brokers]
