"""The newest offset of each key in the dirty part of a log, in bounded memory."""

from hashlib import blake2b

BYTES_PER_KEY = 160
"""What one entry takes in a dictionary: the key's or digest's object, the offset's, and the slot."""

DIGEST_BYTES = 16
"""Kafka's digest is as long. Shorter keys stand for themselves: they differ from every digest by their length."""


def short(key: bytes) -> bytes:
    """What stands for a key in the map."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


class OffsetMap:
    """``latest_offset``: every record up to it, from where the map began, has been looked at; -1 before the first.
    ``offsets``: by ``short(key)``."""

    __slots__ = ("capacity", "latest_offset", "offsets")

    def __init__(self, buffer_bytes: int) -> None:
        """``buffer_bytes``: ``log.cleaner.dedupe.buffer.size``. There is room for at least one key."""
        self.capacity = max(buffer_bytes // BYTES_PER_KEY, 1)
        self.latest_offset = -1
        self.offsets: dict[bytes, int] = {}

    def put(self, key: bytes, offset: int) -> bool:
        """Offsets come in ascending order. False: the map is full, and nothing was noted."""
        name = short(key)
        offsets = self.offsets
        if len(offsets) >= self.capacity and name not in offsets:
            return False
        offsets[name] = offset
        self.latest_offset = offset
        return True

    @property
    def used_percent(self) -> int:
        return len(self.offsets) * 100 // self.capacity
