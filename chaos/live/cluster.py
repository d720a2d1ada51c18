"""All nodes of a cluster, whatever starts them, and the roles that they have now."""

from collections.abc import Callable, Sequence
from typing import Any

from chaos.live.errors import NodeDied, SetupError
from chaos.live.node import Node
from chaos.live.node_side.evidence import ROLE
from chaos.live.targets import Roles
from chaos.seeds import random_for


class LiveCluster:
    """The first ``voters`` of the ``total`` nodes vote. There are no ``nodes`` if only addresses are known.

    Nodes that are ``ours`` must shut down cleanly; how another broker ends is not judged. ``on_line`` gets each line of
    evidence with its node's number.
    """

    def __init__(
        self,
        voters: int,
        total: int,
        seed: int = 0,
        ours: bool = False,
        on_line: Callable[[int, dict[str, Any]], None] = lambda number, line: None,  # noqa: ARG005
    ) -> None:
        self.voters = voters
        self.total = total
        self.nodes: Sequence[Node] = ()
        self.roles = Roles(voters, total, random_for(seed, "targets"), self.lives)
        self._ours = ours
        self._on_line = on_line

    def launch(self, nodes: Sequence[Node]) -> None:
        """Start all nodes at once, because none is ready before a majority runs. Call ``look`` until ``is_ready``."""
        self.nodes = nodes
        for node in nodes:
            node.launch()

    @property
    def addresses(self) -> tuple[str, ...]:
        """HOST:PORT at which clients reach each node."""
        return tuple(node.advertised for node in self.nodes)

    @property
    def is_ready(self) -> bool:
        return all(node.is_ready for node in self.nodes)

    def lives(self, number: int) -> bool:
        """Return whether the node's process exists, even if it is stopped. A node that is only an address lives."""
        return number >= len(self.nodes) or self.nodes[number].running

    def restart(self, number: int) -> None:
        """Start the node again if it has ended. If it is our only one, wait until it is ready. One of several may need
        a majority for that."""
        node = self.nodes[number]
        if node.running:
            return
        node.launch()
        if self._ours and len(self.nodes) == 1:
            node.await_ready()

    def look(self) -> None:
        """Pass on new evidence, then raise NodeDied for an unexpected end, or the error of a start that failed."""
        for number, node in enumerate(self.nodes):
            self.read(number)
            if node.process is not None and node.process.exit_status is not None:
                self.read(number)  # The pipe may hold the announcement of this end.
            node.look()

    def read(self, number: int) -> None:
        """Pass on new evidence of one node."""
        for line in self.nodes[number].launcher.evidence():
            if ROLE in line:
                self.roles.note(number, line[ROLE])
            self._on_line(number, line)

    def load_starts(self, at_us: int) -> None:
        for node in self.nodes:
            node.launcher.load_starts(at_us)

    def disarm(self) -> None:
        """Note that the load is over. No fault at a state hits any more."""
        for node in self.nodes:
            node.launcher.disarm()

    def heal(self) -> None:
        """Let all nodes run again, and wait until they are ready. Raises NodeDied."""
        for node in self.nodes:
            if node.process is not None:
                node.process.resume()
            self.restart(node.number)
        for node in self.nodes:
            node.await_ready()

    def end_cleanly(self) -> None:
        """End our nodes, all at once, because the run is over. Raises NodeDied if one does not shut down cleanly."""
        running = [(node.name, node.process) for node in self.nodes if node.process is not None]
        for _, process in running:
            process.check()
        if not self._ours:
            return
        for _, process in running:
            process.request_end()
        for name, process in running:
            how = process.terminate()
            if process.exit_status != 0:
                raise NodeDied(f"{name} did not shut down cleanly: {how}; {process.last_words()}")

    def close(self) -> None:
        """End every process in any state, and pass on the last evidence. Ours get SIGTERM all at once, so that a leader
        hands over and no node waits for a majority that is ending too. Raises the first SetupError of a command."""
        failures = []
        for node in self.nodes:
            if self._ours and node.process is not None:
                node.process.request_end()
        for number, node in enumerate(self.nodes):
            try:
                node.end()
            except SetupError as failure:
                failures.append(failure)
            self.read(number)
            node.launcher.close()
        if failures:
            raise failures[0]
