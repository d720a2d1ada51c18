"""The order in which brokers are measured: pair by pair, each pair in the other order than the one before, so that a
drift of the machine hits all alike."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from bench.results import Figure

Each = TypeVar("Each")


def alternate(brokers: Sequence[Each], pairs: int) -> Iterator[tuple[int, Each]]:
    """Number of the pair and broker: AB BA AB ..."""
    for pair in range(pairs):
        for broker in brokers if pair % 2 == 0 else reversed(brokers):
            yield pair, broker


class Samples:
    """Values of one thing in ``unit``, by broker, in the order of pairs."""

    def __init__(self, names: Sequence[str], unit: str) -> None:
        self._values: dict[str, list[float]] = {name: [] for name in names}
        self._unit = unit

    def add(self, name: str, value: float) -> None:
        self._values[name].append(value)

    def figures(self) -> tuple[Figure, Figure | None]:
        """Of the reference (named first) and of the peer, if there is one."""
        reference, *peer = [Figure(tuple(values), self._unit) for values in self._values.values()]
        return reference, peer[0] if peer else None

    def figure(self, name: str) -> Figure:
        return Figure(tuple(self._values[name]), self._unit)
