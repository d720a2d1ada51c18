"""All nodes of a live run: voters, then observers, and the links between them. The crew starts, watches and ends them
together."""

from collections.abc import Callable
from typing import Any

from chaos.live.evidence import ROLE
from chaos.live.links import Links
from chaos.live.nodes import LiveNode, NodePlan
from chaos.live.quorum import form_quorum, new_cluster_id
from chaos.live.run_folder import RunFolder
from chaos.live.targets import Roles
from chaos.seeds import random_for
from scenarios.model import Scenario
from scenarios.revisions import revision_of

OnLine = Callable[[int, dict[str, Any]], None]


class Crew:
    """``on_line`` gets each line of evidence with its node's ID. A run against a foreign target has no nodes."""

    def __init__(self, scenario: Scenario, folder: RunFolder, seed: int, mutant: str, origin_us: int) -> None:
        self._scenario = scenario
        self._folder = folder
        self._seed = seed
        self._mutant = mutant
        self._origin_us = origin_us
        self.nodes: list[LiveNode] = []
        cluster = scenario.cluster
        self.roles = Roles(cluster.nodes, cluster.total, random_for(seed, "targets"), self.lives)

    def launch(self, links: Links) -> tuple[str, ...]:
        """Starts all nodes behind their links. Returns where clients reach them. Call ``look`` until ``is_ready``."""
        cluster = self._scenario.cluster
        nodes = [LiveNode(self._plan(node)) for node in range(cluster.total)]
        quorum = form_quorum(new_cluster_id(), [node.listen for node in nodes], cluster.nodes, links)
        for number, node in enumerate(nodes):
            node.advertised = links.add("client", number, node.listen).listen
            node.introduction = quorum.config(number)
            self.nodes.append(node)
        for node in nodes:
            node.launch()
        return tuple(str(node.advertised) for node in nodes)

    @property
    def is_ready(self) -> bool:
        return all(node.is_ready for node in self.nodes)

    def lives(self, node: int) -> bool:
        """Returns whether the node's process runs, stopped or not. Nothing is known of nodes that are not ours."""
        return not self.nodes or self.nodes[node].running

    def restart(self, node: int) -> None:
        """Starts the node again if it has ended. A single node is waited for. Others are ready when the quorum lets
        them be."""
        if self.nodes[node].running:
            return
        self.nodes[node].launch()
        if len(self.nodes) == 1:
            self.nodes[node].await_ready()

    def look(self, on_line: OnLine) -> None:
        """Hands on new evidence, then raises NodeDied for a death that nobody announced (SetupError if the node said
        that it cannot start)."""
        for number, node in enumerate(self.nodes):
            self._read(number, node, on_line)
            if node.child is None:
                continue
            if node.child.exit_status is not None:
                # The pipe may hold the announcement of this very death: look again before calling it unexpected.
                self._read(number, node, on_line)
            node.look_for_ready()
            node.child.check()

    def read(self, node: int, on_line: OnLine) -> None:
        self._read(node, self.nodes[node], on_line)

    def heal(self) -> None:
        """Everything that was struck runs again, and is ready. Raises NodeDied."""
        for number, node in enumerate(self.nodes):
            assert node.child is not None
            node.child.resume()
            self.restart(number)
        for node in self.nodes:
            node.await_ready()

    def end_cleanly(self) -> None:
        """The run is over: all are asked at once. Raises NodeDied if one does not shut down as it should."""
        for node in self.nodes:
            assert node.child is not None
            node.child.check()
        for node in self.nodes:
            assert node.child is not None
            node.child.ask_to_end()
        for node in self.nodes:
            node.end_cleanly()

    def close(self, on_line: OnLine) -> None:
        """Ends every process, whatever its state."""
        for node in self.nodes:
            if node.child is not None and node.running:
                node.child.ask_to_end()
        for number, node in enumerate(self.nodes):
            node.close(lambda line, number=number: on_line(number, line))  # type: ignore[misc]

    def samples(self) -> list[tuple[int, str, int]]:
        """(node ID, metrics address, pid) of those that run."""
        return [(node.plan.node_id, node.metrics, node.child.pid) for node in self.nodes if node.child is not None]

    def _read(self, number: int, node: LiveNode, on_line: OnLine) -> None:
        for line in node.evidence():
            if ROLE in line:
                self.roles.told(number, line[ROLE])
            on_line(number, line)

    def _plan(self, node_id: int) -> NodePlan:
        scenario, folder = self._scenario, self._folder
        return NodePlan(
            node_id=node_id,
            folder=folder.data / f"node-{node_id}",
            logs=folder.logs,
            spools=folder.spools,
            config=dict(scenario.cluster.config),
            scenario=scenario.path,
            seed=self._seed,
            mutant=self._mutant,
            origin_us=self._origin_us,
            claims=folder.claims,
            is_voter=node_id < scenario.cluster.nodes,
            revision=revision_of(scenario),
        )
