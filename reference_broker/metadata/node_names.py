"""The client IDs that nodes use between each other: the node's ID and the incarnation of its registered broker.

Only the metadata log tells incarnations. So a client that calls itself ``node-app`` or ``node-1`` is still treated as a
client.
"""

import re
from typing import Final

from reference_broker.metadata.image import MetadataImage
from reference_broker.metadata.uuids import uuid_text

_NODE: Final = re.compile(r"node-(\d{1,10}):[\w-]{22}")


def node_name(node_id: int) -> str:
    """The node's name for people and for the tags of requests."""
    return f"node-{node_id}"


def client_id_of(node_id: int, incarnation_id: bytes) -> str:
    """The client ID of the requests that a node sends to others."""
    return f"{node_name(node_id)}:{uuid_text(incarnation_id)}"


def claimed_node(client_id: str) -> int | None:
    """The node that the client ID claims to be from, whether that is true or not. None for any other client ID."""
    found = _NODE.fullmatch(client_id)
    return None if found is None else int(found[1])


def is_registered_node(client_id: str, image: MetadataImage) -> bool:
    """Whether a request with this client ID comes from a node that is registered under that name and incarnation."""
    node_id = claimed_node(client_id)
    broker = None if node_id is None else image.brokers.get(node_id)
    return broker is not None and client_id == client_id_of(broker.broker_id, broker.incarnation_id)
