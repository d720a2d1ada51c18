"""The brokers that take a load: started for as long as it lasts, or as they run already."""

import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Final

from bench.load.faults import ClientLinks, LinkError
from bench.load.options import LoadError, Progress
from bench.peers.cluster import PeerCluster, target_cluster
from bench.peers.node import PeerError
from bench.targets.loader import find
from bench.targets.model import Chosen, TargetError

LOG: Final = "log.txt"
"""The log of each node, in the node's own folder (``bench/targets/layout.py``)."""


@dataclass(frozen=True, slots=True)
class LoadTarget:
    """Brokers that take a load."""

    name: str
    bootstrap: Sequence[tuple[str, int]]
    cluster: PeerCluster | None  # None for brokers that run elsewhere
    folder: Path | None = None  # the brokers' data; None: not known
    links: ClientLinks | None = None  # between clients and nodes, for faults

    @property
    def node_ids(self) -> Sequence[int] | None:
        """The IDs of the nodes that were started here; None if they run elsewhere."""
        return None if self.cluster is None else [member.node_id for member in self.cluster.members]


MakesLinks = Callable[[int], AbstractContextManager[ClientLinks]]
"""Make the links between clients and nodes, for this number of nodes."""


def chosen_target(text: str) -> Chosen:
    """Return the target of this name (``bench/targets``). It has one node, unless the name says otherwise. Nothing is
    started.

    :raises LoadError: it is not known.
    """
    try:
        chosen = find(text)
    except TargetError as error:
        raise LoadError(str(error)) from error
    if chosen.file.addresses or "/" in text.rpartition(".toml")[2]:
        return chosen
    return replace(chosen, nodes=1)


def future_node_ids(chosen: Chosen) -> Sequence[int] | None:
    """Return the IDs that the nodes have once they are started; None if they run elsewhere."""
    if chosen.file.node is None:
        return None
    return range(1 if chosen.file.node.one_process else chosen.nodes)


def check_links(chosen: Chosen) -> None:
    """:raises LoadError: clients cannot be led to the nodes through links."""
    node = chosen.file.node
    if node is not None and not any("{advertised}" in text for _, text in (*node.files, *node.words)):
        raise LoadError(f"{chosen.text}: its file has no {{advertised}}, so clients cannot be led through links.")


@contextmanager
def started(
    text: str,
    progress: Progress,
    settings: Mapping[str, str] = MappingProxyType({}),
    make_links: MakesLinks | None = None,
    failed_logs: Path | None = None,
) -> Iterator[LoadTarget]:
    """Yield a target by its name (``bench/targets``), started for as long as the block lasts, or as it runs already.

    ``settings`` are those of brokers that are started, by Kafka's names. With ``make_links`` clients reach their nodes
    through links. If a node does not start, the nodes' logs are copied to ``failed_logs``.

    :raises LoadError: it is not known, or does not start.
    """
    chosen = chosen_target(text)
    if chosen.file.addresses:
        if settings:
            progress(f"{text}: runs already, so brokerConfig sets nothing; it needs {', '.join(settings)}")
        yield LoadTarget(text, [_address(address) for address in chosen.file.addresses], None)
        return
    progress(f"{text}: starts {chosen.nodes} {'node' if chosen.nodes == 1 else 'nodes'}")
    with (
        TemporaryDirectory(prefix="crucible-bench-", ignore_cleanup_errors=True) as name,
        _linked(chosen, make_links) as links,
        _cluster(chosen, Path(name), settings, links, failed_logs) as cluster,
    ):
        addresses = [("127.0.0.1", port) for port in cluster.ports] if links is None else links.addresses
        yield LoadTarget(text, addresses, cluster, Path(name), links)


@contextmanager
def _linked(chosen: Chosen, make_links: MakesLinks | None) -> Iterator[ClientLinks | None]:
    if make_links is None:
        yield None
        return
    check_links(chosen)
    try:
        with make_links(chosen.nodes) as links:
            yield links
    except LinkError as error:
        raise LoadError(str(error)) from error


@contextmanager
def _cluster(
    chosen: Chosen, folder: Path, settings: Mapping[str, str], links: ClientLinks | None, failed_logs: Path | None
) -> Iterator[PeerCluster]:
    advertised = [] if links is None else [f"{host}:{port}" for host, port in links.addresses]
    try:
        with target_cluster(chosen, folder, settings, advertised=advertised) as cluster:
            if links is not None:
                links.connect(cluster.ports)
            cluster.launch()
            cluster.await_ready()
            yield cluster
    except PeerError as error:
        kept = ""
        if failed_logs is not None and _copy_logs(folder, failed_logs):
            kept = f" (the whole logs: {failed_logs})"
        raise LoadError(f"{error}{kept}") from error


def _copy_logs(folder: Path, to: Path) -> bool:
    """Copy the logs of all nodes below ``folder``, which is about to be deleted. Return whether there are any."""
    logs = list(folder.glob(f"*/{LOG}"))
    for log in logs:
        (to / log.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(log, to / log.parent.name / LOG)
    return bool(logs)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    return host.strip("[]"), int(port)
