"""The nodes of an external target, started for a run or for as long as a block lasts."""

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from bench.targets.layout import FIRST_LEVELS, HOST, OURS, ClusterLayout
from bench.targets.model import Chosen, TargetError
from chaos.live.cluster import LiveCluster
from chaos.live.errors import SetupError
from chaos.live.external.links import Lead, via_proxies
from chaos.live.external.needs import chosen
from chaos.live.external.target import nodes_of
from chaos.live.launchers import CommandLauncher, ProcessLauncher
from chaos.live.links import Links
from chaos.live.node import Node
from chaos.live.processes import ShellProcess, TargetProcess
from scenarios import model

POLL_EVERY_S = 0.1
ALL_KNOWN_LIMIT_S = 60.0
"""How long a cluster whose nodes all serve may take until its metadata has all of them."""


class TargetNodes:
    """An external target in the size that a scenario's ``cluster`` needs. ``folder`` gets data and files, ``logs`` the
    nodes' logs. Raises SetupError, TargetDied."""

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
        """Start all nodes, with a proxy on each directed link if ``links`` are given and the target lets us. ``lead``
        puts something more there. Call ``cluster.look`` until ``cluster.is_ready``."""
        file = self._wanted.file
        nodes = []
        if file.node is not None:
            nodes = self.laid_out(links, lead)
        elif file.commands is not None:
            nodes = [
                Node(number, address, CommandLauncher(number, self._wanted, file.commands))
                for number, address in enumerate(file.addresses)
            ]
        self.cluster.launch(nodes)

    def settings(self, number: int) -> dict[str, str]:
        """Return the scenario's settings for one node, without those that only the reference broker has."""
        config = self._scenario_cluster.config_of(number)
        return {key: value for key, value in config.items() if not key.startswith(OURS)}

    def laid_out(self, links: Links | None, lead: Lead | None) -> list[Node]:
        """Return the nodes of a target that we start, with their files and ports. None is started."""
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
            nodes.append(Node(layout.number, listen, ProcessLauncher(layout, plan, via, settings, log, listen)))
        return nodes

    def processes(self) -> dict[int, int | str]:
        """Return for each node that a frame proxy can kill or pause its process group, as a negative number, or the
        command that kills it."""
        found = [(node.number, node.process) for node in self.cluster.nodes]
        return {number: it.killed_by for number, it in found if isinstance(it, TargetProcess | ShellProcess)}


@contextmanager
def standing(target: str, folder: Path, cluster: model.Cluster | None = None) -> Iterator[TargetNodes]:
    """Start the nodes of a target if that is ours to do, without proxies, and end them with the block.

    ``folder`` gets data, files and logs. ``cluster`` is that of a scenario: at least its number of nodes, with its
    settings. Raises SetupError, TargetDied.
    """
    found = TargetNodes(chosen(target), replace(cluster or model.Cluster(), observers=0), folder, folder)
    try:
        found.launch()
        while not found.cluster.is_ready:
            found.cluster.look()
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
        found.cluster.look()
        time.sleep(POLL_EVERY_S)
