"""UUIDs as Kafka makes and writes them: random ones of version 4, as text in URL-safe base64 without padding."""

from base64 import urlsafe_b64decode, urlsafe_b64encode

from reference_broker.ports.chance import RandomSource

NO_DIRECTORY = bytes(16)
"""DirectoryId.MIGRATING: the directory was never told."""

UNASSIGNED_DIRECTORY = bytes(15) + b"\x01"
"""DirectoryId.UNASSIGNED: Kafka's brokers choose a directory later. This broker has only one, and does not write it."""

LOST_DIRECTORY = bytes(15) + b"\x02"
"""DirectoryId.LOST: the replica is in no directory that its broker can use. It is offline (KIP-858)."""

_RESERVED_BELOW = 101
"""Kafka reserves the smallest UUIDs (Uuid.RESERVED)."""


def random_uuid(random: RandomSource) -> bytes:
    """Draws a UUID of 16 bytes. It is never a reserved one, and its text never begins with a dash, which would look
    like a command-line option."""
    while True:
        number = random.getrandbits(128) & ~(0xF << 76) & ~(0x3 << 62) | (4 << 76) | (2 << 62)
        value = number.to_bytes(16, "big")
        if number >= _RESERVED_BELOW and not uuid_text(value).startswith("-"):
            return value


def uuid_text(value: bytes) -> str:
    """The text of a UUID: 22 characters, as in meta.properties and Kafka's tools."""
    return urlsafe_b64encode(value).decode().rstrip("=")


def uuid_from_text(text: str) -> bytes:
    """Raises ValueError if the text is no UUID."""
    value = urlsafe_b64decode(text + "==")
    if len(value) != 16:
        raise ValueError(f"{text!r} is no UUID")
    return value
