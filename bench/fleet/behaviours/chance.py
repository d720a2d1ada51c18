"""The random generator of a behaviour. Its driver gives it one of its own, which comes from the run's seed."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from reference_broker.ports.chance import RandomSource

T = TypeVar("T")


class Chance(RandomSource, Protocol):
    """The methods that behaviours use. ``random.Random`` has them."""

    def randbytes(self, n: int, /) -> bytes:
        """Returns ``n`` random bytes."""
        ...

    def choice(self, seq: Sequence[T], /) -> T:
        """Draws one element of ``seq``, which is not empty."""
        ...

    def choices(self, population: Sequence[T], weights: Sequence[float], /) -> list[T]:
        """Draws one element with these weights, and returns it in a list."""
        ...

    def sample(self, population: Sequence[T], k: int, /) -> list[T]:
        """Draws ``k`` different elements."""
        ...
