"""Shared parts of the rows: their declaration, brokers that are up at the same time, topics, limits, and the
progress."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.peers.clients import LedPartition, RetryingClient
from bench.peers.cluster import PeerCluster, System
from bench.rows.options import ROWS, Options
from bench.rows.results import Results, Samples

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchRun:
    """One run of ``crucible bench``: which systems it measures, and where the results go."""

    results: Results
    systems: Sequence[System]  # the reference broker first
    folder: Path
    options: Options
    progress: Progress

    @property
    def names(self) -> list[str]:
        return [system.name for system in self.systems]

    def samples(self, unit: str) -> Samples:
        """Return a place for the samples of each system."""
        return Samples(self.names, unit)

    @contextmanager
    def all_up(
        self, folder: str, nodes: int, config: Mapping[str, str], systems: Sequence[System] | None = None
    ) -> Iterator[list[PeerCluster]]:
        """Launch every system's brokers. They stay up for the whole block, so that each gets as warm as it can.
        ``systems``: variants of those of the run."""
        with ExitStack() as stack:
            yield [
                stack.enter_context(
                    system.launched(self.folder / folder / system.name.replace(" ", "-"), nodes, config)
                )
                for system in systems or self.systems
            ]


Measures = Callable[[BenchRun], None]

MEASURES: dict[str, Measures] = {}
"""The function that measures each row, by the row's name. ``row`` fills it."""

LIMIT_S = 120.0
"""A broker that needs longer than this for anything has hung."""


def row(name: str) -> Callable[[Measures], Measures]:
    """Declare the function that measures the row ``name``, which is one of ROWS."""
    assert name in ROWS, f"options.ROWS does not name {name}"

    def declared(measures: Measures) -> Measures:
        MEASURES[name] = measures
        return measures

    return declared


def make_topic(
    cluster: PeerCluster, name: str, partitions: int = 1, replicas: int = 1, config: Mapping[str, str] | None = None
) -> dict[int, LedPartition]:
    """Create a topic and return its partitions once all their replicas are in sync. Raise PeerError."""
    with RetryingClient(cluster.ports) as client:
        client.create_topic(name, partitions, replicas, LIMIT_S, config)
        return client.await_replicas(name, partitions, replicas, LIMIT_S)


def place(nodes: int) -> str:
    """Return the words of a row for a cluster of this number of nodes."""
    return "one node" if nodes == 1 else f"{nodes} replicas on {nodes} nodes"
