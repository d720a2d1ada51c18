"""The port for random numbers. The deterministic part draws them only from here."""

from typing import Any, Protocol


class RandomSource(Protocol):
    """The methods that the broker needs of a generator. ``random.Random`` has them too. ``core.randomness`` gives each
    purpose a generator of its own."""

    def getrandbits(self, k: int, /) -> int:
        """``k`` random bits, as an integer."""
        ...

    def randrange(self, start: int, stop: int | None = None, /) -> int:
        """An integer from ``start`` up to below ``stop``, or from 0 up to below ``start`` if ``stop`` is None. Raises
        ValueError if there is none."""
        ...

    def randint(self, a: int, b: int, /) -> int:
        """An integer from ``a`` to ``b``, both included."""
        ...

    def shuffle(self, x: list[Any], /) -> None:
        """Puts the list into a random order."""
        ...
