"""Clusters under measurement, of either system and of one node or several. They are always ended."""

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path

import psutil

from bench.peers.errors import PeerError
from bench.peers.node import BrokerNode


@dataclass(frozen=True, slots=True)
class Cluster:
    """``members``: all combined nodes, on 127.0.0.1."""

    name: str
    members: Sequence[BrokerNode]

    @property
    def ports(self) -> list[int]:
        return [member.port for member in self.members]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    def member(self, node_id: int) -> BrokerNode:
        return next(each for each in self.members if each.node_id == node_id)

    def launch(self) -> None:
        for member in self.members:
            member.launch()

    def await_ready(self) -> None:
        """Raises PeerError."""
        for member in self.members:
            member.await_ready()

    def rss_bytes(self) -> int:
        return sum(int(each.memory_info().rss) for each in self._processes())

    def cpu_s(self) -> float:
        """Processor time of all nodes since each began."""
        times = [each.cpu_times() for each in self._processes()]
        return float(sum(each.user + each.system for each in times))

    def _processes(self) -> list[psutil.Process]:
        running = [member.process for member in self.members if member.process is not None]
        return [psutil.Process(each.pid) for each in running if each.poll() is None]


Prepares = Callable[[Path, int, Mapping[str, str]], AbstractContextManager[Cluster]]


@dataclass(frozen=True, slots=True)
class System:
    """A maker of brokers. ``prepare(folder, nodes, config)``: fresh nodes, not launched yet, ended with the block;
    ``config``: settings by Kafka's names beside the defaults. Raises PeerError when they cannot be had."""

    name: str
    prepare: Prepares

    def launched(self, folder: Path, nodes: int, config: Mapping[str, str]) -> AbstractContextManager[Cluster]:
        """The same, launched, each of them ready."""
        return _Launched(self.prepare(folder, nodes, config))


class _Launched(AbstractContextManager[Cluster]):
    def __init__(self, prepared: AbstractContextManager[Cluster]) -> None:
        self._prepared = prepared

    def __enter__(self) -> Cluster:
        cluster = self._prepared.__enter__()
        try:
            cluster.launch()
            cluster.await_ready()
        except BaseException:
            self._prepared.__exit__(None, None, None)
            raise
        return cluster

    def __exit__(self, *what: object) -> None:
        self._prepared.__exit__(None, None, None)


def until(condition: Callable[[], bool], limit_s: float, what: str, every_s: float = 0.05) -> None:
    """Raises PeerError after ``limit_s``."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise PeerError(f"{what} did not happen within {limit_s:g} s")
        time.sleep(every_s)
