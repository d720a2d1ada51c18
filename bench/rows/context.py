"""The context that measurements share: brokers that are up at the same time, and a listener for progress."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from bench.peers.cluster import Cluster, System

Progress = Callable[[str], None]

LIMIT_S = 120.0
"""For anything that a broker is waited for; longer, and it has hung."""


@contextmanager
def all_up(systems: Sequence[System], folder: Path, nodes: int, config: Mapping[str, str]) -> Iterator[list[Cluster]]:
    """Every system's brokers, ready; they stay up for the whole block, so that each is as warm as it gets."""
    with ExitStack() as stack:
        yield [
            stack.enter_context(system.launched(folder / system.name.replace(" ", "-"), nodes, config))
            for system in systems
        ]


def place(nodes: int) -> str:
    """How a row calls it."""
    return "one node" if nodes == 1 else f"{nodes} replicas on {nodes} nodes"
