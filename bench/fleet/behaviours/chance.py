"""Where a behaviour's chance comes from: its driver gives it a generator of its own, drawn from the run's seed."""

from collections.abc import Sequence
from typing import Protocol, TypeVar

from reference_broker.ports.chance import RandomSource

T = TypeVar("T")


class Chance(RandomSource, Protocol):
    """What behaviours ask of it; ``random.Random`` has it."""

    def randbytes(self, n: int, /) -> bytes:
        """``n`` random bytes."""
        ...

    def choice(self, seq: Sequence[T], /) -> T:
        """One of ``seq``, which is not empty."""
        ...

    def choices(self, population: Sequence[T], weights: Sequence[float], /) -> list[T]:
        """A list of one, drawn with these weights."""
        ...

    def sample(self, population: Sequence[T], k: int, /) -> list[T]:
        """``k`` different ones."""
        ...
