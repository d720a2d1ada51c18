"""The newest offset of each key in the dirty part of a log, in bounded memory."""

from hashlib import blake2b

BYTES_PER_KEY = 160
"""The memory that one entry of a dictionary takes: the key (or its digest), the offset, and the slot."""

DIGEST_BYTES = 16
"""The length of a digest, as in Kafka. Keys that are shorter are used as they are. Their length tells them from
digests."""


def short(key: bytes) -> bytes:
    """Returns what stands for a key in the map: the key itself if it is short, else its digest."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


class OffsetMap:
    """``offsets`` maps ``short(key)`` to the key's newest offset. ``latest_offset`` is the last offset that the pass
    has looked at, or -1 before the first. ``capacity`` is the largest number of keys."""

    __slots__ = ("capacity", "latest_offset", "offsets")

    def __init__(self, buffer_bytes: int) -> None:
        """``buffer_bytes`` is ``log.cleaner.dedupe.buffer.size``. There is room for at least one key."""
        self.capacity = max(buffer_bytes // BYTES_PER_KEY, 1)
        self.latest_offset = -1
        self.offsets: dict[bytes, int] = {}

    def put(self, key: bytes, offset: int) -> bool:
        """Notes a key's offset. Offsets come in ascending order. Returns False, and notes nothing, if the map is
        full."""
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
