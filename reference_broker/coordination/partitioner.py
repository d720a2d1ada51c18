"""The partition that stores a coordinator's key: found by Kafka's hash of the group ID or transactional ID."""

from functools import lru_cache
from struct import unpack
from typing import Final

REMEMBERED_HASHES: Final = 10_000
"""Number of keys whose hash is cached: each request of a group or of a transactional ID needs one."""
REMEMBERED_CHARACTERS: Final = 256
"""Longer keys are not cached, so that the cache stays small."""


def java_hash(text: str) -> int:
    """The absolute value of Java's ``String.hashCode`` of UTF-16 units; 0 for -2^31 (Kafka's ``Utils.abs``)."""
    encoded = text.encode("utf-16-be", "surrogatepass")
    value = 0
    for unit in unpack(f">{len(encoded) // 2}H", encoded):
        value = 31 * value + unit & 0xFFFFFFFF
    return min(value, 2**32 - value) & 0x7FFFFFFF


KEY_COST_US = 5
CHARACTERS_PER_US = 16
"""Cost of finding the partition of a key: some microseconds, and one more for each 16 characters."""
_remembered_hash = lru_cache(maxsize=REMEMBERED_HASHES)(java_hash)


def partition_of(key: str, partitions: int) -> int:
    """Return which of ``partitions`` keeps the key, as Kafka's Utils.abs(key.hashCode) % partitions does. The longest
    key that ``record_fields.fits`` costs some 2 ms."""
    is_short = len(key) <= REMEMBERED_CHARACTERS
    return (_remembered_hash(key) if is_short else java_hash(key)) % partitions
