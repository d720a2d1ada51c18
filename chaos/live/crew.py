"""All nodes of a live run, voters before observers, and the links between them. The crew starts, watches and ends them
together."""

from collections.abc import Callable
from typing import Any

from bench.ports import free_port, free_ports
from chaos.live.links import Links
from chaos.live.node_side.evidence import ROLE
from chaos.live.node_side.node_process import NodeSpec
from chaos.live.nodes import LiveNode
from chaos.live.processes import Child
from chaos.live.quorum import Dial, introductions, new_cluster_id, shared_store
from chaos.live.run_folder import RunFolder
from chaos.live.targets import Roles
from chaos.seeds import random_for
from scenarios.model import Scenario
from scenarios.revisions import revision_of


class Crew:
    """The nodes of one run. A run against a foreign target has none. ``on_line`` gets each line of evidence with its
    node's ID."""

    def __init__(
        self,
        scenario: Scenario,
        folder: RunFolder,
        seed: int,
        mutant: str,
        origin_us: int,
        on_line: Callable[[int, dict[str, Any]], None],
    ) -> None:
        self._scenario = scenario
        self._folder = folder
        self._seed = seed
        self._mutant = mutant
        self._origin_us = origin_us
        self._on_line = on_line
        self.nodes: list[LiveNode] = []
        cluster = scenario.cluster
        self.roles = Roles(cluster.nodes, cluster.total, random_for(seed, "targets"), self.lives)

    def launch(self, links: Links, lead: Callable[[Dial], Dial]) -> tuple[str, ...]:
        """Starts all nodes behind their links, on which ``lead`` may put something more. Returns where clients reach
        them. Call ``look`` until ``is_ready``."""
        cluster, folder = self._scenario.cluster, self._folder
        listen = [f"127.0.0.1:{port}" for port in free_ports(cluster.total)]
        told = introductions(new_cluster_id(), listen, cluster.nodes, links, lead)
        store = shared_store(dict(cluster.config), folder.data)
        for number, address in enumerate(listen):
            spec = NodeSpec(
                node_id=number,
                listen=address,
                advertised=links.add("client", number, address).listen,
                metrics_listen=f"127.0.0.1:{free_port()}",
                data=str(folder.data / f"node-{number}"),
                spools=str(folder.spools),
                claims=str(folder.claims),
                config={**cluster.config_of(number), **told[number], **store},
                is_voter=number < cluster.nodes,
                scenario=self._scenario.path,
                revision=revision_of(self._scenario),
                seed=self._seed,
                mutant=self._mutant,
                origin_us=self._origin_us,
            )
            self.nodes.append(LiveNode(spec, folder.logs))
        for node in self.nodes:
            node.launch()
        return tuple(node.spec.advertised for node in self.nodes)

    @property
    def is_ready(self) -> bool:
        return all(node.is_ready for node in self.nodes)

    def lives(self, node: int) -> bool:
        """Returns whether the node's process exists, even if it is stopped. A foreign target's nodes count as alive."""
        return not self.nodes or self.nodes[node].running

    def restart(self, node: int) -> None:
        """Starts the node again if it has ended. It waits until a single node is ready. One of several is not waited
        for, because it may need a quorum."""
        if self.nodes[node].running:
            return
        self.nodes[node].launch()
        if len(self.nodes) == 1:
            self.nodes[node].await_ready()

    def look(self) -> None:
        """Hands on new evidence, then raises NodeDied for a death that nobody announced, or SetupError if the node said
        that it cannot start."""
        for number, node in enumerate(self.nodes):
            self.read(number)
            if node.child is None:
                continue
            if node.child.exit_status is not None:
                # The pipe may hold the announcement of this death, so it is read again before the death is called
                # unexpected.
                self.read(number)
            node.look_for_ready()
            node.child.check()

    def read(self, number: int) -> None:
        """Hands on new evidence of one node."""
        for line in self.nodes[number].evidence():
            if ROLE in line:
                self.roles.told(number, line[ROLE])
            self._on_line(number, line)

    def heal(self) -> None:
        """Lets everything that was struck run again, and waits until it is ready. Raises NodeDied."""
        for number, node in enumerate(self.nodes):
            if node.child is not None:
                node.child.resume()
            self.restart(number)
        for node in self.nodes:
            node.await_ready()

    def end_cleanly(self) -> None:
        """Asks all nodes at once to end, because the run is over. Raises NodeDied if one does not shut down cleanly."""
        for child in self._children:
            child.check()
        for child in self._children:
            child.ask_to_end()
        for node in self.nodes:
            node.end_cleanly()

    def close(self) -> None:
        """Ends every process in any state, and hands on the last evidence."""
        for child in self._children:
            child.ask_to_end()
        for child in self._children:
            child.terminate()
        for number, node in enumerate(self.nodes):
            self.read(number)
            node.close()

    @property
    def _children(self) -> list[Child]:
        return [node.child for node in self.nodes if node.child is not None]

    def samples(self) -> list[tuple[int, str, int]]:
        """Returns node ID, metrics address and pid of each node."""
        return [
            (node.spec.node_id, node.spec.metrics_listen, node.child.pid)
            for node in self.nodes
            if node.child is not None
        ]
