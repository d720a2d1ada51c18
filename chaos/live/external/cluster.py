"""The nodes of an external target, started for a run or for as long as a block lasts."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from random import SystemRandom
from typing import NamedTuple, TypeAlias

from bench.targets.layout import FIRST_LEVELS, HOST, OURS, ClusterLayout
from bench.targets.model import Chosen, TargetError
from chaos.frame_proxy.proxy import LinkPair
from chaos.live.cluster import LiveCluster, LiveNode
from chaos.live.errors import SetupError
from chaos.live.external.needs import chosen
from chaos.live.external.target import nodes_of
from chaos.live.launchers import CommandLauncher, ProcessLauncher
from chaos.live.links import ANY_PORT, Links
from chaos.live.processes import ShellProcess, TargetProcess
from scenarios import model

POLL_EVERY_S = 0.1
ALL_KNOWN_LIMIT_S = 60.0
"""Limit of the time until Metadata lists all nodes, once all serve."""


BLOCKS = range(20, 250)
Lead: TypeAlias = Callable[[Sequence[LinkPair]], Sequence[str]]
"""Adds a further proxy to each link, and returns their addresses (HOST:PORT)."""


class TargetNodes:
    """An external target in the size that a scenario's ``cluster`` needs. ``folder`` is for data and files, ``logs``
    for the nodes' logs. Its methods raise SetupError, TargetDied."""

    def __init__(self, wanted: Chosen, cluster: model.Cluster, folder: Path, logs: Path, seed: int = 0) -> None:
        self._wanted = wanted
        self._scenario_cluster = cluster
        self._folder = folder
        self._logs = logs
        voters = max(wanted.nodes, cluster.nodes)
        self.cluster = LiveCluster(voters, voters + cluster.observers, seed)

    @property
    def known_nodes(self) -> int:
        """The number of nodes that the target's metadata must have. 0 if it is not known."""
        file = self._wanted.file
        return self.cluster.total if file.node is not None else len(file.addresses) if file.commands is not None else 0

    @property
    def bootstrap(self) -> str:
        """HOST:PORT of the first node, without a proxy before it."""
        return self.cluster.nodes[0].listen if self.cluster.nodes else self._wanted.file.addresses[0]

    def launch(self, links: Links | None = None, lead: Lead | None = None) -> None:
        """Start all nodes, with a proxy on each directed link if ``links`` is given and the target supports it.
        ``lead`` adds further proxies. Call ``cluster.poll`` until ``cluster.is_ready``."""
        file = self._wanted.file
        nodes = []
        if file.node is not None:
            nodes = self.laid_out(links, lead)
        elif file.commands is not None:
            nodes = [
                LiveNode(number, address, CommandLauncher(number, self._wanted, file.commands))
                for number, address in enumerate(file.addresses)
            ]
        self.cluster.launch(nodes)

    def settings(self, number: int) -> dict[str, str]:
        """Return the scenario's settings for one node, without those that only the reference broker has."""
        config = self._scenario_cluster.config_of(number)
        return {key: value for key, value in config.items() if not key.startswith(OURS)}

    def laid_out(self, links: Links | None, lead: Lead | None) -> list[LiveNode]:
        """Lay out the nodes of a target that the suite starts, with their files and ports, without starting them."""
        config, total = self._scenario_cluster.config_of(0), self.cluster.total
        features = {name: config[key] for key, name in FIRST_LEVELS.items() if key in config}
        settings = [self.settings(number) for number in range(total)]
        plan = ClusterLayout(
            self._wanted,
            self._folder,
            self.cluster.voters,
            total,
            settings=lambda number: settings[number],
            features=features,
        )
        via = {} if links is None else via_proxies(plan, links, lead)
        try:
            layouts = plan.lay_out(via)
            with ThreadPoolExecutor() as several:
                list(several.map(lambda layout: layout.make(), layouts))
        except TargetError as wrong:
            raise SetupError(str(wrong)) from wrong
        nodes = []
        for layout in layouts:
            listen, log = f"{HOST}:{layout.port}", self._logs / f"node-{layout.number}.log"
            nodes.append(LiveNode(layout.number, listen, ProcessLauncher(layout, plan, via, settings, log, listen)))
        return nodes

    def processes(self) -> dict[int, int | str]:
        """Return for each node that a frame proxy can kill or pause its process group, as a negative number, or the
        command that kills it."""
        found = [(node.number, node.process) for node in self.cluster.nodes]
        return {number: it.killed_by for number, it in found if isinstance(it, TargetProcess | ShellProcess)}


