"""The newest offset of each key in the dirty part of a log, in bounded memory."""

from collections.abc import Sequence
from hashlib import blake2b

BYTES_PER_KEY = 176
"""The memory that one entry of a dictionary takes: the key (or its digest), the offset, and the slot."""

DIGEST_BYTES = 47
"""The length of a digest. Keys that are shorter are used as they are, since a digest costs as much as all else that is
done for a record. Their length tells them from digests. Kafka's digests have 16 bytes; so long keys are as safe."""


def short(key: bytes) -> bytes:
    """Returns what stands for a key in the map: the key itself if it is short, else its digest."""
    return key if len(key) < DIGEST_BYTES else blake2b(key, digest_size=DIGEST_BYTES).digest()


def all_short(keys: list[bytes]) -> list[bytes]:
    """The same for many keys."""
    return keys if max(map(len, keys), default=0) < DIGEST_BYTES else list(map(short, keys))


class OffsetMap:
    """``offsets`` maps ``short(key)`` to the key's newest offset. ``latest_offset`` is the last offset that the pass
    has looked at, or -1 before the first. ``capacity`` is the largest number of keys."""

    __slots__ = ("capacity", "latest_offset", "offsets")

    def __init__(self, buffer_bytes: int) -> None:
        """``buffer_bytes`` is ``log.cleaner.dedupe.buffer.size``. There is room for at least one key."""
        self.capacity = max(buffer_bytes // BYTES_PER_KEY, 1)
        self.latest_offset = -1
        self.offsets: dict[bytes, int] = {}

    def put(self, keys: list[bytes], offsets: Sequence[int]) -> bool:
        """Notes the offset of each key. Offsets come in ascending order. Returns False if the map is full, and notes
        the keys before the first one for which there is no room."""
        names = all_short(keys)
        if len(self.offsets) + len(names) > self.capacity:
            return self._put_while_room(names, offsets)
        if names:
            self.offsets.update(zip(names, offsets, strict=True))
            self.latest_offset = offsets[-1]
        return True

    def _put_while_room(self, names: list[bytes], offsets: Sequence[int]) -> bool:
        known = self.offsets
        for name, offset in zip(names, offsets, strict=True):
            if len(known) >= self.capacity and name not in known:
                return False
            known[name] = offset
            self.latest_offset = offset
        return True

    @property
    def used_percent(self) -> int:
        return len(self.offsets) * 100 // self.capacity
