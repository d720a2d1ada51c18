"""The port for random numbers. The deterministic part draws random numbers only from such a generator."""

from typing import Any, Protocol


class RandomSource(Protocol):
    """The methods that the broker needs of a generator. ``random.Random`` has them too. ``core.randomness`` gives each
    purpose a generator of its own."""

    def getrandbits(self, k: int, /) -> int:
        """Returns ``k`` random bits as an integer."""
        ...

    def randrange(self, start: int, stop: int | None = None, /) -> int:
        """Returns an integer with ``start`` <= it < ``stop``, or 0 <= it < ``start`` if ``stop`` is None. Raises
        ValueError if there is no such integer."""
        ...

    def randint(self, a: int, b: int, /) -> int:
        """Returns an integer from ``a`` to ``b``, both included."""
        ...

    def shuffle(self, x: list[Any], /) -> None:
        """Puts the list into a random order."""
        ...
