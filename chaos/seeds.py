"""Random generators of a run: each purpose gets its own, derived from the run's seed and the purpose's name. So a new
purpose changes no other purpose's draws."""

import hashlib
from random import Random


def number_for(seed: int, purpose: str) -> int:
    """Return a 64-bit number that depends only on the seed and the purpose (never on PYTHONHASHSEED)."""
    digest = hashlib.blake2b(f"{seed}/{purpose}".encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big")


def random_for(seed: int, purpose: str) -> Random:
    return Random(number_for(seed, purpose))
