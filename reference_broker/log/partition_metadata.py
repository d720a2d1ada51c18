"""Which topic a partition's directory belongs to: Kafka's ``partition.metadata`` file, version 0 (KIP-516).

Names are used again. Without the ID, records of a deleted topic would come back as those of a new one.
"""

import base64
import binascii

from reference_broker.ports.disk import Disk

FILE_NAME = "partition.metadata"
TOPIC_ID_BYTES = 16
MOST_DAMAGED_BITS = 12
"""One letter of the file stands for 6 bits of the ID."""


def write_partition_metadata(disk: Disk, directory: str, topic_id: bytes) -> str:
    """Writes the file. Returns its path, which must be synced with the first records. Raises DiskError."""
    text = base64.urlsafe_b64encode(topic_id).decode().rstrip("=")
    path = f"{directory}/{FILE_NAME}"
    disk.write(path, f"version: 0\ntopic_id: {text}".encode())
    return path


def is_damaged_copy(found: bytes, topic_id: bytes) -> bool:
    """Whether an ID that was read is the topic's, with some bits turned over. The file has no checksum. IDs of
    different topics are random, and so differ in about half of their bits."""
    differing = int.from_bytes(found, "big") ^ int.from_bytes(topic_id, "big")
    return differing.bit_count() <= MOST_DAMAGED_BITS


def read_partition_metadata(disk: Disk, directory: str) -> bytes | None:
    """Returns the topic's ID, or None if there is no readable file, as after a power loss before the first sync. Raises
    DiskError."""
    path = f"{directory}/{FILE_NAME}"
    if not disk.exists(path):
        return None
    lines = disk.read(path, 0, disk.size(path)).decode(errors="replace").splitlines()
    values = {key.strip(): value.strip() for key, _, value in (line.partition(":") for line in lines)}
    try:
        topic_id = base64.urlsafe_b64decode(values.get("topic_id", "") + "==")
    except (binascii.Error, ValueError):
        return None
    return topic_id if len(topic_id) == TOPIC_ID_BYTES else None
