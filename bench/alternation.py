"""The order in which brokers are measured. They take turns, and each pair has the reverse order of the one before. So a
drift of the machine hits all of them alike."""

from collections.abc import Iterator, Sequence
from typing import TypeVar

from bench.results import Figure

Each = TypeVar("Each")


def alternate(brokers: Sequence[Each], pairs: int) -> Iterator[tuple[int, Each]]:
    """Yields the number of the pair and the broker, in the order AB BA AB ..."""
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
        """Returns the figure of the reference, which is named first, and that of the peer, if there is one."""
        reference, *peer = [Figure(tuple(values), self._unit) for values in self._values.values()]
        return reference, peer[0] if peer else None

    def figure(self, name: str) -> Figure:
        return Figure(tuple(self._values[name]), self._unit)
