"""Asks a target for its nodes."""

from typing import TYPE_CHECKING, cast

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.protocol import Address
from bench.fleet.negotiation import CALL_LIMIT_US, CONNECT_LIMIT_US, UnreachableError, negotiate
from chaos.frame_proxy.proxy import Node
from chaos.live.errors import SetupError
from chaos.live.foreign_target import PATIENCE_S, kafka_at
from reference_broker.blocking.connections import Connection, TransportError
from reference_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from reference_broker.wire.retired_fields import MetadataResponse

CLIENT_ID = "crucible-proxy"


def nodes_of(target: str) -> list[Node]:
    """Returns the nodes by ID, with the addresses that they tell clients. Raises SetupError if nobody answers."""
    address = kafka_at(target)
    try:
        version = negotiate([address], PATIENCE_S)["metadata"]
        found = _asked(address, version)
    except (UnreachableError, TransportError) as nobody:
        raise SetupError(f"--target: {nobody}") from nobody
    if not found:
        raise SetupError(f"--target: {target} names no node of its cluster; is it ready?")
    return found


def _asked(address: Address, version: int) -> list[Node]:
    connection = Connection.open(address.host, address.port, CONNECT_LIMIT_US)
    try:
        answer = connection.call(int(ApiKey.METADATA), version, CLIENT_ID, bodies.metadata_request(()), CALL_LIMIT_US)
    finally:
        connection.close()
    brokers = cast("MetadataResponse", answer.body).brokers
    return sorted(
        (Node(int(each.node_id), str(each.host), int(each.port)) for each in brokers), key=lambda node: node.node_id
    )
