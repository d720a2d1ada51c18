"""One generator per purpose, derived from the run's seed by name, so that adding a purpose moves no other."""

import hashlib
from random import Random


def number_for(seed: int, purpose: str) -> int:
    """A 64-bit number that depends on the seed and the purpose only (never on PYTHONHASHSEED)."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def random_for(seed: int, purpose: str) -> Random:
    return Random(number_for(seed, purpose))
