"""UUIDs, log directories, client IDs of nodes, and topic names.

UUIDs are made and written as Kafka does it: random ones of version 4, as text in URL-safe base64 without padding.
Whether a topic name is allowed is decided as in Kafka's Topic.validate.

Nodes among each other use a client ID of the node's ID and the incarnation of its registered broker. Only the metadata
log says which incarnations there are. So a client that calls itself ``node-app`` or ``node-1`` is still treated as a
client.
"""

import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Collection
from functools import lru_cache
from typing import Final, TypeAlias

from reference_broker.metadata.image import MetadataImage, PartitionImage
from reference_broker.ports.node_ports import RandomSource

TopicPartition: TypeAlias = tuple[str, int]
"""A topic's name and a partition's index."""

NO_DIRECTORY = bytes(16)
"""DirectoryId.MIGRATING: the directory was never reported."""

UNASSIGNED_DIRECTORY = bytes(15) + b"\x01"
"""DirectoryId.UNASSIGNED: Kafka's brokers choose a directory later. This broker has only one, and does not write it."""

LOST_DIRECTORY = bytes(15) + b"\x02"
"""DirectoryId.LOST: the replica is in no directory that its broker can use. It is offline (KIP-858)."""

_RESERVED_BELOW = 101
"""Kafka reserves the smallest UUIDs (Uuid.RESERVED)."""


def random_uuid(random: RandomSource) -> bytes:
    """Draw a UUID of 16 bytes. It is never a reserved one, and its text never begins with a dash, which would look
    like a command-line option."""
    while True:
        number = random.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | (4 << 76) | (2 << 62)
        value = number.to_bytes(16, "big")
        if number >= _RESERVED_BELOW and not uuid_text(value).startswith("-"):
            return value


def uuid_text(value: bytes) -> str:
    """Return the text of a UUID: 22 characters, as in meta.properties and Kafka's tools."""
    return urlsafe_b64encode(value).decode().rstrip("=")


def uuid_from_text(text: str) -> bytes:
    """Return the 16 bytes of a UUID. Raise ValueError if the text is no UUID."""
    value = urlsafe_b64decode(text + "==")
    if len(value) != 16:
        raise ValueError(f"{text!r} is no UUID")
    return value


def directory_of(partition: PartitionImage, replica: int) -> bytes:
    """Return the directory ID of one replica, or NO_DIRECTORY if it was never reported."""
    if replica not in partition.replicas or len(partition.directories) != len(partition.replicas):
        return NO_DIRECTORY
    return partition.directories[partition.replicas.index(replica)]


def is_online(directory: bytes, directories: Collection[bytes]) -> bool:
    """Return whether a broker with these ``directories`` has that one. One that was never reported counts as present,
    and so does each one if the broker's own were never reported."""
    if directory in (NO_DIRECTORY, UNASSIGNED_DIRECTORY):
        return True
    return directory != LOST_DIRECTORY and (not directories or directory in directories)


_NODE: Final = re.compile(r"node-(\d{1,10}):[\w-]{22}")


def node_name(node_id: int) -> str:
    """Return the node's name for people and for the tags of requests."""
    return f"node-{node_id}"


@lru_cache(64)
def client_id_of(node_id: int, incarnation_id: bytes) -> str:
    """Return the client ID of the requests that a node sends to others. Each of them has it."""
    return f"{node_name(node_id)}:{uuid_text(incarnation_id)}"


def claimed_node(client_id: str) -> int | None:
    """Return the node that the client ID claims to be from, true or not, and None for any other client ID."""
    match = _NODE.fullmatch(client_id)
    return None if match is None else int(match[1])


def is_registered_node(client_id: str, image: MetadataImage) -> bool:
    """Return whether a request with this client ID comes from a node that is registered under that name and
    incarnation."""
    node_id = claimed_node(client_id)
    broker = None if node_id is None else image.brokers.get(node_id)
    return broker is not None and client_id == client_id_of(broker.broker_id, broker.incarnation_id)


MAX_NAME_LENGTH = 249
OFFSETS_TOPIC = "__consumer_offsets"
TRANSACTION_TOPIC = "__transaction_state"
REMOTE_LOG_METADATA_TOPIC = "__remote_log_metadata"
"""Not internal, as in Kafka."""
INTERNAL_TOPICS = (OFFSETS_TOPIC, TRANSACTION_TOPIC, "__share_group_state")
METADATA_TOPIC = "__cluster_metadata"

_LEGAL = re.compile(r"[a-zA-Z0-9._-]+")


def name_problem(name: str) -> str | None:
    """Return one sentence that says what is wrong, or None if the name is allowed."""
    if not name:
        return "Topic name is invalid: the empty string is not allowed"
    if name in (".", ".."):
        return "Topic name is invalid: '.' or '..' is not allowed"
    if len(name) > MAX_NAME_LENGTH:
        return f"Topic name is invalid: its length {len(name)} is above {MAX_NAME_LENGTH}: {name}"
    if not _LEGAL.fullmatch(name):
        return f"Topic name is invalid: '{name}' contains characters other than ASCII alphanumerics, '.', '_' and '-'"
    return None


def is_internal(name: str) -> bool:
    return name in INTERNAL_TOPICS
