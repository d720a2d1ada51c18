"""Where chance comes from in the deterministic part: a port, like the clock."""

from typing import Any, Protocol


class RandomSource(Protocol):
    """What is asked of a generator; ``random.Random`` has it, too. ``core.randomness`` gives each purpose its own."""

    def getrandbits(self, k: int, /) -> int:
        """``k`` random bits, as an integer."""
        ...

    def randrange(self, start: int, stop: int | None = None, /) -> int:
        """One of ``start`` up to below ``stop``, or of 0 up to below ``start``. Raises ValueError if there is none."""
        ...

    def randint(self, a: int, b: int, /) -> int:
        """One of ``a`` up to ``b``, both included."""
        ...

    def shuffle(self, x: list[Any], /) -> None:
        """Brings the list into a random order."""
        ...
