"""Asks a broker which API versions it speaks and which nodes its cluster has, once for a whole fleet."""

import time
from collections.abc import Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Final, cast

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.protocol import Address, Versions
from reference_broker.blocking.transport import Connection, TransportError

if TYPE_CHECKING:
    from kio.schema.api_versions.v4.response import ApiVersionsResponse
    from kio.schema.metadata.v13.response import MetadataResponse

ASKED_VERSION: Final = 3
"""Every broker since Kafka 2.4 knows it."""
_KEYS: Final = {
    "fetch": bodies.FETCH,
    "produce": bodies.PRODUCE,
    "metadata": bodies.METADATA,
    "list_offsets": bodies.LIST_OFFSETS,
    "init_producer_id": bodies.INIT_PRODUCER_ID,
    "create_topics": bodies.CREATE_TOPICS,
    "delete_topics": bodies.DELETE_TOPICS,
    "incremental_alter_configs": bodies.INCREMENTAL_ALTER_CONFIGS,
    "describe_configs": bodies.DESCRIBE_CONFIGS,
    "update_features": bodies.UPDATE_FEATURES,
    "offset_commit": bodies.OFFSET_COMMIT,
    "offset_fetch": bodies.OFFSET_FETCH,
    "find_coordinator": bodies.FIND_COORDINATOR,
    "join_group": bodies.JOIN_GROUP,
    "heartbeat": bodies.HEARTBEAT,
    "leave_group": bodies.LEAVE_GROUP,
    "sync_group": bodies.SYNC_GROUP,
}


class UnreachableError(Exception):
    """One sentence: no bootstrap address answered."""


def negotiate(bootstrap: Sequence[Address], patience_s: float) -> dict[str, int]:
    """For each API the newest version that both sides know.

    :raises UnreachableError: nobody answered within ``patience_s``.
    """
    answer = _ask(bootstrap, patience_s)
    offered = {int(each.api_key): int(each.max_version) for each in answer.api_keys}
    ours = Versions()
    return {
        each.name: min(getattr(ours, each.name), offered.get(_KEYS[each.name], getattr(ours, each.name)))
        for each in fields(ours)
    }


def announces(bootstrap: Sequence[Address], feature: str, patience_s: float) -> bool:
    """Whether the first node that answers lists it among its supported features (drafts of this project are there).

    :raises UnreachableError: nobody answered within ``patience_s``.
    """
    return any(each.name == feature for each in _ask(bootstrap, patience_s).supported_features)


def _ask(bootstrap: Sequence[Address], patience_s: float) -> "ApiVersionsResponse":
    deadline, last = time.monotonic() + patience_s, "nothing tried"
    while True:
        for address in bootstrap:
            try:
                return _versions_of(address)
            except TransportError as error:
                last = str(error)
        if time.monotonic() >= deadline:
            tried = ", ".join(f"{each.host}:{each.port}" for each in bootstrap)
            raise UnreachableError(f"No broker answers at {tried} ({last}): start it, or give another address.")
        time.sleep(0.2)


def _versions_of(address: Address) -> "ApiVersionsResponse":
    connection = Connection.open(address.host, address.port, 2_000_000)
    try:
        body = bodies.API_VERSIONS_REQUEST
        reply = connection.call(bodies.API_VERSIONS, ASKED_VERSION, "crucible-fleet", body, 5_000_000)
    finally:
        connection.close()
    return cast("ApiVersionsResponse", reply.body)


def nodes_of(bootstrap: Address, metadata_version: int) -> list[Address]:
    """Where the cluster's nodes say they are, by node ID.

    :raises UnreachableError: no answer, or one that names no node.
    """
    connection = None
    try:
        connection = Connection.open(bootstrap.host, bootstrap.port, 2_000_000)
        body = bodies.metadata_request(())
        reply = connection.call(bodies.METADATA, metadata_version, "crucible-fleet", body, 5_000_000)
    except TransportError as error:
        raise UnreachableError(
            f"{bootstrap.host}:{bootstrap.port} does not say which nodes it has ({error})."
        ) from error
    finally:
        if connection is not None:
            connection.close()
    brokers = sorted(cast("MetadataResponse", reply.body).brokers, key=lambda each: int(each.node_id))
    if not brokers:
        raise UnreachableError(f"{bootstrap.host}:{bootstrap.port} names no node of its cluster; is it ready?")
    return [Address(str(each.host), int(each.port)) for each in brokers]
