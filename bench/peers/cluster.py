"""Clusters that are measured: of either system or of any target file, with one node or several.

Their nodes can be killed and started again, and always end with their block.
"""

import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from bench.peers.node import BrokerNode, PeerError, end
from bench.targets.layout import ClusterLayout
from bench.targets.model import Chosen, TargetError

if TYPE_CHECKING:
    import psutil


@dataclass(frozen=True, slots=True)
class PeerCluster:
    """A cluster whose nodes are broker and controller, and listen on 127.0.0.1."""

    name: str
    members: Sequence[BrokerNode]  # all nodes

    @property
    def ports(self) -> list[int]:
        return [member.port for member in self.members]

    @property
    def bootstrap(self) -> str:
        return ",".join(f"127.0.0.1:{port}" for port in self.ports)

    @property
    def pids(self) -> list[int]:
        """Process IDs of the nodes that run now."""
        running = [member.process for member in self.members if member.process is not None]
        return [process.pid for process in running if process.poll() is None]

    def member(self, node_id: int) -> BrokerNode:
        return next(member for member in self.members if member.node_id == node_id)

    def launch(self) -> None:
        for member in self.members:
            member.launch()

    def await_ready(self) -> None:
        """Raise PeerError."""
        for member in self.members:
            member.await_ready()

    def rss_bytes(self) -> int:
        return sum(int(process.memory_info().rss) for process in self._processes())

    def cpu_s(self) -> float:
        """Return the seconds of processor time that all nodes have used since they started."""
        times = [process.cpu_times() for process in self._processes()]
        return float(sum(each.user + each.system for each in times))

    def _processes(self) -> "list[psutil.Process]":
        import psutil

        return [psutil.Process(pid) for pid in self.pids]


def settings_of(config: Mapping[str, str], node_id: int) -> dict[str, str]:
    """Return the settings of one node."""
    return {name: value.replace("{node}", str(node_id)) for name, value in config.items()}


class Prepares(Protocol):
    def __call__(
        self, folder: Path, nodes: int, config: Mapping[str, str], advertised: Sequence[str] = (), /
    ) -> AbstractContextManager[PeerCluster]: ...


@dataclass(frozen=True, slots=True)
class System:
    """A broker that can be measured. ``prepare(folder, nodes, config, advertised)`` makes new nodes, which are not
    launched yet and end with the block. ``config`` holds the settings that differ from the defaults, by Kafka's names.
    In a value ``{node}`` is replaced by the node's ID. ``advertised`` holds the HOST:PORT of a proxy for each node, if
    clients go through proxies; then brokers reach each other on a listener of their own. It raises PeerError when the
    nodes cannot be had."""

    name: str
    prepare: Prepares

    @contextmanager
    def launched(
        self, folder: Path, nodes: int, config: Mapping[str, str], advertised: Sequence[str] = ()
    ) -> Iterator[PeerCluster]:
        """Prepare the same nodes, launch them and wait until each of them is ready. Raise PeerError."""
        with self.prepare(folder, nodes, config, advertised) as cluster:
            cluster.launch()
            cluster.await_ready()
            yield cluster


def until(condition: Callable[[], bool], limit_s: float, what: str, every_s: float = 0.05) -> None:
    """Wait until the condition holds. Raise PeerError after ``limit_s``, with ``what`` in its message."""
    deadline = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > deadline:
            raise PeerError(f"{what} did not happen within {limit_s:g} s")
        time.sleep(every_s)


@contextmanager
def target_cluster(
    chosen: Chosen,
    folder: Path,
    settings: Mapping[str, str],
    words: Mapping[str, str] | None = None,
    advertised: Sequence[str] = (),
) -> Iterator[PeerCluster]:
    """Make new nodes below ``folder``, which are prepared and not launched. Raise PeerError when that fails.

    ``settings`` are those of the brokers, by Kafka's names, and ``words`` replace placeholders of the file. With
    ``advertised``, clients reach each node at that HOST:PORT, if the file has the placeholder {advertised}. A target
    whose one process is all nodes has one member. All end by SIGKILL: their files are not read again, and nodes that
    end in order all at once may wait for a controller that has gone.
    """
    if chosen.file.node is None:
        raise PeerError(f"{chosen.text} runs elsewhere, and nothing here starts it; give its HOST:PORT.")
    folder.mkdir(parents=True, exist_ok=True)
    plan = ClusterLayout(
        chosen, folder, words=words or {}, settings=lambda node: settings_of(settings, node), advertised=advertised
    )
    try:
        layouts = plan.lay_out()
        for layout in layouts:
            layout.make()
    except TargetError as wrong:
        raise PeerError(str(wrong)) from wrong
    name, limit_s = chosen.file.title, plan.node.ready_limit_s
    members = [
        BrokerNode(name, each.number, each.port, each.command, each.log, limit_s, each.environment) for each in layouts
    ]
    try:
        yield PeerCluster(name, members)
    finally:
        end(members, signal.SIGKILL)


@contextmanager
def launched(chosen: Chosen, folder: Path, settings: Mapping[str, str] | None = None) -> Iterator[PeerCluster]:
    """The same nodes, once they are ready. Raise PeerError."""
    with target_cluster(chosen, folder, settings or {}) as cluster:
        cluster.launch()
        cluster.await_ready()
        yield cluster