def via_proxies(plan: ClusterLayout, links: Links, lead: Lead | None = None) -> dict[tuple[int, int], str]:
    """Create a proxy for each directed link, and for each port of a link if nodes have several. Return the addresses at
    which nodes find each other then (``bench.targets.layout.Via``); empty if the target does not support proxies.
    ``lead`` may add further proxies in front.

    Nodes that resolve names find each other at separate addresses in 127.0.0.0/8, one for each pair, with the same
    ports. Concurrent runs draw different blocks of these addresses.
    """
    pairs = [(node, other) for node in range(plan.total) for other in range(plan.total) if node != other]
    if plan.node.links == "none":
        return {}
    if plan.node.links == "peers":
        ends = [_End(node, other, plan.ports[other]["client"]) for node, other in pairs]
        return dict(zip(pairs, _stand_on(ends, links, lead), strict=True))
    block = SystemRandom().choice(BLOCKS)
    via = {(node, other): f"127.{block}.{node + 1}.{other + 1}" for node, other in pairs}
    ends = [
        _End(node, other, port, f"{via[node, other]}:{port}", name)
        for node, other in pairs
        for name, port in plan.ports[other].items()
        if name != "client"
    ]
    _stand_on(ends, links, lead)
    return via


class _End(NamedTuple):
    """One port of a link's target, where to listen before it, and its name if there are several."""

    node: int
    other: int
    port: int
    listen: str = ANY_PORT
    name: str = ""


def _stand_on(ends: Sequence[_End], links: Links, lead: Lead | None) -> Sequence[str]:
    """Return HOST:PORT before each of them."""
    if lead is None:
        return [_add(links, end, end.listen) for end in ends]
    return lead([LinkPair(end.node, end.other, _add(links, end, ANY_PORT), end.listen) for end in ends])


def _add(links: Links, end: _End, listen: str) -> str:
    try:
        return links.add(end.node, end.other, f"{HOST}:{end.port}", listen, end.name).listen
    except SetupError as failure:
        raise SetupError(
            f"No proxy can listen on {listen}, an address of its own for one link between nodes: {failure}"
        ) from failure


@contextmanager
def standing(target: str, folder: Path, cluster: model.Cluster | None = None) -> Iterator[TargetNodes]:
    """Start the nodes of a target unless they run already, without proxies, and end them with the block.

    ``folder`` is for data, files and logs. ``cluster`` is that of a scenario: the target has at least its number of
    nodes, with its settings. Raise SetupError, TargetDied.
    """
    found = TargetNodes(chosen(target), replace(cluster or model.Cluster(), observers=0), folder, folder)
    try:
        found.launch()
        while not found.cluster.is_ready:
            found.cluster.poll()
            time.sleep(POLL_EVERY_S)
        if found.known_nodes:
            _await_all(found, target)
        yield found
    finally:
        found.cluster.close()


def _await_all(found: TargetNodes, target: str) -> None:
    """Wait until the metadata has all nodes."""
    deadline = time.monotonic() + ALL_KNOWN_LIMIT_S
    while (known := len(nodes_of(found.bootstrap))) < found.known_nodes:
        if time.monotonic() > deadline:
            raise SetupError(
                f"{target} advertised {known} nodes within {ALL_KNOWN_LIMIT_S:g} s; it has {found.known_nodes}."
            )
        found.cluster.poll()
        time.sleep(POLL_EVERY_S)
