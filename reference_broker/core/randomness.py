"""Random numbers that are repeatable for who knows the seed and unguessable for who does not."""

from hashlib import sha256
from random import Random


class KeyedRandom(Random):
    """SHA-256 in counter mode, keyed by (seed, purpose): one generator per purpose, none tells about another.

    Live, the seed comes from the operating system, so that session IDs cannot be guessed from earlier ones (F-2);
    in the simulator it comes from the run's seed.
    """

    def __init__(self, seed: int, purpose: str) -> None:
        self._key = sha256(f"{seed}/{purpose}".encode()).digest()
        self._counter = 0
        super().__init__(0)

    def seed(self, *_: object) -> None:
        """The key is fixed at construction."""

    def random(self) -> float:
        return self.getrandbits(53) / (1 << 53)

    def getrandbits(self, k: int) -> int:
        """An integer of ``k`` random bits."""
        blocks = []
        for _ in range(-(-k // 256)):
            self._counter += 1
            blocks.append(sha256(self._key + self._counter.to_bytes(8, "big")).digest())
        return int.from_bytes(b"".join(blocks), "big") >> (len(blocks) * 256 - k) if blocks else 0

    def getstate(self) -> object:  # type: ignore[override]
        return self._key, self._counter
