"""Clusters that are measured: of either system, with one node or several. They always end with their block."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import psutil

from bench.peers.errors import PeerError
from bench.peers.node import BrokerNode


@dataclass(frozen=True, slots=True)
class Cluster:
    """``members`` are all nodes. Each is broker and controller and listens on 127.0.0.1."""

    name: str
    members: Sequence[BrokerNode]

    @property
    def ports(self) -> list[int]:
        return [member.port for member in self.members]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def pids(self) -> list[int]:
        """Of the processes that run now."""
        running = [member.process for member in self.members if member.process is not None]
        return [process.pid for process in running if process.poll() is None]

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
        """Returns the seconds of processor time that all nodes have used since they started."""
        times = [each.cpu_times() for each in self._processes()]
        return float(sum(each.user + each.system for each in times))

    def _processes(self) -> list[psutil.Process]:
        return [psutil.Process(pid) for pid in self.pids]


def settings_of(config: Mapping[str, str], node_id: int) -> dict[str, str]:
    """Returns the settings of one node."""
    return {name: value.replace("{node}", str(node_id)) for name, value in config.items()}


class Prepares(Protocol):
    def __call__(
        self, folder: Path, nodes: int, config: Mapping[str, str], advertised: Sequence[str] = (), /
    ) -> AbstractContextManager[Cluster]: ...


@dataclass(frozen=True, slots=True)
class System:
    """A broker that can be measured. ``prepare(folder, nodes, config, advertised)`` makes new nodes, which are not
    launched yet and end with the block. ``config`` holds the settings that differ from the defaults, by Kafka's names.
    In a value ``{node}`` stands for the node's ID. ``advertised`` holds the HOST:PORT of a proxy for each node, if
    clients go through proxies; then brokers reach each other on a listener of their own. It raises PeerError when the
    nodes cannot be had."""

    name: str
    prepare: Prepares

    @contextmanager
    def launched(
        self, folder: Path, nodes: int, config: Mapping[str, str], advertised: Sequence[str] = ()
    ) -> Iterator[Cluster]:
        """Prepares the same nodes, launches them and waits until each of them is ready. Raises PeerError."""
        with self.prepare(folder, nodes, config, advertised) as cluster:
            cluster.launch()
            cluster.await_ready()
            yield cluster


def until(condition: Callable[[], bool], limit_s: float, what: str, every_s: float = 0.05) -> None:
    """Waits until the condition holds. Raises PeerError after ``limit_s``, with ``what`` in its message."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise PeerError(f"{what} did not happen within {limit_s:g} s")
        time.sleep(every_s)
