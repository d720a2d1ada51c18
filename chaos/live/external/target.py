"""Addresses of the nodes of an external broker, and its versions."""

from typing import TYPE_CHECKING, cast

from bench.fleet.behaviours import bodies
from bench.fleet.behaviours.protocol import Address
from bench.fleet.negotiation import CALL_LIMIT_US, CONNECT_LIMIT_US, UnreachableError, negotiate
from bench.fleet.negotiation import nodes_of as advertised_nodes
from bench.fleet.spec import SpecError, address_of
from bench.ports import stranger_at
from chaos.frame_proxy.proxy import AdvertisedNode
from chaos.live.errors import SetupError
from reference_broker.blocking.transport import Connection, TransportError
from reference_broker.wire.apis import ApiKey

if TYPE_CHECKING:
    from reference_broker.wire.retired_fields import MetadataResponse


REFERENCE = "reference"
PATIENCE_S = 3.0


def parse_target(text: str) -> Address:
    """Return the address. Raise SetupError if the text is not an address."""
    try:
        address = address_of(text)
    except SpecError:
        address = Address("", 0)
    if not address.host or not 0 < address.port < 65_536:
        raise SetupError(f"--target is {text!r}: give HOST:PORT, such as 127.0.0.1:9092, or leave it out.")
    return address


def kafka_at(text: str) -> Address:
    """Return the address. Raise SetupError if something other than a broker listens there."""
    address = parse_target(text)
    if stranger := stranger_at(address.host, address.port):
        raise SetupError(f"--target: {stranger}")
    return address


def discover(text: str) -> tuple[list[str], dict[str, int]]:
    """Return the nodes as advertised, in the order of their IDs, and API versions. Raise SetupError if no broker
    responds there."""
    address = kafka_at(text)
    try:
        versions = negotiate([address], PATIENCE_S)
        nodes = advertised_nodes(address, versions["metadata"])
    except (UnreachableError, TransportError) as nobody:
        raise SetupError(f"--target: {nobody}") from nobody
    return [_shown(node) for node in nodes], versions


def _shown(address: Address) -> str:
    return f"[{address.host}]:{address.port}" if ":" in address.host else f"{address.host}:{address.port}"


CLIENT_ID = "crucible-proxy"


def nodes_of(target: str) -> list[AdvertisedNode]:
    """Return the nodes by ID, with their advertised addresses. Raise SetupError if no node responds."""
    address = kafka_at(target)
    try:
        version = negotiate([address], PATIENCE_S)["metadata"]
        found = _query_nodes(address, version)
    except (UnreachableError, TransportError) as nobody:
        raise SetupError(f"--target: {nobody}") from nobody
    if not found:
        raise SetupError(f"--target: {target} names no node of its cluster; is it ready?")
    return found


def _query_nodes(address: Address, version: int) -> list[AdvertisedNode]:
    with Connection.open(address.host, address.port, CONNECT_LIMIT_US, CLIENT_ID) as connection:
        metadata = connection.call(ApiKey.METADATA, version, bodies.metadata_request(()), CALL_LIMIT_US)
    brokers = cast("MetadataResponse", metadata).brokers
    return sorted(
        (AdvertisedNode(int(broker.node_id), str(broker.host), int(broker.port)) for broker in brokers),
        key=lambda node: node.node_id,
    )
