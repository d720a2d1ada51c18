"""Random numbers that only a seed determines: without it nobody can guess them."""

from hashlib import sha256
from typing import Any


class KeyedRandom:
    """SHA-256 in counter mode, keyed by (seed, purpose). Each purpose has a generator that reveals nothing about
    others.

    Live, the seed comes from the operating system, so that session IDs cannot be guessed from earlier ones (F-2);
    in the simulator it comes from the run's seed. It is a ``ports.chance.RandomSource``.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._key = sha256(f"{seed}/{purpose}".encode()).digest()
        self._counter = 0

    def getrandbits(self, k: int, /) -> int:
        """Return an integer of ``k`` random bits."""
        blocks = []
        for _ in range(-(-k // 256)):
            self._counter += 1
            blocks.append(sha256(self._key + self._counter.to_bytes(8, "big")).digest())
        return int.from_bytes(b"".join(blocks), "big") >> (len(blocks) * 256 - k) if blocks else 0

    def randrange(self, start: int, stop: int | None = None, /) -> int:
        low, high = (0, start) if stop is None else (start, stop)
        if low >= high:
            raise ValueError(f"nothing lies in {low} up to below {high}")
        return low + self._below(high - low)

    def randint(self, a: int, b: int, /) -> int:
        return self.randrange(a, b + 1)

    def shuffle(self, x: list[Any], /) -> None:
        """Fisher-Yates: from the last place down, each place gets a random element from those up to it."""
        for last in range(len(x) - 1, 0, -1):
            chosen = self._below(last + 1)
            x[last], x[chosen] = x[chosen], x[last]

    def _below(self, end: int) -> int:
        """Return a number below ``end``. Numbers that are too large are drawn again, so that all are equally likely."""
        bits = end.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= end:
            drawn = self.getrandbits(bits)
        return drawn
